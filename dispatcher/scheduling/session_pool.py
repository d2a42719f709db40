"""Chooses the next session, and runs sessions in threads: a bounded number over all job runs.

Sessions of one destination stream run one after the other, in the order in which their job runs were accepted. A
session that waits for its next attempt keeps its lease. Between dispatchers `leases.py` decides.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from dispatcher.records.ranking import StreamRank, slot_rank, stream_rank
from dispatcher.records.work_id import WorkId

SessionKey = tuple[WorkId, str]


@dataclass(frozen=True)
class WaitingSession:
    """A session that is to run.

    Attributes:
        table, stream: digests of its destination
        priority: its job run's: higher first
        accepted_at_ms: its job run's: earlier first
        not_before_seconds: monotonic seconds before which it is not started again
        may_share: it may be bundled with others of its job run
        on_spark: it is known not to run in a worker
        bundle: in which it is in flight: one thread watches the whole bundle"""

    work: WorkId
    session_id: str
    table: str
    stream: str
    priority: int
    accepted_at_ms: int
    not_before_seconds: float = 0.0
    may_share: bool = False
    on_spark: bool = False
    bundle: str | None = None

    @property
    def key(self) -> SessionKey:
        return (self.work, self.session_id)

    @property
    def destination(self) -> tuple[str, str]:
        return (self.table, self.stream)

    @property
    def rank(self) -> StreamRank:
        return stream_rank(self.priority, self.accepted_at_ms, self.work.text)


Unit = tuple[WaitingSession, ...]
"""What one thread runs: one session, or several of one job run that may share a Spark job."""

SHARED_MIN = 50
"""Sessions up to which they are not divided among several free threads: each bundle starts a Spark."""

SHARED_IN_WORKER_MIN = 10
"""Sessions of workers, which have started, up to which they are not divided: a launch is four entries."""


@dataclass(frozen=True)
class Slots:
    """Threads for sessions: on Spark, and in workers. Without workers all sessions are on Spark."""

    spark: int
    workers: int = 0


@dataclass(frozen=True)
class SchedulerSnapshot:
    """
    Attributes:
        now_seconds: monotonic
        now_ms: by the wall clock, to compute how long a session has waited
        running_of: running sessions of each table, in all dispatchers"""

    now_seconds: float
    now_ms: int
    running_of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def choose(
    waiting: Iterable[WaitingSession],
    running: Iterable[WaitingSession],
    slots: Slots,
    moment: SchedulerSnapshot,
    bundle_max: int = 1,
) -> tuple[Unit, ...]:
    """The units to start now: the first in rank whose stream is free, one for each slot of its place. Pure.

    Further sessions of the same job run that may share join the first one, at most `bundle_max` together. If several
    slots are free, the sessions are divided among them. A bundle in flight stays together.

    Worked: 1,000 sessions on 2 slots become 500 and 500; 80 sessions become 50 and 30.
    """
    busy = {session.destination for session in running}
    free: list[WaitingSession] = []
    for session in sorted(waiting, key=lambda each: (each.rank, each.session_id)):
        if session.destination not in busy:
            busy.add(session.destination)
            if session.not_before_seconds <= moment.now_seconds:
                free.append(session)
    in_order = tuple(_by_slot(free, moment))
    on_spark = [session for session in in_order if session.on_spark]
    elsewhere = [session for session in in_order if not session.on_spark]
    return (
        *_units(elsewhere, slots.workers, bundle_max, SHARED_IN_WORKER_MIN),
        *_units(on_spark, slots.spark, bundle_max, SHARED_MIN),
    )


def _units(sessions: Sequence[WaitingSession], slots: int, bundle_max: int, shared_min: int) -> Iterator[Unit]:
    if not slots:
        return
    sharing = Counter(session.work for session in sessions if session.may_share and session.bundle is None)
    units: list[list[WaitingSession]] = []
    open_units: dict[tuple[WorkId, str | None], list[WaitingSession]] = {}
    for session in sessions:
        shared = (session.work, session.bundle)
        unit = open_units.get(shared) if session.may_share or session.bundle is not None else None
        share = max(shared_min, -(-sharing[session.work] // slots))
        if unit is not None and (session.bundle is not None or len(unit) < min(bundle_max, share)):
            unit.append(session)
        elif len(units) < slots:
            units.append([session])
            if session.may_share or session.bundle is not None:
                open_units[shared] = units[-1]
    yield from map(tuple, units)


def _by_slot(free: Iterable[WaitingSession], moment: SchedulerSnapshot) -> Iterator[WaitingSession]:
    """The sessions in the order of their slots: each takes one of its table; those that may share a Spark job take
    one."""
    running_of = Counter(moment.running_of)
    of_tables: dict[str, deque[WaitingSession]] = {}
    for session in free:
        of_tables.setdefault(session.table, deque()).append(session)
    shared: set[WorkId] = set()
    while of_tables:
        table = min(of_tables, key=lambda each: slot_rank(of_tables[each][0].rank, moment.now_ms, running_of[each]))
        session = of_tables[table].popleft()
        if not of_tables[table]:
            del of_tables[table]
        if not (session.may_share and session.work in shared):
            running_of[table] += 1
            if session.may_share:
                shared.add(session.work)
        yield session


class SessionPool:
    """Runs sessions in threads. Not thread-safe."""

    def __init__(self, slots: Slots, bundle_max: int = 1, ended: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            slots: sessions, or units of them, at a time
            bundle_max: the most sessions that one thread runs together
            ended: called by a thread that ends"""
        self._ended = ended
        self._slots = slots
        self._bundle_max = bundle_max
        self._threads = ThreadPoolExecutor(slots.spark + slots.workers, thread_name_prefix="session")
        self._waiting: dict[SessionKey, WaitingSession] = {}
        self._running: dict[SessionKey, tuple[WaitingSession, Future[None]]] = {}
        self._withheld: frozenset[SessionKey] = frozenset()
        self._held_back: dict[SessionKey, float] = {}

    @property
    def running_count(self) -> int:
        """Number of busy threads."""
        return len({id(future) for _, future in self._running.values()})

    @property
    def free(self) -> Slots:
        on_spark = len({id(future) for session, future in self._running.values() if session.on_spark})
        return Slots(self._slots.spark - on_spark, self._slots.workers - (self.running_count - on_spark))

    def has_slot_for(self, work: WorkId) -> bool:
        """Whether a thread is free for a waiting session of a job run."""
        free = self.free
        waiting = [session for session in self._waiting.values() if session.work == work]
        return any((free.spark if session.on_spark else free.workers) > 0 for session in waiting)

    def has_room_for(self, candidate: WaitingSession, moment: SchedulerSnapshot) -> bool:
        """Whether this session, of a job run that is not claimed here, would be started now, if its stream is free."""
        candidate = self._placed(candidate)
        running = [session for session, _ in self._running.values()]
        units = choose([*self._startable(moment), candidate], running, self.free, moment, self._bundle_max)
        return any(candidate in unit for unit in units)

    def _placed(self, session: WaitingSession) -> WaitingSession:
        return session if self._slots.workers else replace(session, on_spark=True)

    def has_due(self, work: WorkId, now_seconds: float) -> bool:
        """Whether a waiting session of a job run need not wait for a time."""
        waiting = [session for session in self._waiting.values() if session.work == work]
        return any(session.not_before_seconds <= now_seconds for session in waiting)

    def rests(self, work: WorkId, now_seconds: float) -> bool:
        """Whether every waiting session of a job run must wait for a time, is withheld, or is held back."""
        waiting = [session for session in self._waiting.values() if session.work == work]
        return bool(waiting) and not self.runs(work) and all(self._rests(session, now_seconds) for session in waiting)

    @property
    def waiting(self) -> tuple[WaitingSession, ...]:
        return tuple(self._waiting.values())

    def withhold(self, keys: Iterable[SessionKey]) -> None:
        """From now on exactly these sessions are not started, since they are paused."""
        self._withheld = frozenset(keys)

    def is_withheld(self, work: WorkId) -> bool:
        """Whether all remaining sessions of a job run are withheld."""
        keys = {key for key in self._waiting if key[0] == work}
        return bool(keys) and keys <= self._withheld and not self.runs(work)

    def add(self, session: WaitingSession) -> None:
        """Adds a session to run, or to run again; no thread has it."""
        self._running.pop(session.key, None)
        session = replace(session, may_share=session.may_share and self._bundle_max > 1)
        self._waiting[session.key] = self._placed(session)

    def forget(self, work: WorkId, but: Collection[str] = ()) -> tuple[WaitingSession, ...]:
        """Removes and returns a job run's waiting sessions, all `but` these."""
        forgotten = tuple(
            session for session in self._waiting.values() if session.work == work and session.session_id not in but
        )
        for session in forgotten:
            del self._waiting[work, session.session_id]
            self._held_back.pop(session.key, None)
        return forgotten

    def runs(self, work: WorkId, session_id: str | None = None) -> bool:
        """Whether this session of a job run is in a thread; without a session id: whether any of its sessions is."""
        if session_id is not None:
            return (work, session_id) in self._running
        return any(running == work for running, _ in self._running)

    def candidates(self, moment: SchedulerSnapshot) -> tuple[Unit, ...]:
        """The units that could be started now."""
        running = [session for session, _ in self._running.values()]
        return choose(self._startable(moment), running, self.free, moment, self._bundle_max)

    def start(self, unit: Unit, run: Callable[[Unit], None]) -> None:
        future = self._threads.submit(run, unit)
        future.add_done_callback(lambda _: self._ended())
        for session in unit:
            del self._waiting[session.key]
            self._running[session.key] = (session, future)

    def hold_back(self, keys: Iterable[SessionKey], until_seconds: float) -> None:
        """These sessions are not started before that time: others are ahead, or there is no slot."""
        self._held_back |= dict.fromkeys(keys, until_seconds)

    def retry_blocked(self) -> None:
        """Sessions that were held back may be tried again: the state has changed."""
        self._held_back.clear()

    def _startable(self, moment: SchedulerSnapshot) -> list[WaitingSession]:
        return [session for session in self._waiting.values() if not self._is_kept(session, moment.now_seconds)]

    def _rests(self, session: WaitingSession, now_seconds: float) -> bool:
        return session.not_before_seconds > now_seconds or self._is_kept(session, now_seconds)

    def _is_kept(self, session: WaitingSession, now_seconds: float) -> bool:
        return session.key in self._withheld or self._held_back.get(session.key, now_seconds) > now_seconds

    def finished(self) -> tuple[tuple[WaitingSession, BaseException | None], ...]:
        """Sessions whose thread has ended, each with its error or None. Each is returned once."""
        done = [(key, session, future) for key, (session, future) in self._running.items() if future.done()]
        for key, _, _ in done:
            del self._running[key]
        return tuple((session, future.exception()) for _, session, future in done)

    def close(self) -> None:
        """Waits for the threads. Their sessions must have got the command to stop."""
        self._threads.shutdown(wait=True)
