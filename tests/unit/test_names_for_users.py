"""What a person finds who explores the package: its names, its release, and what its objects say of themselves."""

from __future__ import annotations

from pathlib import Path

import polars
import pyarrow as pa
import pytest

import compactor
from compactor import DeltaCatalog, Invalid
from compactor.model import errors
from compactor.model.machine import this_release
from tests.rounds import compact_by_hand

ROWS = pa.table({"id": [1, 2, 3], "status": ["new", None, "paid"]})


class Frame:
    """Exports its table as pandas does: with the index as a column, and what pandas says of it in the metadata."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.exports = 0

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        self.exports += 1
        return self.table.__arrow_c_stream__(requested_schema)


def test_the_package_lists_its_names_and_each_is_there() -> None:
    assert dir(compactor) == sorted(compactor.__all__)
    assert {"DeltaCatalog", "Table", "compact", "Invalid", "Denied", "__version__"} <= set(dir(compactor))
    for name in compactor.__all__:
        assert getattr(compactor, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Tabel'"):
        compactor.Tabel  # noqa: B018


def test_errors_are_caught_by_the_names_that_users_import() -> None:
    for name in ("Invalid", "Corrupt", "Conflict", "Unavailable", "Fenced", "Denied"):
        assert getattr(compactor, name) is getattr(errors, name)
    assert compactor.__version__ == this_release()


def test_objects_say_what_they_are(lake: DeltaCatalog) -> None:
    root = lake.location.root_uri
    table = lake.create_table("ACME.ORDERS.V1", ["region", "day"])
    assert repr(lake) == f"<DeltaCatalog {root}>"
    assert repr(table) == f"<Table ACME.ORDERS.V1 in {root}, partitioned by region, day>"
    assert repr(table.scan()) == "<Scan of 0 files: no columns>"
    plain = lake.create_table("ACME.PLAIN.V1")
    compact_by_hand(plain.stream({}), [ROWS])
    assert repr(plain) == f"<Table ACME.PLAIN.V1 in {root}>"
    assert repr(plain.scan()) == "<Scan of 1 file: id: int64, status: string>"


def test_a_frame_of_polars_is_appended(lake: DeltaCatalog) -> None:
    table = lake.create_table("ACME.ORDERS.V1")
    delta = table.append({}, polars.DataFrame({"id": [1, 2], "status": ["new", None]}))
    assert delta.rows == 2
    assert table.known_schema() == pa.schema([("id", pa.int64()), ("status", pa.string())])


def test_the_nameless_index_of_a_pandas_frame_is_no_column(lake: DeltaCatalog) -> None:
    table = lake.create_table("ACME.ORDERS.V1")
    exported = ROWS.append_column("__index_level_0__", pa.array([7, 8, 9]))
    frame = Frame(exported.replace_schema_metadata({b"pandas": b"{}", b"by": b"us"}))
    first = table.append({}, frame, delta_id="one")
    assert table.known_schema().names == ["id", "status"]
    assert table.append({}, frame, delta_id="one") == first
    assert frame.exports == 2


def test_a_frame_is_read_as_a_stream(lake: DeltaCatalog, tmp_path: Path) -> None:
    taken: list[int] = []

    class Lazy:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            def batches() -> object:
                for number in range(4):
                    taken.append(len(list(tmp_path.rglob("*.parquet"))))
                    yield pa.record_batch({"id": pa.array(range(number * 100_000, (number + 1) * 100_000))})

            reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
            return reader.__arrow_c_stream__(requested_schema)

    lake.create_table("ACME.ORDERS.V1").append({}, Lazy(), rows_per_file=100_000)
    assert taken[-1] > 0


@pytest.mark.parametrize("source", [polars.Series("id", [1]), pa.chunked_array([[1]])])
def test_a_single_column_without_a_table_is_refused_in_one_sentence(lake: DeltaCatalog, source: object) -> None:
    with pytest.raises(Invalid, match=r"a delta cannot be made of this \w+: it exports no table of columns"):
        lake.create_table("ACME.ORDERS.V1").append({}, source)
