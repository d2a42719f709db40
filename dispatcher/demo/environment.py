"""The demo's environment: the stand-ins for AWS with queue, topic and bucket, the lake, and the dispatcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from compactor.events.relay import Event
from compactor.lake import DeltaCatalog
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from dispatcher.assembly import DispatcherSettings, build_dispatcher
from dispatcher.clients import CommandDependencies, QueueAddress
from dispatcher.demo.folder import DemoFolder
from dispatcher.demo.stand_ins import BUCKET, REGION, S3Server, queue_server, s3_server
from dispatcher.intake.admission import Admission
from dispatcher.intake.intake import IntakeSettings
from dispatcher.intake.queue import Queue
from dispatcher.intake.receiver import ReceiverSettings
from dispatcher.options.service_options import ServiceOptions, ServicePlaces
from dispatcher.options.settings import connections, dispatcher_settings, session_clusters
from dispatcher.records.keys import SECRET_PREFIXES
from dispatcher.running.job_run_controller import JobRunControllerSettings
from dispatcher.service import ServiceSettings
from launcher.poller import PollerSettings
from launcher.retrying import RetryPolicy
from launcher.session_launcher import SessionLauncherSettings
from launcher.verdict import WatchTimers

SESSIONS_MAX = 4
"""At a time, on as many cores. A small session mostly starts its Spark, which takes one core."""

SETTINGS = DispatcherSettings(
    controller=JobRunControllerSettings(tick_seconds=0.1, look_seconds=1.5, heartbeat_event_seconds=0.5),
    receiver=ReceiverSettings(wait_seconds=1, idle_seconds=0.1),
    launcher=SessionLauncherSettings(
        poller=PollerSettings(poll_seconds=0.1, look_seconds=0.5),
        timers=WatchTimers(start_seconds=120.0, stall_seconds=120.0),
        retry=RetryPolicy(max_attempts=2),
    ),
    service=ServiceSettings(drain_seconds=0.0),
)
"""It polls more often than a service, for the screen, and gives up sooner."""

_NAME = "lithify-demo"


@dataclass(frozen=True)
class DemoEnvironment:
    """
    s3           the S3 server that the lake and the state are on; None: they are in `folder`
    topic_arn    the topic that instructions name
    receive      returns the events that arrived since its last call
    landing      where files land, for tables that have the property
    announced    the queue on which they are announced
    """

    folder: DemoFolder
    s3: S3Server | None
    lake: DeltaCatalog
    state: ObjectStore
    queue: Queue
    topic_arn: str
    receive: Callable[[], list[Event]]
    endpoint_url: str
    landing: ObjectStore
    announced: Queue


@contextmanager
def demo_environment(
    dependencies: CommandDependencies, folder: DemoFolder, *, on_s3: bool
) -> Iterator[DemoEnvironment]:
    """A context of running stand-ins. Raises `Invalid` if one is not installed, `Unavailable` if one does not start."""
    from dispatcher.aws.demo_account import EventFeed, create_bucket, create_services  # loads boto3

    with ExitStack() as running:
        endpoint_url = running.enter_context(queue_server())
        services = create_services(endpoint_url, REGION, _NAME)
        s3: S3Server | None = None
        if on_s3:
            s3 = running.enter_context(
                s3_server(folder.s3, lambda url: create_bucket(url, REGION, BUCKET), dependencies.clock)
            )
        yield DemoEnvironment(
            folder=folder,
            s3=s3,
            lake=DeltaCatalog(_open(folder, s3, "lake"), dependencies.clock),
            state=_open(folder, s3, "state"),
            queue=dependencies.clients.queue(QueueAddress(services.queue_url, None, endpoint_url, REGION)),
            topic_arn=services.topic_arn,
            receive=EventFeed.open(services.events_queue_url, endpoint_url, REGION).receive,
            endpoint_url=endpoint_url,
            landing=_open(folder, s3, "landing"),
            announced=dependencies.clients.queue(QueueAddress(services.files_queue_url, None, endpoint_url, REGION)),
        )


def make_dispatcher(
    dependencies: CommandDependencies, environment: DemoEnvironment, max_sessions: int | None
) -> Callable[[threading.Event], object]:
    """The `run` of the dispatcher that `lithify dispatch` builds."""
    places = ServicePlaces(
        queue_url=environment.queue.name,
        state=environment.state.location.root_uri,
        topic_arn=environment.topic_arn,
        endpoint_url=environment.endpoint_url,
        s3_endpoint_url=environment.s3.endpoint_url if environment.s3 is not None else None,
        region=REGION,
        work_folder=environment.folder.spark,
    )
    settings = replace(
        SETTINGS,
        intake=IntakeSettings(admission=Admission(lakes=(environment.lake.location.root_uri,))),
        controller=replace(SETTINGS.controller, max_sessions=max_sessions or min(dependencies.cores, SESSIONS_MAX)),
    )
    options = ServiceOptions(places=places, dispatcher=settings)
    clusters = session_clusters(dependencies, options, environment.state.location)
    parts = connections(dependencies, options, environment.queue, environment.state, clusters)
    return build_dispatcher(parts, dispatcher_settings(options, sns_regions={})).run


def _open(folder: DemoFolder, s3: S3Server | None, name: str) -> ObjectStore:
    if s3 is None:
        return open_store(parse_location(str(folder.path / name)), secret_prefixes=SECRET_PREFIXES)
    return open_store(parse_location(f"s3://{BUCKET}/{name}", endpoint_url=s3.endpoint_url, region=REGION))
