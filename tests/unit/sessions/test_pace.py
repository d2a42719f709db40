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

    def __init__(
        self, *rounds: int, expected_sla: float = 100.0, rows_written: int | None = None, tasks: int = 0
    ) -> None:
        self.clock = ManualClock()
        self.changes: list[tuple[float, float]] = []
        self.shares: list[float] = []
        started = self.clock.monotonic_seconds()
        work = ExpectedWork(expected_sla, 10.0, rounds, rows_written, first_pass_share=0.5, tasks=tasks)
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


def test_lost_nodes_lengthen_what_is_left_by_the_core_seconds_that_it_takes() -> None:
    assert refined_sla(13.0, 10.0, 0.5, 2.0) == pytest.approx(13 + 6 * SLA_BUFFER)
    reported = ReportedChange(1_000, 1_000, expected_sla=95.0, tasks=8)
    reported.clock.sleep(40)
    reported.pace.cores_seen(8)
    reported.pace.round_done()
    assert reported.changes == []  # 40 s of 80 for the half of it
    reported.pace.cores_seen(4)
    assert reported.pace.expected_sla == pytest.approx(50 + 80 * SLA_BUFFER)
    reported.clock.sleep(80)
    reported.pace.pass_started(second=True)  # three quarters, of 40 s on 8 cores and 80 on 4
    assert reported.pace.expected_sla == pytest.approx(130 + (40 * 8 + 80 * 4) / 3 / 4 * SLA_BUFFER)


def test_added_nodes_shorten_it() -> None:
    reported = ReportedChange(1_000, 1_000, expected_sla=94.0, tasks=4)
    reported.clock.sleep(40)
    reported.pace.round_done()
    reported.pace.cores_seen(8)
    ((_, now),) = reported.changes
    assert now == pytest.approx(50 + 20 * SLA_BUFFER)


def test_late_nodes_lengthen_it_before_anything_is_done_and_it_comes_back_with_them() -> None:
    reported = ReportedChange(1_000, rows_written=1_000, tasks=8)
    reported.pace.cores_seen(2)
    assert reported.only_change() == pytest.approx(10 + 90 * 8 / 2)
    reported.clock.sleep(1)
    reported.pace.cores_seen(8)
    assert reported.pace.expected_sla == 100.0


def test_a_lost_node_of_many_is_not_reported_below_a_twentieth() -> None:
    reported = ReportedChange(1_000, rows_written=1_000, tasks=100)
    reported.pace.cores_seen(97)
    assert reported.changes == []
    reported.pace.cores_seen(90)
    assert reported.only_change() == pytest.approx(10 + 90 * 100 / 90)


@pytest.mark.parametrize("tasks", [0, 1, 2])
def test_cores_that_cannot_be_told_change_nothing(tasks: int) -> None:
    reported = ReportedChange(1_000, rows_written=1_000, tasks=tasks)
    for cores in (None, 1, 2, 64):
        reported.pace.cores_seen(cores)
        reported.clock.sleep(10)
    assert reported.changes == []


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 64)), max_size=20), st.integers(3, 64))
def test_an_expected_sla_is_never_in_the_past(seen: list[tuple[float, int]], tasks: int) -> None:
    reported = ReportedChange(1_000, 1_000, 1_000, tasks=tasks)
    for number, (seconds, cores) in enumerate(seen):
        reported.clock.sleep(seconds)
        reported.pace.cores_seen(cores)
        if number == 5:
            reported.pace.round_done()
        changed = reported.changes[-1][1] if reported.changes else 0.0
        assert changed >= 0
    at = 10 + sum(seconds for seconds, _ in seen)
    before = len(reported.changes)
    reported.pace.cores_seen(tasks + 1)
    assert len(reported.changes) == before or reported.pace.expected_sla >= at - 1e-6
