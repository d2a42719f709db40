"""When a stream is due: each bound on both of its sides, and what holds a due stream back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.catalog.compact_when import CompactWhen, Match, Preset, Window, contradictions_of
from compactor.planning.due import (
    Due,
    Expected,
    NotDue,
    Postponed,
    PostponedBy,
    Terms,
    benefit_per_usd,
    decide,
)
from compactor.planning.stream_figures import StreamFigures

NOW = round(datetime(2026, 3, 4, 12, 0, tzinfo=UTC).timestamp() * 1000)
DAY = 86_400
MB = 1_000_000

STREAM = StreamFigures(
    pending_deltas=10,
    pending_rows=1_000,
    pending_bytes=10 * MB,
    oldest_pending_at_ms=NOW - 300_000,
    last_write_at_ms=NOW - 1_000,
    files=10,
    file_bytes=1_000 * MB,
    small_files=4,
    small_file_bytes=MB,
    rows=900,
    dead_rows=100,
    last_compacted_at_ms=NOW - 600_000,
    size_ratio=2.5,
    mergeable_files=4,
)


def small(files: int, average: int, quiet_seconds: float) -> StreamFigures:
    """Files of a stream, all but one of them pending deltas, the last of which was written so long ago."""
    return StreamFigures(
        pending_deltas=files - 1,
        pending_bytes=average * files,
        oldest_pending_at_ms=NOW - 40 * DAY * 1000,
        last_write_at_ms=NOW - round(quiet_seconds * 1000),
        files=1,
    )


def preset(name: str, ratio: float | None = None) -> CompactWhen:
    return CompactWhen(preset=Preset(name), ratio=ratio)


def ago(**seconds: float) -> StreamFigures:
    """The stream, with times so many seconds ago."""
    return replace(STREAM, **{name: NOW - round(each * 1000) for name, each in seconds.items()})  # type: ignore[arg-type]


BOUNDS: list[tuple[CompactWhen, StreamFigures, bool]] = [
    (CompactWhen(pending_rows=1_000), STREAM, True),
    (CompactWhen(pending_rows=1_001), STREAM, False),
    (CompactWhen(pending_bytes=10 * MB), STREAM, True),
    (CompactWhen(pending_bytes=10 * MB + 1), STREAM, False),
    (CompactWhen(pending_deltas=10), STREAM, True),
    (CompactWhen(pending_deltas=11), STREAM, False),
    (CompactWhen(lag_seconds=300), STREAM, True),
    (CompactWhen(lag_seconds=301), STREAM, False),
    (CompactWhen(lag_seconds=300), ago(oldest_pending_at_ms=299.999), False),
    (CompactWhen(dead_row_share=0.1), STREAM, True),
    (CompactWhen(dead_row_share=0.101), STREAM, False),
    (CompactWhen(small_files=4), STREAM, True),
    (CompactWhen(small_files=5), STREAM, False),
    (CompactWhen(small_files=4), replace(STREAM, mergeable_files=0), False),
    (CompactWhen(small_file_share=0.4), STREAM, True),
    (CompactWhen(small_file_share=0.41), STREAM, False),
    (CompactWhen(small_file_share=0.4), replace(STREAM, mergeable_files=0), False),
    (CompactWhen(every=600), STREAM, True),
    (CompactWhen(every=601), STREAM, False),
    # One of two bounds suffices, or both are needed.
    (CompactWhen(pending_rows=1_001, lag_seconds=300), STREAM, True),
    (CompactWhen(pending_rows=1_001, lag_seconds=300, match=Match.ALL), STREAM, False),
    (CompactWhen(pending_rows=1_000, lag_seconds=300, match=Match.ALL), STREAM, True),
    # Upsolver's three conditions, each of their figures on both sides.
    (preset("upsolver"), small(60, 31 * MB, 2 * DAY + 1), True),
    (preset("upsolver"), small(59, 31 * MB, 2 * DAY + 1), False),
    (preset("upsolver"), small(60, 32 * MB, 2 * DAY + 1), False),
    (preset("upsolver"), small(60, 31 * MB, 2 * DAY), False),
    (preset("upsolver"), small(1_000, 31 * MB, 1), True),
    (preset("upsolver"), small(999, 31 * MB, 1), False),
    (preset("upsolver"), small(1_000, 32 * MB, 1), False),
    (preset("upsolver"), small(2, 31 * MB, 35 * DAY + 1), True),
    (preset("upsolver"), small(2, 31 * MB, 35 * DAY), False),
    (preset("upsolver"), small(2, 32 * MB, 35 * DAY + 1), False),
    # Sleeper's ratio.
    (preset("size_ratio", 2.5), STREAM, True),
    (preset("size_ratio", 2.51), STREAM, False),
    (preset("size_ratio"), replace(STREAM, size_ratio=3.0), True),
    (preset("size_ratio"), replace(STREAM, size_ratio=2.99), False),
    # Streaming: a lag of 5 minutes, and a minute between two.
    (preset("streaming"), ago(oldest_pending_at_ms=300, last_compacted_at_ms=60), True),
    (preset("streaming"), ago(oldest_pending_at_ms=299, last_compacted_at_ms=60), False),
    (preset("streaming"), ago(oldest_pending_at_ms=300, last_compacted_at_ms=59), False),
    (preset("streaming"), ago(oldest_pending_at_ms=299, last_compacted_at_ms=30), False),
    (preset("manual"), STREAM, False),
]


@pytest.mark.parametrize(("policy", "figures", "is_due"), BOUNDS)
def test_a_stream_is_due_from_its_bound_on(policy: CompactWhen, figures: StreamFigures, is_due: bool) -> None:
    assert isinstance(decide(figures, policy, NOW, Terms()), Due if is_due else NotDue)


@pytest.mark.parametrize(("policy", "figures", "is_due"), BOUNDS)
def test_a_stream_that_will_be_due_is_due_at_the_time_that_is_told_and_no_earlier(
    policy: CompactWhen, figures: StreamFigures, is_due: bool
) -> None:
    found = decide(figures, policy, NOW, Terms())
    if not isinstance(found, NotDue) or found.until_ms is None:
        return
    assert isinstance(decide(figures, policy, found.until_ms - 1, Terms()), NotDue)
    assert isinstance(decide(figures, policy, found.until_ms, Terms()), Due)


def test_the_arithmetic_says_by_which_figure() -> None:
    due = decide(STREAM, CompactWhen(pending_rows=5_000, lag_seconds=300), NOW, Terms())
    assert due == Due("lag_seconds", "lag_seconds 300 >= 300")
    waits = decide(STREAM, CompactWhen(pending_rows=5_000, lag_seconds=400), NOW, Terms())
    expected = "not reached: pending_rows 1,000 >= 5,000; lag_seconds 300 >= 400"
    assert waits == NotDue(NOW + 100_000, "lag_seconds", expected)


def test_a_stream_with_nothing_to_do_is_never_due() -> None:
    one_old_file = StreamFigures(files=1, file_bytes=5, small_files=1, last_write_at_ms=NOW - 90 * DAY * 1000)
    for policy in (preset("upsolver"), CompactWhen(small_file_share=0.1), CompactWhen(every=60)):
        assert decide(one_old_file, policy, NOW, Terms()) == NotDue(None, None, "there is nothing to do")


@pytest.mark.parametrize(("seconds_ahead", "is_due"), [(0, False), (3_600, False), (3_600.001, True), (1e9, True)])
def test_a_stream_does_not_wait_until_the_time_of_a_clock_that_is_far_ahead(seconds_ahead: float, is_due: bool) -> None:
    ahead = ago(oldest_pending_at_ms=-seconds_ahead, last_compacted_at_ms=-seconds_ahead)
    assert isinstance(decide(ahead, preset("streaming"), NOW, Terms()), Due) is is_due


def test_a_time_that_is_not_recorded_was_long_ago() -> None:
    unknown = replace(STREAM, oldest_pending_at_ms=None, last_compacted_at_ms=None)
    assert isinstance(decide(unknown, preset("streaming"), NOW, Terms()), Due)
    assert isinstance(decide(unknown, CompactWhen(every=600), NOW, Terms()), Due)


NIGHT = Window(cron="0 1 * * *", seconds=4 * 3600)


def at(hour: int, minute: int = 0, day: int = 4) -> int:
    return round(datetime(2026, 3, day, hour, minute, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("now_ms", "opens_ms"),
    [(at(0, 59), at(1)), (at(1), None), (at(4, 59), None), (at(5), at(1, day=5)), (at(12), at(1, day=5))],
)
def test_a_due_stream_waits_for_its_window(now_ms: int, opens_ms: int | None) -> None:
    found = decide(STREAM, CompactWhen(pending_rows=1, windows=(NIGHT,)), now_ms, Terms())
    if opens_ms is None:
        assert isinstance(found, Due)
    else:
        assert isinstance(found, Postponed)
        assert (found.by, found.until_ms) == (PostponedBy.WINDOW, opens_ms)


def test_a_window_of_a_time_zone_follows_its_clock() -> None:
    zurich = Window(cron="0 1 * * *", time_zone="Europe/Zurich", seconds=3600)
    policy = CompactWhen(pending_rows=1, windows=(zurich,))
    assert isinstance(decide(STREAM, policy, at(0, 30), Terms()), Due)
    assert isinstance(decide(STREAM, policy, at(1, 30), Terms()), Postponed)


def test_one_of_several_windows_suffices() -> None:
    policy = CompactWhen(pending_rows=1, windows=(NIGHT, Window(cron="0 12 * * *", seconds=60)))
    assert isinstance(decide(STREAM, policy, at(12), Terms()), Due)
    found = decide(STREAM, policy, at(11), Terms())
    assert isinstance(found, Postponed)
    assert found.until_ms == at(12)


@pytest.mark.parametrize(("age_seconds", "is_due"), [(7_199, False), (7_200, True)])
def test_a_stream_that_is_too_late_waits_for_no_window(age_seconds: float, is_due: bool) -> None:
    policy = CompactWhen(lag_seconds=60, windows=(NIGHT,), at_latest_seconds=7_200)
    found = decide(ago(oldest_pending_at_ms=age_seconds), policy, NOW, Terms())
    assert isinstance(found, Due) == is_due
    if isinstance(found, Postponed):
        assert found.until_ms == NOW + 1_000


def test_the_lag_of_no_delta_does_not_grow() -> None:
    files = replace(STREAM, pending_deltas=0, pending_rows=0, pending_bytes=0, oldest_pending_at_ms=None, dead_rows=0)
    found = decide(files, CompactWhen(lag_seconds=300, pending_rows=1), NOW, Terms())
    assert isinstance(found, NotDue)
    assert (found.until_ms, found.figure) == (None, None)


def test_a_stream_of_a_copy_is_compacted_by_instructions_for_its_source() -> None:
    found = decide(replace(STREAM, of_a_copy=True), CompactWhen(pending_rows=1), NOW, Terms())
    assert isinstance(found, NotDue)
    assert found.until_ms is None


@pytest.mark.parametrize(
    ("hour", "since_hours", "kind"),
    [(1, 4, Due), (4, 12, Due), (4, 3, NotDue), (5, 24, Postponed), (0, 24, Postponed)],
)
def test_nightly_is_from_one_to_five_and_once_a_night(hour: int, since_hours: int, kind: type) -> None:
    figures = replace(STREAM, pending_deltas=1, last_compacted_at_ms=at(hour) - since_hours * 3_600_000)
    assert isinstance(decide(figures, preset("nightly"), at(hour), Terms()), kind)


def test_a_paused_table_is_postponed_until_it_is_resumed() -> None:
    found = decide(STREAM, CompactWhen(pending_rows=1), NOW, Terms(pause="an upgrade"))
    assert isinstance(found, Postponed)
    assert (found.by, found.until_ms) == (PostponedBy.PAUSE, None)
    assert "an upgrade" in found.why


MONEY = [
    (CompactWhen(pending_rows=1, max_usd=2.0), 0.0, 2.0, None),
    (CompactWhen(pending_rows=1, max_usd=2.0), 0.0, 2.01, "never"),
    (CompactWhen(pending_rows=1, usd_per_day=5.0), 3.0, 2.0, None),
    (CompactWhen(pending_rows=1, usd_per_day=5.0), 3.01, 2.0, "tomorrow"),
    (CompactWhen(pending_rows=1, usd_per_day=5.0), 0.0, 5.01, "never"),
    (CompactWhen(pending_rows=1, usd_per_day=5.0), 5.01, 0.0, None),
]


@pytest.mark.parametrize(("policy", "spent", "usd", "until"), MONEY)
def test_money_holds_back_what_would_pass_it(policy: CompactWhen, spent: float, usd: float, until: str | None) -> None:
    found = decide(STREAM, policy, NOW, Terms(spent_usd=spent, cost=Expected(10.0, usd)))
    if until is None:
        assert isinstance(found, Due)
        return
    assert isinstance(found, Postponed)
    assert found.by is PostponedBy.BUDGET
    assert found.until_ms == (at(0, day=5) if until == "tomorrow" else None)
    assert f"${usd:,.4f}" in found.why


def test_what_saves_readers_most_for_a_dollar_has_the_greatest_benefit() -> None:
    many, few = STREAM, replace(STREAM, pending_deltas=1, small_files=0)
    cheap, dear = Expected(1.0, 1.0), Expected(1.0, 2.0)
    assert benefit_per_usd(many, cheap) > benefit_per_usd(many, dear) > benefit_per_usd(few, dear)


NOON = Window(cron="0 12 * * *", seconds=3600)
HOUR = 3_600


@pytest.mark.parametrize(
    ("policy", "bound"),
    [
        (CompactWhen(lag_seconds=299), 299),
        (CompactWhen(lag_seconds=299, pending_rows=9), 299),
        (CompactWhen(lag_seconds=299, match=Match.ALL), 299),
        (CompactWhen(lag_seconds=299, pending_rows=9, match=Match.ALL), None),
        (CompactWhen(pending_rows=1), None),
        (CompactWhen(lag_seconds=60, windows=(NIGHT,), at_latest_seconds=300), 300),
        (CompactWhen(lag_seconds=HOUR, windows=(NIGHT,)), 29 * HOUR),
        (CompactWhen(lag_seconds=HOUR, windows=(NIGHT, NOON)), 26 * HOUR),
        (CompactWhen(lag_seconds=60, windows=(Window(cron="0 1 * * 6", seconds=HOUR),)), 7 * 24 * HOUR + HOUR + 60),
        (CompactWhen(pending_rows=9, windows=(NIGHT,)), None),
        (CompactWhen(pending_deltas=1, not_before_seconds=7 * DAY, windows=(NIGHT,)), 7 * DAY + 28 * HOUR),
        (preset("streaming"), 300),
        (preset("nightly"), 28 * HOUR),
        (preset("upsolver"), None),
        (preset("manual"), None),
    ],
)
def test_the_most_lag_that_a_policy_allows_reaches_to_the_end_of_the_next_window(
    policy: CompactWhen, bound: int | None
) -> None:
    assert policy.lag_bound_seconds() == bound


WAITS = [
    (CompactWhen(lag_seconds=HOUR, windows=(NIGHT,)), at(1, day=5), "windows"),
    (CompactWhen(lag_seconds=HOUR, windows=(NIGHT, NOON)), at(12, 55), "lag_seconds"),
    (CompactWhen(lag_seconds=HOUR, windows=(NIGHT,), at_latest_seconds=2 * HOUR), at(13, 55), "at_latest_seconds"),
    (CompactWhen(lag_seconds=HOUR, windows=(NIGHT,), at_latest_seconds=24 * HOUR), at(1, day=5), "windows"),
    (CompactWhen(pending_rows=9_999, windows=(NIGHT,), at_latest_seconds=2 * HOUR), at(13, 55), "at_latest_seconds"),
    (CompactWhen(pending_rows=1, not_before_seconds=HOUR, windows=(NIGHT,)), at(1, day=5), "windows"),
    (CompactWhen(pending_rows=1, not_before_seconds=HOUR, windows=(NOON,)), at(12, 50), "not_before_seconds"),
    (
        CompactWhen(pending_rows=1, not_before_seconds=HOUR, windows=(NIGHT,), at_latest_seconds=2 * HOUR),
        at(13, 55),
        "at_latest_seconds",
    ),
]


@pytest.mark.parametrize(("policy", "until_ms", "figure"), WAITS)
def test_a_stream_that_will_be_due_while_no_window_is_open_waits_for_one(
    policy: CompactWhen, until_ms: int, figure: str
) -> None:
    found = decide(STREAM, policy, NOW, Terms())
    assert isinstance(found, NotDue)
    assert (found.until_ms, found.figure) == (until_ms, figure)
    assert isinstance(decide(STREAM, policy, until_ms, Terms()), Due)
    assert not isinstance(decide(STREAM, policy, until_ms - 1, Terms()), Due)


# ------------------------------------------------------------------------------------------ of any policy and stream

TIMES = st.sampled_from([0, 1, 59_999, 60_000, 600_000, 3_600_000, 30 * 3_600_000, 40 * DAY * 1000])
WINDOWS = st.builds(
    Window,
    cron=st.sampled_from(["0 22 * * *", "30 2 * * *", "0 8 * * 1-5", "*/30 * * * *"]),
    time_zone=st.sampled_from(["UTC", "Europe/Zurich", "America/New_York"]),
    seconds=st.sampled_from([600, 3_600, 25_200]),
)
POLICIES = st.builds(
    CompactWhen,
    match=st.sampled_from(Match),
    pending_rows=st.none() | st.sampled_from([1, 100]),
    lag_seconds=st.none() | st.sampled_from([60, HOUR, DAY]),
    dead_row_share=st.none() | st.just(0.1),
    every=st.none() | st.sampled_from([HOUR, 7 * DAY]),
    small_files=st.none() | st.just(8),
    not_before_seconds=st.none() | st.sampled_from([60, 2 * HOUR, DAY]),
    windows=st.lists(WINDOWS, max_size=2).map(tuple),
    at_latest_seconds=st.none() | st.sampled_from([HOUR, 3 * DAY]),
).filter(lambda policy: not list(contradictions_of(policy, ("id",))))


@st.composite
def streams(draw: st.DrawFn) -> StreamFigures:
    deltas, files = draw(st.sampled_from([0, 1, 20])), draw(st.sampled_from([0, 9]))
    return StreamFigures(
        pending_deltas=deltas,
        pending_rows=deltas * draw(st.sampled_from([1, 50])),
        oldest_pending_at_ms=NOW - draw(TIMES) if deltas else None,
        last_write_at_ms=NOW - draw(TIMES),
        files=files,
        small_files=files,
        mergeable_files=draw(st.sampled_from([0, files])),
        rows=1_000,
        dead_rows=draw(st.sampled_from([0, 300])),
        last_compacted_at_ms=draw(st.none() | TIMES.map(lambda ago_ms: NOW - ago_ms)),
    )


@given(POLICIES, streams(), st.floats(0, 1))
@settings(max_examples=300, deadline=None)
def test_the_time_that_is_told_is_the_first_at_which_the_stream_is_due(
    policy: CompactWhen, figures: StreamFigures, part: float
) -> None:
    found = decide(figures, policy, NOW, Terms())
    if isinstance(found, Due):
        return
    if found.until_ms is None:
        later = (NOW + hours * HOUR * 1000 for hours in (1, 5, 24, 100, 1_000))
        assert not any(isinstance(decide(figures, policy, at_ms, Terms()), Due) for at_ms in later)
        return
    assert isinstance(decide(figures, policy, found.until_ms, Terms()), Due)
    for at_ms in (found.until_ms - 1, NOW + round((found.until_ms - 1 - NOW) * part)):
        assert not isinstance(decide(figures, policy, at_ms, Terms()), Due)
