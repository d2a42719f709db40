"""One simulated state with two to four dispatchers: everything in it is real but the services, the Spark jobs and time.

A seed decides what is sent, how often, and everything that goes wrong: answers that are lost, services that are
unavailable or refuse, credentials that expire, clocks that differ, processes that are killed before or after a named
write, or that hang for longer than a claim lasts. A dispatcher may have warm workers, a second place beside Spark: they
die before or after a commit, hang, and outlive their dispatcher for a while. Sessions of one job run may share a launch
in either place: a fault meets one of them. After `QUIET_SECONDS` nothing goes
wrong. In the end `violations` lists the broken invariants; `digest` is the hash of all writes, events and runs, in
order.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from compactor.events.relay import Event
from compactor.lake import DeltaCatalog
from compactor.log.durable_log import DurableLog, LogState
from compactor.log.keys import EntryObject
from compactor.model.errors import EXIT_FENCED, Conflict, Denied, ErrorKind, Fenced, LithifyError, Unavailable
from compactor.model.retries import Backoff
from compactor.planning.bundle_plan import BundleBounds, BundlePlan, SmallSession
from compactor.planning.cluster_plan import ClusterPlan, Cost, StoreUse
from compactor.planning.sizing import Resources
from compactor.planning.spec import SessionPlan, SessionResult, SessionSpec
from compactor.planning.where_to_run import InOneProcess, WorkerPool, choose_place
from compactor.sessions.bundle import BundleHeartbeat, EndedMember, UnloggedEnd
from compactor.sessions.keys import BundleFolder, BundleObject, SessionFolder
from compactor.sessions.session_journal import SessionJournal
from compactor.sessions.session_log import SESSION_LOG
from compactor.storage.keys import encode_partition
from compactor.storage.object_store import ObjectEntry
from dispatcher.intake.admission import Admission
from dispatcher.intake.intake import Intake, IntakeSettings
from dispatcher.intake.queue import QueueMessage
from dispatcher.intake.receiver import Receiver, ReceiverSettings
from dispatcher.outbox.event_publisher import EventPublisher, PublisherSettings
from dispatcher.outbox.table_publications import TablePublications, TablePublicationSettings
from dispatcher.outbox.workflow_callbacks import AnswerSettings, WorkflowAnswers
from dispatcher.records.history_upkeep import HistoryUpkeep
from dispatcher.records.job_run_log import CancelRequested, JobRunAccepted, JobRunAction, JobRunEnded, JobRunState
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.metrics_samples import Metrics
from dispatcher.records.ranking import table_digest
from dispatcher.running.job_run_controller import JobRunController, JobRunControllerSettings, Launchers
from dispatcher.running.journal import Listeners
from dispatcher.running.session_finding import SessionFinding
from dispatcher.running.sharding import Sharding
from dispatcher.scheduling.leases import LeaseAnswer, Leases
from launcher.clusters.drivers import status_of_exit
from launcher.clusters.workers import KIND, GoneWorker
from launcher.launch import LaunchDependencies
from launcher.outcomes import NothingToDo
from launcher.plan import LackOfMemory, LargeSession, plan_for_cluster
from launcher.poller import Poller, PollerSettings
from launcher.retrying import RetryPolicy
from launcher.session_launcher import Planners, SessionLauncher, SessionLauncherSettings, WorkerLaunches
from launcher.spark_job import ClusterReference, JobRunning, JobStatus, JobVanished, NotLaunched, SparkJob
from launcher.verdict import WatchTimers
from tests.fakes.memory_callbacks import MemoryCallbacks
from tests.fakes.memory_glue import MemoryGlue
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.memory_store import MemoryStore
from tests.simulation.order import OrderOfAcceptance
from tests.simulation.virtual_threads import Killed, Process, Scheduler, use

START_MS = 1_760_000_000_000
QUIET_SECONDS = 900.0
"""From then on nothing goes wrong, and everything must come to its end."""

LIMIT_SECONDS = 6 * 3_600.0
CLAIM_SECONDS = 60.0
SKEW_SECONDS = 600.0
WIDE_RUNS = 2
"""Job runs of a world that are over many streams, where there is a table with so many."""

RESOURCES = Resources(task_memory_bytes=1 << 30, tasks=2)

WORKER_MEMORY_BYTES = 1 << 28

PREDICTED_SECONDS = (0.02, 0.02, 0.5, 40.0)
"""Of the sessions of a table: mostly tiny; so many that they share a Spark, and each of them for a Spark of its own."""

BUNDLES = (BundleBounds(sessions=1), BundleBounds(sessions=3), BundleBounds())
"""Of a dispatcher: none, small ones, and such that a job run is one."""

OUTLIVES_SECONDS = 60.0
"""A worker may outlive its dispatcher by so much: its end comes when it reads its closed pipe."""


@dataclass(frozen=True)
class Pace:
    """How fast a world of dispatchers lives: their intervals are those of a minute's world, times `factor`.

    session_seconds  from the beginning of an attempt to its commit
    quiet_seconds    from when on nothing goes wrong
    dooms            of named writes, at most
    attempts         of a session, after which it has failed
    """

    factor: float = 1.0
    session_seconds: tuple[float, float] = (1.0, 40.0)
    quiet_seconds: float = QUIET_SECONDS
    dooms: int = 5
    attempts: int = 100

    @property
    def controller(self) -> JobRunControllerSettings:
        return JobRunControllerSettings(
            max_sessions=3,
            max_job_runs=12,
            claim_seconds=CLAIM_SECONDS * self.factor,
            receiver_seconds=975.0 * self.factor,
            stuck_seconds=120.0 * self.factor,
            sweep_seconds=15.0 * self.factor,
            pause_look_seconds=15.0 * self.factor,
            turn_look_seconds=30.0 * self.factor,
            look_seconds=15.0 * self.factor,
            requeue_seconds=5.0 * self.factor,
            set_aside_seconds=60.0 * self.factor,
            tick_seconds=2.0 * self.factor,
        )

    @property
    def launcher(self) -> SessionLauncherSettings:
        timer = 120.0 * self.factor
        return SessionLauncherSettings(
            poller=PollerSettings(poll_seconds=2.0 * self.factor, look_seconds=6.0 * self.factor),
            timers=WatchTimers(start_seconds=timer, stall_seconds=timer, exit_seconds=10.0),
            retry=RetryPolicy(max_attempts=self.attempts, max_unwatched=100),
        )


WRITES = (
    "open_job_runs_by_owner/",
    "/log/00000000000000000001.json",
    "/log/00000000000000000002.json",
    "/log/00000000000000000003.json",
    "/log/",
    "plan.json",
    "live_dispatchers/",
    "published.json",
    "history/days/",
    "task_tokens/",
    "answered_waiters/",
    "rejected_documents/",
    "queue delete",
    "queue dead letter",
    "queue copy",
    "topic",
    "launch",
    "workflow",
)
"""Before or after any of them a dispatcher may be killed, or stand still."""


class Ask(StrEnum):
    """Options of a run."""

    LOSE_AN_EVENT = "lose an event"
    COMMIT_TWICE = "commit twice"
    LOSE_A_RECORD = "lose a record"
    TAKE_ANY_TURN = "take any lease"
    PASS_OTHERS = "pass others"
    KEEP_WORKERS = "keep workers"
    """Something is broken on purpose: the run must say so."""


@dataclass
class Doom:
    """The fault of the first dispatcher that makes this write, from a time on."""

    write: str
    after: bool
    from_seconds: float
    stands_still: bool
    is_met: bool = False


class NodeClock:
    """The clock of one machine: its wall clock is wrong by `skew_ms`."""

    def __init__(self, world: World | Surroundings, skew_ms: int = 0) -> None:
        self._world = world
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return START_MS + self._skew_ms + round(self._world.scheduler.now * 1000)

    def monotonic_seconds(self) -> float:
        return self._world.scheduler.now

    def sleep(self, seconds: float) -> None:
        self._world.scheduler.sleep(seconds)

    def new_id(self) -> str:
        return f"{self._world.chance.getrandbits(128):032x}"


class NodeStore:
    """The state's store as one dispatcher sees it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self.location = world.state.location

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if self._world.loses(key):
            return True
        created = self._write("put_if_absent", key, lambda: self._create(key, body))
        # A store that repeats a put after a lost answer finds its own object.
        return created and not self._world.happens(0.002)

    def overwrite(self, key: str, body: bytes) -> None:
        self._write("overwrite", key, lambda: self._world.state.overwrite(key, body))

    def delete(self, key: str) -> None:
        if "/log/" in key and key.endswith(".json"):
            self._world.wrong(f"entry {key} was deleted")
        self._write("delete", key, lambda: self._world.state.delete(key))

    def delete_many(self, keys: Sequence[str]) -> dict[str, str]:
        for key in keys:
            self.delete(key)
        return {}

    def read(self, key: str) -> bytes | None:
        self._world.request(self._process)
        return self._world.state.read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        self._world.request(self._process)
        return self._world.state.read_range(key, start, length)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        self._world.request(self._process)
        return iter(list(self._world.state.list(prefix, start_after)))

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        self._world.request(self._process)
        return iter(list(self._world.state.list_folders(prefix, even_empty=even_empty)))

    def unfinished(self) -> Iterator[object]:
        return iter(())

    def give_up(self, write: object) -> None:
        """There is none."""

    def _create(self, key: str, body: bytes) -> bool:
        created = self._world.state.put_if_absent(key, body)
        if created:
            self._world.order.created(self._process, key, body)
        return created

    def _write(self, verb: str, key: str, act: Callable[[], object]) -> bool:
        world, process = self._world, self._process
        world.request(process)
        world.meet(process, key, after=False)
        result = act()
        world.note(process.name, verb, key, str(result))
        world.meet(process, key, after=True)
        if world.happens(0.004):
            raise Unavailable(f"the answer to {verb} of {key} was lost")
        return bool(result)


class NodeQueue:
    """The queue as one dispatcher sees it. Its calls do not wait, since the receiver calls it with a lock held."""

    def __init__(self, world: World, process: Process, queue: MemoryQueue) -> None:
        self._world = world
        self._process = process
        self._queue = queue
        self.name = queue.name
        self.deliveries_max = queue.deliveries_max

    def receive(self, messages_max: int, wait_seconds: int, visibility_seconds: int) -> Sequence[QueueMessage]:
        self._world.may_fail("the queue does not answer")
        messages = self._queue.receive(self._world.chance.randint(1, messages_max), 0, visibility_seconds)
        if self._world.happens(0.01):
            raise Unavailable("the answer of the queue was lost")
        return messages

    def delete(self, message: QueueMessage) -> None:
        self._act("queue delete", message.message_id, lambda: self._queue.delete(message))

    def delete_all(self, messages: Sequence[QueueMessage]) -> None:
        for message in messages:
            self.delete(message)

    def set_visibility(self, message: QueueMessage, seconds: int) -> None:
        self._act("queue visibility", message.message_id, lambda: self._queue.set_visibility(message, seconds))

    def dead_letter(self, message: QueueMessage, reasons: Sequence[str]) -> None:
        self._act("queue dead letter", message.message_id, lambda: self._queue.dead_letter(message, reasons))

    def send(self, body: str, attributes: object = None, group: str | None = None) -> str:
        raise NotImplementedError

    def send_again(self, message: QueueMessage, delay_seconds: int) -> None:
        self._act("queue copy", message.message_id, lambda: self._queue.send_again(message, delay_seconds))

    def messages_left(self) -> int:
        return self._queue.messages_left()

    def messages_visible(self) -> int:
        return self._queue.messages_visible()

    def dead_letters(self) -> MemoryQueue:
        return self._queue.dead_letters()

    def _act(self, what: str, name: str, act: Callable[[], None]) -> None:
        world = self._world
        world.may_fail("the queue does not answer")
        world.meet(self._process, what, after=False)
        act()
        world.note(self._process.name, what, name)
        world.meet(self._process, what, after=True)
        if world.happens(0.01):
            raise Unavailable("the answer of the queue was lost")


class NodeTopic:
    name = "topic"

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def publish(self, events: Sequence[Event]) -> None:
        world = self._world
        world.scheduler.check()
        world.may_fail("the topic does not answer")
        if world.topic_hangs:
            world.scheduler.sleep(30.0)
            raise Unavailable("the topic hangs")
        world.meet(self._process, "topic", after=False)
        for event in events:
            world.published(event)
        world.note(self._process.name, "topic", ",".join(event.id for event in events))
        world.meet(self._process, "topic", after=True)
        if world.happens(0.01):
            raise Unavailable("the answer of the topic was lost")


SPARK_FATES = ("crashes", "crashes after its commit", "hangs", "vanishes")
WORKER_FATES = ("crashes", "crashes after its commit", "hangs")


@dataclass
class MemberAtWork:
    """One attempt in a job. `begun_at`, `ended_at`: in simulated seconds; 0: it has not begun, or not ended.

    superseded_at  another one was at work on its stream, while its dispatcher had lost the claim: that of a worker is
                   taken for gone then, and one of the two commits would be refused
    """

    attempt: int
    plan: SessionPlan
    begun_at: float = 0.0
    ended_at: float = 0.0
    superseded_at: float = 0.0

    @property
    def job_run_id(self) -> str:
        return self.plan.spec.job_run.job_run_id

    @property
    def stream(self) -> tuple[str, str]:
        spec = self.plan.spec
        return spec.job_run.destination_compacted_table_id, encode_partition(spec.partition)

    @property
    def folder(self) -> SessionFolder:
        return SessionFolder(self.job_run_id, self.plan.spec.session_id)


class Job:
    """A Spark job, or the job of a worker, of one session or of a bundle: its members start, commit once, log that, and
    end, one after the other; or it fails at any of these steps of one of them."""

    def __init__(self, world: World, job: SparkJob, launched_by: str, worker: NodeWorkers | None = None) -> None:
        """`launched_by`: the process; `worker`: it runs in one of these."""
        self.launched_by = launched_by
        self._worker = worker
        self._world = world
        self._job = job
        self._exit_code: int | None = None
        self._vanishes = False
        self._bundle, self.members = self._read_plan()
        self._ended: list[EndedMember] = []
        chance, now = world.chance, world.scheduler.now
        self._fate, self._fate_meets = "succeeds", 0
        if now < world.quiet_from_seconds and chance.random() < world.bad_jobs:
            self._fate = chance.choice(SPARK_FATES if worker is None else WORKER_FATES)
            self._fate_meets = chance.randrange(len(self.members))
        starts = now + chance.uniform(*((1.0, 10.0) if worker is None else (0.0, 0.2)))
        world.scheduler.at(starts, self._start)

    def _read_plan(self) -> tuple[BundleFolder | None, list[MemberAtWork]]:
        """The folder of its bundle, if it is one."""
        key = self._job.plan_key
        body, bundle = self._world.state.read(key), BundleObject.parse_or_none(key)
        assert body is not None
        if bundle is None:
            return None, [MemberAtWork(self._job.attempt, SessionPlan.parse_durable(body, key))]
        plan = BundlePlan.parse_durable(body, key)
        return bundle.bundle, [MemberAtWork(each.attempt, each.plan) for each in plan.members]

    @property
    def reference(self) -> ClusterReference:
        kind, place = ("small", "simulated") if self._worker is None else (KIND, self._worker.place)
        return ClusterReference(kind=kind, ids={"name": self._job.name, "place": place})

    description = "simulated job"

    @property
    def runs(self) -> bool:
        return self._exit_code is None

    @property
    def runs_in_worker(self) -> bool:
        return self.runs and self._worker is not None

    def status(self) -> JobStatus:
        if self._exit_code is None:
            return JobRunning()
        if self._vanishes:
            return JobVanished("vanished: the cluster knows nothing of it")
        return status_of_exit(self._exit_code, "")

    def stop(self) -> None:
        if self._worker is None or not self._world.keeps_workers:
            self._end(143)

    def loses_its_dispatcher(self) -> None:
        """A worker's job, at once or a while later, after its commit or without it."""
        if self.runs:
            outlives = self._world.chance.choice([0.0, self._world.chance.uniform(0.0, OUTLIVES_SECONDS)])
            self._world.scheduler.at(self._world.scheduler.now + outlives, lambda: self._end(143))

    def _end(self, exit_code: int) -> None:
        if self._exit_code is None:
            self._exit_code = exit_code
            for member in self.members:
                member.ended_at = member.ended_at or self._world.scheduler.now
            self._world.note("job", self._job.name, str(exit_code))

    def _start(self) -> None:
        if self.runs and self._bundle is not None:
            self._beat(self._bundle)
        self._begin(0)

    def _begin(self, number: int) -> None:
        """The member of this number, or the end of the job."""
        if not self.runs:
            return None
        if number == len(self.members):
            return self._end(0)
        member, scheduler = self.members[number], self._world.scheduler
        try:
            self._journal(member).started(0, 1, 1, member.plan.expected_sla)
        except (Fenced, Conflict):
            return self._is_fenced(number)
        member.begun_at = scheduler.now  # one that is fenced does nothing
        self._world.supersede(member)
        self._world.begins(member)
        scheduler.at(scheduler.now + self._world.session_seconds(), lambda: self._commit(number))
        return None

    def _commit(self, number: int) -> None:
        fate = self._fate if number == self._fate_meets else "succeeds"
        if not self.runs or fate == "hangs":
            return None
        if fate in ("crashes", "vanishes"):
            self._vanishes = fate == "vanishes"
            return self._end(1)
        member = self.members[number]
        spec, state = member.plan.spec, self._log(member).load().state
        if state.attempt != member.attempt:
            return self._is_fenced(number)
        self._world.commit(member)
        if fate != "succeeds":
            return self._end(1)
        result = SessionResult(
            session_id=spec.session_id,
            partition=spec.partition,
            rounds=1,
            rows_in=1,
            rows_out=1,
            rows_deduplicated=0,
            rows_deleted=0,
            seconds=1.0,
            expected_sla=member.plan.expected_sla,
            cost=self._world.cost(spec),
        )
        self._journal(member).succeeded(result)
        return self._is_over(number, None)

    def _is_fenced(self, number: int) -> None:
        if self._bundle is None:
            return self._end(EXIT_FENCED)
        return self._is_over(number, UnloggedEnd(error_kind=ErrorKind.FENCED, reason="a later attempt has begun"))

    def _is_over(self, number: int, untold: UnloggedEnd | None) -> None:
        """The next member begins."""
        self.members[number].ended_at = self._world.scheduler.now
        if self._bundle is not None:
            self._ended.append(EndedMember(member=number, untold=untold))
            self._beat(self._bundle)
        self._begin(number + 1)

    def _beat(self, bundle: BundleFolder) -> None:
        beat = BundleHeartbeat(
            bundle_id=bundle.bundle_id,
            at_ms=self._world.clock.now_ms(),
            members=len(self.members),
            ended=tuple(self._ended),
        )
        self._world.state.overwrite(bundle.heartbeat.key, beat.render())

    def _journal(self, member: MemberAtWork) -> SessionJournal:
        return SessionJournal(self._world.state, member.folder, member.attempt, self._world.clock)

    def _log(self, member: MemberAtWork) -> DurableLog:  # type: ignore[type-arg]
        return DurableLog(self._world.state, member.folder.log, SESSION_LOG, self._world.clock)


class NodeWorkers:
    """The warm workers of one dispatcher process: no other one sees their jobs."""

    status_is_free = True

    def __init__(self, world: World, process: Process, pool: WorkerPool) -> None:
        self.pool = pool
        self.place = f"{KIND} {process.name}"
        self._world = world
        self._process = process
        self._jobs: dict[str, Job] = {}

    def resources(self) -> Resources:
        return Resources(self.pool.memory_bytes, tasks=1, start_seconds=0.0, in_process=True)

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        world = self._world
        world.scheduler.check()
        if job.name not in self._jobs:
            if len(self.running()) >= self.pool.workers:
                world.wrong(f"{job.name} was to run in a worker of {self._process.name}, and none is idle")
                raise NotLaunched("no worker is idle")
            if world.happens(0.03):
                raise NotLaunched("the worker has died")
            world.meet(self._process, "launch", after=False)
            world.jobs[job.name] = self._jobs[job.name] = Job(world, job, self._process.name, self)
            world.note(self._process.name, "launch in worker", job.name)
            world.meet(self._process, "launch", after=True)
        return self._jobs[job.name].reference

    def attach(self, reference: ClusterReference) -> Job | GoneWorker | None:
        if reference.kind != KIND:
            return None
        return self._jobs.get(reference.ids["name"]) or GoneWorker(reference)

    def find(self, name: str) -> ClusterReference | None:
        return self._jobs[name].reference if name in self._jobs else None

    def running(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.runs]

    def end(self) -> None:
        """The dispatcher has died."""
        for job in self.running():
            job.loses_its_dispatcher()


class NodeCluster:
    """The cluster as one dispatcher sees it."""

    place = "simulated"
    status_is_free = True

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def resources(self) -> Resources:
        return RESOURCES

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        world = self._world
        world.request(self._process)
        if job.name not in world.jobs:
            if world.happens(0.03):
                raise Unavailable("the cluster has no room")
            world.meet(self._process, "launch", after=False)
            world.jobs[job.name] = Job(world, job, self._process.name)
            world.note(self._process.name, "launch", job.name)
            world.meet(self._process, "launch", after=True)
        if world.happens(0.02):
            raise Unavailable("the answer to the launch was lost")
        return world.jobs[job.name].reference

    def attach(self, reference: ClusterReference) -> Job | None:
        return self._world.jobs.get(reference.ids["name"])

    def find(self, name: str) -> ClusterReference | None:
        self._world.request(self._process)
        job = self._world.jobs.get(name)
        return None if job is None else job.reference


def take_any_turn(leases: Leases) -> None:
    """Break its order: nobody is ahead of anybody, and nobody in the way."""
    leases.blocked = lambda *_: {}  # type: ignore[method-assign]
    leases.take = lambda request, *_: LeaseAnswer(leases.adopt(request))  # type: ignore[method-assign]


def pass_others(leases: Leases) -> None:
    """Break its order: nobody is ahead of anybody."""
    leases.blocked = lambda *_: {}  # type: ignore[method-assign]


class Node:
    """One dispatcher process, from its start until it is killed."""

    def __init__(self, world: World, number: int, generation: int) -> None:
        self.world = world
        self.number = number
        self.generation = generation
        self.process = process = Process(f"d{number}.{generation}")
        clock = NodeClock(world, world.skews_ms[number])
        store = NodeStore(world, process)
        cluster = NodeCluster(world, process)
        self.records = JobRunStore(store, clock, process.name)  # type: ignore[arg-type]
        settings = world.pace.launcher
        launching = LaunchDependencies(
            store,  # type: ignore[arg-type]
            cluster,
            lambda _: (),
            Poller(settings.poller, clock),
            settings.timers,
            settings.retry,
            clock,
        )
        planners = Planners(world.plan, world.plan_small, lambda _: world.lake)
        workers = None
        self.workers: NodeWorkers | None = None
        pool = world.pools[number]
        if pool is not None:
            self.workers = NodeWorkers(world, process, pool)
            workers = WorkerLaunches(replace(launching, cluster=self.workers), pool, world.plan_in_worker)
        launcher = SessionLauncher(launching, planners, world.bounds[number], workers)
        self.answers = WorkflowAnswers(self.records, world.callbacks, AnswerSettings(round_seconds=2.0), clock)
        topic = NodeTopic(world, process)
        publishing = PublisherSettings(round_seconds=2.0, backoff=Backoff(5.0, 60.0))
        self.publisher = EventPublisher(self.records, lambda _: topic, self.answers, publishing, clock)
        tables = TablePublications(
            lambda _: world.lake, lambda _: MemoryGlue(), self.publisher.announce, TablePublicationSettings(), clock
        )
        listeners = Listeners(self.publisher, self.answers, Metrics(clock), tables)
        admission = Admission(own_lake=world.lake.location)
        finding = SessionFinding(lambda _: world.lake, admission.file_refusals, clock)
        sharding = Sharding(self.records, lambda _: world.lake, clock)
        launchers = Launchers(launcher, finding, sharding)
        controller = world.pace.controller
        self.controller = JobRunController(process.name, self.records, launchers, listeners, controller, clock)
        if world.takes_any_turn:
            take_any_turn(self.controller.leases)
        if world.passes_others:
            pass_others(self.controller.leases)
        queue = NodeQueue(world, process, world.queue)
        intake = Intake(
            queue,
            self.records,
            lambda _: world.lake,
            IntakeSettings(
                admission=admission,
                deliveries_max=100,
                put_back_seconds=5,
                put_back_seconds_max=60,
            ),
            clock,
        )
        self._keeper = intake.keeper
        self._receiver = Receiver(queue, intake, self.controller, listeners.metrics, ReceiverSettings(), clock)
        self._upkeep = HistoryUpkeep(self.records, clock)

    def start(self) -> None:
        self.world.note(self.process.name, "starts")
        spawn = self.world.scheduler.spawn
        for every, lease in (
            (2.0, self._receive),
            (2.0, self._tick),
            (2.0, self.publisher.publish_round),
            (2.0, self.answers.answer_round),
            (300.0, self._keep_history),
        ):
            spawn(self.process, lambda every=every, lease=lease: self._loop(every, lease))  # type: ignore[misc]

    def _loop(self, every: float, lease: Callable[[], None]) -> None:
        while True:
            lease()
            self.world.pause(every * self.world.pace.factor * self.world.chance.uniform(0.8, 1.2))

    def _tick(self) -> None:
        self.world.order.ticks(self.process)
        self.controller.tick()

    def _receive(self) -> None:
        self.controller.receiver_turned()
        self._keeper.put_off()
        try:
            self._receiver.receive_once(threading.Event())
        except Unavailable:
            self.world.scheduler.sleep(5.0 * self.world.pace.factor)

    def _keep_history(self) -> None:
        try:
            self._upkeep.round()
        except LithifyError:
            return  # the next round


SMALL_SECONDS_MAX = 5.0
"""Predicted for a session that shares a Spark."""


def _small(planned: SessionPlan, seconds: float, why: str) -> SmallSession:
    return SmallSession(planned, 1, seconds, why, StoreUse(puts=1, gets=1, written_bytes=1))


@dataclass
class Sent:
    """An instruction: its id, and its expected result."""

    job_run_id: str
    body: str
    is_good: bool
    token: str | None = None


class Surroundings:
    """What dispatchers share with others that live in the same world: time, the state, and the queue."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.scheduler = Scheduler()
        use(self.scheduler)
        self.clock = NodeClock(self)
        self.state = MemoryStore(self.clock)
        self.queue = MemoryQueue(self.clock, MemoryQueue(self.clock), deliveries_max=200)


class World:
    def __init__(
        self,
        around: Surroundings,
        lake: DeltaCatalog,
        tables: Sequence[str],
        instructions: int | None = None,
        *,
        wide: str | None = None,
        asks: frozenset[Ask] = frozenset(),
        trace: Callable[[str], object] | None = None,
        pace: Pace = Pace(),
    ) -> None:
        """`instructions` None: a random number; `wide`: a table of many streams, named by some of them; `trace` gets
        each line of the log of everything."""
        self.pace = pace
        self.quiet_from_seconds = pace.quiet_seconds
        self._trace = trace
        self._asks = asks
        self.chance, self.scheduler, self.clock = around.chance, around.scheduler, around.clock
        self.state, self.queue = around.state, around.queue
        self.lake = lake
        self.callbacks = MemoryCallbacks()
        self.jobs: dict[str, Job] = {}
        self.commits: list[tuple[str, str]] = []
        self.events: dict[str, bytes] = {}
        self.topic_hangs = False
        self.violations: list[str] = []
        self.order = OrderOfAcceptance(lambda: self.scheduler.now, pace.controller.turn_look_seconds, self.wrong)
        self._digest = hashlib.sha256()
        self._table_names = {table_digest(lake.location, table): table for table in (*tables, wide) if table}
        self._plans: dict[str, SessionPlan] = {}
        self._denied_until = 0.0
        self.bad_jobs = self.chance.choice([0.0, 0.1, 0.3])
        self._fault_factor = self.chance.choice([0.0, 0.5, 1.0, 3.0])
        nodes = self.chance.randint(2, 4)
        self.skews_ms = [round(self.chance.uniform(-1.0, 1.0) * SKEW_SECONDS * 500) for _ in range(nodes)]
        pools = [WorkerPool(workers, WORKER_MEMORY_BYTES) if workers else None for workers in (0, 1, 2, 3)]
        self.pools = [self.chance.choice(pools) for _ in range(nodes)]
        self.bounds = [self.chance.choice(BUNDLES) for _ in range(nodes)]
        self._predicted_seconds = {table: self.chance.choice(PREDICTED_SECONDS) for table in (*tables, wide)}
        self.dooms = [self._doom() for _ in range(self.chance.randint(0, pace.dooms))]
        self.sent = self._instructions(
            self.chance.randint(5, 60) if instructions is None else instructions, tables, wide
        )
        self.deliveries = Counter[str]()
        self._nodes = [Node(self, number, 1) for number in range(nodes)]

    # -- events

    def begin(self) -> None:
        for node in self._nodes:
            self.scheduler.at(self.chance.uniform(0.0, 20.0), node.start)

    def run(self) -> None:
        self.begin()
        for each in self.sent:
            for _ in range(self.chance.choice([1, 1, 1, 2, 3, 5])):
                self.scheduler.at(self.chance.uniform(0.0, 400.0), lambda each=each: self._send(each))  # type: ignore[misc]
            if each.is_good and self.chance.random() < 0.05:
                self.scheduler.at(self.chance.uniform(10.0, 500.0), lambda each=each: self._cancel(each))  # type: ignore[misc]
        for _ in range(self.chance.randint(0, 2)):
            self.scheduler.at(self.chance.uniform(0.0, 600.0), self._topic_hangs)
        if self.chance.random() < 0.2:
            self.scheduler.at(self.chance.uniform(0.0, 600.0), self._credentials_expire)
        try:
            self.scheduler.run(LIMIT_SECONDS, self._is_done, every=20.0)
        finally:
            self.scheduler.end()
        self._check()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def note(self, *words: str) -> None:
        """One line of the log of everything."""
        line = f"{self.scheduler.now:.6f} {' '.join(words)}\n"
        for digest, name in self._table_names.items():  # their lake is in another folder in each run
            line = line.replace(digest, name)
        self._digest.update(line.encode())
        if self._trace is not None:
            self._trace(line)

    def wrong(self, what: str) -> None:
        self.violations.append(f"at {self.scheduler.now:.0f} s: {what}")

    def happens(self, probability: float) -> bool:
        if self.scheduler.now >= self.quiet_from_seconds:
            return False
        return self.chance.random() < probability * self._fault_factor

    def may_fail(self, reason: str) -> None:
        if self.scheduler.now < self._denied_until:
            raise Denied("the credentials have expired")
        if self.happens(0.01):
            raise Unavailable(reason)

    def request(self, process: Process) -> None:
        """A request to the store: other threads may run first, and the answer may be lost."""
        self.scheduler.check()
        if self.chance.random() < 0.02:
            self.scheduler.sleep(self.chance.choice([0.01, 0.1, 3.0]))
        if self.scheduler.now < self._denied_until:
            raise Denied("the credentials have expired")
        if self.happens(0.004):
            raise Unavailable("the state does not answer")

    def meet(self, process: Process, write: str, *, after: bool) -> None:
        """Applies the process's fault at this write, if it has one."""
        for doom in self.dooms:
            if doom.is_met or doom.after != after or self.scheduler.now < doom.from_seconds or doom.write not in write:
                continue
            doom.is_met = True
            if doom.stands_still:
                claims = self.chance.uniform(0.5, 4.0)
                process.stopped_until = self.scheduler.now + claims * self.pace.controller.claim_seconds
                self.note(process.name, "stands still", write)
                continue
            self.note(process.name, "is killed", write)
            process.is_killed = True
            (node,) = (node for node in self._nodes if node.process is process)
            if node.workers is not None:
                node.workers.end()
            self.scheduler.at(self.scheduler.now + self.chance.uniform(1.0, 120.0), partial(self._restart, node))
            raise Killed(process.name)

    @property
    def takes_any_turn(self) -> bool:
        return Ask.TAKE_ANY_TURN in self._asks

    @property
    def passes_others(self) -> bool:
        return Ask.PASS_OTHERS in self._asks

    @property
    def keeps_workers(self) -> bool:
        return Ask.KEEP_WORKERS in self._asks

    def loses(self, key: str) -> bool:
        return Ask.LOSE_A_RECORD in self._asks and key.endswith("/log/00000000000000000002.json") and "history" in key

    def published(self, event: Event) -> None:
        if Ask.LOSE_AN_EVENT in self._asks and event.type == "lithify.job_run.started.v1":
            return
        body = event.render()
        before = self.events.setdefault(event.id, body)
        if before != body and not event.id.endswith("#set_aside") and "#heartbeat" not in event.id:
            self.wrong(f"event {event.id} came with other content")
        log, _, entry = event.id.rpartition("#")
        number = entry.partition(".")[0]
        if number.isdecimal() and self.state.read(EntryObject(log, int(number)).key) is None:
            self.wrong(f"event {event.id} was told before its entry stood")

    def session_seconds(self) -> float:
        """From the beginning of an attempt to its commit."""
        return self.chance.uniform(*self.pace.session_seconds)

    def pause(self, seconds: float) -> None:
        """Between two rounds of a loop."""
        self.scheduler.sleep(seconds)

    def begins(self, member: MemberAtWork) -> None:
        """An attempt."""

    def supersede(self, begun: MemberAtWork) -> None:
        """What workers of dispatchers without the claim do on the stream of an attempt that begins: beside it, or as
        that attempt."""
        at_work = [
            (job, each)
            for job in self.jobs.values()
            for each in job.members
            if job.runs and each.stream == begun.stream and each.begun_at and not each.ended_at
        ]
        records = JobRunStore(self.state, self.clock)
        for job, each in at_work:
            if job.runs_in_worker and any(other.job_run_id != each.job_run_id for _, other in at_work):
                claim = records.log(each.job_run_id).load().state.claim
                if claim is None or claim.owner != job.launched_by:
                    each.superseded_at = each.superseded_at or self.scheduler.now

    def cost(self, spec: SessionSpec) -> Cost | None:
        """Of a session that succeeds now."""
        return None

    def commit(self, member: MemberAtWork) -> None:
        """Commits as the stream's log does: a repeated commit of a session changes nothing."""
        spec = member.plan.spec
        done = (spec.job_run.job_run_id, spec.session_id)
        if done not in self.commits:
            self.commits += [done] * (2 if Ask.COMMIT_TWICE in self._asks else 1)
            self.note("commit", *done)

    def plan(self, spec: SessionSpec, lack: LackOfMemory | None, _: object = None) -> SessionPlan | NothingToDo:
        self.may_fail("the lake does not answer")
        table_id = spec.job_run.source_table_id
        if table_id not in self._plans:
            planned = plan_for_cluster(spec, self.lake, RESOURCES, None)
            assert isinstance(planned, SessionPlan)
            self._plans[table_id] = planned
        return self._plans[table_id].model_copy(update={"spec": spec})

    def plan_in_worker(
        self, spec: SessionSpec, _: object, pool: WorkerPool, failures: int
    ) -> SmallSession | LargeSession | NothingToDo:
        planned = self.plan(spec, None)
        if isinstance(planned, NothingToDo):
            return planned
        seconds = self._predicted_seconds[spec.job_run.source_table_id]
        place = choose_place(InOneProcess(seconds, 1, pool.memory_bytes), pool, failures)
        if not place.in_worker:
            return LargeSession((place.why,))
        return _small(planned, seconds, place.why)

    def plan_small(
        self, spec: SessionSpec, _: object, resources: Resources
    ) -> SmallSession | LargeSession | NothingToDo:
        planned = self.plan(spec, None)
        if isinstance(planned, NothingToDo):
            return planned
        seconds = self._predicted_seconds[spec.job_run.source_table_id]
        if seconds > SMALL_SECONDS_MAX:
            return LargeSession((f"it takes {seconds} s",))
        return _small(planned, seconds, "it is small")

    def _doom(self) -> Doom:
        write, after = self.chance.choice(WRITES), self.chance.random() < 0.5
        begins = self.chance.uniform(0.0, self.pace.quiet_seconds * 5 / 9)
        return Doom(write, after, begins, stands_still=self.chance.random() < 0.4)

    def _restart(self, dead: Node) -> None:
        node = Node(self, dead.number, dead.generation + 1)
        self._nodes[dead.number] = node
        node.start()

    def _instructions(self, count: int, tables: Sequence[str], wide: str | None) -> list[Sent]:
        found = []
        wide_ones = set(self.chance.sample(range(count), min(count, WIDE_RUNS))) if wide is not None else ()
        for number in range(count):
            job_run_id = f"run-{number}"
            document: dict[str, object] = {
                "schema_version": "1",
                "job_run_id": job_run_id,
                "source_table_id": wide if number in wide_ones else self.chance.choice(tables),
                "primary_keys": ["id"],
                "priority": self.chance.choice([0, 0, 0, 1, -1]),
            }
            is_good = self.chance.random() > 0.06
            if not is_good:
                document["source_table_id"] = "ACME.ABSENT.V1"
            token = f"token-{number}-{'x' * 20}" if self.chance.random() < 0.2 else None
            if token is not None:
                document["task_token"] = token
                self.callbacks.begin(token)
            found.append(Sent(job_run_id, json.dumps(document), is_good, token))
        return found

    def _send(self, each: Sent) -> None:
        self.deliveries[each.job_run_id] += 1
        self.note("sent", each.job_run_id, self.queue.send(each.body))

    def _cancel(self, each: Sent) -> None:
        def decide(before: LogState[JobRunState]) -> Sequence[JobRunAction]:
            is_open = before.state.status.is_open and before.state.cancel is None
            return [CancelRequested(reason="a person asked for it")] if is_open else []

        log = JobRunStore(self.state, self.clock).log(each.job_run_id)
        self.note("cancel", each.job_run_id, str(log.append(decide).entry is not None))

    def _topic_hangs(self) -> None:
        self.topic_hangs = True
        self.scheduler.at(self.scheduler.now + self.chance.uniform(30.0, 200.0), self._topic_answers)

    def _topic_answers(self) -> None:
        self.topic_hangs = False

    def _credentials_expire(self) -> None:
        self._denied_until = self.scheduler.now + self.chance.uniform(20.0, 150.0)

    # -- invariants

    def _is_done(self) -> bool:
        if self.scheduler.now < 520.0 or self.queue.messages_left() or any(self.state.list("open_job_runs")):
            return False
        return not any(job.runs for job in self.jobs.values()) and not self.callbacks.waiting

    def _check(self) -> None:
        if not self._is_done():
            markers = [entry.key for entry in self.state.list("open_job_runs")]
            running = [name for name, job in self.jobs.items() if job.runs]
            self.wrong(
                f"there is no end: {self.queue.messages_left()} messages, markers {markers}, Spark jobs {running}, "
                f"workflows {sorted(self.callbacks.waiting)}"
            )
        records = JobRunStore(self.state, self.clock)
        recorded = Counter(each.job_run_id for day in records.history.read() for each in day.job_runs)
        for each in self.sent:
            if each.is_good:
                self._check_run(records, each, recorded[each.job_run_id])
            elif records.state(each.job_run_id).accepted is not None:
                self.wrong(f"{each.job_run_id} was accepted, though its table does not exist")
        bad = sum(self.deliveries[each.job_run_id] for each in self.sent if not each.is_good)
        dead = len(self.queue.dead_letters().bodies)
        if not bad <= dead <= bad + len(self.dooms) * 5 + round(bad * self._fault_factor) or (dead and not bad):
            self.wrong(f"{dead} dead letters of {bad} documents that can never work")
        side_by_side = self._side_by_side()
        if side_by_side:
            self.wrong(f"{side_by_side} times two job runs had a session of one destination at work at once")
        twice = sorted(each for each, count in recorded.items() if count > 1)
        if twice:
            self.wrong(f"the history has {', '.join(twice)} more than once")

    def _side_by_side(self) -> int:
        by_destination: defaultdict[tuple[str, str], list[tuple[float, float, str]]] = defaultdict(list)
        for member in (each for job in self.jobs.values() for each in job.members if each.begun_at):
            ended_at = member.superseded_at or member.ended_at
            if ended_at > member.begun_at:
                by_destination[member.stream].append((member.begun_at, ended_at, member.job_run_id))
        return sum(
            ends > begins and job_run_id != other_id
            for at_work in by_destination.values()
            for (_, ends, job_run_id), (begins, _, other_id) in itertools.pairwise(sorted(at_work))
        )

    def sharing(self) -> dict[str, int]:
        """By job run: the most dispatchers whose Spark jobs of it ran at once."""
        ran: defaultdict[str, list[tuple[float, float, str]]] = defaultdict(list)
        for job in self.jobs.values():
            for member in (each for each in job.members if each.begun_at):
                at_work = (member.begun_at, member.ended_at, job.launched_by)
                ran[member.plan.spec.job_run.job_run_id].append(at_work)
        return {
            job_run_id: max(len({by for begins, ends, by in sessions if begins <= at < ends}) for at, _, _ in sessions)
            for job_run_id, sessions in ran.items()
        }

    def _check_run(self, records: JobRunStore, each: Sent, recorded: int) -> None:
        log = records.log(each.job_run_id)
        state = log.load().state
        if state.ended is None:
            return self.wrong(f"{each.job_run_id} is {state.status}")
        kinds = Counter[type](type(action) for entry in log.entries() for action in entry.actions)
        if (kinds[JobRunAccepted], kinds[JobRunEnded]) != (1, 1):
            self.wrong(f"{each.job_run_id} was accepted {kinds[JobRunAccepted]} and ended {kinds[JobRunEnded]} times")
        commits = sum(job_run_id == each.job_run_id for job_run_id, _ in self.commits)
        status = state.ended.outcome.status
        streams = len(self.lake.table(state.accepted.spec.source_table_id).partitions()) if state.accepted else 0
        if (
            (status == "succeeded" and commits != streams)
            or commits > streams
            or (status == "cancelled" and state.cancel is None)
        ):
            self.wrong(f"{each.job_run_id} is {status} with {commits} commits")
        if status == "failed":
            self.wrong(f"{each.job_run_id} failed: {'; '.join(state.ended.outcome.reasons)}")
        if recorded != 1:
            self.wrong(f"the history has {each.job_run_id} {recorded} times")
        missing = [name for name in ("accepted", "started", status) if not self._has_event(each.job_run_id, name)]
        if missing:
            self.wrong(f"{each.job_run_id} was never told to be {', '.join(missing)}")
        return None

    def _has_event(self, job_run_id: str, name: str) -> bool:
        if not self._names:
            for body in self.events.values():
                event = json.loads(body)
                self._names[event["jobrunid"]].add(event["type"])
        return f"lithify.job_run.{name}.v1" in self._names[job_run_id]

    @property
    def _names(self) -> defaultdict[str, set[str]]:
        if not hasattr(self, "_event_names"):
            self._event_names: defaultdict[str, set[str]] = defaultdict(set)
        return self._event_names
