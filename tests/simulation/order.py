"""Watches that sessions of one destination stream run in the order of acceptance, within priority.

It reads what is written: a lease that is taken on a stream must not pass an open session of a job run that goes first,
if that session was in its log before the dispatcher's tick began, in which it listed the open job runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dispatcher.records.job_run_log import (
    JOB_RUN_LOG,
    JobRunAccepted,
    JobRunEnded,
    JobRunReleased,
    SessionsFound,
)
from dispatcher.records.keys import TurnsLog
from dispatcher.records.ranking import StreamRank, destination_of, stream_digest, stream_rank
from dispatcher.records.sessions import SessionEnded, SessionLaunching, SessionPin, SessionRetried
from dispatcher.scheduling.lease_log import LEASE_LOG, Lease, LeaseTaken
from tests.simulation.virtual_threads import Process

Stream = tuple[str, str]


@dataclass
class _Run:
    table: str
    rank: StreamRank


@dataclass(frozen=True)
class _Open:
    """`seen_from_seconds`: from then on every tick that begins sees it."""

    log: str
    session_id: str
    seen_from_seconds: float


class OrderOfAcceptance:
    def __init__(self, now: Callable[[], float], look_seconds: float, wrong: Callable[[str], None]) -> None:
        """`look_seconds`: between two reads of a log by a dispatcher whose session waits for it."""
        self._now = now
        self._look_seconds = look_seconds
        self._wrong = wrong
        self._ticked_at: dict[str, float] = {}
        self._runs: dict[str, _Run] = {}
        self._open: defaultdict[Stream, dict[str, _Open]] = defaultdict(dict)
        self._stream_of: dict[str, Stream] = {}
        self._in_flight: dict[str, str] = {}
        self.turns_seen = 0
        """Leases that were taken and not adopted."""

    def ticks(self, process: Process) -> None:
        self._ticked_at[process.name] = self._now()

    def created(self, process: Process, key: str, body: bytes) -> None:
        """An object stands now."""
        log, _, name = key.rpartition("/")
        if not name.endswith(".json"):
            return
        if log == TurnsLog().key:
            for each in json.loads(body)["actions"]:
                action = LEASE_LOG.action_type.validate_json(json.dumps(each))
                if isinstance(action, LeaseTaken):
                    self._taken(process, action.turn)
        elif log.startswith("job_runs/") and log.endswith("/log") and "/sessions/" not in log:
            entry = json.loads(body)
            for each in entry["actions"]:
                self._follow(log, JOB_RUN_LOG.action_type.validate_json(json.dumps(each)), entry["at_ms"])

    def _follow(self, log: str, action: object, at_ms: int) -> None:
        match action:
            case JobRunAccepted(spec=spec):
                rank = stream_rank(spec.priority, action.accepted_at_ms(at_ms), action.work.text)
                self._runs[log] = _Run(destination_of(spec), rank)
                for pin in action.sessions:
                    self._add(log, pin, self._now())
            case SessionsFound():
                for pin in action.sessions:
                    self._add(log, pin, self._now() + self._look_seconds)
            case JobRunReleased(left_running=left):
                self._stopped(each for each, of in self._in_flight.items() if of == log and each not in left)
            case JobRunEnded():
                self._ended(each for sessions in self._open.values() for each, of in sessions.items() if of.log == log)
            case _:
                self._follow_session(log, action)

    def _follow_session(self, log: str, action: object) -> None:
        match action:
            case SessionLaunching(session_id=session_id):
                self._in_flight[session_id] = log
            case SessionRetried(session_id=session_id):
                self._stopped([session_id])
            case SessionEnded(session_id=session_id):
                self._stopped([session_id])
                self._ended([session_id])
            case _:
                pass

    def _stopped(self, session_ids: Iterable[str]) -> None:
        for session_id in list(session_ids):
            self._in_flight.pop(session_id, None)

    def _ended(self, session_ids: Iterable[str]) -> None:
        for session_id in list(session_ids):
            self._open[self._stream_of[session_id]].pop(session_id, None)

    def _add(self, log: str, pin: SessionPin, seen_from_seconds: float) -> None:
        stream = (self._runs[log].table, stream_digest(pin.partition))
        self._stream_of[pin.session_id] = stream
        self._open[stream][pin.session_id] = _Open(log, pin.session_id, seen_from_seconds)

    def _taken(self, process: Process, lease: Lease) -> None:
        if any(session_id in self._in_flight for session_id in lease.session_ids):
            return  # it runs already, and is watched by another dispatcher from now on
        self.turns_seen += 1
        for session_id in lease.session_ids:
            stream = self._stream_of[session_id]
            own = self._open[stream].get(session_id)
            if own is None:
                continue
            for ahead in self._open[stream].values():
                run = self._runs[ahead.log]
                goes_first = run.rank < self._runs[own.log].rank
                if goes_first and ahead.seen_from_seconds < self._ticked_at[process.name]:
                    self._wrong(f"{session_id} was started before {ahead.session_id}, which goes first on its stream")
