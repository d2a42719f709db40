"""Nested columns: as deep as allowed they go through a whole compaction; deeper ones are refused by `append`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.model.errors import Corrupt, Invalid
from compactor.model.names import ContentType
from compactor.schemas import nesting
from compactor.schemas.nesting import NESTING_MAX
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS = "ACME.ORDERS.V1"


def in_struct(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([values], ["a"])


def in_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), values)


def in_map(values: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), values)


def rows(nest: Callable[[pa.Array], pa.Array], depth: int) -> pa.Table:
    """A map counts as two levels."""
    values = pa.array([7])
    for _ in range(depth // 2 if nest is in_map else depth):
        values = nest(values)
    return pa.table({"id": [1], "v": values})


def run(lake: DeltaCatalog, content_type: ContentType = ContentType.PARQUET) -> None:
    compact(
        ORDERS,
        {"id"},
        delta_catalog_client=lake,
        hash_bucket_count=1,
        compacted_file_content_type=content_type,
        engine=UnrulyEngine(),
    )


@pytest.mark.parametrize("nest", [in_struct, in_list, in_map])
@pytest.mark.parametrize("content_type", [ContentType.PARQUET, ContentType.FEATHER])
def test_as_deep_as_allowed_is_appended_compacted_and_read(
    lake: DeltaCatalog, nest: Callable[[pa.Array], pa.Array], content_type: ContentType
) -> None:
    orders = lake.create_table(ORDERS)
    table = rows(nest, NESTING_MAX)
    for _ in range(2):
        orders.append({}, table, content_type=content_type)
        run(lake, content_type)
    assert orders.scan().to_table()["v"].to_pylist() == table["v"].to_pylist()
    assert orders.lookup({}, {"id": 1}) == table.to_pylist()[0]


@pytest.mark.parametrize("nest", [in_struct, in_list, in_map])
@pytest.mark.parametrize("depth", [NESTING_MAX + 2, 400])
def test_deeper_rows_are_refused(lake: DeltaCatalog, nest: Callable[[pa.Array], pa.Array], depth: int) -> None:
    table = rows(nest, depth)
    with pytest.raises(Invalid, match=r"column 'v' of the delta is nested deeper than 40 levels"):
        lake.create_table(ORDERS).append({}, table)
    with pytest.raises(Invalid, match=r"column 'v' of the schema is nested deeper than 40 levels"):
        lake.create_table("ACME.DECLARED.V1", schema=table.schema)


def json_of(depth: int) -> str:
    return '{"id": 1, "v": ' + '{"a": ' * depth + "7" + "}" * depth + "}\n"


@pytest.mark.parametrize("depth", [NESTING_MAX + 1, 99, 400, 100_000])
def test_a_registered_json_line_that_is_deeper_is_refused(lake: DeltaCatalog, tmp_path: Path, depth: int) -> None:
    orders = lake.create_table(ORDERS)
    path = tmp_path / "x.json"
    path.write_text('{"id": 0, "v": null}\n' + json_of(depth))
    with pytest.raises(Invalid, match=r"x\.json.* is nested deeper than"):
        orders.append({}, [path])
    path.write_text(json_of(NESTING_MAX))
    orders.append({}, [path])
    run(lake)
    assert orders.scan().count_rows() == 1


@pytest.mark.parametrize(
    ("name", "depth"),
    [("x.parquet", 41), ("x.parquet", 400), ("x.arrow", 41), ("x.arrow", 63), ("x.orc", 41), ("x.orc", 400)],
)
def test_a_registered_file_that_is_deeper_is_refused(lake: DeltaCatalog, tmp_path: Path, name: str, depth: int) -> None:
    table, path = rows(in_struct, depth), tmp_path / name
    if name == "x.parquet":
        pq.write_table(table, path)
    elif name == "x.orc":
        pyarrow.orc.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(Invalid, match=rf"{name}.* (deeply nested|nested deeper than|cannot be read)"):
        lake.create_table(ORDERS).append({}, [path])


def test_a_round_whose_files_cannot_be_read_back_is_not_committed(
    lake: DeltaCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a delta of a writer that did not look at its depth."""
    monkeypatch.setattr(nesting, "NESTING_MAX", 1_000)
    path = tmp_path / "x.json"
    path.write_text(json_of(99))
    orders = lake.create_table(ORDERS)
    orders.append({}, [path])
    with pytest.raises(Corrupt, match=r"compacted/1/.*\.parquet cannot be read as parquet: .*too deeply nested"):
        run(lake)
    assert orders.stream({}).load().state.compacted is None
