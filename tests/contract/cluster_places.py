"""The places that the contract of clusters is tried at: each makes clusters, as several dispatchers have them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

import psutil

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.planning.bundle_plan import BundlePlan
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan
from compactor.sessions.bundle import MemberTask, UnloggedEnd, run_bundle
from compactor.sessions.keys import BundleObject
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from launcher.aws.emr import BotoEmr, BotoEmrServerless
from launcher.clusters import Cluster
from launcher.clusters.drivers import read_record
from launcher.clusters.emr import EmrCluster
from launcher.clusters.emr_serverless import EmrServerlessCluster
from launcher.clusters.local import LocalCluster, LocalClusterSettings, StandaloneCluster, StandaloneClusterSettings
from launcher.plan import Room
from launcher.sizing.cluster_choice import ClusterLimits, ClusterRoom
from launcher.spark_job import ClusterReference, SparkJob
from tests.crashes import HurriedClock
from tests.fakes.attempts import run_attempt
from tests.fakes.emr_account import NO_CAPACITY, EmrAccount, Timings
from tests.fakes.emr_server import EmrServer
from tests.fakes.emr_serverless_account import NO_SERVERLESS_CAPACITY, ServerlessAccount
from tests.fakes.emr_steps import StepsInThreads
from tests.fakes.held_engine import HeldEngine
from tests.fakes.in_process_runner import InProcessTaskRunner
from tests.fakes.small_cluster import (
    STOPPED_EXIT_CODE,
    Behaviour,
    Crashes,
    FindsNoRoom,
    SmallCluster,
    SmallJob,
    Succeeds,
)
from tests.servers import REGION
from tests.unit.launcher.test_emr_request import SERVERLESS_SETTINGS
from tests.unit.launcher.test_emr_request import SETTINGS as EMR_SETTINGS
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
RESOURCES = Resources(1 << 30, 1)


class Does(Enum):
    """The behaviour of the jobs that are launched from now on."""

    WAITS = "waits, and ends well once it is let go"
    RUNS_SESSION = "the same, and what it ran is a session"
    FAILS = "exits with 1"
    IS_INVALID = "exits with 2"
    IS_OVERTAKEN = "exits with 3"
    FINDS_NO_ROOM = "finds no machines, or cannot be launched for want of them"


class ClusterUnderTest(Protocol):
    """One implementation, with the actions of a test on it from outside."""

    @property
    def room(self) -> Room:
        """The resources that sessions are planned with."""

    def cluster(self) -> Cluster:
        """A cluster object of another dispatcher."""

    def jobs_do(self, what: Does) -> None: ...

    def let_go(self) -> None:
        """Lets waiting jobs succeed."""

    def make_vanish(self, reference: ClusterReference) -> None:
        """Removes the job without a record of its end."""

    def launches(self) -> int:
        """Jobs that were ever started."""

    def running(self) -> int:
        """Jobs of which anything still runs."""


class SmallPlace:
    """The fake."""

    room = RESOURCES

    def __init__(self, state: ObjectStore) -> None:
        self._state = state
        self._jobs: dict[str, SmallJob] = {}
        self._clusters: list[SmallCluster] = []
        self._let_go = threading.Event()
        self._does = Does.WAITS

    def cluster(self) -> SmallCluster:
        made = SmallCluster(self._state, SystemClock(), jobs=self._jobs, behaves=self._behave, has=RESOURCES)
        self._clusters.append(made)
        return made

    def jobs_do(self, what: Does) -> None:
        self._does = what

    def let_go(self) -> None:
        self._let_go.set()

    def make_vanish(self, reference: ClusterReference) -> None:
        self._jobs[reference.ids["name"]].stop()
        del self._jobs[reference.ids["name"]]

    def launches(self) -> int:
        return sum(len(each.launched) for each in self._clusters)

    def running(self) -> int:
        return sum(each.running for each in self._clusters)

    def _behave(self, job: SparkJob) -> Behaviour:
        match self._does:
            case Does.WAITS | Does.RUNS_SESSION:
                return Succeeds(self._let_go)
            case Does.FAILS:
                return Crashes(1)
            case Does.IS_INVALID:
                return Crashes(2)
            case Does.IS_OVERTAKEN:
                return Crashes(3)
            case Does.FINDS_NO_ROOM:
                return FindsNoRoom()


_SCRIPTS = {
    Does.WAITS: 'while [ -e "$HOLD" ]; do sleep 0.02; done',
    Does.RUNS_SESSION: 'SESSION_HOLD="$HOLD" exec "$PYSPARK_DRIVER_PYTHON" -m tests.fakes.spark_submit "$@"',
    Does.FAILS: "echo no; exit 1",
    Does.IS_INVALID: "echo no; exit 2",
    Does.IS_OVERTAKEN: "echo no; exit 3",
}


class LocalPlace:
    """Processes of this machine; a script replaces `spark-submit`, and records that it was started."""

    room = RESOURCES

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hold = folder / "hold"
        folder.mkdir()
        self._hold.touch()
        self._started = folder / "started"
        self._started.touch()
        self._program = folder / "spark" / "bin" / "spark-submit"
        self._program.parent.mkdir(parents=True)
        self.jobs_do(Does.WAITS)

    def cluster(self) -> Cluster:
        settings = LocalClusterSettings(
            resources=RESOURCES,
            driver_memory_bytes=1 << 30,
            spark_home=self._folder / "spark",
            java_home=Path("/a/java"),
            work_folder=self._folder / "work",
            environment=self._environment,
            stop_seconds=1.0,
        )
        return LocalCluster(settings, SystemClock())

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HOLD": str(self._hold), "PYTHONPATH": str(REPOSITORY)}

    def jobs_do(self, what: Does) -> None:
        if what is Does.FINDS_NO_ROOM:
            (self._folder / "work" / "jobs").parent.mkdir()
            (self._folder / "work" / "jobs").touch()  # no folder, so no record of another process can be kept there
            return
        written = self._program.with_name("next")
        written.write_text(f'#!/bin/sh\necho started >> "{self._started}"\n{_SCRIPTS[what]}\n')
        written.chmod(0o755)
        written.replace(self._program)

    def let_go(self) -> None:
        self._hold.unlink()

    def make_vanish(self, reference: ClusterReference) -> None:
        record = self._folder / "work" / "jobs" / f"{reference.ids['name']}.json"
        wait_until(lambda: (process := read_record(record)) is not None and process.group is not None)
        process = read_record(record)
        assert process is not None
        assert process.group is not None
        os.kill(process.pid, signal.SIGKILL)
        os.killpg(process.group, signal.SIGKILL)

    def launches(self) -> int:
        return len(self._started.read_text().splitlines())

    def running(self) -> int:
        """Of the groups that supervisors have noted, those with a process that is not a zombie."""
        groups = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if process.status() != psutil.STATUS_ZOMBIE:
                    groups.add(os.getpgid(process.pid))
        records = [read_record(file) for file in (self._folder / "work" / "jobs").glob("*.json")]
        return sum(record is not None and record.group in groups for record in records)


INSTANT = Timings(starting=0.02, bootstrapping=0.02, terminating=0.05)


@dataclass(frozen=True)
class AwsService:
    """Clients take long to make, so tests share them."""

    server: EmrServer
    emr: BotoEmr
    serverless: BotoEmrServerless

    @classmethod
    def open(cls, server: EmrServer) -> AwsService:
        (application_id,) = server.serverless.application_ids
        return cls(server, BotoEmr.open(REGION, server.url), BotoEmrServerless.open(application_id, REGION, server.url))


class StandalonePlace(LocalPlace):
    """Drivers of a standalone Spark that does not exist: the same script replaces `spark-submit`."""

    def cluster(self) -> Cluster:
        settings = StandaloneClusterSettings(
            master_url="spark://127.0.0.1:7077",
            archive=self._folder / "lithify.tar.gz",
            resources=RESOURCES,
            driver_memory_bytes=1 << 30,
            spark_home=self._folder / "spark",
            java_home=Path("/a/java"),
            work_folder=self._folder / "work",
            environment=self._environment,
            stop_seconds=1.0,
        )
        return StandaloneCluster(settings, SystemClock())


class _AwsPlace:
    """The fake service over HTTP, and boto3. A step is a thread of this process: it runs a session, or ends as told."""

    def __init__(self, service: AwsService, state: ObjectStore) -> None:
        server = service.server
        self._service = service
        self._state = state
        self._let_go = threading.Event()
        self._does = Does.WAITS
        self._started: list[str] = []
        clock, steps = SystemClock(), StepsInThreads(self._program)
        self._emr = EmrAccount(clock, steps, INSTANT)
        self.serverless = ServerlessAccount(clock, steps, seconds_in_a_state=0.02)
        self.server = server
        server.reset(self._emr, self.serverless)

    @property
    def room(self) -> ClusterRoom:
        return ClusterRoom(ClusterLimits(nodes_max=2))

    def jobs_do(self, what: Does) -> None:
        self._does = what

    def let_go(self) -> None:
        self._let_go.set()

    def launches(self) -> int:
        """Number of started steps. The service advances only during requests."""
        with self.server.lock:
            self._emr.let_time_pass()
            self.serverless.let_time_pass()
            return len(self._started)

    def _program(self, arguments: Sequence[str], stopped: threading.Event) -> int:
        self._started.append(" ".join(arguments))
        match self._does:
            case Does.WAITS:
                while not self._let_go.wait(0.01):
                    if stopped.is_set():
                        return STOPPED_EXIT_CODE
                return 0
            case Does.RUNS_SESSION:
                return self._run_plan(dict(zip(arguments[::2], arguments[1::2])), stopped)
            case Does.FAILS | Does.FINDS_NO_ROOM:
                return 1
            case Does.IS_INVALID:
                return 2
            case Does.IS_OVERTAKEN:
                return 3

    def _run_plan(self, given: Mapping[str, str], stopped: threading.Event) -> int:
        """A session's, or a bundle's."""
        key = given["--plan"]
        body, path, clock = self._state.read(key), BundleObject.parse_or_none(key), SystemClock()
        assert body is not None

        def wait() -> None:
            while not self._let_go.wait(0.01):
                if stopped.is_set():
                    raise _StepStopped

        def run_when_let_go(
            run: Callable[[MemberTask, bool], UnloggedEnd | None], task: MemberTask, is_again: bool
        ) -> UnloggedEnd | None:
            wait()
            return run(task, is_again)

        try:
            if path is not None:
                runner = InProcessTaskRunner[MemberTask, "UnloggedEnd | None"](run_when_let_go)
                bundle = BundlePlan.parse_durable(body, key)
                run_bundle(bundle, path.bundle.job_run_id, self._state, runner, None, clock)
            else:
                plan = SessionPlan.parse_durable(body, key)
                lake = DeltaCatalog(open_store(plan.spec.job_run.lake), clock)
                run_attempt(plan, lake, self._state, HeldEngine(wait), int(given["--attempt"]), clock)
        except _StepStopped:
            return STOPPED_EXIT_CODE
        return 0


class _StepStopped(BaseException):
    """Not an `Exception`: a process that is killed writes no end into its log."""


class EmrPlace(_AwsPlace):
    def cluster(self) -> EmrCluster:
        settings = EMR_SETTINGS.model_copy(update={"region": REGION, "endpoint_url": self.server.url})
        return EmrCluster(self._service.emr, settings, self.room, "owner", HurriedClock())

    def jobs_do(self, what: Does) -> None:
        super().jobs_do(what)
        self._emr.mishaps[:] = [NO_CAPACITY] if what is Does.FINDS_NO_ROOM else []

    def make_vanish(self, reference: ClusterReference) -> None:
        with self.server.lock:
            self._emr.stop()
            del self._emr.clusters[reference.ids["cluster_id"]]

    def running(self) -> int:
        with self.server.lock:
            return len(self._emr.live())


class EmrServerlessPlace(_AwsPlace):
    @property
    def room(self) -> ClusterRoom:
        return ClusterRoom(ClusterLimits(nodes_max=2), serverless=True)

    def cluster(self) -> EmrServerlessCluster:
        (application_id,) = self.serverless.application_ids
        here = {"region": REGION, "endpoint_url": self.server.url, "application_id": application_id}
        settings = SERVERLESS_SETTINGS.model_copy(update=here)
        return EmrServerlessCluster(self._service.serverless, settings, self.room, "owner", SystemClock())

    def jobs_do(self, what: Does) -> None:
        super().jobs_do(what)
        self.serverless.mishaps[:] = [NO_SERVERLESS_CAPACITY] if what is Does.FINDS_NO_ROOM else []

    def make_vanish(self, reference: ClusterReference) -> None:
        with self.server.lock:
            self.serverless.stop()
            del self.serverless.job_runs[reference.ids["job_run_id"]]

    def running(self) -> int:
        with self.server.lock:
            return len(self.serverless.live())
