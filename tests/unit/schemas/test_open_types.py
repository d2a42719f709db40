"""Types and columns that other engines read as a scan does, and every reason against those that they do not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from compactor.schemas.open_types import (
    OpenTable,
    field_id,
    open_file_schema,
    open_schema,
    open_type,
    reasons_against,
)
from tests.arrow_types import KEY_TYPES, KeyType

NESTED = pa.struct({"a": pa.list_(pa.field("item", pa.uint8())), "b": pa.map_(pa.string(), pa.timestamp("ms"))})


def _reasons(schema: pa.Schema, **table: object) -> list[str]:
    about = {"partition_keys": ["day"], "primary_keys": {"id"}, "sort_keys": (), "for_delta": True, **table}
    return list(reasons_against(schema, OpenTable(**about)))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_an_open_type_is_its_own_open_type(kind: KeyType) -> None:
    opened = open_type(kind.arrow_type)
    assert opened is None or open_type(opened) == opened


def test_nested_types_are_mapped_at_any_depth() -> None:
    assert open_type(NESTED) == pa.struct(
        {"a": pa.list_(pa.field("element", pa.int32())), "b": pa.map_(pa.string(), pa.timestamp("us"))}
    )
    assert open_type(pa.list_(pa.int32(), 3)) == pa.list_(pa.field("element", pa.int32()))
    assert open_type(pa.struct({"a": pa.duration("s")})) is None


def test_field_ids_follow_from_dotted_names_and_stay_below_the_reserved_ones() -> None:
    ids = [field_id(f"column {number}") for number in range(10_000)]
    assert min(ids) >= 1
    assert max(ids) < 2**31 - 1 - 200
    assert field_id("id") == 132_800_199
    schema = open_file_schema(open_schema(pa.schema({"id": pa.int64(), "n": NESTED, "none": pa.null()})), ["day"])
    assert schema.names == ["id", "n", "day"]
    element = schema.field("n").type.field("a").type.value_field
    assert element.metadata == {b"PARQUET:field_id": str(field_id("n.a.element")).encode()}
    assert schema.field("n").type.field("b").type.item_field.metadata == {
        b"PARQUET:field_id": str(field_id("n.b.value")).encode()
    }


def test_two_names_with_one_field_id_are_refused_with_both() -> None:
    (reason,) = _reasons(pa.schema({"id": pa.int64(), "column_8434": pa.int64(), "column_73833": pa.int64()}))
    assert reason == "columns 'column_8434' and 'column_73833' have the same field id 1986912580: rename one of them"


def test_what_other_engines_cannot_read_is_refused_by_its_dotted_name() -> None:
    schema = pa.schema(
        {
            "id": pa.uint64(),
            "n": pa.struct({"took": pa.duration("ms"), "ok": pa.int32()}),
            "sum": pa.decimal256(50, 2),
            "day": pa.int32(),
            "ID": pa.int32(),
            "x=y": pa.int32(),
        }
    )
    reasons = _reasons(schema)
    for part in (
        "primary key column 'id' is uint64",
        "'n.took' is duration",
        "'sum' is decimal256",
        "'day' is int32",
        "'id' and 'ID'",
        "'x=y'",
    ):
        assert sum(part in reason for reason in reasons) == 1, part
    assert len(reasons) == 6
    assert len(_reasons(schema, for_delta=False)) == 5


def test_a_sort_key_whose_values_would_not_widen_is_refused() -> None:
    for kind, is_refused in ((pa.timestamp("ns"), True), (pa.uint64(), True), (pa.timestamp("ms"), False)):
        reasons = _reasons(pa.schema({"id": pa.int64(), "at": kind}), sort_keys=("at",))
        assert bool(reasons) == is_refused
