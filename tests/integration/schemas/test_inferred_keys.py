"""Keys of text files without declared types: no two different ones become one row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.model.errors import Invalid
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS = "ACME.ORDERS.V1"
KEYS = [12345678901234567890 + number for number in range(10)]


def run(lake: DeltaCatalog) -> None:
    compact(ORDERS, {"id"}, delta_catalog_client=lake, hash_bucket_count=2, engine=UnrulyEngine())


def write(path: Path, keys: list[str]) -> Path:
    if path.suffix == ".csv":
        path.write_text("id,v\n" + "".join(f"{key},1\n" for key in keys))
    else:
        path.write_text("".join(f'{{"id": {key}, "v": 1}}\n' for key in keys))
    return path


@pytest.mark.parametrize("name", ["x.csv", "x.json"])
def test_ten_keys_of_twenty_digits_are_ten_rows(lake: DeltaCatalog, tmp_path: Path, name: str) -> None:
    orders = lake.create_table(ORDERS)
    orders.append({}, [write(tmp_path / name, list(map(str, KEYS)))])
    run(lake)
    orders.append({}, [write(tmp_path / f"again-{name}", list(map(str, KEYS[:3])))])
    run(lake)
    assert sorted(map(int, orders.scan().to_table()["id"].to_pylist())) == KEYS
    assert orders.lookup({}, {"id": KEYS[3]}) == {"id": KEYS[3], "v": 1}


@pytest.mark.parametrize("name", ["x.csv", "x.json"])
def test_an_inferred_float_is_refused_as_a_key_and_the_reason_says_what_to_do(
    lake: DeltaCatalog, tmp_path: Path, name: str
) -> None:
    path = write(tmp_path / name, ["1.5", "2"])
    why = rf"{path} has numbers that are not whole in primary key column 'id'.*--schema id:string"
    orders = lake.create_table(ORDERS, properties={"primary_keys": ["id"]})
    with pytest.raises(Invalid, match=why):
        orders.append({}, [path])
    other = lake.create_table("ACME.OTHER.V1")
    other.append({}, [path], delta_id="floats")
    with pytest.raises(Invalid, match=rf"{why}.*'floats' can be taken back"):
        compact("ACME.OTHER.V1", {"id"}, delta_catalog_client=lake, engine=UnrulyEngine())


def test_a_declared_float_is_a_key(lake: DeltaCatalog, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.float64()), ("v", pa.int64())])
    orders = lake.create_table(ORDERS, schema=schema, properties={"primary_keys": ["id"]})
    orders.append({}, [write(tmp_path / "x.csv", ["1.5", "2"])])
    run(lake)
    assert orders.scan().to_table()["id"].to_pylist() == [1.5, 2.0]


def test_a_float_key_of_arrow_data_stays_one_for_text_that_follows(lake: DeltaCatalog, tmp_path: Path) -> None:
    orders = lake.create_table(ORDERS, properties={"primary_keys": ["id"]})
    orders.append({}, pa.table({"id": [0.5], "v": [0]}))
    run(lake)
    orders.append({}, [write(tmp_path / "x.csv", ["1.5", "2.5"])])
    run(lake)
    assert sorted(orders.scan().to_table()["id"].to_pylist()) == [0.5, 1.5, 2.5]
