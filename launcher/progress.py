"""What shows the progress of a launch: a session's log and heartbeat, or the heartbeat of a bundle.

| launch      | read at each poll              | read when a session has ended |
|-------------|--------------------------------|-------------------------------|
| one session | its session log, its heartbeat | -                             |
| a bundle    | the bundle's heartbeat         | the session log of that one   |

A bundle's heartbeat names the members that have ended, so that only their logs are read.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from compactor.log.durable_log import DurableLog
from compactor.log_context import Logged
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, Fenced, Outdated
from compactor.planning.spec import SessionSpec
from compactor.sessions.bundle import BundleHeartbeat, UnloggedEnd, has_ended
from compactor.sessions.keys import BundleFolder, SessionFolder
from compactor.sessions.session_log import SESSION_LOG, Heartbeat, SessionLog, SessionLogState
from compactor.storage.concurrently import run_concurrently
from compactor.storage.object_store import ObjectStore
from launcher.launch_journal import Launch, LaunchJournal, Member

HeartbeatT = TypeVar("HeartbeatT", Heartbeat, BundleHeartbeat)


def folder_of(spec: SessionSpec) -> SessionFolder:
    return SessionFolder(spec.job_run.job_run_id, spec.session_id)


class SessionLogs:
    """The session logs of a launch, by the positions of its members. Every read tells the journal what is new, and
    raises `Fenced` if a later attempt has begun."""

    def __init__(self, store: ObjectStore, journal: LaunchJournal, clock: Clock) -> None:
        self._store = store
        self._journal = journal
        self._clock = clock
        self._logs: dict[int, SessionLog] = {}

    def read_until_end(self, number: int, member: Member) -> SessionLogState:
        """As far as the end of its attempt: saves the request for an entry after it."""
        log = self._log(number, member)
        before = log.newest.entry_number
        log.load_until(lambda state: has_ended(state, member.attempt))
        return self._noted(log, member, before)

    def read_all(self, members: Mapping[int, Member]) -> dict[int, SessionLogState]:
        """The whole logs of these members."""

        def read(number: int) -> SessionLogState:
            log = self._log(number, members[number])
            before = log.newest.entry_number
            log.load()
            return self._noted(log, members[number], before)

        return dict(zip(members, run_concurrently(self._store.location, read, list(members)), strict=True))

    def written_by(self, number: int, attempt: int, after: int) -> bool:
        """Whether an entry after this one is of the attempt: an earlier one may still run and write."""
        log = self._logs[number]
        entries = map(log.entry, range(after + 1, log.newest.entry_number + 1))
        return any(action.attempt == attempt for entry in entries for action in entry.actions)

    def entry_number(self, number: int) -> int:
        return self._logs[number].newest.entry_number if number in self._logs else 0

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._logs.pop(number, None)

    def _log(self, number: int, member: Member) -> SessionLog:
        folder = folder_of(member.plan.spec).log
        return self._logs.setdefault(number, DurableLog(self._store, folder, SESSION_LOG, self._clock))

    def _noted(self, log: SessionLog, member: Member, before: int) -> SessionLogState:
        state = log.newest.state
        if log.newest.entry_number > before:
            self._journal.session_read(member, log)
        if state.attempt > member.attempt and not has_ended(state, member.attempt):
            raise Fenced(
                f"attempt {member.attempt} was superseded by attempt {state.attempt}: somebody else launched it"
            )
        return state


@dataclass(frozen=True)
class FinishedMember:
    """`unlogged`: its end, if the job could not write it to the session log."""

    state: SessionLogState
    unlogged: UnloggedEnd | None = None


class Progress(ABC):
    """
    Attributes:
        has_begun: the job has given a sign of life
        ended: sessions whose end is known, by their positions"""

    def __init__(self, heartbeat_key: str, logs: SessionLogs, store: ObjectStore, journal: LaunchJournal) -> None:
        self.has_begun = False
        self.ended: dict[int, FinishedMember] = {}
        self._heartbeat_key = heartbeat_key
        self._logs = logs
        self._store = store
        self._journal = journal

    @abstractmethod
    def read(self, members: Mapping[int, Member]) -> bool:
        """Whether these members have progressed since the last call. Raises `Fenced` and the store's errors."""

    def _read_heartbeat(self, kind: type[HeartbeatT]) -> HeartbeatT | None:
        """None while there is no readable one."""
        body = self._store.read(self._heartbeat_key)
        with Logged("heartbeat_unreadable", Corrupt, Outdated, key=self._heartbeat_key):
            return None if body is None else kind.parse_durable(body, self._heartbeat_key)
        return None


class SessionLaunchProgress(Progress):
    _heartbeat: Heartbeat | None = None
    _entry_number = 0

    def read(self, members: Mapping[int, Member]) -> bool:
        ((number, member),) = members.items()
        state = self._logs.read_until_end(number, member)
        self.has_begun = state.attempt == member.attempt
        found: Heartbeat | None = None
        if has_ended(state, member.attempt):
            self.ended[number] = FinishedMember(state)
        else:
            found = self._read_heartbeat(Heartbeat)
        is_new = found is not None and found.attempt == member.attempt and found != self._heartbeat
        entry_number = self._logs.entry_number(number)
        is_progress = is_new or self._logs.written_by(number, member.attempt, self._entry_number)
        if is_new or entry_number > self._entry_number:
            self._journal.progressed([member], found if is_new else None)
        self._heartbeat, self._entry_number = found if is_new else self._heartbeat, entry_number
        return is_progress


class BundleProgress(Progress):
    _heartbeat: BundleHeartbeat | None = None

    def read(self, members: Mapping[int, Member]) -> bool:
        heartbeat = self._read_heartbeat(BundleHeartbeat)
        if heartbeat is None or heartbeat == self._heartbeat:
            return False
        self.has_begun = True
        found = {each.member: each.untold for each in heartbeat.ended if each.member in members.keys() - self.ended}

        def read(number: int) -> FinishedMember:
            return FinishedMember(self._logs.read_until_end(number, members[number]), found[number])

        self.ended |= dict(zip(found, run_concurrently(self._store.location, read, list(found)), strict=True))
        self._heartbeat = heartbeat
        self._journal.progressed([member for number, member in members.items() if number not in self.ended])
        return True


def progress_of(launch: Launch, logs: SessionLogs, store: ObjectStore, journal: LaunchJournal) -> Progress:
    spec = launch.any_plan.spec
    if launch.bundle_id is None:
        return SessionLaunchProgress(folder_of(spec).heartbeat.key, logs, store, journal)
    folder = BundleFolder(spec.job_run.job_run_id, launch.bundle_id)
    return BundleProgress(folder.heartbeat.key, logs, store, journal)
