"""Two or three simulated keepers and two to four dispatchers over two weeks, with writers, readers, and garbage
collection: everything in them is real but the services, the rows and time.

The dispatchers live in the world of tests/simulation/dispatchers.py, with all that goes wrong there, at a slower pace.
A seed decides what is written and read, which policies the tables have, and what else goes wrong: answers that are
lost, a lake, a state and a queue that are away, messages that come late or twice, keepers that are killed before or
after a write and that look while another one writes, job runs that fail, and that cost more than was expected. In the
last `QUIET_DAYS` nothing goes wrong any more, and after the writers' end the keepers must come to an end. `violations`
lists the broken invariants:

    no delta is compacted by two job runs, and no two job runs are decided for, or at work on, one stream
    each decision is one job run, and each job run has a decision
    no day's money is passed by more than one session
    no stream is behind its bound, where nothing goes wrong and there is money
    no file is deleted that an entry, an attempt, or a reader within the grace period needs; garbage is
    after the last write there are finitely many decisions, all of them end, and nothing is due any more
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache, partial
from math import inf
from typing import assert_never

import pyarrow as pa

from compactor.catalog.compact_when import CompactWhen
from compactor.catalog.stream import PartitionStream
from compactor.log import checkpoints
from compactor.log.row_files import parse_rows
from compactor.maintenance.garbage import find_garbage
from compactor.maintenance.named_files import paths_of_snapshot
from compactor.model.errors import LithifyError, Unavailable
from compactor.planning import due
from compactor.planning.cluster_plan import Cost
from compactor.planning.due import Due, Expected, Terms, decide
from compactor.planning.small_files import small_files_to_merge
from compactor.planning.spec import SessionPlan, SessionSpec
from compactor.planning.stream_figures import StreamFigures
from compactor.planning.table_figures import merge_limits, read_figures
from compactor.planning.where_to_run import WorkerPool
from compactor.storage.object_store import ObjectEntry, ObjectStore, UnfinishedWrite
from dispatcher.intake import pinning
from dispatcher.keeper import table_keeper
from dispatcher.keeper.decision_log import DecisionEnded, DecisionMade, DecisionState
from dispatcher.keeper.keeper import Keeper
from dispatcher.keeper.table_keeper import KeeperSettings, expected_cost
from dispatcher.keeper.upkeep import LakeUpkeep, Upkeep
from dispatcher.operations import lag_board
from dispatcher.records import lag_samples, outcome
from dispatcher.records.history import day_of
from dispatcher.records.job_run_log import JobRunAccepted, JobRunEnded
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.keys import LagMinute
from dispatcher.records.sessions import SessionState
from launcher.outcomes import NothingToDo, SessionEnd, Succeeded
from launcher.plan import LackOfMemory, Room
from launcher.sizing.cluster_choice import ClusterRoom
from tests.fakes.faulty_store import Stopped
from tests.fakes.memory_queue import MemoryQueue
from tests.keeper_world import KeeperWorld, cost_of
from tests.simulation.dispatchers import RESOURCES, MemberAtWork, Pace, Surroundings, World

DAYS = 14.0
QUIET_DAYS = 2.5
WITHOUT_WRITERS_DAYS = 1.0
STEP_SECONDS = (300.0, 7_200.0)
QUIET_STEP_SECONDS = (30.0, 1_800.0)
LOOK_SECONDS = 600.0
GRACE_SECONDS = 86_400
UPKEEP_SECONDS = 43_200.0
SETTLED_SECONDS = 4 * 3_600.0
"""After the last fault and the last write: what was lost is sent again, and failures are tried again."""

KEPT_RESULTS = 1_024

IDLE_SECONDS = 86_400.0
"""Between two rounds of a loop of a dispatcher that has nothing to do, if no message comes."""

NOTICED_SECONDS = 300.0
"""After which at the latest each of these loops goes on when one comes."""

PACE = 15.0
"""By so much longer are their intervals than in a world of minutes."""

SESSION_SECONDS = (5.0, 300.0)
RUN_SECONDS = 1_500.0
"""The longest job run: its sessions wait for each other."""

LATE_SECONDS = 2 * RUN_SECONDS + 1.2 * LOOK_SECONDS + 4 * QUIET_STEP_SECONDS[1]
"""That a stream may be behind its bound where nothing goes wrong. A job run that has begun just before a delta ends, a
keeper looks, the message is delivered, and the next one ends: each of the four is noticed at the next step."""

POLICIES: tuple[object, ...] = (
    "streaming",
    "nightly",
    "upsolver",
    {"preset": "size_ratio", "ratio": 2.0},
    {"pending_rows": 500, "lag_seconds": 7_200, "not_before_seconds": 600},
    {"pending_deltas": 5, "every": 86_400},
    {"lag_seconds": 1_800, "windows": [{"cron": "0 */6 * * *", "seconds": 3_600}], "at_latest_seconds": 14_400},
    {"lag_seconds": 3_600, "usd_per_day": 1.0},
    {"pending_rows": 50, "usd_per_day": 0.5, "max_usd": 0.4},
    {"small_files": 8, "pending_deltas": 1, "not_before_seconds": 1_200},
    {"small_file_share": 0.3, "lag_seconds": 3_600},
)

FULL_FILE_BYTES = 20_000
"""Of a table whose policy counts small files; a delta has 100 to 10,000 bytes. Its keys are new each time, so a round
leaves a file beside those that are there, and merges small ones. In the other tables it replaces all."""


class SimulatedWorld(KeeperWorld):
    """Where rounds of some tables merge small files, and those of the others replace all: see `FULL_FILE_BYTES`."""

    def merged(self, stream: PartitionStream) -> Sequence[int] | None:
        table, compacted = self.lake.table(stream.table_id), stream.load().state.compacted
        if table.properties.bytes_per_compacted_file != FULL_FILE_BYTES:
            return None
        files = {} if compacted is None else compacted.files
        return next(iter(small_files_to_merge(files, (), merge_limits(table.properties))), ())


@dataclass
class _Chances:
    """How likely each fault is."""

    lost_answer: float = 0.0
    away: float = 0.0
    killed: float = 0.0
    meets: float = 0.0


class Break(StrEnum):
    """Something is broken on purpose: the run must say so."""

    FORGET_WORK = "forget what is at work"
    FORGET_SPENT = "forget what was spent"
    NO_GRACE = "collect without grace"
    LEAVE_SMALL_FILES = "leave small files that no delta comes to"


class KeepersStore:
    """The state, or the lake, as one keeper reaches it. Before some writes another keeper looks."""

    def __init__(self, store: ObjectStore, world: Keepers, number: int) -> None:
        self._store = store
        self._world = world
        self._number = number
        self.location = store.location

    def put_if_absent(self, key: str, body: bytes) -> bool:
        self._world.before_a_write(self._number)
        created = self._store.put_if_absent(key, body)
        self._world.after_a_write()
        return created

    def overwrite(self, key: str, body: bytes) -> None:
        self._world.before_a_write(self._number)
        self._store.overwrite(key, body)
        self._world.after_a_write()

    def read(self, key: str) -> bytes | None:
        self._world.may_be_away()
        return self._store.read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        self._world.may_be_away()
        return self._store.read_range(key, start, length)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        self._world.may_be_away()
        return self._store.list(prefix, start_after)

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        self._world.may_be_away()
        return self._store.list_folders(prefix, even_empty=even_empty)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def delete_many(self, keys: Sequence[str]) -> dict[str, str]:
        """It may end within the keys."""
        done = self._world.chance.randint(0, len(keys))
        self._store.delete_many(keys[:done])
        self._world.before_a_write(self._number)
        failed = self._store.delete_many(keys[done:])
        self._world.after_a_write()
        return failed

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        return self._store.unfinished()

    def __getattr__(self, name: str) -> object:
        raise TypeError(f"a keeper's look calls {name}")


class KeepersQueue(MemoryQueue):
    """The queue as keepers reach it: it may be away, lose an answer, or deliver a message twice, or hours later."""

    def __init__(self, world: Keepers, to: MemoryQueue) -> None:
        super().__init__(world.world.clock)
        self._world = world
        self._to = to

    def send(self, body: str, *_: object, **__: object) -> str:
        self._world.before_a_write(None)
        copies = 2 if self._world.happens(0.05) else 1
        for _copy in range(copies):
            self._world.deliver(body)
        self._world.after_a_write()
        return "message"


@dataclass(frozen=True)
class _Reader:
    """Pinned a snapshot, and reads its files later."""

    reads_at: float
    stream: str
    paths: Sequence[str]


class KeeperProcess:
    """One keeper, from its start until it is killed."""

    def __init__(self, of: Keepers, number: int) -> None:
        world = of.world
        services = world.services(
            state=KeepersStore(world.state, of, number),  # type: ignore[arg-type]
            lake=KeepersStore(world.lake_store, of, number),  # type: ignore[arg-type]
            queue=of.queue,
            room=ClusterRoom(),
        )
        settings = KeeperSettings(upkeep_seconds=UPKEEP_SECONDS, grace_seconds=GRACE_SECONDS)
        self._keeper = Keeper(services, settings)
        self._upkeep = LakeUpkeep(services, settings, self._keeper.board)

    def look(self) -> int:
        """The decisions. Raises `Stopped`."""
        try:
            return self._keeper.look().decided
        except LithifyError:
            return 0  # the next look

    def keep_up(self) -> int:
        """The files that were deleted. Raises `Stopped`."""
        return self._upkeep.do_what_is_due().deleted_files


class KeptDispatchers(World):
    """The dispatchers behind the keepers' queue. Their sessions move the watermark of a stream, and write one file."""

    def __init__(self, of: Keepers, around: Surroundings, quiet_seconds: float) -> None:
        pace = Pace(PACE, SESSION_SECONDS, quiet_seconds, dooms=30, attempts=3)
        super().__init__(around, of.world.lake, of.world.lake.tables(), 0, pace=pace)
        self._of = of
        self._files: dict[tuple[str, int], str] = {}
        self._committed: dict[str, tuple[str, int]] = {}
        """By stream: the job run whose session was the last to commit, and up to which position."""

    def pause(self, seconds: float) -> None:
        if self.queue.messages_left() or any(self.state.list("open_job_runs")):
            self.scheduler.sleep(seconds)
        else:
            self.scheduler.rest(IDLE_SECONDS)

    def stand_still(self, seconds: float) -> None:
        for node in self._nodes:
            node.process.stopped_until = self.scheduler.now + seconds

    def plan(self, spec: SessionSpec, lack: LackOfMemory | None, _: object = None) -> SessionPlan | NothingToDo:
        self.may_fail("the lake does not answer")
        stream = self._stream(spec)
        last, compacted = spec.source_position, stream.load().state.compacted
        done = 0 if compacted is None else compacted.processed.position
        if last is None or (last <= done and not self._of.world.merged(stream)):
            return NothingToDo()
        return SessionPlan(
            spec=spec,
            hash_bucket_count=1,
            max_rows_per_round=1_000,
            task_memory_bytes=RESOURCES.task_memory_bytes,
            tasks=RESOURCES.tasks,
            expected_sla=self.pace.session_seconds[1],
            arithmetic=(),
        )

    def begins(self, member: MemberAtWork) -> None:
        spec = member.plan.spec
        self._of.check_decided(spec.job_run.job_run_id)
        self._files[spec.session_id, member.attempt] = self._of.world.write_compacted_file(self._stream(spec))

    def commit(self, member: MemberAtWork) -> None:
        spec = member.plan.spec
        stream, path = self._stream(spec), self._files.pop((spec.session_id, member.attempt))
        self._of.check_files(f"an attempt of {spec.session_id}", [path])
        by, until = self._committed.get(str(stream), (spec.job_run.job_run_id, 0))
        has_committed = self._of.world.compact(stream, spec.source_position, path)
        if by != spec.job_run.job_run_id and (until > (spec.source_position or 0) or not has_committed):
            self.wrong(f"{spec.session_id} was overtaken by {by} on {stream}")
        self._committed[str(stream)] = (spec.job_run.job_run_id, spec.source_position or 0)

    def cost(self, spec: SessionSpec) -> Cost | None:
        return self._of.pay(spec)

    def _stream(self, spec: SessionSpec) -> PartitionStream:
        return self._of.world.lake.table(spec.job_run.source_table_id).stream(spec.partition)

    def check_end(self) -> None:
        open_runs = [entry.key for entry in self.state.list("open_job_runs")]
        if self.queue.messages_left() or open_runs or any(job.runs for job in self.jobs.values()):
            self.wrong(f"there is no end: {self.queue.messages_left()} messages, open job runs {open_runs}")
        if self.queue.dead_letters().messages_left():
            self.wrong(f"{self.queue.dead_letters().messages_left()} instructions were refused")
        if self._side_by_side():
            self.wrong(f"{self._side_by_side()} times two job runs were at work on one stream")


class Keepers:
    """One seed."""

    def __init__(self, seed: int, days: float = DAYS) -> None:
        self._days = days
        around = Surroundings(seed)
        self.chance, self._scheduler = around.chance, around.scheduler
        self.world = SimulatedWorld(
            remote=False, clock=around.clock, shared_state=around.state, shared_queue=around.queue
        )
        self.violations: list[str] = []
        self.decisions = self.deleted_files = 0
        self._chances = self.chance.choice(
            [_Chances(), _Chances(0.01, 0.01, 0.01, 0.1), _Chances(0.05, 0.05, 0.03, 0.3)]
        )
        self._expected = self.chance.choice([(1.0, 1.0), (0.5, 2.0)])
        self._is_nested = False
        self._spent: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._policies: dict[str, CompactWhen] = {}
        self._keeps_up = True
        self._readers: list[_Reader] = []
        self._payable_since: dict[tuple[str, str], float] = {}
        self.queue = KeepersQueue(self, self.world.queue)
        self._keepers = [KeeperProcess(self, number) for number in range(self.chance.randint(2, 3))]
        self._look_at = [self.chance.uniform(0, LOOK_SECONDS) for _ in self._keepers]
        self._make_tables()
        self._dispatchers = KeptDispatchers(self, around, self._quiet_from)

    def _make_tables(self) -> None:
        for number in range(self.chance.randint(1, 3)):
            table_id = f"ACME.T{number}.V1"
            keys = self.chance.choice([(), ("day",)])
            policy, is_kept_at_once = self.chance.choice(POLICIES), self.chance.random() < 0.5
            counts_files = isinstance(policy, dict) and bool({"small_files", "small_file_share"} & policy.keys())
            properties = {"bytes_per_compacted_file": FULL_FILE_BYTES} if counts_files else {}
            table = self.world.table(policy if is_kept_at_once else None, table_id, keys, **properties)
            kept = table.set_properties({"compact_when": policy}).compact_when
            assert kept is not None
            self._policies[table_id] = kept

    # -- time

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self._scheduler.now

    def _pass(self, seconds: float) -> None:
        """The dispatchers work meanwhile."""
        until = self.now + seconds
        self._scheduler.at(until, lambda: None)
        self._scheduler.run(until, lambda: False, every=seconds)

    @property
    def _quiet_from(self) -> float:
        return (self._days - QUIET_DAYS) * 86_400

    @property
    def is_quiet(self) -> bool:
        return self.now >= self._quiet_from

    def run(self) -> None:
        self._dispatchers.begin()
        try:
            self._live()
        finally:
            self._scheduler.end()
            self.violations += self._dispatchers.violations

    def _live(self) -> None:
        while self.now < self._days * 86_400:
            self._pass(self.chance.uniform(*(QUIET_STEP_SECONDS if self.is_quiet else STEP_SECONDS)))
            if self.now < (self._days - WITHOUT_WRITERS_DAYS) * 86_400:
                self._write()
            self._look()
            self._read()
            if self.now > self._quiet_from + SETTLED_SECONDS:
                self._check_lateness()
        self._check_end()

    # -- what happens

    def _write(self) -> None:
        for table_id in self._policies:
            if self.chance.random() < 0.3:
                keys = self.world.lake.table(table_id).partition_keys
                partition = {key: str(self.chance.randrange(4)) for key in keys}
                self.world.append(table_id, partition, self.chance.choice([1, 10, 100]), self.chance.randint(1, 3))

    def _look(self) -> None:
        for number in range(len(self._keepers)):
            if self.now >= self._look_at[number]:
                self._look_at[number] = self.now + LOOK_SECONDS * self.chance.uniform(0.8, 1.2)
                self.look(number)

    def look(self, number: int) -> None:
        try:
            self.decisions += self._keepers[number].look()
            if self._keeps_up:
                self.deleted_files += self._keepers[number].keep_up()
        except Stopped:
            self._keepers[number] = KeeperProcess(self, number)
            self._look_at[number] = self.now + self.chance.uniform(60.0, 7_200.0)

    def _read(self) -> None:
        """Readers of before read now what they have pinned; another one may begin."""
        for reader in [each for each in self._readers if each.reads_at <= self.now]:
            self._readers.remove(reader)
            self.check_files(f"a reader of {reader.stream}", reader.paths)
        if self.chance.random() < 0.3:
            table = self.world.lake.table(self.chance.choice(sorted(self._policies)))
            partitions = table.partitions()
            if partitions:
                stream = table.stream(self.chance.choice(partitions))
                paths = paths_of_snapshot(stream.load().state)
                # A step is where it reads, so it is late by one.
                lasts = self.chance.uniform(0.0, GRACE_SECONDS - STEP_SECONDS[1])
                self._readers.append(_Reader(self.now + lasts, str(stream), paths))

    def deliver(self, body: str) -> None:
        """A message that was sent: mostly soon."""
        late = self.happens(0.05)
        seconds = self.chance.uniform(3_600.0, 2 * 86_400.0) if late else self.chance.uniform(1.0, 60.0)
        self._scheduler.at(self.now + seconds, partial(self._arrive, body))

    def _arrive(self, body: str) -> None:
        self.world.queue.send(body)
        self._scheduler.wake(lambda: self.chance.uniform(0.0, NOTICED_SECONDS))

    def check_decided(self, job_run_id: str) -> None:
        if self._made(job_run_id) is None:
            self.violations.append(f"no open decision stands behind job run {job_run_id}")

    def pay(self, spec: SessionSpec) -> Cost | None:
        """What a session costs that succeeds now."""
        made = self._made(spec.job_run.job_run_id)
        if made is None:
            return None
        table_id, decision = made
        (stream,) = [each for each in decision.streams if each.partition == spec.partition]
        usd = (stream.expected_usd or 0.0) * self.chance.uniform(*self._expected)
        self._spent[table_id, day_of(self.world.clock.now_ms())].append(usd)
        return cost_of(usd)

    # -- faults

    def happens(self, probability: float) -> bool:
        return not self.is_quiet and self._chances.lost_answer > 0 and self.chance.random() < probability

    def before_a_write(self, number: int | None) -> None:
        self.may_be_away()
        if self._chances.killed and not self.is_quiet and self.chance.random() < self._chances.killed:
            raise Stopped
        if number is not None and not self._is_nested and self.chance.random() < self._chances.meets:
            self._is_nested = True
            other = self.chance.choice([each for each in range(len(self._keepers)) if each != number])
            self.look(other)
            self._is_nested = False

    def after_a_write(self) -> None:
        if self.is_quiet:
            return
        if self.chance.random() < self._chances.killed:
            raise Stopped
        if self.chance.random() < self._chances.lost_answer:
            raise Unavailable("the answer was lost")

    def may_be_away(self) -> None:
        if not self.is_quiet and self.chance.random() < self._chances.away / 10:
            raise Unavailable("it does not answer")

    # -- invariants

    def check_files(self, who: str, paths: Sequence[str]) -> None:
        missing = [path for path in paths if self.world.lake_store.read(path) is None]
        if missing:
            self.violations.append(f"{who} misses {missing[0]}")

    def _check_lateness(self) -> None:
        now_ms = self.world.clock.now_ms()
        for table_id, policy in self._policies.items():
            table, bound = self.world.lake.table(table_id), policy.lag_bound_seconds()
            if bound is None:
                continue
            for partition, figures in zip(table.partitions(), read_figures(table), strict=True):
                lag, key = figures.lag_seconds(now_ms), (table_id, str(partition))
                if lag <= bound or not self._is_payable(table_id, figures):
                    self._payable_since.pop(key, None)
                elif min(lag - bound, self.now - self._payable_since.setdefault(key, self.now)) > LATE_SECONDS:
                    self.violations.append(f"{table_id} {partition} is {lag:,.0f} s behind")

    def _is_payable(self, table_id: str, figures: StreamFigures) -> bool:
        """Whether there is money for it, and none of it is being spent on the table's other streams."""
        chosen = self._policies[table_id].resolved
        if chosen.usd_per_day is None and chosen.max_usd is None:
            return True
        cost, state = _rounded_cost(figures, ClusterRoom(), None, is_remote=False).usd or 0.0, self._state(table_id)
        if state.open or (chosen.max_usd is not None and cost > chosen.max_usd):
            return False
        return chosen.usd_per_day is None or state.spent_usd(self.world.clock.now_ms()) + cost <= chosen.usd_per_day

    def _check_end(self) -> None:
        for reader in self._readers:
            self.check_files(f"a reader of {reader.stream}", reader.paths)
        before, self._keeps_up = self.decisions, False
        self._days_pass(30)
        late = self.decisions
        self._days_pass(20)
        self._keeps_up = True
        for _ in range(2):
            self._dispatchers.stand_still(2 * GRACE_SECONDS)
            self._pass(2 * GRACE_SECONDS)
            self.look(0)
        self._check_decisions(before, late)
        for table_id in self._policies:
            self._check_table(table_id)

    def _days_pass(self, looks: int) -> None:
        """Two days and an hour between two looks: in time a window of each hour is met."""
        for _ in range(looks):
            self._dispatchers.stand_still(2 * 86_400)
            self._pass(2 * 86_400)
            for number in range(len(self._keepers)):
                self.look(number)
            self._pass(3_600)

    def _check_decisions(self, before: int, late: int) -> None:
        """`before` the last days, and `late` in them: so many decisions."""
        self._dispatchers.check_end()
        if self.decisions > late:
            self.violations.append(
                f"{self.decisions - late} decisions long after the last write ({late - before} before)"
            )
        twice = sorted(str(each) for each, count in self.world.commits.items() if count > 1)
        if twice:
            self.violations.append(f"compacted twice: {', '.join(twice[:3])}")

    def _check_table(self, table_id: str) -> None:
        for stream in map(self.world.lake.table(table_id).stream, self.world.lake.table(table_id).partitions()):
            self.check_files(f"the last entry of {stream}", paths_of_snapshot(stream.load().state))
        left = find_garbage(self.world.lake_store, table_id, self.world.clock, GRACE_SECONDS)
        garbage = [file.key for each in left for file in each.garbage]
        if garbage:
            self.violations.append(f"{len(garbage)} files are garbage and stay, {garbage[0]} among them")
        self._check_nothing_is_due(table_id)
        state, made = self._state(table_id), self._decided(table_id)
        if state.open:
            self.violations.append(f"{table_id}: {len(state.open)} decisions have not ended")
        if len(made) != len({each.job_run_id for each in made}):
            self.violations.append(f"{table_id}: a job run was decided twice")
        self._check_alone(table_id)
        for each in made:
            log = JobRunStore(self.world.state, self.world.clock).log(each.job_run_id)
            kinds = Counter[type](type(action) for entry in log.entries() for action in entry.actions)
            if (kinds[JobRunAccepted], kinds[JobRunEnded]) != (1, 1):
                times = f"{kinds[JobRunAccepted]} times accepted, {kinds[JobRunEnded]} times ended"
                self.violations.append(f"{table_id}: job run {each.job_run_id} was {times}")
        most = self._policies[table_id].resolved.usd_per_day
        for (of, day), spent in self._spent.items():
            if of == table_id and most is not None and sum(spent) - max(spent) > most + 1e-9:
                self.violations.append(f"{table_id} has spent ${sum(spent):.2f} of ${most:.2f} on {day}")

    def _check_nothing_is_due(self, table_id: str) -> None:
        """That the policy asks for nothing more, or for what it does not pay; and that what it counts is below."""
        table, policy = self.world.lake.table(table_id), self._policies[table_id]
        for partition, figures in zip(table.partitions(), read_figures(table), strict=True):
            terms = Terms(cost=_rounded_cost(figures, ClusterRoom(), None, is_remote=False))
            found = decide(figures, policy, self.world.clock.now_ms(), terms)
            if isinstance(found, Due):
                self.violations.append(f"{table_id} {partition} is still due: {found.why}")
            small, share = policy.small_files or inf, policy.small_file_share or inf
            if figures.mergeable_files and (figures.small_files >= small or figures.small_file_share >= share):
                self.violations.append(f"{table_id} {partition} still has {figures.small_files} small files")

    def _check_alone(self, table_id: str) -> None:
        """No stream is decided while a decision on it is open."""
        open_streams: dict[str, frozenset[str]] = {}
        for entry in self.world.decision_log(table_id).entries():
            for action in entry.actions:
                if isinstance(action, DecisionMade):
                    streams = frozenset(each.key for each in action.streams)
                    meets = sorted(streams & frozenset().union(*open_streams.values()))
                    if meets:
                        self.violations.append(f"{table_id}: two decisions are open on {', '.join(meets)}")
                    open_streams[action.job_run_id] = streams
                elif isinstance(action, DecisionEnded):
                    open_streams.pop(action.job_run_id, None)

    def _state(self, table_id: str) -> DecisionState:
        return self.world.decision_log(table_id).load().state

    def _decided(self, table_id: str) -> Sequence[DecisionMade]:
        return self.world.decisions(table_id, DecisionMade)

    def _made(self, job_run_id: str) -> tuple[str, DecisionMade] | None:
        for table_id in self._policies:
            found = self._state(table_id).open.get(job_run_id)
            if found is not None:
                return table_id, found.made
        return None

    @property
    def digest(self) -> str:
        """Of all decisions, and of how many files were deleted."""
        decided = [each.job_run_id for table_id in sorted(self._policies) for each in self._decided(table_id)]
        return hashlib.sha256(f"{decided} {self.deleted_files}".encode()).hexdigest()


_NO_SAMPLES = pa.table({"at_ms": pa.array([], pa.int64()), "lake": pa.array([], pa.string()), "table": []})


def without_rows() -> None:
    """Files have no rows here, and no columns: where a file's schema is read, it is this one. Before the first seed.

    Samples of the history have no rows either; what a checkpoint's piece holds is found once, and the cost of sessions
    of about the same size. No cluster is launched whose nodes could be charged: a session has cost what its end says.
    """
    vars(pinning)["read_schema"] = lambda *_: pa.schema([("id", pa.int64())])
    vars(lag_board)["write_sample"] = _write_empty_sample
    vars(lag_samples)["_read"] = lambda store, key: _NO_SAMPLES if store.read(key) is not None else None
    vars(checkpoints)["parse_rows"] = lru_cache(KEPT_RESULTS)(parse_rows)
    vars(table_keeper)["expected_cost"] = _rounded_cost
    vars(outcome)["session_cost"] = _told_cost


_cost = lru_cache(KEPT_RESULTS)(expected_cost)


def _rounded_cost(figures: StreamFigures, room: Room, pool: WorkerPool | None, *, is_remote: bool) -> Expected:
    """That of figures rounded up to powers of two, of which there are few."""
    names = ("pending_deltas", "pending_rows", "pending_bytes", "files", "file_bytes", "rows", "dead_rows")
    rounded = {name: 1 << (getattr(figures, name) - 1).bit_length() for name in names if getattr(figures, name)}
    return _cost(StreamFigures(**rounded), room, pool, is_remote=is_remote)


def _told_cost(session: SessionState, _: int, end: SessionEnd | None = None) -> Cost | None:
    ended = end or session.end
    return ended.result.cost if isinstance(ended, Succeeded) else None


def _write_empty_sample(store: ObjectStore, lake: str, at_ms: int, _: object) -> bool:
    minute = f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H%M}"
    return store.put_if_absent(LagMinute(day_of(at_ms), minute, lake).key, b"")


def run_keepers(seed: int, days: float = DAYS) -> Keepers:
    """A seed, with its broken invariants. `virtual_threads.install` comes first."""
    keepers = Keepers(seed, days)
    try:
        keepers.run()
    except Exception as error:  # noqa: BLE001  (any error: the other seeds still run)
        keepers.violations.append(f"{type(error).__name__}: {error}")
    return keepers


def break_on_purpose(what: Break) -> None:
    """In a process that only simulates."""
    match what:
        case Break.FORGET_WORK:
            DecisionState.streams_at_work = frozenset()  # type: ignore[method-assign, assignment]
        case Break.FORGET_SPENT:
            DecisionState.spent_usd = lambda *_: 0.0  # type: ignore[method-assign]
        case Break.NO_GRACE:
            whole = LakeUpkeep.do_what_is_due

            def hasty(self: LakeUpkeep) -> Upkeep:
                self._settings = replace(self._settings, grace_seconds=0.0)
                return whole(self)

            LakeUpkeep.do_what_is_due = hasty  # type: ignore[method-assign]
        case Break.LEAVE_SMALL_FILES:
            vars(due)["has_work"] = lambda figures: figures.pending_deltas > 0
        case _:
            assert_never(what)
