"""Bad input ends in one clear sentence, and leaves the log and the compacted side as they were: no file, no entry."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.stream_schema import FILES_READ_MAX
from compactor.lake import Table
from compactor.model.errors import Corrupt, Invalid, LithifyError
from compactor.planning.spec import JobRunResult
from tests.builders import TABLE_ID

Compact = partial[JobRunResult]


@pytest.fixture
def compacted(lake: DeltaCatalog, orders: Table, compact_orders: Compact) -> Table:
    """A table that has been compacted, and has a delta pending."""
    orders.append({}, pa.table({"id": [1, 2], "value": ["a", "b"], "time": [1, 2]}))
    compact_orders()
    orders.append({}, pa.table({"id": [2, 3], "value": ["B", "C"], "time": [3, 4]}))
    return orders


def refused(lake: DeltaCatalog, run: Compact, kind: type[LithifyError] = Invalid) -> str:
    """What the run is refused with; nothing under the lake is added, changed or removed by it."""
    root = Path(lake.location.root_uri.removeprefix("file://"))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    with pytest.raises(kind) as refusal:
        run()
    after = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert after == before
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_a_missing_key_column_is_named_with_the_nearest_there_is(
    lake: DeltaCatalog, compacted: Table, compact_orders: Compact
) -> None:
    run = partial(
        compact, TABLE_ID, {"idd", "valu"}, delta_catalog_client=lake, destination_compacted_table_id="ACME.OTHER.V1"
    )
    reason = refused(lake, run)
    assert "there is no primary key column 'idd' in the data: did you mean 'id'?" in reason
    assert "there is no primary key column 'valu' in the data: did you mean 'value'?" in reason


def test_a_file_without_the_key_column_is_named(lake: DeltaCatalog, compacted: Table, compact_orders: Compact) -> None:
    delta = compacted.append({}, pa.table({"value": ["x"]}))
    reason = refused(lake, compact_orders)
    assert reason == (
        f"{lake.location.root_uri}/{delta.files[0].path} lacks primary key column 'id': it has value; to go on without "
        f"that delta: `lithify table retract {TABLE_ID} --delta {delta.delta_id} --lake {lake.location.root_uri}`"
    )


def test_nanoseconds_that_compacted_times_do_not_fit_into_are_refused_before_they_make_the_table_unreadable(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    other = partial(compact_orders, destination_compacted_table_id="ACME.OTHER.V1")
    last = pa.array(["9999-12-31"]).cast(pa.timestamp("us"))
    orders.append({}, pa.table({"id": [1], "at": last}))
    now = pa.array(["2026-11-27"]).cast(pa.timestamp("us"))
    # The next append looks at the newest files only, since the compacted ones are another table's.
    orders.append_many([({}, pa.table({"id": [2], "at": now}), "upsert")] * FILES_READ_MAX)
    other()
    orders.append({}, pa.table({"id": [3], "at": now.cast(pa.timestamp("ns"))}), delta_id="ns")
    reason = refused(lake, other)
    assert "column 'at' comes in nanoseconds" in reason
    assert f"to go on without that delta: `lithify table retract {TABLE_ID} --delta ns " in reason
    orders.retract({}, "ns")
    other()


def test_partitions_whose_times_no_type_holds_are_read_apart_or_without_that_column(lake: DeltaCatalog) -> None:
    table = lake.create_table("ACME.DAYS.V1", ["day"], primary_keys=["id"])
    last = pa.array(["9999-12-31"]).cast(pa.timestamp("us"))
    now = pa.array(["2026-11-27"]).cast(pa.timestamp("ns"))
    for day, at in (("1", last), ("2", now)):
        table.append({"day": day}, pa.table({"id": [1], "at": at}))
    compact("ACME.DAYS.V1", delta_catalog_client=lake)
    for view in ("compacted", "merged"):
        reason = r"^column 'at' of ACME.DAYS.V1 day=1 has times from 9999-12-31T.*: scan these partitions by themselves"
        with pytest.raises(Invalid, match=reason):
            table.scan(view=view).to_table()
        assert (
            table.scan({"day": "1"}, view=view).to_table().column("at").cast(last.type).to_pylist() == last.to_pylist()
        )
        assert table.scan({"day": "2"}, view=view).to_table().column("at").cast(now.type).to_pylist() == now.to_pylist()
        assert table.scan(columns=["id"], view=view).to_table().num_rows == 2
        assert table.scan(view=view).count_rows() == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"sort_keys": [("time", "ascending"), ("time", "descending")]},
            "sort key column 'time' is named 2 times",
        ),
        ({"sort_keys": [("time", "upwards")]}, "sort key ('time', 'upwards') is no (column, order) pair: order is"),
        ({"sort_keys": ["time"]}, "sort key 'time' is no (column, order) pair"),
        ({"hash_bucket_count": 0}, "hash_bucket_count is 0: it must be 1 or more"),
        ({"rows_per_compacted_file": 0}, "rows_per_compacted_file is 0: it must be 1 or more"),
        ({"rows_per_primary_key_index_file": -1}, "rows_per_primary_key_index_file is -1: it must be 1 or more"),
        ({"max_rows_per_round": 0}, "max_rows_per_round is 0: it must be 1 or more"),
        ({"tombstone_retention": -5}, "tombstone_retention is -5: it must be 0 or more"),
        ({"compacted_file_content_type": "json"}, "compacted_file_content_type json can be read only"),
        ({"compacted_file_content_type": "avro"}, "compacted_file_content_type 'avro' is none of parquet,"),
        ({"destination_compacted_table_id": "nowhere"}, "'nowhere' is not a table id: write OWNER.NAME.Vn"),
        ({"partitions": [{"day": "1"}]}, "'day' is no partition key: table ACME.ORDERS.V1 has no partition keys"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_argument_that_can_never_work_is_refused(
    options: dict[str, object], reason: str, lake: DeltaCatalog, compacted: Table, compact_orders: Compact
) -> None:
    assert reason in refused(lake, partial(compact_orders, **options))


def test_primary_keys_are_a_set_of_names_and_not_one_text(lake: DeltaCatalog, compacted: Table) -> None:
    run = partial(compact, TABLE_ID, "id", delta_catalog_client=lake)
    assert "primary_keys is the string 'id': pass a set of column names" in refused(lake, run)
    assert "primary_keys is empty" in refused(lake, partial(compact, TABLE_ID, set(), delta_catalog_client=lake))


def test_an_unknown_table_is_named(lake: DeltaCatalog, compacted: Table) -> None:
    run = partial(compact, "ACME.NOTHING.V1", {"id"}, delta_catalog_client=lake)
    assert (
        refused(lake, run)
        == f"there is no table ACME.NOTHING.V1 in {lake.location.root_uri}: create it, or check its id"
    )


def test_columns_that_cannot_be_reconciled_do_not_matter_in_a_delete_unless_they_are_keys(
    lake: DeltaCatalog, compacted: Table, compact_orders: Compact
) -> None:
    compacted.append({}, pa.table({"id": [1], "value": [1.5]}), operation="delete")
    assert compact_orders().sessions[0].rows_deleted == 1
    with pytest.raises(Invalid, match="column 'id' is int64 in"):
        compacted.append({}, pa.table({"id": ["1"]}), operation="delete")


def test_sort_keys_of_exactly_32_bytes_are_taken(lake: DeltaCatalog, orders: Table, compact_orders: Compact) -> None:
    orders.append({}, pa.table({"id": [1, 1], "a": pa.array([b"b" * 24, b"a" * 24], pa.binary(24)), "b": [1, 2]}))
    result = compact_orders(sort_keys=[("a", "ascending"), ("b", "ascending")])
    assert result.sessions[0].rows_out == 1


def test_a_column_that_the_output_s_format_cannot_hold_is_refused_before_anything_is_written(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, pa.table({"id": [1], "at": pa.array([1], pa.time64("us")), "bytes": pa.array([b"x"])}))
    reason = refused(lake, partial(compact_orders, compacted_file_content_type="orc"))
    assert reason == "a orc file cannot hold column 'at' of type time64[us]: choose parquet or feather"
    reason = refused(lake, partial(compact_orders, compacted_file_content_type="csv"))
    assert reason == "a csv file cannot hold column 'bytes' of type binary: choose parquet or feather"


def test_other_keys_than_the_index_was_built_for_are_refused(
    lake: DeltaCatalog, compacted: Table, compact_orders: Compact
) -> None:
    reason = refused(lake, partial(compact_orders, sort_keys=[("time", "ascending")]))
    assert reason == (
        "the index was built for sort keys [], not ['time ascending']: compact into another destination table"
    )
    reason = refused(lake, partial(compact, TABLE_ID, {"id", "value"}, delta_catalog_client=lake))
    assert reason == (
        "the index was built for primary keys ['id'], not ['id', 'value']: compact into another destination table"
    )


def test_a_corrupt_parquet_file_is_named_when_it_is_appended(lake: DeltaCatalog, orders: Table, tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 this is no Parquet file PAR1")
    with pytest.raises(Invalid, match=re.escape(str(broken))):
        orders.append({}, [broken])
    assert orders.partitions() == []


def test_a_file_that_was_broken_after_it_was_appended_is_named_and_nothing_is_written(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact, tmp_path: Path
) -> None:
    file = tmp_path / "delta.parquet"
    pq.write_table(pa.table({"id": list(range(1_000))}), file)
    orders.append({}, [file])
    file.write_bytes(file.read_bytes()[:100])
    assert str(file) in refused(lake, compact_orders, Corrupt)


def test_a_file_whose_data_pages_are_broken_is_named_and_no_round_is_committed(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact, tmp_path: Path
) -> None:
    file = tmp_path / "delta.parquet"
    pq.write_table(pa.table({"id": list(range(1_000))}), file, use_dictionary=False, compression="zstd")
    content = bytearray(file.read_bytes())
    content[4:400] = b"\xff" * 396
    file.write_bytes(bytes(content))
    orders.append({}, [file])
    entries = orders.stream({}).load().entry_number
    with pytest.raises(Invalid, match=re.escape(str(file))):
        compact_orders()
    assert orders.stream({}).load().entry_number == entries


def test_a_file_that_was_removed_after_it_was_appended_wakes_somebody_by_name(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact, tmp_path: Path
) -> None:
    file = tmp_path / "delta.parquet"
    pq.write_table(pa.table({"id": [1]}), file)
    orders.append({}, [file])
    file.unlink()
    assert str(file) in refused(lake, compact_orders, Corrupt)


def test_a_file_that_has_other_rows_than_when_it_was_appended_wakes_somebody_by_name(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact, tmp_path: Path
) -> None:
    file = tmp_path / "delta.parquet"
    pq.write_table(pa.table({"id": [1]}), file)
    orders.append({}, [file])
    pq.write_table(pa.table({"id": [1, 2]}), file)
    entries = orders.stream({}).load().entry_number
    with pytest.raises(Corrupt, match=re.escape(str(file)) + " was changed or replaced after it was appended"):
        compact_orders()
    assert orders.stream({}).load().entry_number == entries
