"""Deletion vectors: the dead rows of a live compacted file that was not rewritten for them.

A vector is an Arrow IPC file with one column, `row_index` (uint64), ascending. A round that kills more rows of the file
writes a new vector, with the old rows and the new ones; the log names the valid one.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.index.keys import DeletionVectorPath
from compactor.model.errors import Corrupt, Invalid
from compactor.model.files import DeletionVector
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation
from compactor.tabular import TabularFile, TabularWriter, read_table

_SCHEMA = pa.schema([pa.field("row_index", pa.uint64(), nullable=False)])


def read_dead_rows(location: StoreLocation, vector: DeletionVector) -> npt.NDArray[np.int64]:
    """The dead rows of a file, ascending. Raises `Corrupt` if the vector differs from the log's statement."""
    uri = f"{location.root_uri}/{vector.path}"
    try:
        table = read_table(location, TabularFile(uri, ContentType.FEATHER, vector.size_bytes, crc32=vector.crc32))
    except Invalid as error:
        raise Corrupt(str(error)) from error
    if table.schema.names != _SCHEMA.names or table.num_rows != vector.rows:
        raise Corrupt(f"{uri} does not hold the {vector.rows} dead rows of file {vector.file_number}")
    rows: npt.NDArray[np.int64] = table.column(0).to_numpy().astype(np.int64)
    return rows


def write_dead_rows(
    location: StoreLocation, path: DeletionVectorPath, dead_rows: npt.NDArray[np.int64]
) -> DeletionVector:
    """Writes a vector; `dead_rows` ascending, each once."""
    column = pa.array(dead_rows.astype(np.uint64))
    with TabularWriter.open(location, f"{location.root_uri}/{path.key}", ContentType.FEATHER, _SCHEMA) as writer:
        writer.write(pa.Table.from_arrays([column], schema=_SCHEMA))
        measured = writer.close()
    return DeletionVector(
        file_number=path.file_number,
        path=path.key,
        rows=len(dead_rows),
        size_bytes=measured.size_bytes,
        crc32=measured.crc32,
    )
