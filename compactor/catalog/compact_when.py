"""The policy of a table: when the keeper has its partition streams compacted, and what that may cost.

Every bound is compared for each partition stream by itself, and money for the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated

from pydantic import Field, JsonValue
from pydantic_core import to_jsonable_python

from compactor.model.cron import CronTimes
from compactor.model.document import Document, SparseDocument
from compactor.model.errors import Invalid

SHORTEST_BOUND_SECONDS = 5
"""The shortest bound: a session that has a Spark job of its own, and nothing to read, takes as long."""

WINDOW_SECONDS_MAX = 7 * 24 * 3600

Count = Annotated[int, Field(ge=1, le=2**63 - 1)]
Seconds = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[float, Field(gt=0, le=1)]
Usd = Annotated[float, Field(gt=0)]


class Preset(StrEnum):
    """Policies by name.

    Attributes:
        UPSOLVER: 60 files or more of less than 32 MB on average, the last of them written more than 2 days ago; or
            1,000 files or more of less than 32 MB; or the last write is more than 35 days ago, and files have less than
            32 MB
        SIZE_RATIO: of some files, all but the largest together have `ratio` times the bytes of the largest
        STREAMING: the oldest delta is 5 minutes old, and the last compaction a minute
        NIGHTLY: something is pending, from 1:00 to 5:00 UTC, once a night
        MANUAL: never: the table is compacted by instructions only"""

    UPSOLVER = "upsolver"
    SIZE_RATIO = "size_ratio"
    STREAMING = "streaming"
    NIGHTLY = "nightly"
    MANUAL = "manual"


class Match(StrEnum):
    ANY = "any"
    ALL = "all"


class Window(Document):
    """Opens at each time of `cron`, in a time zone, for so many seconds."""

    cron: str = Field(description="MINUTE HOUR DAY MONTH WEEKDAY")
    time_zone: str = Field(default="UTC", description="such as Europe/Zurich")
    seconds: Annotated[int, Field(ge=60, le=WINDOW_SECONDS_MAX)] = Field(description="how long it stays open")

    def is_open(self, at_ms: int) -> bool:
        return _is_open(self, at_ms)

    def opens_at_ms(self, at_ms: int) -> int | None:
        """When it opens next; None: never."""
        return _opens_at_ms(self, at_ms)


class CompactWhen(SparseDocument):
    """A stream is due once one of its bounds is reached (`match` "all": all of them); None: no such bound.

    A stream without anything to do is never due.
    """

    preset: Preset | None = Field(default=None, description="a policy by name, with no other field beside it")
    ratio: Annotated[float, Field(gt=1)] | None = Field(default=None, description="of preset size_ratio; not set: 3")
    match: Match = Field(default=Match.ANY, description="whether one of the bounds suffices, or all are needed")
    pending_rows: Count | None = Field(default=None, description="rows of deltas that are not compacted")
    pending_bytes: Count | None = Field(default=None, description="bytes of their files")
    pending_deltas: Count | None = Field(default=None, description="number of them")
    lag_seconds: Seconds | None = Field(default=None, description="age of the oldest of them")
    dead_row_share: Share | None = Field(default=None, description="of the rows in compacted files")
    small_files: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="small compacted files, while a compaction would merge some of them"
    )
    small_file_share: Share | None = Field(default=None, description="likewise, of all compacted files")
    every: Seconds | None = Field(default=None, description="seconds since the last compaction")
    not_before_seconds: Seconds | None = Field(
        default=None, description="after a compaction no other one is begun for so long"
    )
    windows: tuple[Window, ...] = Field(default=(), description="when compactions may begin; none: at any time")
    at_latest_seconds: Seconds | None = Field(
        default=None, description="age of the oldest pending delta from which windows are not waited for"
    )
    usd_per_day: Usd | None = Field(
        default=None, description="what the sessions that the keeper asks for may cost in a day (UTC)"
    )
    max_usd: Usd | None = Field(default=None, description="what one job run may cost")

    @property
    def resolved(self) -> CompactWhen:
        """The fields that a preset stands for, where fields can say it."""
        return _PRESETS.get(self.preset, self) if self.preset is not None else self

    def lag_bound_seconds(self) -> int | None:
        """The age that the oldest pending delta of a stream may reach before a compaction of it begins, or the window
        ends in which it does; None: the policy allows any.

        Worked: `nightly`: what comes after 1:00 waits for a day, and until 5:00: 28 hours.
        """
        policy = self.resolved
        if policy.at_latest_seconds is not None:
            return policy.at_latest_seconds
        waits = [_longest_wait_seconds(each) for each in policy.windows]
        at_once = 0 if waits and policy.pending_deltas == 1 else None
        least = min((each for each in (policy.lag_seconds, at_once) if each is not None), default=None)
        needs_more = policy.match is Match.ALL and policy.triggers != ("lag_seconds",)
        if least is None or needs_more or None in waits:
            return None
        wait, floor = min((each for each in waits if each is not None), default=0), policy.not_before_seconds or 0
        return wait + (max(least, floor) if floor > wait else least)

    @property
    def triggers(self) -> tuple[str, ...]:
        """Those of `TRIGGERS` that are set."""
        return tuple(name for name in TRIGGERS if getattr(self, name) is not None)


_PRESETS: Mapping[Preset, CompactWhen] = {
    Preset.STREAMING: CompactWhen(lag_seconds=300, not_before_seconds=60),
    Preset.NIGHTLY: CompactWhen(
        pending_deltas=1, not_before_seconds=14_400, windows=(Window(cron="0 1 * * *", seconds=14_400),)
    ),
}

TRIGGERS = (
    "pending_rows",
    "pending_bytes",
    "pending_deltas",
    "lag_seconds",
    "dead_row_share",
    "small_files",
    "small_file_share",
    "every",
)
"""The bounds that can make a stream due, beside `at_latest_seconds`."""


def policy_json_schema() -> dict[str, JsonValue]:
    """The output of `lithify schema compact_when`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **CompactWhen.model_json_schema()}


def in_log_form(value: object) -> object:
    """A policy as users write it: an object, or the name of a preset."""
    return {"preset": value} if isinstance(value, str) else to_jsonable_python(value)


def contradictions_of(policy: CompactWhen, primary_keys: tuple[str, ...] | None) -> Iterator[str]:
    """All contradictions of a policy, in itself and with the keys of its table, one sentence each."""
    if policy.preset is not Preset.MANUAL and primary_keys is None:
        yield "compact_when: the keeper's instructions name no keys, and the table has none: set primary_keys, too"
    if policy.dead_row_share is not None and primary_keys == ():
        yield "compact_when.dead_row_share: a table without keys has no dead rows"
    yield from _wrong_preset(policy)
    yield from _wrong_times(policy)
    for number, window in enumerate(policy.windows):
        yield from _wrong_window(f"compact_when.windows[{number}]", window)
    if policy.max_usd is not None and policy.usd_per_day is not None and policy.max_usd > policy.usd_per_day:
        yield (
            f"compact_when.max_usd is {policy.max_usd:g}, and usd_per_day {policy.usd_per_day:g}: a job run of that "
            "cost could never begin"
        )


def _wrong_preset(policy: CompactWhen) -> Iterator[str]:
    if policy.preset is None:
        if policy.ratio is not None:
            yield "compact_when.ratio is that of the preset size_ratio: add it, or leave ratio out"
        if policy.at_latest_seconds is None and not policy.triggers:
            yield f"compact_when has no bound that can make a stream due: set one of {', '.join(TRIGGERS)}, or a preset"
        return
    allowed = {"preset", "ratio"} if policy.preset is Preset.SIZE_RATIO else {"preset"}
    others = sorted(policy.model_dump(mode="json").keys() - allowed)
    if others:
        yield f"compact_when.preset is {policy.preset}, which says all: leave out {', '.join(others)}, or the preset"


def _wrong_times(policy: CompactWhen) -> Iterator[str]:
    seconds = {name: getattr(policy, name) for name in ("lag_seconds", "every", "at_latest_seconds")}
    given = {name: bound for name, bound in seconds.items() if bound is not None}
    for name, bound in given.items():
        if bound < SHORTEST_BOUND_SECONDS:
            yield f"compact_when.{name} is {bound}: a session takes {SHORTEST_BOUND_SECONDS} seconds or more"
        if policy.not_before_seconds is not None and bound < policy.not_before_seconds:
            yield (
                f"compact_when.{name} is {bound:,}, and not_before_seconds {policy.not_before_seconds:,}: it could not "
                "be kept"
            )
    if policy.at_latest_seconds is None:
        return
    if not policy.windows:
        yield "compact_when.at_latest_seconds is for a policy with windows: add windows, or set lag_seconds instead"
    if policy.lag_seconds is not None and policy.at_latest_seconds <= policy.lag_seconds:
        yield (
            f"compact_when.at_latest_seconds is {policy.at_latest_seconds:,}, and lag_seconds {policy.lag_seconds:,}: "
            "no window would ever be waited for"
        )


def _wrong_window(where: str, window: Window) -> Iterator[str]:
    try:
        times = CronTimes.parse(window.cron, window.time_zone)
    except Invalid as error:
        yield from (f"{where}: {reason}" for reason in error.reasons)
        return
    if times.next_after(datetime(2000, 1, 1, tzinfo=UTC)) is None:
        yield f"{where}: cron {window.cron!r} names no day of any year, so it never opens"


@lru_cache(maxsize=1_024)
def _times_of(window: Window) -> CronTimes:
    return CronTimes.parse(window.cron, window.time_zone)


@lru_cache(maxsize=1_024)
def _longest_wait_seconds(window: Window) -> int | None:
    """From an opening to the end of the next one; None: it never opens twice."""
    longest = _times_of(window).longest_gap
    return None if longest is None else round(longest.total_seconds()) + window.seconds


@lru_cache(maxsize=1_024)
def _is_open(window: Window, at_ms: int) -> bool:
    return _times_of(window).last_within(datetime.fromtimestamp(at_ms / 1000, UTC), window.seconds) is not None


@lru_cache(maxsize=1_024)
def _opens_at_ms(window: Window, at_ms: int) -> int | None:
    found = _times_of(window).next_after(datetime.fromtimestamp(at_ms / 1000, UTC))
    return None if found is None else round(found.timestamp() * 1000)
