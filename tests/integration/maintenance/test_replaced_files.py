"""A registered file that was replaced before its compaction: no reader takes the new rows for the appended ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.maintenance.verify import verify
from compactor.model.errors import Corrupt, Invalid
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS = "ACME.ORDERS.V1"


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    orders = lake.create_table(ORDERS)
    orders.append({}, pa.table({"id": [1, 2], "status": ["new", "new"]}))
    run(lake)
    return orders


def run(lake: DeltaCatalog) -> None:
    compact(ORDERS, {"id"}, delta_catalog_client=lake, hash_bucket_count=1, engine=UnrulyEngine())


def write(path: Path, statuses: list[str]) -> None:
    """Two rows. Statuses of the same length make a file of the same size."""
    if path.suffix == ".csv":
        path.write_text("id,status\n" + "".join(f"{key},{status}\n" for key, status in enumerate(statuses, 1)))
    else:
        table = pa.table({"id": [1, 2], "status": statuses})
        pq.write_table(table, path, compression="none", write_statistics=False, use_dictionary=False)


def appended(orders: Table, path: Path) -> None:
    write(path, ["paid", "paid"])
    orders.append({}, [path], delta_id="payments-7")


def replaced_by_as_many_bytes(path: Path) -> None:
    size_bytes = path.stat().st_size
    write(path, ["void", "paid"])
    assert path.stat().st_size == size_bytes


def replaced_by_a_longer_one(path: Path) -> None:
    write(path, ["cancelled", "paid"])


@pytest.mark.parametrize("name", ["payments.parquet", "payments.csv"])
@pytest.mark.parametrize("replace", [replaced_by_as_many_bytes, replaced_by_a_longer_one])
def test_a_replaced_file_is_corrupt_for_every_reader_and_named_with_its_delta(
    lake: DeltaCatalog, orders: Table, tmp_path: Path, name: str, replace: Callable[[Path], None]
) -> None:
    path = tmp_path / name
    appended(orders, path)
    replace(path)
    what = rf"{path}.* after it was appended.*retract delta 'payments-7'"
    with pytest.raises(Corrupt, match=what):
        run(lake)
    with pytest.raises(Corrupt, match=what):
        orders.scan(view="merged").to_table()
    (problem,) = verify(orders.stream({})).problems
    assert str(path) in problem
    assert "payments-7" in problem

    orders.retract({}, "payments-7")
    assert verify(orders.stream({})).problems == ()
    orders.append({}, [path], delta_id="payments-8")
    run(lake)
    assert orders.scan().to_table()["status"].to_pylist() != ["new", "new"]


@pytest.mark.parametrize("name", ["payments.parquet", "payments.csv"])
def test_a_copy_with_the_same_bytes_and_another_time_is_the_file_that_was_appended(
    lake: DeltaCatalog, orders: Table, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    appended(orders, path)
    shutil.copyfile(path, path.with_suffix(".copy"))
    path.unlink()
    path.with_suffix(".copy").rename(path)
    os.utime(path, (1, 1))
    assert verify(orders.stream({})).problems == ()
    assert orders.scan(view="merged").to_table()["status"].to_pylist() == ["paid", "paid"]
    run(lake)
    assert orders.scan().to_table()["status"].to_pylist() == ["paid", "paid"]


def test_an_audit_finds_other_bytes_of_the_same_size_and_time(orders: Table, tmp_path: Path) -> None:
    path = tmp_path / "payments.parquet"
    appended(orders, path)
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    replaced_by_as_many_bytes(path)
    os.utime(path, ns=times)
    (problem,) = verify(orders.stream({})).problems
    assert str(path) in problem


def test_a_file_that_is_deleted_before_its_compaction_is_found_by_an_audit(orders: Table, tmp_path: Path) -> None:
    path = tmp_path / "payments.parquet"
    appended(orders, path)
    path.unlink()
    assert verify(orders.stream({})).problems == (f"file://{path} does not exist",)


def test_a_file_may_be_replaced_once_it_is_compacted(lake: DeltaCatalog, orders: Table, tmp_path: Path) -> None:
    path = tmp_path / "payments.parquet"
    appended(orders, path)
    run(lake)
    replaced_by_a_longer_one(path)
    assert verify(orders.stream({})).problems == ()
    orders.append({}, [path])
    run(lake)
    assert orders.scan().to_table()["status"].to_pylist() == ["cancelled", "paid"]


def test_a_file_that_changes_while_it_is_appended_is_refused(
    lake: DeltaCatalog, orders: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "payments.parquet"
    write(path, ["paid", "paid"])
    opened = Path.open

    def changing(each: Path, mode: str, buffering: int = -1) -> IO[Any]:
        if each == path:
            monkeypatch.undo()
            replaced_by_a_longer_one(path)
        return opened(each, mode, buffering)

    monkeypatch.setattr(Path, "open", changing)
    with pytest.raises(Invalid, match=rf"{path} was written to while it was appended"):
        orders.append({}, [path])
