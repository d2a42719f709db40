"""Arrow IPC in both forms (file and stream, recognised by their first bytes), and the older Feather V1.

Local files are mapped, not read: their columns are not copied. Every batch is fully validated, because a wrong offset
in a file would otherwise lead to reads outside of its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyarrow import feather, ipc

from compactor.tabular.formats import FileMeasure, Source, wanted_columns

_FILE_MAGIC = b"ARROW1"
_FEATHER_V1_MAGIC = b"FEA1"

if TYPE_CHECKING:
    _Reader: TypeAlias = ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader


class Ipc:
    """See `TabularFormat`."""

    def read_schema(self, source: Source, schema: pa.Schema | None) -> pa.Schema:
        del schema
        with _open(source) as opened:
            return _reader(source, opened, None).schema

    def read_table(self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table:
        with _open(source) as opened:
            reader = _reader(source, opened, columns)
            wanted = wanted_columns(source, reader.schema, columns)
            batches = [batch.select(wanted) for batch in _batches(reader)]
            return pa.Table.from_batches(batches, pa.schema([reader.schema.field(name) for name in wanted]))

    def read_batches(
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        del schema
        with _open(source) as opened:
            reader = _reader(source, opened, columns)
            wanted = wanted_columns(source, reader.schema, columns)
            for batch in _batches(reader):
                yield batch.select(wanted)

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure:
        """The file form has row counts in its batch headers; the stream form must be read."""
        del schema
        with _open(source) as opened:
            reader = _reader(source, opened, None)
            if isinstance(reader, ipc.RecordBatchFileReader):
                rows = reader.count_rows()
            else:
                rows = sum(batch.num_rows for batch in reader)
            return FileMeasure(rows, opened.size(), reader.schema)


@contextmanager
def _open(source: Source) -> Iterator[pa.NativeFile]:
    is_mapped = not source.is_remote and source.body is None
    opened = pa.memory_map(source.checked_path()) if is_mapped else source.open()
    with opened:
        yield opened


def _reader(source: Source, opened: pa.NativeFile, columns: Sequence[str] | None) -> _Reader:
    """Positioned at the first batch; reads only the requested columns."""
    magic = opened.read(len(_FILE_MAGIC))
    opened.seek(0)
    if magic.startswith(_FEATHER_V1_MAGIC):
        return feather.read_table(opened, columns=None, memory_map=False).to_reader()
    open_reader = ipc.open_file if magic == _FILE_MAGIC else ipc.open_stream
    reader = open_reader(opened)
    if columns is None:
        return reader
    chosen = [reader.schema.get_field_index(name) for name in wanted_columns(source, reader.schema, columns)]
    if not chosen:
        return reader
    opened.seek(0)
    return open_reader(opened, options=ipc.IpcReadOptions(included_fields=chosen))


def _batches(reader: _Reader) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, ipc.RecordBatchFileReader):
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        batches = iter(reader)
    for batch in batches:
        batch.validate(full=True)
        yield batch
