"""Which appends of a feed of small files and messages are still to be added, and which of them become one delta. Pure.

A thousand files of ten rows are one data file of ten thousand rows, and one delta that says which appends it consists
of. So they cost one write here and one read in each compaction, and each of them is known again by its own id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING

from compactor.catalog.actions import DeltaAdded, JoinedDelta
from compactor.catalog.delta_sequence import object_of
from compactor.catalog.snapshot import StreamSnapshot
from compactor.model.errors import Invalid
from compactor.model.names import Operation, PartitionValues

if TYPE_CHECKING:
    import pyarrow as pa

JOINED_BYTES_MAX = 4 * 1024**2
"""Bytes in memory of the largest append that is joined with others. A larger one is a delta by itself."""

DELTA_BYTES_MAX = 64 * 1024**2
"""Bytes in memory of the rows of a delta that others are joined in."""


@dataclass(frozen=True)
class Arrival:
    """The rows for one stream of a version of a file, or of a message.

    Attributes:
        delta_id: of a file: its URI, `@`, and its version
        content_digest: equal for the same rows; of a file it may follow from its version
        sequencer: orders the versions of one file, as text; None: not known"""

    partition: PartitionValues
    rows: pa.Table
    operation: Operation
    delta_id: str
    content_digest: str
    sequencer: str | None = None

    @cached_property
    def size_bytes(self) -> int:
        """Of its rows, in memory."""
        return int(self.rows.nbytes)


class Standing(Enum):
    """What a stream has of an arrival. AGAIN: the version is there, and later than it another one that it replaces."""

    NEW = auto()
    AGAIN = auto()
    PRESENT = auto()
    SUPERSEDED = auto()


class Overtaken(Exception):
    """Another writer has added an append of the delta meanwhile, or a later version of its file."""


def standing_of(snapshot: StreamSnapshot, delta_id: str, sequencer: str | None) -> Standing:
    """Of two versions of a file the later one by its sequencer is the last one: an older one that comes late is left
    out. Raises `Invalid` for an append that was taken back."""
    known, latest = find_added(snapshot, delta_id), None
    if sequencer is not None:
        latest = _latest_version(snapshot, object_of(delta_id))
    if latest is None or sequencer is None:
        return Standing.NEW if known is None and not _is_retired(snapshot, delta_id) else Standing.PRESENT
    delta, latest_sequencer = latest
    if sequencer < latest_sequencer:
        return Standing.SUPERSEDED
    if known is None and not _is_retired(snapshot, delta_id):
        return Standing.NEW
    is_before = known is None or known.position < delta.position
    return Standing.AGAIN if is_before and sequencer > latest_sequencer else Standing.PRESENT


def find_added(snapshot: StreamSnapshot, delta_id: str) -> DeltaAdded | None:
    """The delta that has the append of this id; None: none, or retired. Raises `Invalid` if it was taken back."""
    for stream in snapshot.sources.values():
        if any(each.delta_id == delta_id for each in stream.retracted):
            raise Invalid(f"delta id {delta_id!r} was taken back: give a new delta a new id")
        delta = stream.deltas.find(delta_id)
        if delta is not None:
            return delta
    return None


def _is_retired(snapshot: StreamSnapshot, delta_id: str) -> bool:
    return any(each.retired is not None and each.retired.refuses(delta_id) for each in snapshot.sources.values())


def _latest_version(snapshot: StreamSnapshot, object_name: str) -> tuple[DeltaAdded, str] | None:
    """The last delta with a version of an object, and the sequencer of that."""
    for stream in reversed(list(snapshot.sources.values())):
        delta = stream.deltas.find_version(object_name)
        if delta is not None:
            of_object = [each for each in delta.joined if object_of(each.delta_id) == object_name]
            return delta, max(each.sequencer or "" for each in of_object)
    return None


def left_to_add(snapshot: StreamSnapshot, arrivals: Sequence[Arrival]) -> tuple[list[Arrival], list[str]]:
    """The arrivals that a stream lacks, and the ids of those of which it has a later version. Raises `Invalid` for
    other rows with an id that was used."""
    left: dict[str, Arrival] = {}
    superseded: list[str] = []
    for each in arrivals:
        match standing_of(snapshot, each.delta_id, each.sequencer):
            case Standing.SUPERSEDED:
                superseded.append(each.delta_id)
            case Standing.PRESENT:
                found = find_added(snapshot, each.delta_id)
                if found is not None:
                    _refuse_other_rows(each, found.digest_of(each.delta_id))
            case Standing.NEW | Standing.AGAIN as standing:
                added = (
                    replace(each, delta_id=f"{each.delta_id}~{each.sequencer}") if standing is Standing.AGAIN else each
                )
                same = left.setdefault(added.delta_id, added)
                _refuse_other_rows(each, same.content_digest)
    return list(left.values()), superseded


def _refuse_other_rows(arrival: Arrival, content_digest: str) -> None:
    if arrival.content_digest != content_digest:
        raise Invalid(f"delta id {arrival.delta_id!r} was already used, with other content: give a new delta a new id")


@dataclass(frozen=True)
class Join:
    """Arrivals that become one delta of a stream, with their rows in order."""

    arrivals: Sequence[Arrival]

    @property
    def rows(self) -> pa.Table:
        import pyarrow as pa

        first = self.arrivals[0].rows
        return first if len(self.arrivals) == 1 else pa.concat_tables([x.rows for x in self.arrivals]).combine_chunks()

    @property
    def delta_id(self) -> str | None:
        """None: the delta has an id of its own, and is none of the appends."""
        return self.arrivals[0].delta_id if len(self.arrivals) == 1 else None

    @property
    def joined(self) -> tuple[JoinedDelta, ...]:
        return tuple(
            JoinedDelta(
                delta_id=each.delta_id,
                content_digest=each.content_digest,
                rows=each.rows.num_rows,
                sequencer=each.sequencer,
            )
            for each in self.arrivals
        )


def join(arrivals: Sequence[Arrival]) -> Iterator[Join]:
    """In their order; those that follow one another become one delta if they are small and have the same columns."""
    together: list[Arrival] = []
    size_bytes = 0
    for each in arrivals:
        more_bytes = each.size_bytes
        if together and not (
            max(more_bytes, together[-1].size_bytes) <= JOINED_BYTES_MAX
            and size_bytes + more_bytes <= DELTA_BYTES_MAX
            and each.operation is together[0].operation
            and each.rows.schema.equals(together[0].rows.schema)
        ):
            yield Join(together)
            together, size_bytes = [], 0
        together.append(each)
        size_bytes += more_bytes
    if together:
        yield Join(together)
