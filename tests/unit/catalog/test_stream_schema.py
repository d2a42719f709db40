"""A delta that could never be compacted beside what the stream has is refused while its writer is there to be told."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.catalog.stream_schema import FILES_READ_MAX
from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Invalid
from compactor.model.names import LifecycleState
from tests.rounds import compact_by_hand


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table("ACME.ORDERS.V1", ["day"])


MONDAY, TUESDAY = {"day": "monday"}, {"day": "tuesday"}
WHOLE, BROKEN = pa.table({"id": [1], "price": [5]}), pa.table({"id": [2], "price": [5.5]})


def again(table: Table, lake: DeltaCatalog) -> Table:
    """The table as a process sees it that remembers nothing."""
    return DeltaCatalog(lake.store, lake._clock).table(table.table_id)


def objects(lake: DeltaCatalog) -> list[str]:
    return [entry.key for entry in lake.store.list("")]


def test_a_column_that_no_type_can_hold_together_is_refused_with_both_types_and_nothing_is_written(
    lake: DeltaCatalog, orders: Table
) -> None:
    orders.append(MONDAY, WHOLE)
    before = objects(lake)
    for table in (orders, again(orders, lake)):
        with pytest.raises(
            Invalid, match=r"column 'price' is int64 in file://.*1\.parquet but double in the delta: no"
        ):
            table.append(MONDAY, BROKEN)
    assert objects(lake) == before
    orders.append(MONDAY, pa.table({"id": pa.array([2], pa.int32()), "new": ["x"]}))
    orders.append(TUESDAY, BROKEN)


def test_files_of_one_delta_that_no_type_holds_together_are_refused(
    lake: DeltaCatalog, orders: Table, tmp_path: Path
) -> None:
    paths = [tmp_path / "whole.parquet", tmp_path / "broken.parquet"]
    for path, rows in zip(paths, (WHOLE, BROKEN), strict=True):
        pq.write_table(rows, path)
    for partition in (MONDAY, TUESDAY):
        with pytest.raises(Invalid, match=r"column 'price' is int64 in file://.*whole\.parquet but double in .*broken"):
            orders.append(partition, paths)
        orders.append(MONDAY, WHOLE)


def test_a_text_file_whose_values_look_like_numbers_is_refused(
    lake: DeltaCatalog, orders: Table, tmp_path: Path
) -> None:
    orders.append(MONDAY, pa.table({"id": [1], "zip": ["01234"]}))
    (tmp_path / "zips.csv").write_text("id,zip\n2,01234\n")
    with pytest.raises(Invalid, match=r"column 'zip' is string in file://.* but int64 in file://.*zips\.csv"):
        again(orders, lake).append(MONDAY, [tmp_path / "zips.csv"])


def test_compacted_rows_count_after_their_deltas_are_passed(lake: DeltaCatalog, orders: Table) -> None:
    compact_by_hand(orders.stream(MONDAY), [WHOLE])
    orders.append(MONDAY, WHOLE.select(["id"]))
    for table in (orders, again(orders, lake)):
        with pytest.raises(
            Invalid, match=r"column 'price' is int64 in the compacted rows of ACME.ORDERS.V1 day=monday but"
        ):
            table.append(MONDAY, BROKEN)


def test_another_writer_s_delta_counts_though_it_came_in_between(lake: DeltaCatalog, orders: Table) -> None:
    other = again(orders, lake)
    orders.append(MONDAY, WHOLE.select(["id"]))
    other.append(MONDAY, WHOLE)
    with pytest.raises(Invalid, match="column 'price' is int64"):
        orders.append(MONDAY, BROKEN)


def test_a_delete_is_held_to_the_keys_alone(lake: DeltaCatalog, orders: Table) -> None:
    orders.append(MONDAY, WHOLE)
    compact_by_hand(orders.stream(MONDAY), [WHOLE])
    orders.append(MONDAY, BROKEN, operation="delete")
    with pytest.raises(Invalid, match=r"column 'id' is int64 in the compacted rows .* but string in the delta"):
        orders.append(MONDAY, pa.table({"id": ["1"]}), operation="delete")


KEYED = {"primary_keys": ["id"], "sort_keys": [["at", "ascending"]]}
UPSERT = pa.table({"id": [1], "at": [1], "price": [5]})
UNFITTING_DELETES = {
    "key": pa.table({"id": ["1"], "at": [1]}),
    "unsigned key": pa.table({"id": pa.array([1], pa.uint64())}),
    "sort column": pa.table({"id": [1], "at": [1.5]}),
}
unfitting = pytest.mark.parametrize("delete", UNFITTING_DELETES.values(), ids=UNFITTING_DELETES)


@unfitting
def test_a_delete_is_held_to_the_keys_that_the_table_knows_before_anything_is_compacted(
    lake: DeltaCatalog, delete: pa.Table
) -> None:
    table = lake.create_table("ACME.KEYED.V1", properties=KEYED)
    table.append({}, UPSERT)
    before = objects(lake)
    for writer in (table, again(table, lake)):
        with pytest.raises(Invalid, match=r"column '(id|at)' is int64 in file://.* but (string|uint64|double) in the "):
            writer.append({}, delete, operation="delete")
    assert objects(lake) == before
    table.append({}, pa.table({"id": [1], "at": [2], "price": ["not looked at"]}), operation="delete")


@unfitting
def test_an_upsert_is_held_to_the_keys_of_deletes_that_came_before_it(lake: DeltaCatalog, delete: pa.Table) -> None:
    table = lake.create_table("ACME.KEYED.V1", properties=KEYED)
    wrong = table.append({}, delete, operation="delete")
    for writer in (table, again(table, lake)):
        with pytest.raises(Invalid, match=r"column '(id|at)' is (string|uint64|double) in file://.* but int64 in the"):
            writer.append({}, UPSERT)
    table.retract({}, wrong.delta_id)
    assert table.append({}, UPSERT).warnings == ()


def test_columns_that_only_a_delete_has_are_not_missing_in_upserts(lake: DeltaCatalog) -> None:
    table = lake.create_table("ACME.KEYED.V1", properties={**KEYED, "missing_columns": "refuse"})
    table.append({}, UPSERT.append_column("more", pa.array(["x"])), operation="delete")
    table.append({}, UPSERT.select(["id", "price"]))


@unfitting
def test_upserts_beside_a_delete_that_does_not_fit_since_an_earlier_release_are_taken(
    lake: DeltaCatalog, delete: pa.Table
) -> None:
    table = lake.create_table("ACME.KEYED.V1")
    table.append({}, UPSERT)
    table.append({}, delete, operation="delete")
    table.set_properties(KEYED)
    again(table, lake).append({}, UPSERT)


def test_a_new_stream_version_may_have_other_types(lake: DeltaCatalog, orders: Table) -> None:
    orders.append(MONDAY, WHOLE)
    orders.create_stream_version(MONDAY, LifecycleState.ACTIVE)
    orders.append(MONDAY, BROKEN)


def test_a_stream_that_was_broken_before_takes_what_fits_to_any_of_it(lake: DeltaCatalog, orders: Table) -> None:
    added = orders.append(MONDAY, WHOLE)
    orders.append(MONDAY, WHOLE)
    path = Path(orders.stream(MONDAY).uri_of(added.files[0].path).removeprefix("file://"))
    pa.parquet.write_table(BROKEN, path)
    again(orders, lake).append(MONDAY, WHOLE)
    path.unlink()
    again(orders, lake).append(MONDAY, WHOLE)


def test_the_same_append_again_is_a_no_op_whatever_came_after(lake: DeltaCatalog, orders: Table) -> None:
    added = orders.append(MONDAY, WHOLE, delta_id="first")
    orders.append(MONDAY, WHOLE)
    assert again(orders, lake).append(MONDAY, WHOLE, delta_id="first") == added


def test_a_writer_opens_a_bounded_number_of_files(lake: DeltaCatalog, orders: Table) -> None:
    for number in range(FILES_READ_MAX + 5):
        orders.append(MONDAY, pa.table({"id": [number]}))
    stream = orders.stream(MONDAY)
    deltas = stream.load().state.sources[1].deltas
    for delta in deltas[:5]:
        Path(stream.uri_of(delta.files[0].path).removeprefix("file://")).write_bytes(b"not looked at")
    fresh = again(orders, lake)
    fresh.append(MONDAY, WHOLE)
    assert len(fresh._schemas._kept) == FILES_READ_MAX + 1


def test_the_known_schema_is_declared_compacted_and_pending_together(lake: DeltaCatalog) -> None:
    properties = {"schema_growth": "allow"}
    table = lake.create_table("ACME.WIDE.V1", schema=pa.schema([("id", pa.int32())]), properties=properties)
    compact_by_hand(table.stream({}), [pa.table({"id": [1], "b": ["x"]})])
    table.append({}, pa.table({"id": [2], "c": [True]}))
    assert table.known_schema().names == ["id", "b", "c"]
    assert table.known_schema().field("id").type == pa.int64()


@pytest.mark.parametrize("operation", ["upsert", "delete"])
def test_a_delta_without_a_key_that_the_table_knows_is_refused_and_nothing_is_written(
    lake: DeltaCatalog, tmp_path: Path, operation: str
) -> None:
    table = lake.create_table("ACME.KEYED.V1", primary_keys=["id", "line"])
    renamed = pa.table({"ID": [1], "line": [1]})
    pq.write_table(renamed, tmp_path / "renamed.parquet")
    before = objects(lake)
    with pytest.raises(Invalid, match="the delta lacks primary key column 'id': it has ID, line"):
        table.append({}, renamed, operation=operation)
    with pytest.raises(Invalid, match=r"renamed\.parquet lacks primary key column 'id': it has ID, line"):
        table.append({}, [tmp_path / "renamed.parquet"], operation=operation)
    with pytest.raises(Invalid, match="the delta has more than one column named 'id': column names must be unique"):
        table.append({}, pa.Table.from_arrays([[1], [1], [1]], names=["id", "line", "id"]), operation=operation)
    assert objects(lake) == before
    table.append({}, renamed.rename_columns(["id", "line"]), operation=operation)


@pytest.mark.parametrize("refuses", [False, True])
def test_json_lines_lack_a_declared_column_that_no_line_names(
    lake: DeltaCatalog, tmp_path: Path, refuses: bool
) -> None:
    """A reader has null there, and all rows would have the key null."""
    schema = pa.schema([("id", pa.int64()), ("line", pa.int64()), ("price", pa.float64())])
    properties = {"missing_columns": "refuse"} if refuses else {}
    table = lake.create_table("ACME.LINES.V1", [], schema, primary_keys=["id", "line"], properties=properties)
    file = tmp_path / "lines.json"
    for append in (table.append_rows, lambda files: table.append({}, files)):
        file.write_text('{"line": 1, "price": 5}\n{"line": 2}\n')
        with pytest.raises(Invalid, match="lacks primary key column 'id'"):
            append([file])
        file.write_text('{"id": null, "line": 1, "price": null}\n{"id": 2, "line": 1}\n')
        append([file])
        file.write_text('{"id": 3, "line": null, "price": null}\n')
        append([file])
        file.write_text('{"id": 3, "line": 1}\n')
        if refuses:
            with pytest.raises(Invalid, match="lacks columns that its stream has, 'price'"):
                append([file])
        else:
            append([file])


def times(unit: str, *values: str) -> pa.Table:
    at = pa.array(values).cast(pa.timestamp("us")).cast(pa.timestamp(unit))
    return pa.table({"id": range(len(values)), "at": at})


@pytest.mark.parametrize("last", ["2262-04-12", "9999-12-31"])
def test_nanoseconds_are_refused_where_the_stream_has_times_that_they_cannot_hold(orders: Table, last: str) -> None:
    orders.append(MONDAY, times("us", "2026-01-01", last))
    orders.append(TUESDAY, times("ms", "2026-01-01"))
    compact_by_hand(orders.stream(TUESDAY), [times("ms", "2026-01-01", last)])
    for partition, unit in ((MONDAY, "us"), (TUESDAY, "ms")):
        reason = (
            rf"the delta: column 'at' comes in nanoseconds.* to {last}T00:00:00.*: append it as timestamp\[{unit}\]"
        )
        with pytest.raises(Invalid, match=reason):
            orders.append(partition, times("ns", "2026-01-01"))
        orders.append(partition, times(unit, "2026-01-01"))


def test_nanoseconds_are_taken_where_all_times_of_the_stream_fit(orders: Table) -> None:
    orders.append(MONDAY, times("us", "1677-09-22", "2262-04-11"))
    orders.append(TUESDAY, times("us", "2026-01-01"))
    nulls = times("us", "2026-01-01").set_column(1, "at", pa.nulls(1, pa.timestamp("us")))
    compact_by_hand(orders.stream(TUESDAY), [times("us", "2026-01-01"), nulls])
    for partition in (MONDAY, TUESDAY):
        orders.append(partition, times("ns", "2026-01-01"))
        orders.append(partition, times("us", "2026-01-01"))
