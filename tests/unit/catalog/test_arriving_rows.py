"""What append refuses, and what it reports, by the values of a delta's rows."""

from __future__ import annotations

import datetime
import json
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from compactor.catalog.arriving_rows import ArrivingRowsCheck
from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Invalid
from compactor.model.names import ContentType, Operation
from compactor.tabular import TabularFile, measure

TEN = datetime.datetime.fromisoformat("1995-04-03T10:00:00")
DAY = {"day": "1995-04-03"}
GOOD = pa.table({"id": [1, 2], "day": ["1995-04-03", "1995-04-03"]})
WRONG = pa.table({"id": [1, 2, 3], "day": ["1995-04-03", "1995-04-03", "1995-04-04"]})


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table("ACME.ORDERS.V1", ["day"])


def objects(lake: DeltaCatalog) -> list[str]:
    return [entry.key for entry in lake.store.list("")]


def refusal(rows: pa.Table, value: str, *, is_published: bool = False) -> str | None:
    arriving = ArrivingRowsCheck("f", rows.schema, {"day": value}, Operation.UPSERT, is_published=is_published)
    try:
        arriving.add(rows)
    except Invalid as error:
        return str(error)
    return None


# -- partitions


@pytest.mark.parametrize("operation", ["upsert", "delete"])
def test_a_column_that_contradicts_its_partition_is_refused_with_its_row_before_anything_is_written(
    lake: DeltaCatalog, orders: Table, operation: str
) -> None:
    before = objects(lake)
    with pytest.raises(
        Invalid, match=r"the delta contradicts its partition day=1995-04-03: .*'day' is '1995-04-04' in row 3;"
    ):
        orders.append(DAY, WRONG, operation=operation)
    assert objects(lake) == before
    orders.append(DAY, GOOD, operation=operation)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_a_registered_file_that_contradicts_its_partition_is_refused_with_its_name_and_row(
    orders: Table, tmp_path: Path, suffix: str
) -> None:
    for name, rows in (("good", GOOD), ("wrong", WRONG)):
        if suffix == "parquet":
            pq.write_table(rows, tmp_path / f"{name}.parquet", row_group_size=1)
        elif suffix == "csv":
            lines = [",".join(map(str, row.values())) for row in rows.to_pylist()]
            (tmp_path / f"{name}.csv").write_text("\n".join(["id,day", *lines, ""]))
        else:
            (tmp_path / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    orders.append(DAY, [tmp_path / f"good.{suffix}"])
    with pytest.raises(Invalid, match=rf"wrong\.{suffix} contradicts its partition day=1995-04-03: .* in row 3;"):
        orders.append(DAY, [tmp_path / f"wrong.{suffix}"])


def test_a_stream_of_rows_is_refused_at_the_row_that_contradicts_its_partition(orders: Table) -> None:
    batches = [GOOD.to_batches()[0]] * 40_000
    reader = pa.RecordBatchReader.from_batches(GOOD.schema, [*batches, *WRONG.to_batches()])
    with pytest.raises(Invalid, match="in row 80,003;"):
        orders.append(DAY, reader)


@pytest.mark.parametrize(
    ("values", "value", "differs"),
    [
        (pa.array([5, None], pa.int32()), "5", False),
        (pa.array([5], pa.int8()), "05", False),
        (pa.array([6]), "5", True),
        (pa.array([5]), "five", True),
        (pa.array([None]), "five", False),
        (pa.array(["x"]).dictionary_encode(), "x", False),
        (pa.array(["y"]).dictionary_encode(), "x", True),
        (pa.array([""]), "", False),
        (pa.array([True]), "true", False),
        (pa.array([datetime.date(1995, 4, 3)]), "1995-04-03", False),
        (pa.array([datetime.date(1995, 4, 3)]), "19950403", False),
        (pa.array([datetime.date(1995, 4, 3)]), "1995-04", False),
        (pa.array([datetime.date(1995, 4, 3)]), "1995", False),
        (pa.array([datetime.date(1995, 4, 3)]), "1995-05", True),
        (pa.array([datetime.date(1995, 4, 3)]), "monday", False),
        (pa.array([TEN]), "1995-04-03", False),
        (pa.array([TEN]), "1995-04-03T10", False),
        (pa.array([TEN]), "1995-04-03T11", True),
        (pa.array([TEN], pa.timestamp("us", "Europe/Paris")), "1995-04-04", False),
        (pa.array([["1995-04-03"]]), "1995-04-04", False),
    ],
)
def test_a_value_is_compared_as_its_column_and_a_time_belongs_to_what_it_begins_with(
    values: pa.Array, value: str, differs: bool
) -> None:
    assert (refusal(pa.table({"day": values}), value) is not None) == differs


def test_a_null_contradicts_the_partition_of_a_published_table_alone() -> None:
    rows = pa.table({"day": pa.array(["a", None])})
    assert refusal(rows, "a") is None
    assert refusal(rows, "a", is_published=True) == (
        "f contradicts its partition day=a: its column 'day' is None in row 2; append each row to its own partition, "
        "or rename the column"
    )


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array(["1995-04-03", None]), []),
        (pa.array([datetime.date(1995, 4, 3)] * 2), []),
        (pa.array(["1995-04-03", "1995-04-04"]), ["day"]),
        (pa.array([None, None], pa.string()), ["day"]),
    ],
)
def test_values_are_not_read_where_the_bounds_of_a_file_settle_it(
    lake: DeltaCatalog, tmp_path: Path, values: pa.Array, wanted: list[str]
) -> None:
    pq.write_table(pa.table({"id": [1, 2], "day": values}), tmp_path / "rows.parquet")
    uri = f"file://{tmp_path}/rows.parquet"
    found = measure(lake.location, TabularFile(uri, ContentType.PARQUET))
    arriving = ArrivingRowsCheck(uri, found.schema, DAY, Operation.UPSERT)
    assert arriving.wanted(found.columns) == wanted


def test_a_file_without_a_column_of_a_partition_key_or_a_mark_is_not_read() -> None:
    assert ArrivingRowsCheck("f", pa.schema([("id", pa.int64())]), DAY, Operation.UPSERT).wanted({}) == []


# -- marks of deletes


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("Op", ["I", "U", "D", "D"]),
        ("op", ["c", "u", "d", "d"]),
        ("op", ["r", None, "d", "d"]),
        ("__op", ["c", "u", "d", "d"]),
        ("__deleted", ["false", "false", "true", "true"]),
        ("__deleted", [False, False, True, True]),
        ("_change_type", ["insert", "update_postimage", "update_preimage", "delete"]),
        ("_op_type", ["c", "i", "d", "d"]),
    ],
)
def test_a_column_that_marks_deletes_is_reported_with_its_counts_and_what_to_do(
    lake: DeltaCatalog, tmp_path: Path, column: str, values: list[object]
) -> None:
    table = lake.create_table("ACME.CHANGES.V1")
    rows = pa.table({"id": [1, 2, 3, 4], column: values})
    pq.write_table(rows, tmp_path / "changes.parquet")
    for source, name in ((rows, "the delta"), ([tmp_path / "changes.parquet"], f"file://{tmp_path}/changes.parquet")):
        (warning,) = table.append({}, source).warnings
        assert f"column {column!r} of {name} seems to mark 2 rows of 4 as deleted or replaced" in warning
        assert "lithify table retract" in warning
        feed = json.loads(shlex.split(warning.partition("--changes ")[2].removesuffix(", or append_changes"))[0])
        known = rows.filter(pc.field(column).is_valid())
        feeds = lake.create_table("ACME.FEED.V1", primary_keys=["id"])
        upserts = [each for each in feeds.append_changes(known, feed) if each.operation is Operation.UPSERT]
        assert sum(file.rows for each in upserts for file in each.files) == known.num_rows - 2
    assert table.append({}, rows, operation="delete").warnings == ()


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("Op", ["I", "U", "I"]),
        ("op", ["buy", "sell", "d"]),
        ("operation", ["d", "d", "d"]),
        ("op", [1, 2, 3]),
        ("deleted", ["true", "true", "false"]),
        ("Op", [None, None, None]),
    ],
)
def test_a_column_that_marks_no_delete_is_not_reported(lake: DeltaCatalog, column: str, values: list[object]) -> None:
    table = lake.create_table("ACME.CHANGES.V1")
    assert table.append({}, pa.table({"id": [1, 2, 3], column: values})).warnings == ()


@pytest.mark.parametrize("within", [(), ("payload",)])
def test_change_events_of_debezium_are_reported_as_what_they_are(
    lake: DeltaCatalog, tmp_path: Path, within: tuple[str, ...]
) -> None:
    events: list[dict[str, object]] = [
        {"op": "c", "before": None, "after": {"id": 1}},
        {"op": "d", "before": {"id": 1}, "after": None},
    ]
    lines = [{"schema": {"type": "struct"}, "payload": event} if within else event for event in events]
    (tmp_path / "events.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (warning,) = lake.create_table("ACME.CHANGES.V1").append({}, [tmp_path / "events.json"]).warnings
    name = ".".join([*within, "op"])
    assert f"seems to hold change events of Debezium (column {name!r}: 'c' 1, 'd' 1)" in warning


def test_a_repeated_append_reports_nothing_and_is_the_same_delta(lake: DeltaCatalog) -> None:
    table, rows = lake.create_table("ACME.CHANGES.V1"), pa.table({"id": [1], "Op": ["D"]})
    first = table.append({}, rows, delta_id="one")
    again = table.append({}, rows, delta_id="one")
    assert (len(first.warnings), again.warnings) == (1, ())
    assert first == again


def test_each_of_many_deltas_has_its_own_warnings(lake: DeltaCatalog) -> None:
    table = lake.create_table("ACME.CHANGES.V1")
    inserted, deleted = (pa.table({"id": [1], "Op": [mark]}) for mark in ("I", "D"))
    added = table.append_many([({}, inserted, "upsert"), ({}, deleted, "upsert")])
    assert [len(delta.warnings) for delta in added] == [0, 1]
