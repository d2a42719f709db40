"""Times that a cron expression names, in a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from compactor.model.cron import CronTimes
from compactor.model.errors import Invalid


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


NEXT = [
    ("0 1 * * *", "UTC", "2026-03-01T00:59", "2026-03-01T01:00"),
    ("0 1 * * *", "UTC", "2026-03-01T01:00", "2026-03-02T01:00"),
    ("*/15 8-18/5 * * *", "UTC", "2026-03-01T08:46", "2026-03-01T13:00"),
    ("30 22 * * mon,5", "UTC", "2026-03-03T00:00", "2026-03-06T22:30"),
    ("0 0 1 jan *", "UTC", "2026-03-03T00:00", "2027-01-01T00:00"),
    ("0 0 29 2 *", "UTC", "2096-03-01T00:00", "2104-02-29T00:00"),
    ("0 0 13 * fri", "UTC", "2026-03-07T00:00", "2026-03-13T00:00"),  # either the 13th, or a Friday
    ("0 0 * * 7", "UTC", "2026-03-03T00:00", "2026-03-08T00:00"),
    ("0 22 * * *", "Europe/Zurich", "2026-01-15T00:00", "2026-01-15T21:00"),
    ("0 22 * * *", "Europe/Zurich", "2026-07-15T00:00", "2026-07-15T20:00"),
    ("30 2 29 3 *", "Europe/Zurich", "2026-03-01T00:00", "2026-03-29T01:30"),  # skipped: it is 3:30 then
    ("30 2 25 10 *", "Europe/Zurich", "2026-10-01T00:00", "2026-10-25T00:30"),  # there twice: the first
    ("0 1 * * *", "Pacific/Kiritimati", "2026-03-01T10:30", "2026-03-01T11:00"),
]


@pytest.mark.parametrize(("cron", "zone", "after", "expected"), NEXT)
def test_the_next_time_is_found(cron: str, zone: str, after: str, expected: str) -> None:
    assert CronTimes.parse(cron, zone).next_after(at(after)) == at(expected)


def test_a_day_that_no_year_has_is_never_found() -> None:
    assert CronTimes.parse("0 0 30 2 *", "UTC").next_after(at("2026-01-01T00:00")) is None


@pytest.mark.parametrize("zone", ["UTC", "Europe/Zurich", "Asia/Kolkata", "America/St_Johns"])
def test_the_last_time_and_the_next_one_agree_over_a_year(zone: str) -> None:
    times = CronTimes.parse("17 */7 * * *", zone)
    now = at("2026-01-01T00:00")
    while now < at("2027-01-01T00:00"):
        found = times.next_after(now)
        assert found is not None
        assert found > now
        assert times.last_within(found, 60) == found
        assert times.last_within(found - timedelta(seconds=1), (found - now).total_seconds() - 1) is None
        now = found


WRONG = [
    ("0 1 * *", "UTC", "has 4 fields"),
    ("60 1 * * *", "UTC", "minute '60' is none: write 0 to 59"),
    ("0 5-1 * * *", "UTC", "5 is after 1"),
    ("*/0 1 * * *", "UTC", "a step of 0"),
    ("0 1 0 * *", "UTC", "day of the month '0'"),
    ("0 1 * foo *", "UTC", "month 'foo'"),
    ("0 1 * * 8", "UTC", "weekday '8'"),
    ("0 1 ? * *", "UTC", "write *, a number"),
    ("0 1 * * *", "Mars/Olympus", "time zone 'Mars/Olympus' is not known"),
    ("0 1 * * *", "../etc", "time zone"),
]


@pytest.mark.parametrize(("cron", "zone", "reason"), WRONG)
def test_a_wrong_expression_is_refused(cron: str, zone: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason.replace("*", r"\*").replace("/", ".")):
        CronTimes.parse(cron, zone)


def test_every_reason_is_told_at_once() -> None:
    with pytest.raises(Invalid) as refused:
        CronTimes.parse("61 25 * * *", "Nowhere/Here")
    assert len(refused.value.reasons) == 3
