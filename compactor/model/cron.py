"""Times of day in a time zone, as cron writes them: `MINUTE HOUR DAY MONTH WEEKDAY`. Pure.

A field is `*`, a number, a range `1-5`, a list `1,15`, or any of the first two with a step, `*/10`, `8-18/2`. Months
and weekdays may be named by three letters; Sunday is 0 or 7. If both the day of the month and the weekday are limited,
a day that one of them names counts, as in cron.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from typing import Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from compactor.model.errors import Invalid, refuse_if

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART = re.compile(r"(?:(?P<all>\*)|(?P<first>[0-9a-z]+)(?:-(?P<last>[0-9a-z]+))?)(?:/(?P<step>[0-9]+))?")

_DAYS_SEARCHED = 8 * 366
"""The longest time between two days that a cron expression can name: 29 February, around the year 2100."""

_FIRST_DAY = date(2000, 1, 1)
_GAPS_SEARCHED = 3_000
"""More times than a day has minutes: so the longest gap of all but odd expressions is among them."""


@dataclass(frozen=True)
class _Field:
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()

    def parse(self, text: str) -> frozenset[int]:
        return frozenset(value for part in text.lower().split(",") for value in self._part(part, text))

    def _part(self, part: str, text: str) -> range:
        match = _PART.fullmatch(part)
        if match is None:
            raise Invalid(f"{self.name} {text!r}: write *, a number, 1-5, 1,15 or */10")
        step = int(match["step"] or 1)
        first = self.least if match["all"] else self._number(match["first"])
        is_single = not match["all"] and match["last"] is None and match["step"] is None
        last = first if is_single else self.most if match["last"] is None else self._number(match["last"])
        if not step or first > last:
            raise Invalid(f"{self.name} {text!r}: {'a step of 0' if not step else f'{first} is after {last}'}")
        return range(first, last + 1, step)

    def _number(self, text: str) -> int:
        if text in self.names:
            return self.names.index(text) + self.least
        if not text.isdecimal() or not self.least <= int(text) <= self.most:
            raise Invalid(f"{self.name} {text!r} is none: write {self.least} to {self.most}")
        return int(text)


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("weekday", 0, 7, _WEEKDAYS),
)


@dataclass(frozen=True)
class CronTimes:
    """The times of a cron expression, in a time zone. A time that a clock skips in spring counts an hour later; one
    that it shows twice in autumn counts the first time."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    zone: ZoneInfo

    @classmethod
    def parse(cls, cron: str, time_zone: str) -> Self:
        """Raises `Invalid`, with every reason."""
        reasons: list[str] = []
        try:
            zone = ZoneInfo(time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            reasons.append(f"time zone {time_zone!r} is not known here: write one like Europe/Zurich, or UTC")
        fields = cron.split()
        found: list[frozenset[int]] = []
        if len(fields) != len(_FIELDS):
            reasons.append(f"cron {cron!r} has {len(fields)} fields: write MINUTE HOUR DAY MONTH WEEKDAY")
        for field, text in zip(_FIELDS, fields, strict=False):
            try:
                found.append(field.parse(text))
            except Invalid as error:
                reasons += [f"cron {cron!r}: {reason}" for reason in error.reasons]
        refuse_if(reasons)
        minutes, hours, days, months, weekdays = found
        return cls(
            tuple(sorted(minutes)),
            tuple(sorted(hours)),
            days,
            months,
            frozenset(day % 7 for day in weekdays),
            not fields[2].startswith("*") and not fields[4].startswith("*"),
            zone,
        )

    def next_after(self, at: datetime) -> datetime | None:
        """The first of the times after a time, in UTC; None: there is none."""
        first = at.astimezone(self.zone).date() - timedelta(days=1)
        return next((time for time in self._from(first, _DAYS_SEARCHED) if time > at), None)

    @property
    def longest_gap(self) -> timedelta | None:
        """The longest time from one of the first `_GAPS_SEARCHED` times to the next; None: there is none."""
        times = islice(self._from(_FIRST_DAY, _DAYS_SEARCHED), _GAPS_SEARCHED)
        return max((later - earlier for earlier, later in pairwise(times)), default=None)

    def last_within(self, at: datetime, seconds: float) -> datetime | None:
        """The last of the times at or before a time, if it is less than so many seconds before it."""
        first = (at - timedelta(seconds=seconds)).astimezone(self.zone).date() - timedelta(days=1)
        days = (at.astimezone(self.zone).date() - first).days + 1
        found = [time for time in self._from(first, days) if at - timedelta(seconds=seconds) < time <= at]
        return max(found, default=None)

    def _from(self, first: date, days: int) -> Iterator[datetime]:
        for day in (first + timedelta(days=number) for number in range(days)):
            if self._names(day):
                yield from sorted(
                    datetime(day.year, day.month, day.day, hour, minute, tzinfo=self.zone).astimezone(UTC)
                    for hour in self.hours
                    for minute in self.minutes
                )

    def _names(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_date or by_weekday if self.either_day else by_date and by_weekday
