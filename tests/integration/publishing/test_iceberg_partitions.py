"""Derived partition keys as Apache Iceberg has them: engines prune by the columns that they are derived from."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import expression_evaluator, inclusive_projection
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable

from compactor import DeltaCatalog, compact
from compactor.catalog.partition_split import Partitioning
from compactor.catalog.partition_transforms import parse_transform
from compactor.catalog.properties import GRACE_SECONDS
from compactor.publishing.iceberg import IcebergPublisher
from compactor.publishing.protocol import Published
from tests.builders import TABLE_ID
from tests.crashes import HurriedClock
from tests.open_rounds import SCHEMA, OpenLake
from tests.published_rows import differences

START = datetime(2019, 12, 30, 22)  # noqa: DTZ001  (one column has no zone)
ROWS = 36


def values() -> Mapping[str, pa.Array]:
    """Each sixth row begins another year, month, day, hour, number and text."""
    steps = [number // 6 for number in range(ROWS)]
    times = [START + timedelta(minutes=number % 6) for number in range(ROWS)]
    return {
        "in_year": pa.array([date(1965 + step, 1 + step, 3) for step in steps]),
        "in_month": pa.array([at + timedelta(days=31 * step) for at, step in zip(times, steps)], pa.timestamp("us")),
        "in_day": pa.array([at + timedelta(days=step) for at, step in zip(times, steps)], pa.timestamp("ms", "UTC")),
        "in_hour": pa.array([at + timedelta(hours=step) for at, step in zip(times, steps)], pa.timestamp("ns", "UTC")),
        "number": pa.array([10 * step - 25 for step in steps], pa.int16()),
        "text": pa.array([f"{'äbcdefghij'[step]}{number}" for number, step in enumerate(steps)]),
    }


TRANSFORMS = {
    "y": "year(in_year)",
    "m": "month(in_month)",
    "d": "day(in_day)",
    "h": "hour(in_hour)",
    "b": "bucket[64](number)",
    "t": "truncate[1](text)",
    "n": "truncate[5](number)",
}
IDENTITIES = {"y": "identity(in_year)", "n": "identity(number)", "i": "identity(flag)"}

OPERATORS: Mapping[str, Callable[[pc.Expression, object], pc.Expression]] = {
    "=": lambda column, value: column == value,
    "<": lambda column, value: column < value,
    ">=": lambda column, value: column >= value,
}


def written(value: object) -> str:
    if isinstance(value, date):
        return f"'{value.isoformat()}'"
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def opened(folder: Path) -> StaticTable:
    metadata = folder / "tables" / TABLE_ID / "iceberg" / "metadata"
    version = int((metadata / "version-hint.text").read_text())
    return StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json"))


def planned(table: StaticTable, row_filter: str) -> int:
    return len(list(table.scan(row_filter=row_filter).plan_files()))


def left_by_partitions(table: StaticTable, row_filter: str) -> int:
    """Files that a filter leaves by their partitions alone, whatever the bounds of their columns say."""
    spec, schema = table.spec(), table.schema()
    projected = inclusive_projection(schema, spec)(parse(row_filter))
    evaluate = expression_evaluator(Schema(*spec.partition_type(schema).fields), projected, case_sensitive=True)
    return sum(evaluate(task.file.partition) for task in table.scan().plan_files())


@pytest.mark.parametrize("by", [TRANSFORMS, IDENTITIES], ids=["transforms", "identities"])
def test_a_filter_on_the_column_finds_its_rows_in_few_files(by: dict[str, str], tmp_path: Path) -> None:
    columns = {**values(), "flag": pa.array([number < ROWS // 2 for number in range(ROWS)])}
    rows = pa.table({"id": pa.array(range(ROWS)), **columns})
    if by is TRANSFORMS:
        nulls = pa.table({name: pa.nulls(3, kind.type) for name, kind in columns.items()})
        rows = pa.concat_tables([rows, nulls.add_column(0, "id", pa.array(range(ROWS, ROWS + 3)))])
    lake = DeltaCatalog.open(tmp_path)
    table = lake.create_table(
        TABLE_ID,
        partition_by=by,
        properties={
            "publish": "iceberg",
            **({"default_partition": "unknown"} if by is TRANSFORMS else {}),
        },
    )
    table.append_rows(rows)
    compact(TABLE_ID, {"id"}, delta_catalog_client=lake)
    scanned, published, chance = table.scan().to_table(), opened(tmp_path), random.Random(3)
    assert [f"{each.transform}" for each in published.spec().fields] == [text.split("(")[0] for text in by.values()]
    assert differences(scanned, published.scan().to_arrow()) == []
    files = planned(published, "id >= 0")
    for transform in by.values():
        name = parse_transform("key", transform).column
        like = chance.choice(columns[name].to_pylist())
        for sign, compare in OPERATORS.items():
            row_filter = f"{name} {sign} {written(like)}"
            wanted = scanned.filter(compare(pc.field(name), pa.scalar(like, columns[name].type)))
            assert differences(wanted, published.scan(row_filter=row_filter).to_arrow()) == [], row_filter
        assert left_by_partitions(published, f"{name} = {written(like)}") <= files / 2
        none = published.scan(row_filter=f"{name} is null").to_arrow()
        assert none.num_rows == rows.column(name).null_count
        assert left_by_partitions(published, f"{name} is null") == int(none.num_rows > 0)
    for key in by:
        some = chance.choice(scanned.column(key).to_pylist())
        row_filter = f"{key} = '{some}'"
        assert (
            differences(scanned.filter(pc.field(key) == some), published.scan(row_filter=row_filter).to_arrow()) == []
        )
        assert planned(published, row_filter) < files / 1.5


# ---------------------------------------------------------------------------------------------- other partition specs

DERIVED = Partitioning(("region",), {"region": parse_transform("region", "truncate[1](name)")})
AS_TEXT = Partitioning(("region",))
REGIONS = ("E", "U", "D")


def publisher(lake: OpenLake, partitioning: Partitioning) -> IcebergPublisher:
    return IcebergPublisher(lake.store, TABLE_ID, partitioning, HurriedClock(), GRACE_SECONDS)


def written_out(lake: OpenLake, folder: Path) -> StaticTable:
    for entry in lake.store.list(f"tables/{TABLE_ID}/iceberg/"):
        path = folder / entry.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lake.store.read(entry.key) or b"")
    return opened(folder)


def specs_of(table: StaticTable) -> Sequence[tuple[ManifestContent, int, list[object]]]:
    """Of each manifest of the newest snapshot, with the partitions of its live files."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return sorted(
        (each.content, each.partition_spec_id, [entry.data_file.partition[0]])
        for each in snapshot.manifests(PyArrowFileIO())
        for entry in each.fetch_manifest_entry(PyArrowFileIO())
    )


def test_another_spec_divides_every_file_anew_and_earlier_snapshots_keep_theirs(tmp_path: Path) -> None:
    lake = OpenLake(tmp_path)
    for name in REGIONS:
        lake.commit(name, added=1)
    lake.commit("U", dead={1: [0, 7]})
    publisher(lake, AS_TEXT).publish([lake.stream(name) for name in REGIONS])
    before = publisher(lake, AS_TEXT).state()
    for partitioning, spec in ((DERIVED, 1), (AS_TEXT, 0)):
        lake.commit("E", added=1)
        publisher(lake, partitioning).publish([lake.stream("E")])
        table = written_out(lake, tmp_path)
        assert table.metadata.default_spec_id == spec
        assert {each.spec_id for each in table.metadata.partition_specs} == {0, 1}
        live = specs_of(table)
        assert {each[1] for each in live} == {spec}
        assert [each[2] for each in live if each[0] == ManifestContent.DELETES] == [["U"]]
        state = publisher(lake, partitioning).state()
        assert all(state.files[path] == file for path, file in before.files.items())
        for snapshot in table.metadata.snapshots:
            files = [task.file.file_path for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()]
            assert len(files) == len(set(files)) == 3 + table.metadata.snapshots.index(snapshot)
        tasks = list(table.scan(row_filter="region = 'U'").plan_files())
        assert [len(task.delete_files) for task in tasks] == [1]
        if partitioning is DERIVED:
            assert len(list(table.scan(row_filter="name = 'U7'").plan_files())) == 1


def test_a_column_with_the_name_of_the_partition_field_is_refused(tmp_path: Path) -> None:
    lake = OpenLake(tmp_path)
    lake.commit("E", added=1)
    lake.commit("U", added=1, schema=pa.schema([*SCHEMA, ("Region_partition", pa.int64())]))
    outcome = publisher(lake, DERIVED).publish([lake.stream("E"), lake.stream("U")])
    assert isinstance(outcome, Published)
    assert outcome.entries.keys() == {"region=E"}
    (refused,) = outcome.refused
    assert refused.reasons == ("column 'Region_partition' has the name of the partition field of region: rename it",)


@pytest.mark.parametrize(
    ("partitioning", "schema"),
    [
        (Partitioning(("r",), {"r": parse_transform("r", "truncate[9](p)")}), {"p": pa.decimal128(9, 2)}),
        (Partitioning(("r",), {"r": parse_transform("r", "bucket[9](p)")}), {"p": pa.decimal128(20, 0)}),
        (Partitioning(("r",), {"r": parse_transform("r", "truncate[9](p)")}, "none"), {"p": pa.string()}),
        (Partitioning(("r",), {"r": parse_transform("r", "day(p)")}), {"q": pa.date32()}),
        (Partitioning(("p", "r"), {"r": parse_transform("r", "bucket[2](p)")}), {"q": pa.date32()}),
    ],
    ids=["decimals", "unsigned numbers", "a default that is a value", "no such column", "of a partition key"],
)
def test_what_is_not_sure_is_published_as_text(partitioning: Partitioning, schema: dict[str, pa.DataType]) -> None:
    from compactor.publishing.iceberg_partitions import IcebergPartitions

    found = IcebergPartitions.of(partitioning, pa.schema(schema))
    assert found.spec.spec_id == 0
    assert {str(each.transform) for each in found.spec.fields} == {"identity"}
    assert [each.name for each in found.spec.fields] == list(partitioning.keys)
