"""The log of the keeper's decisions on one table: actions, fold, events, its entries for people. Pure.

Its entry is the claim on a decision: of two keepers that decide at the same time one writes the entry, and the other
folds it and finds nothing left to decide. Whoever comes next sends what was decided and not sent.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Literal, assert_never

from pydantic import Field, TypeAdapter
from pydantic_core import to_json

from compactor.catalog.compact_when import CompactWhen
from compactor.events.relay import Event, Subject, entry_event
from compactor.events.types import EventData, KeeperDecidedEvent, KeeperFailedEvent, KeeperPostponedEvent
from compactor.log.durable_log import DurableLog, Entry, LogFormat
from compactor.log.small_states import small_checkpoint
from compactor.model.document import Document
from compactor.model.errors import ErrorKind
from compactor.model.retries import Backoff
from compactor.planning.spec import Partition
from compactor.storage.keys import encode_partition
from dispatcher.layout import time_text
from dispatcher.records.history import day_of
from dispatcher.records.job_run_log import JobRunStatus

ENDED_KEPT = 256
"""Job runs that a fold remembers after their end: more than there are between a look's first read and its decision."""

DAYS_KEPT = 8
"""Days whose money a fold remembers."""

RETRYING = Backoff(first_seconds=600.0, longest_seconds=14_400.0)
"""Pauses before a stream is decided on again whose session failed: each may cost money, and what made it fail may be
over."""

WHY_SHOWN = 10
"""Streams of a decision whose figures an event names."""


class DecidedStream(Document):
    """A stream that is to be compacted.

    Attributes:
        entry_number: of its log, that the keeper saw
        rule, why: the figures that were reached, and each beside its bound
        figures: pending and compacted amounts, for people
        expected_usd: of its session; None: nothing is paid for it"""

    partition: Partition
    entry_number: int
    rule: str
    why: str
    figures: dict[str, int]
    expected_usd: float | None = None

    @property
    def key(self) -> str:
        return encode_partition(self.partition)


# ------------------------------------------------------------------------------------------------------ actions


class DecisionMade(Document):
    """An instruction for these streams is to be sent. `job_run_id`: `job_run_id_of` what was seen."""

    action: Literal["decided"] = "decided"
    job_run_id: str
    streams: tuple[DecidedStream, ...]
    expected_seconds: float
    expected_usd: float | None = None
    at_ms: int


class DecisionSent(Document):
    """The queue has taken the instruction; it may be sent again, with the same job run id."""

    action: Literal["sent"] = "sent"
    job_run_id: str
    at_ms: int


class DecisionWaits(Document):
    """The queue has not taken the instruction. Written at the first failure, and when its kind changes."""

    action: Literal["waits"] = "waits"
    job_run_id: str
    streams: int
    kind: ErrorKind
    reason: str
    at_ms: int


class UnsettledStream(Document):
    """A stream with which its session did nothing, or failed: another decision on the same entry changes nothing.

    Attributes:
        failures: one after the other, by now; 0: there was nothing to do"""

    key: str
    entry_number: int
    failures: int
    at_ms: int

    def again_at_ms(self, entry_number: int, last_write_at_ms: int | None) -> int | None:
        """When another decision may change something; None: not before the stream's log goes on. A write that is later
        than this, at an entry that is not, is of a table that was created again."""
        if self.failures:
            return self.at_ms + round(RETRYING.seconds(self.failures) * 1000)
        goes_on = entry_number > self.entry_number or (last_write_at_ms or 0) > self.at_ms
        return self.at_ms if goes_on else None


class DecisionEnded(Document):
    """What the job run took. `usd` None: nothing was paid for it."""

    action: Literal["ended"] = "ended"
    job_run_id: str
    status: str
    seconds: float
    usd: float | None = None
    rows_in: int = 0
    rows_out: int = 0
    reasons: tuple[str, ...] = ()
    unsettled: tuple[UnsettledStream, ...] = ()
    at_ms: int


class StreamsPostponed(Document):
    """Streams are due and may not begin. Written when that begins, and when the reason changes; `streams` 0: none is
    postponed any more."""

    action: Literal["postponed"] = "postponed"
    postponed_by: str
    streams: int
    until_ms: int | None = None
    reasons: tuple[str, ...] = ()
    at_ms: int


class TableSetAside(Document):
    """The table cannot be read; it is tried again at the next look. `reason` None: it can be read again."""

    action: Literal["set_aside"] = "set_aside"
    reason: str | None
    at_ms: int


DecisionAction = Annotated[
    DecisionMade | DecisionSent | DecisionWaits | DecisionEnded | StreamsPostponed | TableSetAside,
    Field(discriminator="action"),
]


# --------------------------------------------------------------------------------------------------------- fold


@dataclass(frozen=True)
class OpenDecision:
    """`sent_at_ms` None: no keeper knows that the queue has it. `waits`: its last failure."""

    made: DecisionMade
    sent_at_ms: int | None = None
    waits: DecisionWaits | None = None


@dataclass(frozen=True)
class DecisionState:
    """
    Attributes:
        open: decisions whose job run has not ended, by its id
        unsettled: by the stream's key
        spent: US dollars by day, of ended job runs
        postponed: None: nothing is
        set_aside: why the table cannot be read
        ended: the last job runs that have ended: a keeper that saw their streams before decides on none of them again
    """

    open: Mapping[str, OpenDecision] = field(default_factory=lambda: MappingProxyType({}))
    unsettled: Mapping[str, UnsettledStream] = field(default_factory=lambda: MappingProxyType({}))
    spent: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    postponed: StreamsPostponed | None = None
    set_aside: str | None = None
    ended: tuple[str, ...] = ()

    @property
    def streams_at_work(self) -> frozenset[str]:
        return frozenset(stream.key for each in self.open.values() for stream in each.made.streams)

    def spent_usd(self, now_ms: int, times: float = 1.0) -> float:
        """Of today's money: what was spent, and so many times what is promised to open job runs."""
        promised = sum(each.made.expected_usd or 0.0 for each in self.open.values())
        return self.spent.get(day_of(now_ms), 0.0) + times * promised


def apply(state: DecisionState, action: DecisionAction) -> DecisionState:
    """The state after one more action. One about no open decision changes nothing: another keeper was faster."""
    match action:
        case DecisionMade():
            unsettled = {key: each for key, each in state.unsettled.items() if each.failures or not _is_of(action, key)}
            made = MappingProxyType({**state.open, action.job_run_id: OpenDecision(action)})
            return replace(state, open=made, unsettled=MappingProxyType(unsettled))
        case DecisionSent() | DecisionWaits():
            found = state.open.get(action.job_run_id)
            if found is None:
                return state
            if isinstance(action, DecisionSent):
                after = replace(found, sent_at_ms=action.at_ms)
            else:
                after = replace(found, waits=action)
            return replace(state, open=MappingProxyType({**state.open, action.job_run_id: after}))
        case DecisionEnded():
            return _ended(state, action)
        case StreamsPostponed():
            return replace(state, postponed=action if action.streams else None)
        case TableSetAside():
            return replace(state, set_aside=action.reason)
        case _:
            assert_never(action)


def _is_of(made: DecisionMade, key: str) -> bool:
    return any(stream.key == key for stream in made.streams)


def _ended(state: DecisionState, action: DecisionEnded) -> DecisionState:
    found = state.open.get(action.job_run_id)
    if found is None:
        return state
    still_open = {key: each for key, each in state.open.items() if key != action.job_run_id}
    unsettled = {key: each for key, each in state.unsettled.items() if not _is_of(found.made, key)}
    unsettled |= {each.key: each for each in action.unsettled}
    spent = dict(state.spent)
    if action.usd:
        day = day_of(action.at_ms)
        spent[day] = spent.get(day, 0.0) + action.usd
    return replace(
        state,
        open=MappingProxyType(still_open),
        unsettled=MappingProxyType(unsettled),
        spent=MappingProxyType({day: spent[day] for day in sorted(spent)[-DAYS_KEPT:]}),
        ended=(*state.ended, action.job_run_id)[-ENDED_KEPT:],
    )


DECISION_LOG: LogFormat[DecisionState, DecisionAction] = LogFormat(
    name="decisions",
    action_type=TypeAdapter(DecisionAction),
    initial=DecisionState(),
    apply=apply,
    checkpoint=small_checkpoint(DecisionState),
    keeps_entries=False,
)

DecisionLog = DurableLog[DecisionState, DecisionAction]


def job_run_id_of(
    table: tuple[str, str], policy: CompactWhen, seen: Sequence[tuple[str, int, int | None]], state: DecisionState
) -> str:
    """The same for every keeper that sees the same: derived from the table, its policy, the entries of the streams'
    logs, and how often these streams have failed before.

    Args:
        table: `lake_name` of its lake, and its id: two lakes of one state may have tables that are alike
        seen: keys, entry numbers and last writes of the streams: the logs of a table that was purged and created again
            begin anew"""
    failures = [state.unsettled[key].failures if key in state.unsettled else 0 for key, *_ in seen]
    content = to_json([*table, policy.model_dump(mode="json"), list(map(list, seen)), failures])
    return f"keeper-{hashlib.sha256(content).hexdigest()[:32]}"


# -------------------------------------------------------------------------------------------------------- events

KEEPER = "keeper"
"""The job run in events that are about none."""


def decision_events(table_id: str, log_id: str) -> Callable[[Entry[DecisionAction]], list[Event]]:
    """The builder of a table's events."""

    def build(entry: Entry[DecisionAction]) -> list[Event]:
        events = []
        for ordinal, action in enumerate(entry.actions):
            data = _event_of(action)
            if data is not None:
                job_run_id = getattr(action, "job_run_id", KEEPER)
                events.append(entry_event(Subject(job_run_id, table_id), log_id, entry, ordinal, data))
        return events

    return build


def _event_of(action: DecisionAction) -> EventData | None:
    match action:
        case DecisionMade():
            return KeeperDecidedEvent(
                job_run_id=action.job_run_id,
                streams=len(action.streams),
                rules=dict(Counter(stream.rule for stream in action.streams)),
                why=tuple(stream.why for stream in action.streams[:WHY_SHOWN]),
                expected_seconds=action.expected_seconds,
                expected_usd=action.expected_usd,
            )
        case DecisionSent():
            return None
        case DecisionWaits():
            return KeeperPostponedEvent(postponed_by="queue", streams=action.streams, reasons=(action.reason,))
        case DecisionEnded():
            if action.status == JobRunStatus.SUCCEEDED:
                return None
            return KeeperFailedEvent(job_run_id=action.job_run_id, reasons=(f"it is {action.status}", *action.reasons))
        case StreamsPostponed():
            return KeeperPostponedEvent.from_facts(action) if action.streams else None
        case TableSetAside():
            return None if action.reason is None else KeeperFailedEvent(reasons=(action.reason,))
        case _:
            assert_never(action)


def decision_records(table_id: str, entries: Iterable[Entry[DecisionAction]], limit: int) -> list[dict[str, object]]:
    """The latest ones, in their order. `what`: waits (for the queue), decided (and sent), the status of the job run,
    postponed, or set aside.

    Args:
        entries: of the table's log: of a decision that was made before them nothing is shown"""
    found: dict[object, dict[str, object]] = {}
    for entry in entries:
        for ordinal, action in enumerate(entry.actions):
            key: object = (entry.number, ordinal)
            record: dict[str, object] = {"at_ms": entry.at_ms, "table": table_id}
            match action:
                case DecisionMade():
                    rules = ", ".join(dict.fromkeys(stream.rule for stream in action.streams))
                    found[action.job_run_id] = {
                        **record,
                        "what": "waits",
                        "job_run_id": action.job_run_id,
                        "streams": len(action.streams),
                        "partitions": [stream.partition for stream in action.streams],
                        "figures": [stream.figures for stream in action.streams],
                        "by": rules,
                        "why": action.streams[0].why,
                        "expected_seconds": action.expected_seconds,
                        "expected_usd": action.expected_usd,
                        "sent_at_ms": None,
                        "waits_since_ms": entry.at_ms,
                        "waits_for": "no keeper has sent it yet",
                    }
                case DecisionWaits() if action.job_run_id in found:
                    found[action.job_run_id]["waits_for"] = action.reason
                case DecisionSent() if action.job_run_id in found:
                    found[action.job_run_id] |= {"what": "decided", "sent_at_ms": action.at_ms, **_NOT_WAITING}
                case DecisionEnded() if action.job_run_id in found:
                    joined = {"what": action.status, "seconds": action.seconds, "usd": action.usd, **_NOT_WAITING}
                    figures = {"rows_in": action.rows_in, "rows_out": action.rows_out, "reasons": action.reasons}
                    found[action.job_run_id] |= joined | figures
                case StreamsPostponed() if action.streams:
                    why, by = "; ".join(action.reasons), action.postponed_by
                    found[key] = {**record, "what": "postponed", "streams": action.streams, "by": by, "why": why}
                case TableSetAside() if action.reason is not None:
                    found[key] = {**record, "what": "set aside", "why": action.reason}
    shown = islice(found.values(), max(len(found) - limit, 0), None)
    return [{**each, "why": _with_wait(each)} for each in shown]


_NOT_WAITING: Mapping[str, object] = {"waits_since_ms": None, "waits_for": None}


def _with_wait(record: Mapping[str, object]) -> object:
    if record.get("waits_for") is None:
        return record["why"]
    since = time_text(record["waits_since_ms"])
    return f"{record['why']}; waits for the queue since {since} UTC: {record['waits_for']}"
