"""The columns of a partition stream, and the check of a new delta against them.

A delta whose columns cannot be unified with the earlier ones would block every compaction of the stream, so it is
refused when it is appended. It is compared with the compacted schema and the schemas of the newest pending files. The
schemas of files that this process appended or opened before are cached.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import pyarrow as pa

from compactor.catalog.actions import DeltaAdded
from compactor.catalog.properties import MissingColumns, TableProperties
from compactor.catalog.snapshot import CompactedStream, SourceStream, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.model.counts import SortKey
from compactor.model.errors import Corrupt, Invalid, refuse_if
from compactor.model.files import DataFile
from compactor.model.names import PARTITION_STREAM_POSITION, Operation
from compactor.schemas.missing import NAMED_MAX, missing_fields, named, near_name
from compactor.schemas.open_types import OpenTable, open_schema, reasons_against
from compactor.schemas.unify import parse_schema, plain_schema, unify_schemas

if TYPE_CHECKING:
    from compactor.catalog.delta_files import DeltaFiles

FILES_READ_MAX = 32
"""Footers that the first append of a process to a stream reads, of the newest pending upserts, and of deletes."""

TEXT_BYTES_READ_MAX = 64 * 1024 * 1024
"""Text must be read whole to infer its types; larger text files are not checked."""

SCHEMAS_KEPT = 4 * FILES_READ_MAX

_NANOSECONDS_FROM, _NANOSECONDS_TO = "1677-09-21T00:12:43.145224193", "2262-04-11T23:47:16.854775807"

NamedSchema = tuple[str, pa.Schema]
"""A file's name, for the error, and its columns."""


class StreamSchemas:
    """Caches the schemas of a table's delta files. Safe to share between threads."""

    def __init__(self, declared: pa.Schema | None) -> None:
        self._declared = declared
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, pa.Schema] = OrderedDict()

    def check(
        self,
        stream: PartitionStream,
        snapshot: StreamSnapshot,
        source: SourceStream | None,
        operation: Operation,
        found: Sequence[NamedSchema],
        *,
        published: OpenTable | None = None,
        key_columns: Collection[str] = (),
    ) -> list[NamedSchema]:
        """Raises `Invalid`, with the column, both files and both types, for schemas that cannot be unified with the
        stream's, or with one another. Returns those of the stream.

        Args:
            source: the stream version that the delta is added to; None: it will be the first
            published: the table, if other engines read its compacted files: columns of other types are refused
            key_columns: primary and sort keys of the table's properties: of deletes only these are compared"""
        if published is not None and operation is Operation.UPSERT:
            _refuse_closed(found, published)
        keys = _all_key_columns(snapshot, key_columns)
        if operation is Operation.DELETE:
            found = [(name, _only(keys, schema)) for name, schema in found]
        before = [] if source is None else self.known(stream, snapshot, source)
        known = before if source is None else _fitting(before, self._deletes(stream, snapshot, source, keys))
        if published is not None:
            before, known, found = (
                [(name, open_schema(schema)) for name, schema in each] for each in (before, known, found)
            )
        together = list(known)
        for name, schema in found:
            if not any(schema.equals(other) for _, other in together):
                together.append((name, schema))
        if len(together) > max(len(known), 1):
            unify_schemas(together)
            compacted = () if snapshot.compacted is None else snapshot.compacted.files.values()
            pending = () if source is None else _newest_pending(stream, snapshot, source)
            files, held = (*compacted, *pending), [schema for _, schema in before]
            late = [(name, times) for name, schema in found for times in times_out_of_range(files, held, schema)]
            refuse_if([f"{name}: {times.in_delta()}" for name, times in late])
        return before

    def known(self, stream: PartitionStream, snapshot: StreamSnapshot, source: SourceStream) -> list[NamedSchema]:
        """The distinct schemas that can be unified. Others are left out: they block compaction anyway."""
        return _fitting([], self._found(stream, snapshot, source))

    def remember(self, stream: PartitionStream, delta: DeltaAdded, found: Sequence[NamedSchema]) -> None:
        """Caches the schemas of a delta's files. `found`: one for each file, or one for all."""
        for number, file in enumerate(delta.files):
            self._keep(stream.uri_of(file.path), found[min(number, len(found) - 1)][1])

    def _found(self, stream: PartitionStream, snapshot: StreamSnapshot, source: SourceStream) -> Iterator[NamedSchema]:
        compacted = snapshot.compacted
        if compacted is not None and _goes_on(compacted, stream, source):
            yield f"the compacted rows of {stream}", parse_schema(compacted.last_round.compacted_schema)
        yield from self._schemas_of(stream, _newest_pending(stream, snapshot, source))

    def _deletes(
        self, stream: PartitionStream, snapshot: StreamSnapshot, source: SourceStream, keys: Collection[str]
    ) -> Iterator[NamedSchema]:
        """The key and sort columns of pending deletes."""
        files = _newest_deletes(stream, snapshot, source) if keys else iter(())
        return ((uri, _only(keys, schema)) for uri, schema in self._schemas_of(stream, files))

    def _schemas_of(self, stream: PartitionStream, files: Iterable[DataFile]) -> Iterator[NamedSchema]:
        for file in files:
            schema = self._schema_of(stream, file)
            if schema is not None:
                yield stream.uri_of(file.path), schema

    def _schema_of(self, stream: PartitionStream, file: DataFile) -> pa.Schema | None:
        from compactor.tabular import TabularFile, read_schema

        uri = stream.uri_of(file.path)
        with self._lock:
            kept = self._kept.get(uri)
        if kept is not None:
            return kept
        if file.content_type.is_text and file.size_bytes > TEXT_BYTES_READ_MAX:
            return None
        # The compaction reports a missing or damaged file. It must not block the appends of other writers.
        with suppress(Invalid, Corrupt):
            return self._keep(uri, read_schema(stream.location, TabularFile.of(uri, file), self._declared))
        return None

    def _keep(self, uri: str, schema: pa.Schema) -> pa.Schema:
        plain = plain_schema(schema)
        with self._lock:
            self._kept[uri] = plain
            while len(self._kept) > SCHEMAS_KEPT:
                self._kept.popitem(last=False)
        return plain


def refuse_keys(found: Sequence[NamedSchema], primary_keys: Sequence[str], sort_keys: Sequence[SortKey]) -> None:
    """Raises `Invalid`, with every reason, for columns that lack a primary key of the table, or that have the name of
    the virtual column by which the table says that it sorts."""
    is_sorted_by_position = any(key.column == PARTITION_STREAM_POSITION for key in sort_keys)
    reasons = [
        f"{name} lacks primary key column {key!r}: it has {', '.join(schema.names)}"
        for name, schema in found
        for key in primary_keys
        if not schema.get_all_field_indices(key)
    ]
    reasons += [
        f"{name} has a column {PARTITION_STREAM_POSITION!r}, and the table's sort key of this name is the virtual "
        "column of stream positions: rename the column"
        for name, schema in found
        if is_sorted_by_position and schema.get_all_field_indices(PARTITION_STREAM_POSITION)
    ]
    refuse_if(reasons)


def columns_needed(
    properties: TableProperties, schema: pa.Schema | None, partition_keys: Sequence[str]
) -> tuple[str, ...]:
    """Columns of the table without which upserts are refused: see `refuse_keys` and `warn_of_missing`."""
    keys = properties.primary_keys or ()
    if schema is None or properties.missing_columns is not MissingColumns.REFUSE:
        return keys
    return (*keys, *(name for name in schema.names if name not in {*keys, *partition_keys}))


def _goes_on(compacted: CompactedStream, stream: PartitionStream, source: SourceStream) -> bool:
    """Whether the compacted rows are those of earlier deltas of `source`."""
    return (compacted.source_table_id, compacted.source_stream_version) == (stream.table_id, source.stream_version)


def _newest_pending(stream: PartitionStream, snapshot: StreamSnapshot, source: SourceStream) -> Iterator[DataFile]:
    """`FILES_READ_MAX` files of upserts, the newest first."""
    pending = _pending(stream, snapshot, source)
    files = (file for delta in pending if delta.operation is Operation.UPSERT for file in delta.files)
    return islice(files, FILES_READ_MAX)


def _newest_deletes(stream: PartitionStream, snapshot: StreamSnapshot, source: SourceStream) -> Iterator[DataFile]:
    """Files of deletes among the newest `FILES_READ_MAX` deltas, which fit to those before them."""
    pending = islice(_pending(stream, snapshot, source), FILES_READ_MAX)
    files = (file for delta in pending if delta.operation is Operation.DELETE for file in delta.files)
    return islice(files, FILES_READ_MAX)


def _pending(stream: PartitionStream, snapshot: StreamSnapshot, source: SourceStream) -> Iterator[DeltaAdded]:
    """The deltas of which no file is compacted, the newest first."""
    compacted = snapshot.compacted
    pending: Iterator[DeltaAdded] = reversed(source.deltas)
    if compacted is None or not _goes_on(compacted, stream, source):
        return pending
    taken = compacted.processed.position
    return takewhile(lambda delta: delta.position > taken, pending)


def _fitting(before: Sequence[NamedSchema], found: Iterable[NamedSchema]) -> list[NamedSchema]:
    """The schemas of `before`, and the further ones that can be unified with them."""
    together = list(before)
    for name, schema in found:
        if not any(schema.equals(other) for _, other in together):
            with suppress(Invalid):
                unify_schemas([*together, (name, schema)])
                together.append((name, schema))
    return together


@dataclass(frozen=True)
class TimesOutOfRange:
    """
    Attributes:
        kind: of the column with these times, which nanoseconds cannot hold
        bounds: words about them"""

    column: str
    kind: pa.DataType
    bounds: str

    def in_delta(self) -> str:
        return (
            f"column {self.column!r} comes in nanoseconds, which hold the years 1678 to 2262, and the stream has times "
            f"{self.bounds}: append it as {self.kind}"
        )


def nanosecond_columns(schema: pa.Schema) -> list[str]:
    return [each.name for each in schema if pa.types.is_timestamp(each.type) and each.type.unit == "ns"]


def times_out_of_range(
    files: Iterable[DataFile], held: Sequence[pa.Schema], schema: pa.Schema
) -> Iterator[TimesOutOfRange]:
    """For each column that `schema` widens to nanoseconds although one of the files has times that these cannot hold:
    its rows could not be read so. Of nested times no bounds are known.

    Args:
        held: the schemas of the files' rows"""
    for name in nanosecond_columns(schema):
        kinds = (each.field(name).type for each in held if each.get_field_index(name) >= 0)
        coarse = next((kind for kind in kinds if pa.types.is_timestamp(kind) and kind.unit != "ns"), None)
        for file in () if coarse is None else files:
            stats = file.columns.get(name)
            if stats is None or stats.null_count in (None, file.rows):
                continue
            # Only times of years with four digits have bounds.
            low, high = (str(each or "").rstrip("Z") for each in (stats.min_value, stats.max_value))
            if not _NANOSECONDS_FROM <= low <= high <= _NANOSECONDS_TO:
                bounds = f"from {low} to {high}" if low else "of years that have not four digits"
                yield TimesOutOfRange(name, coarse, bounds)
                break


def refuse_inferred_floats(
    files: DeltaFiles, declared: pa.Schema | None, primary_keys: Sequence[str], snapshot: StreamSnapshot
) -> None:
    """Raises `Invalid`, with every reason, for primary keys of text files whose type was inferred to be a float."""
    compacted = snapshot.compacted
    held = None if compacted is None else parse_schema(compacted.last_round.compacted_schema)
    reasons = [
        reason
        for file, (name, schema) in zip(files.files, files.schemas, strict=True)
        if file.content_type.is_text
        for reason in inferred_floats(name, schema, primary_keys, (declared, held))
    ]
    refuse_if(reasons)


def inferred_floats(
    name: str, schema: pa.Schema, primary_keys: Sequence[str], stated: Sequence[pa.Schema | None]
) -> Iterator[str]:
    """A reason for each key column of a text file whose type is an inferred float. `stated`: schemas with types that
    were not inferred from this file."""
    known = {column for each in stated if each is not None for column in each.names}
    for key in primary_keys:
        if schema.get_field_index(key) >= 0 and key not in known and pa.types.is_floating(schema.field(key).type):
            yield (
                f"{name} has numbers that are not whole in primary key column {key!r}, and its type is inferred: two "
                "keys could become one by rounding. Declare the column's type (lithify table create --schema "
                f"{key}:string, or another type), or append a file with types"
            )


def warn_of_missing(
    found: Sequence[NamedSchema], known: Sequence[pa.Schema], not_needed: Sequence[str], *, refuses: bool
) -> tuple[str, ...]:
    """The columns of the stream that upserts lack, a sentence for each file; raises `Invalid` with them if the table
    refuses such upserts.

    Args:
        known: the schemas of the stream
        not_needed: columns of partition keys, which have the partition's value, and those that the table's feed leaves
            out"""
    sentences = []
    known_names = {column for other in known for column in other.names}
    for name, schema in found:
        each = dict.fromkeys(path for other in known for path in missing_fields(schema, other))
        missing = [path for path in each if path not in not_needed]
        if missing:
            added = [column for column in schema.names if column not in known_names]
            sentences.append(_missing_sentence(name, missing, added))
    if sentences and refuses:
        raise Invalid(*(f"{each}; the table's missing_columns is refuse: write all columns" for each in sentences))
    return tuple(f"{each}: they are null in its rows, which replace earlier rows in all columns" for each in sentences)


def _missing_sentence(name: str, missing: Sequence[str], added: Sequence[str]) -> str:
    pairs = [(column, near_name(column, missing)) for column in added[:NAMED_MAX]]
    meant = [f" (is {column!r} meant to be {near!r}?)" for column, near in pairs if near is not None]
    return f"{name} lacks columns that its stream has, {named(missing)}{''.join(meant[:1])}"


def _refuse_closed(found: Sequence[NamedSchema], published: OpenTable) -> None:
    """Raises `Invalid`, with every reason, for columns that cannot be published."""
    reasons = [f"{name}: {reason}" for name, schema in found for reason in reasons_against(schema, published)]
    refuse_if([f"the table is published for other engines, and {reason}" for reason in reasons])


def _all_key_columns(snapshot: StreamSnapshot, of_table: Collection[str]) -> Collection[str]:
    """The key and sort columns. Before the first compaction none are known but those of the table's properties."""
    compacted = snapshot.compacted
    own = () if compacted is None else (*compacted.primary_keys, *(key.column for key in compacted.sort_keys))
    return {*of_table, *own} - {PARTITION_STREAM_POSITION}


def _only(names: Collection[str], schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in names])
