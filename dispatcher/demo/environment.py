"""The demo's environment: stand-ins for AWS, the lake, the dispatcher, the page, and the one folder that it leaves.

.lithify-demo/1/lake            or s3/, the data of the S3 server that holds lake and state
               /state           job runs, read by `lithify status`
               /tpch            the generator's output
               /instructions    the documents that were sent
               /spark           Spark's output (logs/) and scratch files
               /dispatcher.log
               /landing, /ingest.log    with --changes: the shop's feed, and what ingest says
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from compactor.events.relay import Event
from compactor.lake import DeltaCatalog
from compactor.model.clock import Clock
from compactor.model.errors import Invalid
from compactor.publishing.published_lake import PublishedLake
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from dispatcher.assembly import DispatcherSettings, build_dispatcher
from dispatcher.clients import CommandDependencies, QueueAddress
from dispatcher.demo.stand_ins import BUCKET, HOST, REGION, S3Server, queue_server, s3_server
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

PARENT = Path(".lithify-demo")
FOLDERS_MAX = 10_000


@dataclass(frozen=True)
class DemoFolder:
    """`shown` is the path as a person would type it."""

    path: Path
    shown: Path

    @property
    def log(self) -> Path:
        return self.path / "dispatcher.log"

    @property
    def ingest_log(self) -> Path:
        return self.path / "ingest.log"

    @property
    def spark(self) -> Path:
        return self.path / "spark"

    @property
    def s3(self) -> Path:
        return self.path / "s3"

    @property
    def tpch(self) -> Path:
        return self.path / "tpch"

    @property
    def instructions(self) -> Path:
        return self.path / "instructions"

    def shown_path(self, path: Path) -> str:
        """A path in the folder, as a person would type it."""
        return str(self.shown / path.relative_to(self.path))


def make_folder(named: Path | None) -> DemoFolder:
    """The named folder, which must be new or empty; without a name `.lithify-demo/<the next number>`."""
    try:
        if named is not None:
            named.mkdir(parents=True, exist_ok=True)
            if any(named.iterdir()):
                raise Invalid(f"{named} is not empty: name a folder that the demo may fill, or remove it")
            return DemoFolder(named.absolute(), named)
        for number in range(1, FOLDERS_MAX):
            folder = PARENT / str(number)
            if _create(folder):
                return DemoFolder(folder.absolute(), folder)
    except OSError as error:
        raise Invalid(f"{named or PARENT} cannot be used: {error.strerror}") from error
    raise Invalid(f"{PARENT} is full: remove it")


def _create(folder: Path) -> bool:
    """False if it exists already."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


SESSIONS_MAX = 4
"""Sessions at a time, on as many cores. A small session mostly starts its Spark, which takes one core."""

SETTINGS = DispatcherSettings(
    controller=JobRunControllerSettings(tick_seconds=0.1, look_seconds=1.5, heartbeat_event_seconds=0.5),
    receiver=ReceiverSettings(wait_seconds=1, idle_seconds=0.1),
    launcher=SessionLauncherSettings(
        poller=PollerSettings(poll_seconds=0.1, look_seconds=0.5),
        timers=WatchTimers(start_seconds=300.0, stall_seconds=120.0),
        retry=RetryPolicy(max_attempts=2),
    ),
    service=ServiceSettings(drain_seconds=0.0),
)
"""The settings of the demo's dispatcher: it polls more often than a service, for the screen, and gives up sooner."""

_NAME = "lithify-demo"


@dataclass(frozen=True)
class DemoEnvironment:
    """
    Attributes:
        s3: the S3 server that the lake and the state are on; None: they are in `folder`
        topic_arn: the topic that instructions name
        receive: returns the events that arrived since its last call
        landing: where files land, for tables that have the property
        announced: the queue on which they are announced"""

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
    from dispatcher.aws.demo_account import EventFeed, create_bucket, create_services  # loads botocore

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
    dependencies: CommandDependencies,
    environment: DemoEnvironment,
    max_sessions: int | None,
    show_step: Callable[[str], None],
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
    if parts.workers is not None:
        parts.workers.notify_compiling = show_step
    return build_dispatcher(parts, dispatcher_settings(options, sns_regions={})).run


def _open(folder: DemoFolder, s3: S3Server | None, name: str) -> ObjectStore:
    if s3 is None:
        (folder.path / name).mkdir(exist_ok=True)  # what is not there would be shown as away
        return open_store(parse_location(str(folder.path / name)), secret_prefixes=SECRET_PREFIXES)
    return open_store(parse_location(f"s3://{BUCKET}/{name}", endpoint_url=s3.endpoint_url, region=REGION))


@contextmanager
def demo_page(environment: DemoEnvironment, clock: Clock) -> Iterator[str]:
    """The URL of the page, which is up while the context is open. Raises `Invalid` if its extra is not installed."""
    try:
        import uvicorn

        from dispatcher.web.app import Doors, create_app
        from dispatcher.web.iceberg_rest import IcebergRestCatalog
        from dispatcher.web.readings import Readings
    except ImportError as error:
        raise Invalid(f"the page needs {error.name}: pip install 'lithify[serve]'") from error
    lake = environment.lake
    published = PublishedLake(lake.store, clock)
    with socket.create_server((HOST, 0), backlog=128) as listener:
        address = f"{HOST}:{listener.getsockname()[1]}"
        readings = Readings(environment.state, lake, clock, environment.queue)
        app = create_app(readings, IcebergRestCatalog(published), Doors([address]))
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="page", daemon=True)
        thread.start()
        try:
            yield f"http://{address}/"
        finally:
            server.should_exit = True
            thread.join()
