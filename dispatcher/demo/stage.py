"""Sets the demo's stage: the stand-ins, what is created in them, the lake, and the dispatcher that will work on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from compactor.catalog.catalog import DeltaCatalog
from compactor.events import Event
from compactor.object_store import ObjectStore, open_store, parse_location
from dispatcher.assembly import DispatcherSettings, Outside, build_dispatcher
from dispatcher.cli.tools import QueueAddress, Tools
from dispatcher.demo.place import Place
from dispatcher.demo.stand_ins import BUCKET, REGION, S3Server, queue_server, s3_server
from dispatcher.foreman import ForemanSettings
from dispatcher.intake import IntakeSettings
from dispatcher.queue import Queue
from dispatcher.receiver import ReceiverSettings
from dispatcher.service import ServiceSettings
from dispatcher.sinks import TopicSinks
from launcher.session_launcher import RetryPolicy, SessionLauncherSettings
from launcher.spark_conf import MACHINE_MEMORY_SHARE, share_of_machine
from launcher.watch import WatchTimers

SESSIONS_MAX = 4
"""Side by side, on as many cores. What a small session does is mostly to start its Spark, on one core."""

_NAME = "lithify-demo"


@dataclass(frozen=True)
class Stage:
    """
    lake, state  also known by `s3` where they lie on an S3 server, and else in `place`
    topic_arn    what instructions name, for their events
    receive      the events that have come since it was last called
    """

    place: Place
    s3: S3Server | None
    lake: DeltaCatalog
    state: ObjectStore
    queue: Queue
    topic_arn: str
    receive: Callable[[], list[Event]]
    endpoint_url: str


@contextmanager
def set_stage(tools: Tools, place: Place, *, on_s3: bool) -> Iterator[Stage]:
    """Inside, the stand-ins run. Raises `Invalid` if one is not installed, `Unavailable` if one does not start."""
    from dispatcher.aws.demo_account import EventFeed, create_bucket, create_services

    with ExitStack() as running:
        endpoint_url = running.enter_context(queue_server())
        services = create_services(endpoint_url, REGION, _NAME)
        s3: S3Server | None = None
        if on_s3:
            s3 = running.enter_context(s3_server(place.s3, lambda url: create_bucket(url, REGION, BUCKET), tools.clock))
        yield Stage(
            place=place,
            s3=s3,
            lake=DeltaCatalog(_open(place, s3, "lake"), tools.clock),
            state=_open(place, s3, "state"),
            queue=tools.clients.queue(QueueAddress(services.queue_url, None, endpoint_url, REGION)),
            topic_arn=services.topic_arn,
            receive=EventFeed.open(services.events_queue_url, endpoint_url, REGION).receive,
            endpoint_url=endpoint_url,
        )


def make_dispatcher(tools: Tools, stage: Stage, max_sessions: int | None) -> Callable[[threading.Event], None]:
    """What `lithify dispatch` runs; it looks more often, so that what is shown keeps up with what happens."""
    sessions = max_sessions or min(tools.cores, SESSIONS_MAX)
    resources, driver_memory_bytes = share_of_machine(
        int(tools.memory_bytes * MACHINE_MEMORY_SHARE), tools.cores, sessions
    )
    sinks = TopicSinks(stage.topic_arn, lambda arn: tools.clients.topic(arn, stage.endpoint_url))
    outside = Outside(
        queue=stage.queue,
        state=stage.state,
        cluster=tools.clients.local_cluster(resources, driver_memory_bytes, stage.place.spark),
        open_lake=tools.lake,
        sink_for=sinks.of,
        owner=tools.owner,
        clock=tools.clock,
    )
    settings = DispatcherSettings(
        intake=IntakeSettings(
            s3_endpoint_url=stage.s3.endpoint_url if stage.s3 is not None else None,
            s3_region=REGION if stage.s3 is not None else None,
        ),
        foreman=ForemanSettings(max_sessions=sessions, tick_seconds=0.1, heartbeat_event_seconds=0.5),
        receiver=ReceiverSettings(wait_seconds=1, idle_seconds=0.1),
        launcher=SessionLauncherSettings(
            poll_seconds=0.1,
            timers=WatchTimers(start_seconds=120.0, stall_seconds=120.0),
            retry=RetryPolicy(max_attempts=2),
        ),
        service=ServiceSettings(drain_seconds=0.0),
    )
    return build_dispatcher(outside, settings).run


def _open(place: Place, s3: S3Server | None, name: str) -> ObjectStore:
    if s3 is None:
        return open_store(parse_location(str(place.folder / name)))
    return open_store(parse_location(f"s3://{BUCKET}/{name}", endpoint_url=s3.endpoint_url, region=REGION))
