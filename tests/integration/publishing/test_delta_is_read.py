"""A published table as deltalake reads it: exact rows, and no way to harm the files. `make test-readers` has more."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.model.arrow_types import value_type
from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid
from compactor.publishing.delta import DeltaPublisher
from compactor.publishing.protocol import NothingToPublish, Outcome, Published
from compactor.schemas.open_types import OpenTable, reasons_against
from tests.arrow_types import KEY_TYPES, KeyType, Raw
from tests.builders import TABLE_ID
from tests.published_rows import PARTITIONS, append_round, compact_all, differences, published_lake


def _publisher(lake: DeltaCatalog, table: Table) -> DeltaPublisher:
    return DeltaPublisher(lake.store, table.table_id, table.partition_keys, SystemClock())


def _publish(publisher: DeltaPublisher, table: Table) -> Outcome:
    """What `compact()` has not published at its end: nothing, as a rule."""
    outcome = publisher.publish([table.stream(partition) for partition in table.partitions()])
    assert outcome.refused == ()
    return outcome


def _root(lake: DeltaCatalog, table: Table) -> Path:
    return Path(lake.location.root_uri.removeprefix("file://")) / "tables" / table.table_id / "compacted"


def _read(lake: DeltaCatalog, table: Table) -> pa.Table:
    delta = DeltaTable(str(_root(lake, table)))
    return pa.table(QueryBuilder().register("t", delta).execute("select * from t"))


def test_every_round_is_read_as_a_scan_reads_it(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path)
    publisher, chance = _publisher(lake, table), random.Random(1)
    marked = 0
    for turn in range(3):
        for partition in PARTITIONS[: 1 + (turn > 0)]:
            append_round(table, partition, chance, turn)
        compact_all(lake)
        assert isinstance(_publish(publisher, table), NothingToPublish)
        marked += sum(file.dead_rows for file in publisher.state().files.values())
        assert differences(table.scan().to_table(), _read(lake, table), frozenset({"time"})) == []
    assert marked, "some files are kept with dead rows"


def test_a_checkpoint_is_read_without_the_commits_before_it(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path)
    publisher = _publisher(lake, table)
    for turn in range(11):
        table.append(PARTITIONS[0], pa.table({"id": range(turn, turn + 60), "turn": [turn] * 60}))
        compact_all(lake)
        _publish(publisher, table)
    log = _root(lake, table) / "_delta_log"
    for version in range(10):
        (log / f"{version:020d}.json").unlink()
    assert differences(table.scan().to_table(), _read(lake, table), frozenset({"time"})) == []
    assert _publisher(lake, table).state() == publisher.state()


def test_other_writers_cannot_harm_the_files(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path)
    for turn in range(2):  # the second round rewrites the files of the first
        append_round(table, PARTITIONS[0], random.Random(turn), 0)
        compact_all(lake, max_dead_row_share=0.0)
        _publish(_publisher(lake, table), table)
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    delta = DeltaTable(str(_root(lake, table)))
    for full in (True, False):
        with pytest.raises(DeltaError, match="lithify"):
            delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=full)
    with pytest.raises(DeltaError, match="lithify"):
        delta.delete("id > 0")
    with pytest.raises(DeltaError, match="lithify"):
        delta.optimize.compact()
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_published_metadata_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    lake, table = published_lake(tmp_path)
    append_round(table, PARTITIONS[0], random.Random(4), 0)
    compact_all(lake)
    _publish(_publisher(lake, table), table)
    for path in (_root(lake, table) / "_delta_log").iterdir():
        path.unlink()
    again = _publish(_publisher(lake, table), table)
    assert isinstance(again, Published)
    assert again.version == 0
    assert differences(table.scan().to_table(), _read(lake, table), frozenset({"time"})) == []


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_every_arrow_type_is_refused_or_read_as_a_scan_reads_it(kind: KeyType, tmp_path: Path) -> None:
    values = some_values(kind)
    rows = pa.table({"id": list(range(len(values) + 1)), "value": kind.array([*values, None])})
    refused = list(reasons_against(rows.schema, OpenTable(["region", "day"], {"id"}, (), for_delta=True)))
    lake, table = published_lake(tmp_path)
    if refused:
        with pytest.raises(Invalid, match="'value' is"):
            table.append(PARTITIONS[0], rows)
        return
    table.append(PARTITIONS[0], rows)
    compact(TABLE_ID, {"id"}, delta_catalog_client=lake)
    _publish(_publisher(lake, table), table)
    is_time = pa.types.is_time(kind.arrow_type)
    assert differences(table.scan().to_table(), _read(lake, table), frozenset({"value"} if is_time else ())) == []


def some_values(kind: KeyType) -> list[Raw]:
    """Small ones, and the extremes that Python can show."""
    arrow_type = value_type(kind.arrow_type)
    for is_one, values in _VALUES:
        if is_one(arrow_type):
            return values
    bits = arrow_type.bit_width
    return (
        [0, 2**bits - 1] if pa.types.is_unsigned_integer(arrow_type) else [0, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1]
    )


_VALUES: tuple[tuple[Callable[[pa.DataType], bool], list[Raw]], ...] = (
    (pa.types.is_floating, [0.0, -1.5, float("inf"), float("nan")]),
    (pa.types.is_boolean, [True, False]),
    (pa.types.is_decimal, [Decimal("1.25"), Decimal("-3")]),
    (pa.types.is_fixed_size_binary, [b"abc", b"\x00\xff\x00"]),
    (lambda kind: kind in (pa.binary(), pa.large_binary(), pa.binary_view()), [b"", b"\x00\xff"]),
    (lambda kind: kind in (pa.string(), pa.large_string(), pa.string_view()), ["", "ä\n", "x" * 100]),
    (pa.types.is_date64, [0, 86_400_000 * 20_000]),
    (pa.types.is_temporal, [0, 1_000, 50_000]),
)
