"""Runs a bundle: many small sessions in one Spark job, each in one of its tasks, with the engine of one core.

    driver                                                   a task, on any machine
    ------                                                   ----------------------
    members, the longest first --one or several a task--> run_member: a normal attempt with its session log
    heartbeat.json of the bundle <--ended members, rows--

Members of a lake on an object store mostly wait for answers, so several share a task and wait side by side, each with
its part of the task's memory (`share_tasks`).

A failure affects only its own member: its end is in its session log, and the task itself succeeds. If a member kills
its process, the driver writes its end, and others that shared the task get tasks of their own. The bundle's heartbeat
is a hint like a session's: it lists the ended members, so that watchers read only their logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Self

from compactor.catalog.tables import DeltaCatalog
from compactor.engine.protocol import TaskRunner, sentence_of
from compactor.log.durable_log import DurableLog
from compactor.log_context import LOG
from compactor.model.background import BackgroundLoop, SharedLoop
from compactor.model.clock import Clock, SystemClock
from compactor.model.document import Document
from compactor.model.errors import ErrorKind, Fenced, LithifyError, kind_of, reason_of
from compactor.planning.bundle_plan import BundleMember, BundlePlan
from compactor.sessions.keys import BundleFolder, SessionFolder
from compactor.sessions.session_journal import POLL_SECONDS, HeartbeatListener, SessionJournal
from compactor.sessions.session_log import SESSION_LOG, SessionLogState, SessionSucceeded
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from compactor.task_progress import ProgressAddress, ProgressListener, RowCounter, listening


class UnloggedEnd(Document):
    """The end of a member that could not be written to its session log: it was fenced, or the log was unavailable."""

    error_kind: ErrorKind
    reason: str


class EndedMember(Document):
    """`member`: its position in the bundle's plan, from 0."""

    member: int
    untold: UnloggedEnd | None = None


class BundleHeartbeat(Document):
    """Progress of a bundle, overwritten at each progress. `at_ms` changes only with real progress.

    Attributes:
        ended: members whose end is in their session log, or in `untold` if it could not be written; never removed
        signs: progress reports of running members"""

    bundle_id: str
    at_ms: int
    members: int
    ended: tuple[EndedMember, ...] = ()
    signs: int = 0


@dataclass(frozen=True)
class MemberTask:
    """The argument of the task.

    Attributes:
        progress_address: where it reports progress; None: nowhere
        is_beside_others: other members run in the same task at the same time"""

    member: BundleMember
    state: StoreLocation
    progress_address: ProgressAddress | None
    is_beside_others: bool = False


BundleTaskRunner = TaskRunner[MemberTask, UnloggedEnd | None]


def run_bundle(
    plan: BundlePlan,
    job_run_id: str,
    state: ObjectStore,
    runner: BundleTaskRunner,
    hosts: tuple[str, str] | None,
    clock: Clock,
    *,
    groups: Sequence[Sequence[int]] = (),
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Runs every member, independently of failures of others. Raises errors that end the Spark job itself.

    Args:
        hosts: by which tasks reach this process, and on which it listens
        groups: members that share a task, by their position in the plan; empty: each has its own
        poll_seconds: between two looks at the progress of members"""
    folder = BundleFolder(job_run_id, plan.bundle_id)
    with listening(*(hosts or ("127.0.0.1", "127.0.0.1")), clock) as listener:
        address = listener.address if listener is not None and hosts is not None else None
        beside = {number for group in groups if len(group) > 1 for number in group}
        tasks = [
            MemberTask(member, state.location, address, number in beside) for number, member in enumerate(plan.members)
        ]
        with _BundleHeartbeat(plan, folder, state, runner, listener, clock, poll_seconds=poll_seconds) as heart:
            for number, error in runner.run(tasks, run_member, groups).items():
                heart.lost(number, _write_end(plan.members[number], error, state, clock))


def run_member(task: MemberTask, may_have_run: bool) -> UnloggedEnd | None:
    """In a task: one attempt at one session. Its end is returned, or is in its session log.

    Args:
        may_have_run: an earlier task may have run it, on a machine that was lost, and may have ended it"""
    # What runs sessions loads the kernels: the launcher, which reads heartbeats of bundles, does not.
    from compactor.engine.in_process import InProcessEngine
    from compactor.sessions.attempt import run_attempt_with_journal

    member, clock = task.member, SystemClock()
    try:
        state = store_at(task.state)
        if may_have_run and _has_ended(member, state, clock):
            return None
        signs = RowCounter(task.progress_address, clock)
        journal = _journal(member, state, clock, lambda _: signs.add(1))
        lake = lake_at(member.plan.spec.job_run.lake)
        run_attempt_with_journal(
            journal,
            member.plan,
            lake,
            InProcessEngine(),
            clock,
            member.before_seconds,
            shares_core=shares_core(lake, is_beside_others=task.is_beside_others),
        )
    except Exception as error:  # noqa: BLE001  (the task must succeed, or Spark would run it again)
        return _unlogged_end(member, error, task.state, clock)
    return None


def shares_core(lake: DeltaCatalog, *, is_beside_others: bool) -> bool:
    """Whether a session of this lake takes longer beside others: on an object store it mostly waits for answers."""
    return is_beside_others and not lake.location.is_remote


class _BundleHeartbeat:
    """A context manager that writes the bundle's heartbeat."""

    def __init__(
        self,
        plan: BundlePlan,
        folder: BundleFolder,
        state: ObjectStore,
        runner: BundleTaskRunner,
        listener: ProgressListener | None,
        clock: Clock,
        *,
        poll_seconds: float,
    ) -> None:
        self._key = folder.heartbeat.key
        self._state = state
        self._runner = runner
        self._listener = listener
        self._clock = clock
        self._ended: dict[int, UnloggedEnd | None] = {}
        self._beat = BundleHeartbeat(bundle_id=plan.bundle_id, at_ms=clock.now_ms(), members=len(plan.members))
        self._beating = BackgroundLoop("bundle-heartbeat", self._look, poll_seconds)

    def __enter__(self) -> Self:
        self._write()
        self._beating.__enter__()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._beating.end()
        self._look()

    def lost(self, number: int, unlogged: UnloggedEnd | None) -> None:
        """A member killed its process; its end was written, or could not be."""
        self._ended[number] = unlogged

    def _look(self) -> None:
        """Writes only if there is progress, so that a bundle that hangs is detected."""
        ended = {**self._runner.ended(), **self._ended}
        known = {each.member for each in self._beat.ended}
        news = tuple(EndedMember(member=number, untold=ended[number]) for number in ended if number not in known)
        signs = 0 if self._listener is None else self._listener.rows()
        if news or signs != self._beat.signs:
            changes = {"ended": (*self._beat.ended, *news), "signs": signs, "at_ms": self._clock.now_ms()}
            self._beat = self._beat.model_copy(update=changes)
            self._write()

    def _write(self) -> None:
        try:
            self._state.overwrite(self._key, self._beat.render())
        except Exception as error:  # noqa: BLE001  (a hint: the next one makes up for it, and the facts are in the logs)
            LOG.warning("heartbeat_not_written", reason=reason_of(error))


def _journal(member: BundleMember, state: ObjectStore, clock: Clock, on_heartbeat: HeartbeatListener) -> SessionJournal:
    # A store that does not answer may hold up the heartbeats of one member, not of all.
    beats = None if state.location.is_remote else _heartbeats()
    return SessionJournal(
        state, _folder(member), member.attempt, clock, on_heartbeat=on_heartbeat, is_brief=True, beats=beats
    )


@cache
def _heartbeats() -> SharedLoop:
    """For all members that this process ever runs: starting a thread takes as long as a small session's commit."""
    return SharedLoop("heartbeats", POLL_SECONDS).__enter__()


def _write_end(member: BundleMember, error: LithifyError, state: ObjectStore, clock: Clock) -> UnloggedEnd | None:
    """In the driver, for a member whose process has died. None: its log has its end."""
    try:
        if not _has_ended(member, state, clock):
            _journal(member, state, clock, lambda _: None).failed(error.kind, (str(error),))
    except LithifyError as failure:
        return UnloggedEnd(error_kind=error.kind, reason=f"{error}; and its log could not be written: {failure}")
    return None


def _unlogged_end(member: BundleMember, error: Exception, state: StoreLocation, clock: Clock) -> UnloggedEnd | None:
    """The end of a member that raised this error. None: its log has it."""
    if not isinstance(error, Fenced):
        try:
            if _has_ended(member, store_at(state), clock):
                return None
        except LithifyError as failure:
            LOG.warning("session_log_not_read", reason=str(failure))
    reason = str(error) if isinstance(error, LithifyError) else f"{type(error).__name__}: {sentence_of(error)}"
    return UnloggedEnd(error_kind=kind_of(error), reason=reason)


def has_ended(log: SessionLogState, attempt: int) -> bool:
    """Whether the session has succeeded, or this attempt has failed."""
    return isinstance(log.end, SessionSucceeded) or (log.end is not None and log.end.attempt == attempt)


def _has_ended(member: BundleMember, state: ObjectStore, clock: Clock) -> bool:
    log = DurableLog(state, _folder(member).log, SESSION_LOG, clock)
    return has_ended(log.load_until(lambda found: has_ended(found, member.attempt)).state, member.attempt)


def _folder(member: BundleMember) -> SessionFolder:
    spec = member.plan.spec
    return SessionFolder(spec.job_run.job_run_id, spec.session_id)


# Members that run in one process share clients, and what was read of the table.

STORES__kept_lake_at = 16
"""A process that runs many jobs keeps clients and a bounded part of the logs of so many stores."""


@lru_cache(maxsize=STORES__kept_lake_at)
def store_at(location: StoreLocation) -> ObjectStore:
    return open_store(location)


@lru_cache(maxsize=STORES__kept_lake_at)
def lake_at(location: StoreLocation) -> DeltaCatalog:
    """For one job: see `DeltaCatalog.for_one_run`."""
    return _kept_lake_at(location).for_one_run()


@lru_cache(maxsize=STORES__kept_lake_at)
def _kept_lake_at(location: StoreLocation) -> DeltaCatalog:
    return DeltaCatalog(store_at(location), SystemClock())


def begin_job() -> None:
    """Another job begins in this process: it reads the definitions of tables again."""
    lake_at.cache_clear()
