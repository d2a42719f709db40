"""Two or three simulated keepers over days: everything in them is real but the services, the dispatcher and time.

A seed decides what is written, which policies the tables have, and what goes wrong: answers that are lost, a state and
a queue that are away, messages that come late or twice, keepers that are killed before or after a write and that look
while another one writes, job runs that fail, and that cost more than was expected. After `QUIET_DAYS` nothing goes
wrong any more, and after the writers' end the keepers must come to an end. `violations` lists the broken invariants:

    no delta is compacted by two job runs, and no two job runs are at work on one stream
    no day's money is passed by more than the job run that was begun last
    no stream is behind its bound, where nothing goes wrong and there is money
    after the last write there are finitely many decisions, and all of them end
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compactor.catalog.compact_when import CompactWhen
from compactor.log.durable_log import DurableLog
from compactor.model.errors import LithifyError, Unavailable
from compactor.planning.table_figures import read_figures
from compactor.storage.object_store import ObjectEntry, ObjectStore
from dispatcher.keeper.decision_log import DECISION_LOG, DecisionMade, DecisionState
from dispatcher.keeper.keeper import Keeper
from dispatcher.keeper.keys import DecisionLogFolder, lake_name
from dispatcher.keeper.table_keeper import KeeperSettings
from dispatcher.records.history import day_of
from launcher.sizing.cluster_choice import ClusterRoom
from tests.fakes.faulty_store import Stopped
from tests.fakes.memory_queue import MemoryQueue
from tests.keeper_world import KeeperWorld, RunAtWork

DAYS = 6.0
QUIET_DAYS = 3.5
WRITERS_END_DAYS = 5.0
STEP_SECONDS = (30.0, 1_800.0)
LOOK_SECONDS = 600.0
SETTLED_SECONDS = 4 * 3_600.0
"""After the last fault and the last write: what was lost is sent again, and failures are tried again."""

RUN_SECONDS = 1_500.0
"""The longest job run."""

LATE_SECONDS = 2 * RUN_SECONDS + 1.2 * LOOK_SECONDS + 4 * STEP_SECONDS[1]
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
)


@dataclass
class _Chances:
    """How likely each fault is."""

    lost_answer: float = 0.0
    away: float = 0.0
    killed: float = 0.0
    meets: float = 0.0


class KeepersStore:
    """The state as one keeper reaches it. `meanwhile` is called before some writes: another keeper looks."""

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

    def list_folders(self, prefix: str) -> Iterator[str]:
        self._world.may_be_away()
        return self._store.list_folders(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)

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
            self._world.delays.append((self._world.delay_of_a_message(), body))
        self._world.after_a_write()
        return "message"


class Keepers:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = KeeperWorld(remote=False)
        self.delays: list[tuple[int, str]] = []
        self.violations: list[str] = []
        self.decisions = 0
        self._begun_ms = self.world.clock.now_ms()
        self._chances = self.chance.choice(
            [_Chances(), _Chances(0.01, 0.01, 0.01, 0.1), _Chances(0.05, 0.05, 0.03, 0.3)]
        )
        self._expected = self.chance.choice([(1.0, 1.0), (0.5, 2.0)])
        self._is_nested = False
        self._at_work: list[tuple[float, RunAtWork]] = []
        self._spent: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._policies: dict[str, CompactWhen] = {}
        self._queue = KeepersQueue(self, self.world.queue)
        self._keepers = [self._keeper(number) for number in range(self.chance.randint(2, 3))]
        self._look_at = [self.chance.uniform(0, LOOK_SECONDS) for _ in self._keepers]
        self._make_tables()

    def _make_tables(self) -> None:
        for number in range(self.chance.randint(1, 4)):
            table_id = f"ACME.T{number}.V1"
            keys = self.chance.choice([(), ("day",)])
            table = self.world.table(
                self.chance.choice(POLICIES), table_id, keys, news_hints=self.chance.random() < 0.5
            )
            policy = table.properties.compact_when
            assert policy is not None
            self._policies[table_id] = policy

    def _keeper(self, number: int) -> Keeper:
        store = KeepersStore(self.world.state, self, number)
        return self.world.keeper(KeeperSettings(), state=store, queue=self._queue, room=ClusterRoom())  # type: ignore[arg-type]

    # -- time

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return (self.world.clock.now_ms() - self._begun_ms) / 1000

    @property
    def is_quiet(self) -> bool:
        return self.now >= QUIET_DAYS * 86_400

    def run(self) -> None:
        while self.now < DAYS * 86_400:
            self.world.clock.sleep(self.chance.uniform(*STEP_SECONDS))
            if self.now < WRITERS_END_DAYS * 86_400:
                self._write()
            self._look()
            self._deliver()
            self._finish()
            if self.now > QUIET_DAYS * 86_400 + SETTLED_SECONDS:
                self._check_lateness()
        self._check_end()

    # -- what happens

    def _write(self) -> None:
        for table_id in self._policies:
            if self.chance.random() < 0.3:
                keys = self.world.lake.table(table_id).partition_keys
                partition = {key: str(self.chance.randrange(6)) for key in keys}
                self.world.append(table_id, partition, self.chance.choice([1, 10, 100]), self.chance.randint(1, 3))

    def _look(self) -> None:
        for number in range(len(self._keepers)):
            if self.now >= self._look_at[number]:
                self._look_at[number] = self.now + LOOK_SECONDS * self.chance.uniform(0.8, 1.2)
                self.look(number)

    def look(self, number: int) -> None:
        try:
            self.decisions += self._keepers[number].look().decided
        except Stopped:
            self._keepers[number] = self._keeper(number)
            self._look_at[number] = self.now + self.chance.uniform(60.0, 7_200.0)
        except LithifyError:
            return  # the next look

    def _deliver(self) -> None:
        now_ms = self.world.clock.now_ms()
        for at_ms, body in [each for each in self.delays if each[0] <= now_ms]:
            self.delays.remove((at_ms, body))
            run = self.world.accept(body, self.world.clock.new_id())
            if run is not None:
                self._check_alone(run)
                self._at_work.append((self.now + self.chance.uniform(5.0, RUN_SECONDS), run))

    def _finish(self) -> None:
        for at, run in [each for each in self._at_work if each[0] <= self.now]:
            self._at_work.remove((at, run))
            made = self._made(run.job_run_id)
            if made is None:
                self.violations.append(f"no decision stands behind job run {run.job_run_id}")
                continue
            table_id, decision = made
            usd = (decision.expected_usd or 0.0) * self.chance.uniform(*self._expected)
            fails = not self.is_quiet and self.happens(0.05)
            self.world.finish(run, fails=fails, usd=usd)
            self._spent[table_id, day_of(self.world.clock.now_ms())].append(usd)

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

    def delay_of_a_message(self) -> int:
        """When it is delivered: mostly soon."""
        late = self.happens(0.05)
        seconds = self.chance.uniform(3_600.0, 2 * 86_400.0) if late else self.chance.uniform(1.0, 60.0)
        return self.world.clock.now_ms() + round(seconds * 1000)

    # -- invariants

    def _check_alone(self, run: RunAtWork) -> None:
        busy = {str(stream) for _, each in self._at_work for stream, _ in each.sessions}
        meets = sorted(busy & {str(stream) for stream, _ in run.sessions})
        if meets:
            self.violations.append(f"two job runs are at work on {', '.join(meets)}")

    def _check_lateness(self) -> None:
        now_ms = self.world.clock.now_ms()
        for table_id, policy in self._policies.items():
            if policy.resolved.usd_per_day is not None:
                continue
            table, bound = self.world.lake.table(table_id), policy.lag_bound_seconds()
            for partition, figures in zip(table.partitions(), read_figures(table), strict=True):
                lag = figures.lag_seconds(now_ms)
                if bound is not None and lag > bound + LATE_SECONDS:
                    self.violations.append(f"{table_id} {partition} is {lag:,.0f} s behind")

    def _check_end(self) -> None:
        before = self.decisions
        for _ in range(60):
            self.world.clock.sleep(86_400)
            for number in range(len(self._keepers)):
                self.look(number)
            self._deliver()
            self.world.clock.sleep(1_800)
            self._deliver()
            self.world.clock.sleep(1_800)
            self._finish()
        late = self.decisions
        for _ in range(80):
            self.world.clock.sleep(86_400)
            for number in range(len(self._keepers)):
                self.look(number)
        if self._at_work or self.delays:
            self.violations.append(f"there is no end: {len(self._at_work)} job runs, {len(self.delays)} messages")
        if self.decisions > late:
            self.violations.append(
                f"{self.decisions - late} decisions long after the last write ({late - before} before)"
            )
        twice = sorted(str(each) for each, count in self.world.commits.items() if count > 1)
        if twice:
            self.violations.append(f"compacted twice: {', '.join(twice[:3])}")
        runs = [job_run_id for job_run_id, count in Counter(self.world.job_runs).items() if count > 1]
        if runs:
            self.violations.append(f"begun twice: {', '.join(runs)}")
        for table_id in self._policies:
            self._check_table(table_id)

    def _check_table(self, table_id: str) -> None:
        state, made = self._state(table_id), self._decided(table_id)
        if state.open:
            self.violations.append(f"{table_id}: {len(state.open)} decisions have not ended")
        if len(made) != len({each.job_run_id for each in made}):
            self.violations.append(f"{table_id}: a job run was decided twice")
        most = self._policies[table_id].resolved.usd_per_day
        for (of, day), spent in self._spent.items():
            if of == table_id and most is not None and sum(spent) - max(spent) > most:
                self.violations.append(f"{table_id} has spent ${sum(spent):.2f} of ${most:.2f} on {day}")

    def _log(self, table_id: str) -> DurableLog:  # type: ignore[type-arg]
        folder = DecisionLogFolder(lake_name(self.world.lake.location), table_id)
        return DurableLog(self.world.state, folder.key, DECISION_LOG, self.world.clock)

    def _state(self, table_id: str) -> DecisionState:
        state = self._log(table_id).load().state
        assert isinstance(state, DecisionState)
        return state

    def _decided(self, table_id: str) -> Sequence[DecisionMade]:
        entries = self._log(table_id).entries()
        return [action for entry in entries for action in entry.actions if isinstance(action, DecisionMade)]

    def _made(self, job_run_id: str) -> tuple[str, DecisionMade] | None:
        for table_id in self._policies:
            found = self._state(table_id).open.get(job_run_id)
            if found is not None:
                return table_id, found.made
        return None


def run_keepers(seed: int) -> list[str]:
    """The broken invariants of a seed."""
    keepers = Keepers(seed)
    keepers.run()
    return keepers.violations
