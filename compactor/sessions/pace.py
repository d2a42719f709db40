"""Refines the expected SLA of a running session from its done share and elapsed time.

    share done = rounds before + share of this round

    a round     its first pass (hash, shuffle, dedupe), and its second (index, materialize, write), each with the share
                of the round's time that was predicted for it
    a pass      the rows that its tasks have reported, of those predicted for it

    nodes       that are lost, added or late: what is left takes its core-seconds on the cores that there are then

Earlier attempts count with their seconds: an attempt expects of the remaining rounds the same as if it had run the
others itself.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compactor.planning.time_model import SLA_BUFFER

SLA_CHANGE_SHARE = 0.05
"""A refined expected SLA is reported if it differs from the last reported one by more than this share."""

SLA_CHANGE_SECONDS_MIN = 1.0
"""It is reported only if it differs by more than this, too: each report is a log entry and an event."""

SHARE_DONE_MIN = 0.1
"""Below this done share, the prediction is better than a measurement."""

PASS_SHARE_MAX = 0.95
"""Greatest done share of a pass that has not ended: reported rows include those of abandoned task attempts."""

CORES_UNKNOWN_MAX = 2
"""Spark never says that it has fewer cores, so their loss cannot be seen in a session that is planned for these."""

FIRST_PASS_SHARE = 0.4
"""First-pass share of a round's time if a plan has none."""


@dataclass(frozen=True)
class ExpectedWork:
    """The predicted amounts of the rounds to run.

    Attributes:
        before_seconds: from the launch to the session's first work
        rounds: delta rows of each round
        rows_written: in all of them together; None: not known, so their second pass counts when it ends
        first_pass_share: of a round's time
        tasks: cores that the prediction counts on; 0: they do not change"""

    expected_sla: float
    before_seconds: float
    rounds: tuple[int, ...]
    rows_written: int | None = None
    first_pass_share: float = FIRST_PASS_SHARE
    tasks: int = 0

    def share_of(self, rounds_done: int, *, in_second_pass: bool = False, rows_in_pass: int = 0) -> float:
        """The done share of all work, after `rounds_done` rounds and within the next one. Pure.

        Worked: 2 rounds of 1,000,000 rows each, first passes with 0.4 of the time. Halfway through the first pass of
        the second round, when hash and dedupe have reported 1,000,000 rows: 0.5 + 0.5 * 0.4 * 0.5 = 0.6.
        """
        rows = max(sum(self.rounds), 1)
        done = sum(self.rounds[:rounds_done]) / rows
        if rounds_done >= len(self.rounds):
            return 1.0
        this = self.rounds[rounds_done] / rows
        if in_second_pass:
            passing = 0 if self.rows_written is None else 2 * self.rows_written * this
            second = 1 - self.first_pass_share
            return done + this * (self.first_pass_share + second * _share(rows_in_pass, passing))
        return done + this * self.first_pass_share * _share(rows_in_pass, 2 * self.rounds[rounds_done])


def _share(rows: int, of: float) -> float:
    return min(rows / of, PASS_SHARE_MAX) if of else 0.0


def refined_sla(
    elapsed_seconds: float, before_seconds: float, share_done: float, slowdown: float = 1.0
) -> float | None:
    """The refined expected SLA; None: too little is done.

    Args:
        slowdown: average cores of the time at work, divided by those of now

    Worked: launched 13 s ago, 3 of them at work, half is done: 3 more plus 10 % remain, 16.3 in all. If half of the
    cores are lost now, 6 more remain: 19.6."""
    at_work = elapsed_seconds - before_seconds
    if share_done < SHARE_DONE_MIN or at_work <= 0:
        return None
    return elapsed_seconds + at_work / share_done * (1 - share_done) * slowdown * SLA_BUFFER


@dataclass(frozen=True)
class Worked:
    """What an attempt has done since its first work: its rounds, the seconds, and the share of all its work."""

    rounds: int
    seconds: float
    share: float


class Pace:
    """The pace of one attempt. Called from the session's thread, and from the thread that receives row counts.

    Attributes:
        elapsed: seconds since the launch
        changed: called with the old and the new expected SLA
        share_done: called with the done share of the work"""

    def __init__(
        self,
        work: ExpectedWork,
        elapsed: Callable[[], float],
        changed: Callable[[float, float], None],
        share_done: Callable[[float], None],
    ) -> None:
        self.expected_sla = work.expected_sla
        self._work = work
        self._elapsed = elapsed
        self._changed = changed
        self._share_done = share_done
        self._lock = threading.Lock()
        self._rounds_done = 0
        self._in_second_pass = False
        self._in_round = False
        self._rows = 0
        self._rows_before_pass = 0
        self._has_earlier_rounds = False
        self._base_sla = work.expected_sla
        self._cores = work.tasks
        self._core_seconds = 0.0
        self._counted_until = work.before_seconds

    def earlier_attempts(self, measured: Sequence[tuple[int, float]]) -> None:
        """Rounds that earlier attempts committed: the delta rows of each, and the seconds of its steps."""
        self._has_earlier_rounds = bool(measured)
        rows, seconds = sum(each for each, _ in measured), sum(each for _, each in measured)
        if not rows or not seconds:
            return
        with self._lock:
            left = sum(self._work.rounds)
            self._report_change(self._work.before_seconds + seconds / rows * left * SLA_BUFFER)
            self._base_sla = self.expected_sla

    def worked(self) -> Worked | None:
        """With the round that ends now. None: earlier attempts have run a part of what was predicted."""
        with self._lock:
            if self._has_earlier_rounds:
                return None
            seconds = self._elapsed() - self._work.before_seconds
            return Worked(self._rounds_done + 1, seconds, self._work.share_of(self._rounds_done + 1))

    def work_seconds(self) -> float | None:
        """Until now, from the first work. None: as in `worked`, or there was no round."""
        return (
            None if self._has_earlier_rounds or not self._rounds_done else self._elapsed() - self._work.before_seconds
        )

    def pass_started(self, *, second: bool) -> None:
        with self._lock:
            self._in_round, self._in_second_pass, self._rows_before_pass = True, second, self._rows
            self._refine()

    def round_done(self) -> None:
        with self._lock:
            self._rounds_done += 1
            self._in_round, self._in_second_pass = False, False
            self._refine()

    def rows_reported(self, rows: int) -> None:
        """The rows that tasks have reported so far, in all steps of the attempt."""
        with self._lock:
            self._rows = rows
            if self._in_round:
                self._refine()

    def cores_seen(self, cores: int | None) -> None:
        """The cores on which tasks can run now; None: they do not change. Called repeatedly, from any thread."""
        if cores is None or self._work.tasks <= CORES_UNKNOWN_MAX:
            return
        with self._lock:
            self._count_core_seconds()
            if cores != self._cores:
                self._cores = max(cores, 1)
                self._refine()

    def _count_core_seconds(self) -> None:
        now = max(self._elapsed(), self._counted_until)
        self._core_seconds += self._cores * (now - self._counted_until)
        self._counted_until = now

    def _slowdown(self) -> float:
        at_work = self._counted_until - self._work.before_seconds
        return 1.0 if at_work <= 0 or not self._cores else self._core_seconds / at_work / self._cores

    def _by_plan(self) -> float | None:
        """While too little is done to measure: the planned core-seconds, on the cores of now."""
        if self._cores == self._work.tasks:
            return None if self.expected_sla == self._base_sla else self._base_sla
        planned = max(self._base_sla - self._work.before_seconds, 0.0) * self._work.tasks
        return self._elapsed() + max(planned - self._core_seconds, 0.0) / self._cores

    def _refine(self) -> None:
        self._count_core_seconds()
        share = self._work.share_of(
            self._rounds_done,
            in_second_pass=self._in_second_pass,
            rows_in_pass=self._rows - self._rows_before_pass,
        )
        self._share_done(share)
        if share >= 1:
            return
        now = refined_sla(self._elapsed(), self._work.before_seconds, share, self._slowdown())
        now = self._by_plan() if now is None else now
        if now is not None:
            self._report_change(now)

    def _report_change(self, now: float) -> None:
        least = max(SLA_CHANGE_SHARE * self.expected_sla, SLA_CHANGE_SECONDS_MIN)
        if abs(now - self.expected_sla) > least:
            before, self.expected_sla = self.expected_sla, now
            self._changed(before, now)
