"""Files of copied row groups, and of rows that Arrow encodes, for the tests of the Parquet pages."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation
from compactor.tabular import FileMeasure, TabularFile, TabularWriter, stored_schema
from compactor.tabular.parquet_pages.row_groups import RowGroup, open_rows

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lake:
    """A folder, and what is done in it."""

    location: StoreLocation

    def write(self, table: pa.Table, **options: object) -> TabularFile:
        """A file as some other writer would leave it."""
        file = TabularFile(f"{self.location.root_uri}/source.parquet", ContentType.PARQUET)
        path = Path(file.uri.removeprefix("file://"))
        path.parent.mkdir(exist_ok=True)
        stored = stored_schema(table.schema, ContentType.PARQUET)
        pq.write_table(table.cast(stored), path, **{"compression": "snappy", **options})
        return file

    def take(
        self, file: TabularFile, rows: Rows, schema: pa.Schema, groups: int = 1, *, by_page: bool = False
    ) -> list[RowGroup] | None:
        """The rows in so many row groups; None where Arrow has to read the file. `by_page`: as of one that is too large
        to decode."""
        with open_rows(self.location, file, [schema]) as source:
            if source is None:
                return None
            pieces = np.array_split(rows, groups)
            if by_page:
                taken = [source.take_some(piece) for piece in pieces]
            else:
                taken = [source.take(piece, keep_decoded=piece is not pieces[-1]) for piece in pieces]
        return None if None in taken else [group for group in taken if group is not None]

    def gather(self, schema: pa.Schema, *pieces: RowGroup | pa.Table) -> tuple[TabularFile, FileMeasure]:
        """A file of row groups and of rows that Arrow encodes."""
        file = TabularFile(f"{self.location.root_uri}/gathered.parquet", ContentType.PARQUET)
        with TabularWriter.open(self.location, file.uri, file.content_type, schema, takes_row_groups=True) as writer:
            for piece in pieces:
                if isinstance(piece, RowGroup):
                    writer.write_row_group(piece)
                else:
                    writer.write(piece)
            return file, writer.close()


def orders_table(count: int) -> pa.Table:
    random = np.random.default_rng(count)
    return pa.table(
        {
            "id": random.permutation(count),
            "status": pa.array(["new", "paid", "sent", None]).take(pa.array(random.integers(0, 4, count))),
            "note": [None if each % 11 == 0 else f"{each} " * int(each % 30) for each in random.permutation(count)],
            "amount": random.random(count),
        }
    )


def gathered_orders(lake: Lake) -> tuple[Path, pa.Table]:
    """Codes, plain values, nulls, booleans, one value throughout and none at all, in row groups of both kinds."""
    orders = orders_table(9_000)
    orders = orders.append_column("paid", pa.array([None, True, False] * 3_000))
    orders = orders.append_column("country", pa.array(["ES"] * 9_000))
    orders = orders.append_column("comment", pa.array([None] * 9_000, pa.string()))
    orders = orders.append_column("price", pa.array([Decimal(number).scaleb(-2) for number in range(9_000)]))
    taken = lake.take(lake.write(orders, row_group_size=3_000), np.arange(0, 9_000, 3), orders.schema, groups=2)
    assert taken is not None
    file, _ = lake.gather(orders.schema, *taken, orders.slice(1, 1))
    path = Path(file.uri.removeprefix("file://"))
    return path, pa.concat_tables([orders.take(np.arange(0, 9_000, 3)), orders.slice(1, 1)])
