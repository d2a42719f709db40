"""The streams of a table that have something to publish, for publishers of every format."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from compactor.catalog.keys import is_open_file
from compactor.catalog.snapshot import CompactedStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.log.durable_log import LogState
from compactor.model.errors import Invalid
from compactor.model.names import OpenFormat, counted
from compactor.publishing.changes import FileChanges, LiveFile, changes, live_files
from compactor.publishing.protocol import Published, Refused
from compactor.schemas.unify import parse_schema, unify_schemas
from compactor.storage.keys import encode_partition


@dataclass(frozen=True)
class DueStream:
    """A stream with something to publish. `name`: its encoded partition, which names it in published metadata."""

    name: str
    stream: PartitionStream
    now: LogState[StreamSnapshot]
    changes: FileChanges

    @property
    def before(self) -> list[LiveFile]:
        """Published files that go, or get other dead rows, as they are published."""
        return [*self.changes.removed, *(each.before for each in self.changes.marked)]

    @property
    def after(self) -> list[LiveFile]:
        """Files to publish."""
        return [*self.changes.added, *(each.after for each in self.changes.marked)]


class DueStreams:
    """Finds due streams. Caches the published fold of each stream, so that repeated publishes read no log twice.

    Bounds of private columns are left out.
    """

    def __init__(self, private_columns: Collection[str]) -> None:
        self._private_columns = private_columns
        self._published: dict[str, tuple[int, Mapping[str, LiveFile]]] = {}

    def find(
        self,
        folds: Iterable[tuple[PartitionStream, LogState[StreamSnapshot]]],
        positions: Mapping[str, int],
        refused: list[Refused],
    ) -> list[DueStream]:
        """The due ones of these streams. `positions`: published entries by encoded partition."""
        return [each for stream, now in folds if (each := self._due(stream, now, positions, refused)) is not None]

    def published(self, due: Iterable[DueStream]) -> None:
        """These are published."""
        for each in due:
            self._published[each.name] = (each.now.entry_number, self._files(each.now))

    def _due(
        self,
        stream: PartitionStream,
        now: LogState[StreamSnapshot],
        positions: Mapping[str, int],
        refused: list[Refused],
    ) -> DueStream | None:
        """None: nothing has changed, or it cannot be published."""
        name = encode_partition(stream.partition)
        position = positions.get(name, 0)
        if now.entry_number <= position:
            return None
        after = self._files(now)
        found = changes(self._files_at(stream, name, position), after)
        if not found:
            return None
        reasons = _cannot_be_read(stream, after)
        if reasons:
            refused.append(Refused(stream.partition, reasons))
            return None
        return DueStream(name, stream, now, found)

    def _files_at(self, stream: PartitionStream, name: str, position: int) -> Mapping[str, LiveFile]:
        number, files = self._published.get(name, (0, {}))
        if number != position:
            files = self._files(stream.load(as_of=position)) if position else {}
        return files

    def _files(self, fold: LogState[StreamSnapshot]) -> Mapping[str, LiveFile]:
        return live_files(fold.state.compacted, self._private_columns)


def _cannot_be_read(stream: PartitionStream, files: Mapping[str, LiveFile]) -> tuple[str, ...]:
    """Reasons against publishing: other engines can only read files of open types below the table's root."""
    closed = [path for path in files if not is_open_file(path)]
    if not closed:
        return ()
    number = counted(len(closed), "compacted file")
    reason = f"{number} of {stream} were written before the table was published, for example {closed[0]}"
    return (f"{reason}: compact the partition again, which rewrites them",)


def fitting_schema(
    known: str | None,
    due: Sequence[DueStream],
    refused: list[Refused],
    not_read_as: Callable[[pa.Schema, pa.Schema], tuple[str, ...]] | None = None,
) -> tuple[pa.Schema, list[DueStream]]:
    """The schema of all published rows (`known`, as text) and of the due streams that fit it. Others are refused.

    Args:
        not_read_as: why readers of the format cannot read files of the first schema by the second, which is wider"""
    named = [] if known is None else [("the published table", parse_schema(known))]
    schema, fitting = unify_schemas(named), []
    for each in due:
        try:
            found = (str(each.stream), schema_of(each))
            wide = unify_schemas([("the published table", schema), found] if schema.names else [found])
            if not_read_as is not None and (reasons := (*not_read_as(schema, wide), *not_read_as(found[1], wide))):
                raise Invalid(*dict.fromkeys(reasons))
            schema = wide
            fitting.append(each)
        except Invalid as error:
            refused.append(Refused(each.stream.partition, error.reasons))
    return schema, fitting


def schema_of(due: DueStream) -> pa.Schema:
    """Of the stream's compacted rows."""
    compacted: CompactedStream | None = due.now.state.compacted
    return pa.schema([]) if compacted is None else parse_schema(compacted.last_round.compacted_schema)


def outcome_of(
    format_: OpenFormat, version: int, at_ms: int, due: Sequence[DueStream], refused: Sequence[Refused]
) -> Published:
    """What the commit `version` has published."""
    return Published(
        format=format_,
        version=version,
        entries={each.name: each.now.entry_number for each in due},
        files_added=sum(len(each.changes.added) for each in due),
        files_removed=sum(len(each.changes.removed) for each in due),
        files_marked=sum(len(each.changes.marked) for each in due),
        rows=sum(file.rows for each in due for file in each.after)
        - sum(file.rows for each in due for file in each.before),
        lag_ms=max(0, *(at_ms - each.now.at_ms for each in due)),
        refused=tuple(refused),
    )
