"""ORC: read by stripe, measured by its footer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import orc

from compactor.tabular.formats import FileMeasure, Source, wanted_columns


class Orc:
    """See `TabularFormat`."""

    def read_schema(self, source: Source, schema: pa.Schema | None) -> pa.Schema:
        del schema
        with _open(source) as file:
            return file.schema

    def read_table(self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table:
        batches = list(self.read_batches(source, columns, schema))
        if batches:
            return pa.Table.from_batches(batches)
        with _open(source) as file:
            wanted = wanted_columns(source, file.schema, columns)
            return file.schema.empty_table().select(wanted)

    def read_batches(
        self, source: Source, columns: Sequence[str] | None, schema: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        del schema
        with _open(source) as file:
            wanted = wanted_columns(source, file.schema, columns)
            # Asked for no column at all, the reader forgets how many rows there are.
            needed = wanted or file.schema.names[:1]
            for stripe in range(file.nstripes):
                yield file.read_stripe(stripe, columns=needed).select(wanted)

    def measure(self, source: Source, schema: pa.Schema | None) -> FileMeasure:
        del schema
        with _open(source) as file:
            return FileMeasure(file.nrows, file.file_length, file.schema)


@contextmanager
def _open(source: Source) -> Iterator[orc.ORCFile]:
    with source.open() as opened:
        yield orc.ORCFile(opened)
