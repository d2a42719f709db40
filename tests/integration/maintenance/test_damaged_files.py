"""A compacted file that is damaged or gone: whoever reads it is told which, and that it is not their input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.maintenance.verify import groups_of_files, verify
from compactor.model.errors import Corrupt
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS = "ACME.ORDERS.V1"


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    """Four rows in two compacted files."""
    orders = lake.create_table(ORDERS)
    for keys in ([1, 2], [3, 4]):
        orders.append({}, pa.table({"id": keys}))
    engine = UnrulyEngine()
    compact(ORDERS, {"id"}, delta_catalog_client=lake, rows_per_compacted_file=2, hash_bucket_count=1, engine=engine)
    return orders


def damaged(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[4:40] = b"\xff" * 36
    path.write_bytes(body)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def gone(path: Path) -> None:
    path.unlink()


def path_of(orders: Table, key: int) -> Path:
    """Of the compacted file that holds a key."""
    paths = [Path(uri.removeprefix("file://")) for uri in orders.scan().files()]
    assert len(paths) == 2
    return next(path for path in paths if key in pq.read_table(path)["id"].to_pylist())


READERS: list[Callable[[Table], object]] = [
    lambda orders: orders.scan().to_table(),
    lambda orders: orders.scan(view="merged").to_table(),
    lambda orders: orders.lookup({}, {"id": 3}),
]


@pytest.mark.parametrize("read", READERS, ids=["scan", "merged scan", "lookup"])
@pytest.mark.parametrize("damage", [damaged, cut_off, gone])
def test_readers_of_a_damaged_compacted_file_get_its_name(
    orders: Table, read: Callable[[Table], object], damage: Callable[[Path], None]
) -> None:
    path = path_of(orders, 3)
    damage(path)
    with pytest.raises(Corrupt, match=str(path)):
        read(orders)


def test_merge_on_read_does_not_show_a_delta_that_was_cut_off_after_its_append(orders: Table, tmp_path: Path) -> None:
    path = tmp_path / "delta.parquet"
    pq.write_table(pa.table({"id": [5]}), path)
    orders.append({}, [str(path)])
    cut_off(path)
    with pytest.raises(Corrupt, match=rf"{path} was changed or replaced after it was appended"):
        orders.scan(view="merged").to_table()


@pytest.mark.parametrize("column", ["digest", "file_number", "row_index"])
def test_no_compaction_takes_over_a_damaged_index(lake: DeltaCatalog, column: str) -> None:
    orders = lake.create_table(ORDERS, primary_keys=["id"])
    orders.append({}, pa.table({"id": range(30)}))
    compact(ORDERS, delta_catalog_client=lake, engine=UnrulyEngine())
    (file,) = (each for each in lake.store.list("") if "/index/" in each.key)
    path = Path(lake.store.location.root_uri.removeprefix("file://")) / file.key
    body = bytearray(path.read_bytes())
    batch = pa.ipc.open_file(pa.py_buffer(body)).get_batch(0)
    body[batch.column(column).buffers()[1].address - pa.py_buffer(body).address] ^= 4
    path.write_bytes(body)
    orders.append({}, pa.table({"id": [5]}))
    with pytest.raises(Corrupt, match=f"{path} is damaged: its CRC-32 is"):
        compact(ORDERS, delta_catalog_client=lake, engine=UnrulyEngine())


@pytest.mark.parametrize("damage", [damaged, cut_off, gone])
def test_an_audit_finds_every_damaged_file(orders: Table, damage: Callable[[Path], None]) -> None:
    paths = [path_of(orders, 1), path_of(orders, 3)]
    for path in paths:
        damage(path)
    problems = verify(orders.stream({})).problems
    assert len(problems) == 2
    assert all(any(str(path) in problem for problem in problems) for path in paths)


@pytest.mark.parametrize("into", [ORDERS, "ACME.COPY.V1"])
def test_an_audit_reads_a_pending_file_though_another_file_of_its_delta_is_compacted(
    lake: DeltaCatalog, tmp_path: Path, into: str
) -> None:
    first, second, away = tmp_path / "1.parquet", tmp_path / "2.parquet", tmp_path / "away"
    for path, keys in ((first, [1, 2, 3]), (second, [4])):
        pq.write_table(pa.table({"id": keys}), path)
    orders = lake.create_table(ORDERS, primary_keys=["id"], properties={"destination_compacted_table_id": into})
    orders.append({}, [first, second])
    second.rename(away)
    with pytest.raises(Corrupt):
        compact(ORDERS, delta_catalog_client=lake, max_rows_per_round=3, engine=UnrulyEngine())
    away.rename(second)
    damaged(first)  # which is no longer read
    assert verify(orders.stream({})).problems == ()
    damaged(second)
    (problem,) = verify(orders.stream({})).problems
    assert str(second) in problem


@pytest.mark.parametrize("harm", [None, damaged, gone], ids=["sound", "damaged", "gone"])
def test_an_audit_with_memory_for_one_file_at_a_time_finds_what_one_with_plenty_finds(
    lake: DeltaCatalog, harm: Callable[[Path], None] | None
) -> None:
    orders = lake.create_table(ORDERS)
    orders.append({}, pa.table({"id": range(100)}))
    engine = UnrulyEngine()
    compact(ORDERS, {"id"}, delta_catalog_client=lake, rows_per_compacted_file=30, hash_bucket_count=3, engine=engine)
    if harm is not None:
        harm(Path(orders.scan().files()[0].removeprefix("file://")))
    plenty, little = verify(orders.stream({})), verify(orders.stream({}), memory_bytes=1)
    assert little == plenty
    assert len(little.problems) == (harm is not None)


def test_an_audit_takes_as_many_files_at_a_time_as_its_memory_has_room_for(lake: DeltaCatalog) -> None:
    orders = lake.create_table(ORDERS)
    orders.append({}, pa.table({"id": range(100)}))
    engine = UnrulyEngine()
    compact(ORDERS, {"id"}, delta_catalog_client=lake, rows_per_compacted_file=30, hash_bucket_count=3, engine=engine)
    compacted = orders.stream({}).load().state.compacted
    assert compacted is not None
    assert groups_of_files(compacted, 1_000) == [[1, 2, 3, 4]]
    assert groups_of_files(compacted, 60) == [[1, 2], [3, 4]]
    assert groups_of_files(compacted, 0) == [[1], [2], [3], [4]]
