"""What a session is expected to take, refined while it runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.planning.time_model import SLA_BUFFER
from compactor.sessions.pace import PASS_SHARE_MAX, SHARE_DONE_MIN, ExpectedWork, Pace, refined_sla
from tests.fakes.manual_clock import ManualClock

works = st.builds(
    ExpectedWork,
    expected_sla=st.floats(1, 10**5),
    before_seconds=st.floats(0, 500),
    rounds=st.lists(st.integers(0, 10**9), min_size=1, max_size=8).map(tuple),
    rows_written=st.none() | st.integers(0, 10**10),
    first_pass_share=st.floats(0, 1),
)


class ReportedChange:
    """A pace, the clock that it reads, and what it told."""

    def __init__(self, *rounds: int, expected_sla: float = 100.0, rows_written: int | None = None) -> None:
        self.clock = ManualClock()
        self.changes: list[tuple[float, float]] = []
        self.shares: list[float] = []
        started = self.clock.monotonic_seconds()
        work = ExpectedWork(expected_sla, 10.0, rounds, rows_written, first_pass_share=0.5)
        self.pace = Pace(
            work,
            lambda: self.clock.monotonic_seconds() - started,
            lambda was, now: self.changes.append((was, now)),
            self.shares.append,
        )
        self.clock.sleep(10)

    def only_change(self) -> float:
        ((before, now),) = self.changes
        assert before == 100.0
        return now


def test_the_time_that_is_left_follows_from_what_is_done_and_what_it_took() -> None:
    assert refined_sla(13.0, 10.0, 0.5) == pytest.approx(13 + 3 * SLA_BUFFER)
    assert refined_sla(13.0, 10.0, SHARE_DONE_MIN / 2) is None
    assert refined_sla(9.0, 10.0, 0.5) is None


@given(works, st.integers(0, 8), st.booleans(), st.integers(0, 10**11))
def test_the_share_that_is_done_is_a_share_and_only_grows(
    work: ExpectedWork, rounds_done: int, second: bool, rows: int
) -> None:
    share = work.share_of(rounds_done, in_second_pass=second, rows_in_pass=rows)
    assert 0 <= share <= 1 + 1e-9
    assert work.share_of(rounds_done, in_second_pass=second, rows_in_pass=rows + 1) >= share
    assert work.share_of(rounds_done, in_second_pass=True) >= work.share_of(rounds_done) - 1e-9
    assert work.share_of(rounds_done + 1) >= share - 1e-9


def test_a_session_of_one_round_has_shares_before_it_commits() -> None:
    reported = ReportedChange(1_000, rows_written=1_000)
    reported.pace.pass_started(second=False)
    reported.pace.rows_reported(1_000)
    reported.pace.pass_started(second=True)
    reported.pace.rows_reported(2_000)
    reported.pace.round_done()
    assert reported.shares == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_session_of_one_round_is_refined_when_its_first_pass_has_ended() -> None:
    reported = ReportedChange(1_000)
    reported.pace.pass_started(second=False)
    reported.clock.sleep(100)
    reported.pace.pass_started(second=True)
    assert reported.only_change() == pytest.approx(110 + 100 * SLA_BUFFER)


def test_rows_that_tasks_tell_of_refine_it_within_a_pass() -> None:
    reported = ReportedChange(1_000, rows_written=2_000)
    reported.pace.pass_started(second=False)
    reported.clock.sleep(50)
    reported.pace.rows_reported(1_000)  # of 2,000 that are hashed and deduplicated: a quarter of the round
    assert reported.only_change() == pytest.approx(60 + 150 * SLA_BUFFER)
    reported.pace.rows_reported(2_000)
    reported.pace.pass_started(second=True)
    reported.clock.sleep(50)
    reported.pace.rows_reported(2_000 + 4_000)
    share = 0.5 + 0.5 * PASS_SHARE_MAX
    assert reported.pace.expected_sla == pytest.approx(110 + 100 / share * (1 - share) * SLA_BUFFER)


def test_a_change_of_a_twentieth_or_of_less_than_a_second_is_not_reported() -> None:
    small = ReportedChange(1_000, 1_000, expected_sla=116.0)
    small.clock.sleep(50)
    small.pace.round_done()
    assert pytest.approx(115) == 60 + 50 * SLA_BUFFER
    assert small.changes == []
    quick = ReportedChange(1_000, 1_000, expected_sla=10.5)
    quick.clock.sleep(0.5)
    quick.pace.round_done()
    assert quick.changes == []


def test_after_the_last_round_nothing_is_left_to_refine() -> None:
    reported = ReportedChange(1_000)
    reported.clock.sleep(500)
    reported.pace.round_done()
    assert reported.changes == []


def test_the_seconds_of_earlier_attempts_count_from_the_start() -> None:
    reported = ReportedChange(3_000)
    reported.pace.earlier_attempts([(1_000, 200.0)])
    assert reported.only_change() == pytest.approx(10 + 600 * SLA_BUFFER)
    none = ReportedChange(3_000)
    none.pace.earlier_attempts([])
    assert none.changes == []


def test_rows_that_are_told_between_two_rounds_refine_nothing() -> None:
    reported = ReportedChange(1_000, 1_000)
    reported.clock.sleep(1_000)
    reported.pace.rows_reported(10_000)
    assert reported.changes == []
