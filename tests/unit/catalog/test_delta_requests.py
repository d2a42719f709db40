"""What of an append's arguments is refused before anything is written, and in which words."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.catalog.appending import POSITION_GIVEN_MAX, POSITION_MAX, DeltaRequest, check_request
from compactor.catalog.snapshot import SourceStream, StreamSnapshot
from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import LifecycleState, Operation
from compactor.schemas.cast import python_rows

ROWS = pa.table({"id": [1, 2]})
DAMAGED = pa.StringArray.from_buffers(2, pa.array([0, 2, 4], pa.int32()).buffers()[1], pa.py_buffer(b"ab\xff\xfe"))


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table("ACME.ORDERS.V1")


@pytest.mark.parametrize("delta_id", ["\ud800", "a\udfff", "", 5, b"a"])
def test_a_delta_id_must_be_text_that_json_can_hold(orders: Table, delta_id: str) -> None:
    with pytest.raises(Invalid, match="delta_id"):
        orders.append({}, ROWS, delta_id=delta_id)
    assert orders.stream({}).load().entry_number == 0


def test_partition_keys_and_properties_must_be_text_that_json_can_hold(lake: DeltaCatalog) -> None:
    with pytest.raises(Invalid, match=r"partition key '\\ud800' is no Unicode text"):
        lake.create_table("ACME.ORDERS.V1", ["\ud800"])
    with pytest.raises(Invalid, match="a property holds text that is not Unicode"):
        lake.create_table("ACME.ORDERS.V1", primary_keys=["\ud800"])


def test_a_given_position_leaves_room_for_later_deltas(orders: Table) -> None:
    with pytest.raises(Invalid, match=rf"position {POSITION_MAX} leaves no room .* {POSITION_GIVEN_MAX}"):
        orders.append({}, ROWS, position=POSITION_MAX)
    assert orders.append({}, ROWS, position=POSITION_GIVEN_MAX).position == POSITION_GIVEN_MAX
    assert orders.append({}, ROWS).position == POSITION_GIVEN_MAX + 1
    with pytest.raises(Invalid, match="does not fit into 64 bits"):
        orders.append({}, ROWS, position=2**63)


def test_a_stream_that_is_full_since_an_earlier_release_says_so() -> None:
    full = SourceStream(stream_version=1, state=LifecycleState.ACTIVE, last_position=POSITION_MAX)
    with pytest.raises(Invalid, match="none above it"):
        check_request(StreamSnapshot(sources={1: full}), DeltaRequest(Operation.UPSERT, None, "one", None))


def test_text_that_is_not_utf8_is_refused_with_its_column_where_a_writer_gives_it(orders: Table) -> None:
    rows = pa.table({"id": [1, 2], "note": DAMAGED})
    for source in (rows, rows.to_reader()):
        with pytest.raises(Invalid, match="column 'note' holds text that is not UTF-8"):
            orders.append({}, source)
    nested = pa.table({"notes": pa.ListArray.from_arrays([0, 1, 2], DAMAGED)})
    with pytest.raises(Invalid, match="column 'notes' holds text that is not UTF-8"):
        orders.append({}, nested)


def test_text_of_a_file_that_is_not_utf8_is_named_where_its_rows_become_python_values(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "note": DAMAGED}), tmp_path / "damaged.parquet")
    rows = pq.read_table(tmp_path / "damaged.parquet")
    assert python_rows(rows.slice(0, 1)) == [{"id": 1, "note": "ab"}]
    with pytest.raises(Corrupt, match="column 'note' holds text that is not UTF-8"):
        python_rows(rows)
