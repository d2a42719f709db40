"""Rows as one Parquet object: a piece of a checkpoint, or the long lists of an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a log without such objects does without it
    import pyarrow as pa

SMALL_ROWS = 512
"""Of fewer rows, dictionaries of values are longer than the values."""


def render_rows(table: pa.Table) -> bytes:
    """As a Parquet file with checksums."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        write_page_checksum=True,
        write_statistics=False,
        use_dictionary=table.num_rows >= SMALL_ROWS,
    )
    rendered: bytes = sink.getvalue().to_pybytes()
    return rendered


def parse_rows(body: bytes) -> pa.Table:
    """Raises an Arrow error for what is no such file.

    Without PyArrow's scan of data sets, which costs more than the reading of a small piece."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(pa.BufferReader(body), page_checksum_verification=True)
    return parquet.read(use_threads=len(body) > 1024 * 1024)
