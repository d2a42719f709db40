"""TPC-H's table of orders with two refreshes, as deltas; and the rows that must survive, found by sorting.

The base is written by `tpchgen-cli`. The refreshes are derived from it like TPC-H's refresh functions (RF1 inserts
0.1 % new orders, RF2 deletes 0.1 %), with updates of status and price, which TPC-H does not have:

    refresh n   RF1, upserts   0.1 % new orders, with keys that TPC-H does not use: it uses the first 8 of every 32
                               5 % (n = 1) or 4 % (n = 2) of the base's orders, with another status and price
                RF2, deletes   0.1 % of the base's orders

Each row has the time of its last update. A fifth of the second refresh's updates are late: their update time is before
that of the first refresh's update of the same order, so they lose although they arrive later. The rows follow from the
scale factor alone.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.model.errors import Invalid, Unavailable
from compactor.model.names import Operation

TABLE_ID = "TPCH.ORDERS.V1"
PARTITION_KEY = "o_orderyear"
PRIMARY_KEY = "o_orderkey"
SORT_KEY = "o_updated"

SCHEMA = pa.schema(
    [
        ("o_orderkey", pa.int64()),
        ("o_custkey", pa.int64()),
        ("o_orderstatus", pa.string()),
        ("o_totalprice", pa.decimal128(15, 2)),
        ("o_orderdate", pa.date32()),
        ("o_orderpriority", pa.string()),
        ("o_clerk", pa.string()),
        ("o_shippriority", pa.int32()),
        ("o_comment", pa.string()),
        ("o_updated", pa.timestamp("ms")),
    ]
)

DELETE_COLUMNS = [PRIMARY_KEY, SORT_KEY]
"""The columns that a delete needs."""

INSTRUCTION = {
    "schema_version": "1",
    "source_table_id": TABLE_ID,
    "primary_keys": [PRIMARY_KEY],
    "sort_keys": [[SORT_KEY, "ascending"]],
    "desired_sla": 60,
}
"""The document without the lake and the topic, which the sender adds."""

KEYS_USED = 8
"""Keys in use, of every 32. The 8 after them are for the first refresh's new orders, the next 8 for the second's."""

REFRESHES = (1, 2)
UPDATED_AT = 3
UPDATED_ONE_IN = {1: 20, 2: 25}
UPDATED_AFTER_DAYS = {1: 15, 2: 20}
UPDATED_LATE_AFTER_DAYS = {1: 15, 2: 10}
DELETED_AFTER_DAYS = 30
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class OrdersDelta:
    """A delta for each order year's stream. Of a delete's rows only the key and the sort key are used."""

    name: str
    operation: Operation
    rows: pa.Table


def generate_orders(scale_factor: float, folder: Path) -> pa.Table:
    """TPC-H's orders at a scale factor (150,000 rows for 0.1), last updated on the day they were placed."""
    generator = Path(sys.executable).with_name("tpchgen-cli")
    command = [str(generator), "parquet", "-s", str(scale_factor), "--tables=orders", f"--output-dir={folder}"]
    try:
        # In its own process group: Ctrl-C must not make it fail.
        subprocess.run(
            command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except FileNotFoundError as error:
        raise Invalid(f"there is no {generator}: pip install 'lithify[demo]'") from error
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{generator.name} failed: {error.stderr.strip()[-500:]}") from error
    orders = pq.read_table(folder / "orders.parquet")
    placed = orders.column("o_orderdate").cast(pa.timestamp("ms"))
    columns = [*orders.columns, placed]
    return pa.table([column.cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def make_deltas(base: pa.Table) -> tuple[OrdersDelta, ...]:
    """The base and both refreshes, in the order in which they are appended."""
    deltas = [OrdersDelta("base", Operation.UPSERT, base)]
    for refresh in REFRESHES:
        upserts = pa.concat_tables([_new(base, refresh), _updated(base, refresh)])
        deltas.append(OrdersDelta(f"refresh {refresh}, RF1", Operation.UPSERT, upserts))
        deltas.append(OrdersDelta(f"refresh {refresh}, RF2", Operation.DELETE, _gone(base, refresh)))
    return tuple(deltas)


def by_year(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each order year that has some."""
    years = pc.year(rows.column("o_orderdate"))
    for year in sorted(pc.unique(years).to_pylist()):
        yield str(year), rows.filter(pc.equal(years, year))


def survivors(deltas: Sequence[OrdersDelta]) -> pa.Table:
    """The rows that must survive, by key: of each key's rows the one updated last, unless the key was deleted.

    They are found by sorting all rows. (No update here is later than a delete of its key.)
    """
    upserts = pa.concat_tables(each.rows for each in deltas if each.operation is Operation.UPSERT)
    deletes = pa.concat_tables(each.rows for each in deltas if each.operation is Operation.DELETE)
    rows = upserts.sort_by([(PRIMARY_KEY, "ascending"), (SORT_KEY, "ascending")]).combine_chunks()
    keys = rows.column(PRIMARY_KEY).chunk(0)
    is_last = pa.concat_arrays([pc.not_equal(keys[:-1], keys[1:]), pa.array([True])])
    is_deleted = pc.is_in(keys, deletes.column(PRIMARY_KEY).combine_chunks())
    return rows.filter(pc.and_not(is_last, is_deleted))


def late_order(base: pa.Table) -> tuple[int, int]:
    """Key and order year of an order that both refreshes update, the second one late."""
    return base.column(PRIMARY_KEY)[UPDATED_AT].as_py(), base.column("o_orderdate")[UPDATED_AT].as_py().year


# ------------------------------------------------------------------------------------------------------- parts


def _new(base: pa.Table, refresh: int) -> pa.Table:
    """A copy of one order in 1,000, with an unused key."""
    rows = base.filter(_every(base, 1_000, at=100 * refresh))
    return _with(rows, PRIMARY_KEY, pc.add(rows.column(PRIMARY_KEY), KEYS_USED * refresh))


def _updated(base: pa.Table, refresh: int) -> pa.Table:
    """One order in 20, or in 25; one in 100 is in both."""
    chosen = _every(base, UPDATED_ONE_IN[refresh], at=UPDATED_AT)
    rows, late = base.filter(chosen), _every(base, 125, at=UPDATED_AT).filter(chosen)
    days = pc.if_else(late, UPDATED_LATE_AFTER_DAYS[refresh], UPDATED_AFTER_DAYS[refresh])
    price = pc.multiply(rows.column("o_totalprice"), pa.scalar(refresh + 1)).cast(SCHEMA.field("o_totalprice").type)
    rows = _with(rows, "o_totalprice", price)
    rows = _with(rows, "o_orderstatus", pc.if_else(late, "P", "F"))
    return _with(rows, SORT_KEY, _days_after(rows, days))


def _gone(base: pa.Table, refresh: int) -> pa.Table:
    rows = base.filter(_every(base, 1_000, at=500 + refresh))
    return _with(rows, SORT_KEY, _days_after(rows, DELETED_AFTER_DAYS))


def _every(base: pa.Table, nth: int, *, at: int) -> pa.Array:
    """A mask that is true for one row in `nth`: for those at `at`, at + nth, ..."""
    return pa.array(np.arange(base.num_rows) % nth == at)


def _days_after(rows: pa.Table, days: pa.Array | int) -> pa.ChunkedArray:
    milliseconds = pc.cast(rows.column(SORT_KEY), pa.int64())
    return pc.add(milliseconds, pc.multiply(days, _DAY_MS)).cast(SCHEMA.field(SORT_KEY).type)


def _with(rows: pa.Table, column: str, values: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(column), SCHEMA.field(column), values)
