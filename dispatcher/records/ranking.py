"""The order of all accepted job runs: the same for every dispatcher, whatever its settings. Pure.

A step of priority equals `STEP_SECONDS` of waiting, so waiting job runs rise, and none waits for ever: a job run of
priority 0 goes before one of priority 3 that was accepted 30 minutes later.

| question                                            | answered by                                                 |
|-----------------------------------------------------|-------------------------------------------------------------|
| two sessions of one destination stream              | `stream_rank`: no clock is read, so all see the same order  |
| which of all waiting sessions takes the next slot   | `slot_rank`: by level; within it, the table with the       |
|                                                     | fewest running sessions; within that, `stream_rank`         |
"""

import hashlib
from collections.abc import Collection, Iterable

from compactor.model.names import PartitionValues
from compactor.planning.spec import JobRunSpec
from compactor.storage.location import StoreLocation
from dispatcher.records.keys import MARKED_STREAMS_MAX, MarkedJobRun
from dispatcher.records.work_id import WorkId

STEP_SECONDS = 600
"""Seconds of waiting that equal one step of priority. No setting: with different ones dispatchers block each other."""

PRIORITY_COUNTED_MAX = 100
"""A higher priority counts as this one, and a lower one than its negative as that, among job runs that wait: so nothing
waits for longer than 33 hours for what is accepted after it."""

_DIGEST_CHARACTERS = 12

StreamRank = tuple[int, int, int, str]
SlotRank = tuple[int, int, StreamRank]


def stream_rank(priority: int, accepted_at_ms: int, job_run_id: str) -> StreamRank:
    """Smaller goes first.

    Worked: priority 0 accepted at 10:00 and priority 1 at 10:09: the latter goes first, as if accepted at 09:59.
    """
    counted = max(-PRIORITY_COUNTED_MAX, min(priority, PRIORITY_COUNTED_MAX))
    return (accepted_at_ms - counted * STEP_SECONDS * 1000, -priority, accepted_at_ms, job_run_id)


def slot_rank(rank: StreamRank, now_ms: int, running_of_table: int) -> SlotRank:
    """Smaller goes first. Job runs whose ranks differ by less than a step share slots between their tables."""
    return (-((now_ms - rank[0]) // (STEP_SECONDS * 1000)), running_of_table, rank)


def table_digest(lake: StoreLocation, table_id: str) -> str:
    """The name of a table of a lake in markers and leases."""
    return _digest(lake.root_uri, table_id)


def stream_digest(partition: PartitionValues) -> str:
    """The name of a partition stream in markers and leases, unique within its table."""
    return _digest(*(text for key in sorted(partition) for text in (key, partition[key])))


def _digest(*texts: str) -> str:
    framed = "".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(framed.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def destination_of(spec: JobRunSpec) -> str:
    return table_digest(spec.lake, spec.destination_compacted_table_id)


def mark_of(
    work: WorkId,
    spec: JobRunSpec,
    partitions: Iterable[PartitionValues] | None,
    accepted_at_ms: int,
    owner: str | None = None,
    epoch: int = 0,
) -> MarkedJobRun:
    """The marker of a job run or a shard with these destination streams; None: any of its table."""
    streams = None if partitions is None else tuple(sorted({stream_digest(partition) for partition in partitions}))
    named = streams if streams is not None and len(streams) <= MARKED_STREAMS_MAX else None
    return MarkedJobRun(work.text, spec.priority, accepted_at_ms, owner, epoch, destination_of(spec), named)


def work_of(mark: MarkedJobRun) -> WorkId:
    return WorkId.parse(mark.job_run_id)


def rank_of(mark: MarkedJobRun) -> StreamRank:
    return stream_rank(mark.priority, mark.marked_at_ms, mark.job_run_id)


def ahead_of(mark: MarkedJobRun, streams: Collection[str], others: Iterable[MarkedJobRun]) -> list[MarkedJobRun]:
    """The other job runs that may have a session on one of these streams and go before it, in rank order."""
    own, job_run_id = rank_of(mark), work_of(mark).job_run_id
    wanted = frozenset(streams)
    found = [
        each
        for each in others
        if each.table == mark.table
        and work_of(each).job_run_id != job_run_id
        and _may_have(each, wanted)
        and rank_of(each) < own
    ]
    return sorted(found, key=rank_of)


def _may_have(mark: MarkedJobRun, streams: Collection[str]) -> bool:
    if mark.streams is not None:
        return not frozenset(streams).isdisjoint(mark.streams)
    return any(map(work_of(mark).may_have, streams))
