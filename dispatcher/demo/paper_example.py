"""The paper's own example (the paper, "Compaction illustrated"): AMZN.CUSTOMER_ORDER_STATUS, as values.

Two order days, two deltas each, two files a delta, two rows a file. The first day's stream is at version 2, the second
day's at version 1. The rows are those of the paper's annotated table, times as it prints them: Pacific daylight time.
Compacted, each order has one row left, its latest: `SURVIVORS`.
"""

from dataclasses import dataclass
from datetime import date, datetime

import pyarrow as pa

from compactor.lake import DeltaCatalog
from compactor.model.names import LifecycleState

TABLE_ID = "AMZN.CUSTOMER_ORDER_STATUS.V1"
COMPACTED_TABLE_ID = "AMZN.CUSTOMER_ORDER_STATUS_COMPACTED.V1"
PARTITION_KEY = "Order Day"
PRIMARY_KEY = "Order ID"
SORT_KEY = "Last Updated"
HASH_BUCKET_COUNT = 4
ROWS_PER_FILE = 2
"""Rows of the deltas' files, of compacted files and of primary key index files."""

SCHEMA = pa.schema(
    [
        pa.field("Order ID", pa.int64()),
        pa.field("Order Day", pa.date32()),
        pa.field("Order Status", pa.string()),
        pa.field("Last Updated", pa.timestamp("ms", "America/Los_Angeles")),
    ]
)

_PDT = "-07:00"

OrderStatus = tuple[int, str, str]
"""Order id, status, and when it was last updated."""


@dataclass(frozen=True)
class PaperDelta:
    """One delta, all upserts. Its rows, in files of `ROWS_PER_FILE`, are files 1 of 2 and 2 of 2."""

    order_day: str
    stream_version: int
    position: int
    rows: pa.Table


def order_statuses(order_day: str, *statuses: OrderStatus) -> pa.Table:
    """Rows of the table, for one order day."""
    order_ids, states, updated = zip(*statuses, strict=True)
    columns = {
        "Order ID": list(order_ids),
        "Order Day": [date.fromisoformat(order_day)] * len(statuses),
        "Order Status": list(states),
        "Last Updated": [datetime.fromisoformat(f"{each}{_PDT}") for each in updated],
    }
    return pa.table(columns, schema=SCHEMA)


DELTAS = (
    PaperDelta(
        order_day="1995-04-03",
        stream_version=2,
        position=1512203522392,
        rows=order_statuses(
            "1995-04-03",
            (12390127, "SUBMITTED", "1995-04-03T13:16:32.982"),
            (83475997, "SUBMITTED", "1995-04-03T14:34:21.743"),
            (62865095, "SUBMITTED", "1995-04-03T09:54:42.281"),
            (83475997, "PACKED", "1995-04-04T07:39:11.782"),
        ),
    ),
    PaperDelta(
        order_day="1995-04-03",
        stream_version=2,
        position=1512203633403,
        rows=order_statuses(
            "1995-04-03",
            (12390127, "PACKED", "1995-04-04T07:39:12.451"),
            (83475997, "SHIPPED", "1995-04-05T06:17:55.102"),
            (29683967, "SUBMITTED", "1995-04-03T08:21:40.752"),
            (95283672, "SUBMITTED", "1995-04-03T20:19:03.818"),
        ),
    ),
    PaperDelta(
        order_day="1995-04-04",
        stream_version=1,
        position=1512203109932,
        rows=order_statuses(
            "1995-04-04",
            (58392460, "SUBMITTED", "1995-04-04T23:42:11.623"),
            (78010912, "SUBMITTED", "1995-04-04T11:51:59.018"),
            (38925648, "SUBMITTED", "1995-04-04T07:24:52.216"),
            (78010912, "PACKED", "1995-04-05T06:14:36.335"),
        ),
    ),
    PaperDelta(
        order_day="1995-04-04",
        stream_version=1,
        position=1512204210043,
        rows=order_statuses(
            "1995-04-04",
            (38925648, "CANCELLED", "1995-04-04T23:31:06.705"),
            (78010912, "SHIPPED", "1995-04-05T06:17:55.102"),
            (58392460, "PACKED", "1995-04-05T12:09:56.600"),
            (78010912, "DELIVERED", "1995-04-06T15:07:36.914"),
        ),
    ),
)

SURVIVORS = {
    "1995-04-03": order_statuses(
        "1995-04-03",
        (12390127, "PACKED", "1995-04-04T07:39:12.451"),
        (29683967, "SUBMITTED", "1995-04-03T08:21:40.752"),
        (62865095, "SUBMITTED", "1995-04-03T09:54:42.281"),
        (83475997, "SHIPPED", "1995-04-05T06:17:55.102"),
        (95283672, "SUBMITTED", "1995-04-03T20:19:03.818"),
    ),
    "1995-04-04": order_statuses(
        "1995-04-04",
        (38925648, "CANCELLED", "1995-04-04T23:31:06.705"),
        (58392460, "PACKED", "1995-04-05T12:09:56.600"),
        (78010912, "DELIVERED", "1995-04-06T15:07:36.914"),
    ),
}
"""The rows that survive, by order day, in the order of their ids."""

INSTRUCTION = {
    "schema_version": "1",
    "source_table_id": TABLE_ID,
    "primary_keys": [PRIMARY_KEY],
    "sort_keys": [[SORT_KEY, "ascending"]],
    "desired_sla": None,
    "destination_compacted_table_id": COMPACTED_TABLE_ID,
    "rows_per_primary_key_index_file": ROWS_PER_FILE,
    "rows_per_compacted_file": ROWS_PER_FILE,
    "hash_bucket_count": HASH_BUCKET_COUNT,
    "compacted_file_content_type": "parquet",
}
"""The paper's call of `compact()`, as a document without the lake and the topic, which the sender adds."""


def load_table(lake: DeltaCatalog) -> None:
    """The table as the paper's load job run left it: 8 files in 4 deltas, stream versions 2 and 1 active."""
    table = lake.create_table(TABLE_ID, [PARTITION_KEY], SCHEMA)
    for delta in DELTAS:
        partition = {PARTITION_KEY: delta.order_day}
        while len(table.stream(partition).load().state.sources) < delta.stream_version:
            table.create_stream_version(partition, state=LifecycleState.ACTIVE)
        table.append(partition, delta.rows, position=delta.position, rows_per_file=ROWS_PER_FILE)
