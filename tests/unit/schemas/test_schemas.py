"""How schemas grow: what widens into what, what is refused, and that no value changes on the way."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.model.errors import Invalid
from compactor.schemas.cast import cast_array, conform
from compactor.schemas.unify import unify_schemas, unify_types

DICTIONARY = pa.dictionary(pa.int32(), pa.string())

WIDENS = [
    (pa.int8(), pa.int32(), pa.int32()),
    (pa.uint8(), pa.uint64(), pa.uint64()),
    (pa.uint8(), pa.int8(), pa.int16()),
    (pa.uint32(), pa.int32(), pa.int64()),
    (pa.uint16(), pa.int64(), pa.int64()),
    (pa.float16(), pa.float64(), pa.float64()),
    (pa.decimal128(10, 2), pa.decimal128(12, 1), pa.decimal128(13, 2)),
    (pa.decimal128(38, 0), pa.decimal128(10, 5), pa.decimal256(43, 5)),
    (pa.decimal32(9, 0), pa.decimal32(9, 5), pa.decimal64(14, 5)),
    (pa.string(), pa.large_string(), pa.large_string()),
    (pa.string_view(), pa.large_string(), pa.string_view()),
    (pa.binary(), pa.large_binary(), pa.large_binary()),
    (pa.binary(4), pa.binary(8), pa.binary()),
    (DICTIONARY, pa.dictionary(pa.int8(), pa.string()), DICTIONARY),
    (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int8(), pa.string()), DICTIONARY),
    (DICTIONARY, pa.string(), pa.string()),
    (DICTIONARY, pa.dictionary(pa.int32(), pa.large_string()), pa.large_string()),
    (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
    (pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC")),
    (pa.date32(), pa.date64(), pa.date64()),
    (pa.time32("s"), pa.time64("us"), pa.time64("us")),
    (pa.time32("s"), pa.time32("ms"), pa.time32("ms")),
    (pa.duration("s"), pa.duration("ns"), pa.duration("ns")),
    (pa.list_(pa.int8()), pa.list_(pa.int64()), pa.list_(pa.int64())),
    (pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.large_list(pa.int8())),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
    (pa.list_view(pa.int8()), pa.list_(pa.int16()), pa.list_(pa.int16())),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
    (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        pa.struct([("c", pa.bool_()), ("a", pa.int16())]),
        pa.struct([("a", pa.int16()), ("b", pa.string()), ("c", pa.bool_())]),
    ),
    (pa.null(), pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8())])),
    (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
]

REFUSED = [
    (pa.int64(), pa.float64()),
    (pa.uint64(), pa.int64()),
    (pa.int64(), pa.string()),
    (pa.int64(), pa.decimal128(20, 0)),
    (pa.bool_(), pa.int8()),
    (pa.string(), pa.binary()),
    (pa.date32(), pa.timestamp("us")),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.time32("s"), pa.duration("s")),
    (pa.decimal256(76, 0), pa.decimal128(10, 5)),
    (pa.list_(pa.int8()), pa.int8()),
    (pa.list_(pa.int8()), pa.list_(pa.string())),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())])),
    (pa.struct([("a", pa.int8()), ("a", pa.int8())]), pa.struct([("a", pa.int8())])),
    (pa.map_(pa.string(), pa.int8()), pa.list_(pa.int8())),
    (DICTIONARY, pa.int64()),
    (pa.uuid(), pa.string()),
]


@pytest.mark.parametrize(("first", "second", "wide"), WIDENS)
def test_types_of_one_family_widen_in_either_order(first: pa.DataType, second: pa.DataType, wide: pa.DataType) -> None:
    assert unify_types(first, second) == wide
    assert _without_order(unify_types(second, first)) == _without_order(wide)
    assert unify_types(wide, first) == wide


def _without_order(kind: pa.DataType) -> pa.DataType:
    return pa.struct(sorted(kind, key=lambda field: field.name)) if pa.types.is_struct(kind) else kind


@pytest.mark.parametrize(("first", "second"), REFUSED)
def test_types_of_two_families_are_refused(first: pa.DataType, second: pa.DataType) -> None:
    assert unify_types(first, second) is None
    assert unify_types(second, first) is None


def test_the_refusal_names_both_files_the_column_and_both_types() -> None:
    named = [
        ("a.parquet", pa.schema([("id", pa.int64()), ("price", pa.int8())])),
        ("b.parquet", pa.schema([("price", pa.int64())])),
        ("c.csv", pa.schema([("price", pa.float64())])),
    ]
    with pytest.raises(Invalid, match=r"column 'price' is int64 in b\.parquet but double in c\.csv"):
        unify_schemas(named)


def test_of_two_time_zones_the_first_is_kept_and_instants_stay() -> None:
    berlin, utc = pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us", "UTC")
    schema = unify_schemas([("a", pa.schema([("at", berlin)])), ("b", pa.schema([("at", utc)]))])
    assert schema.field("at").type == pa.timestamp("us", "Europe/Berlin")
    instant = datetime(2020, 7, 1, 12, tzinfo=UTC)
    table = conform(pa.table({"at": pa.array([instant], utc)}), schema)
    assert table.column("at")[0].as_py() == instant


def test_new_columns_are_appended_as_first_seen_and_missing_ones_may_be_null() -> None:
    required = pa.field("id", pa.int64(), nullable=False, metadata={"doc": "key"})
    first = pa.schema([required, pa.field("a", pa.string(), nullable=False)], metadata={"origin": "first"})
    second = pa.schema([("b", pa.bool_()), pa.field("id", pa.int64(), nullable=False, metadata={"doc": "other"})])
    unified = unify_schemas([("a", first), ("b", second)])
    assert unified.names == ["id", "a", "b"]
    assert [field.nullable for field in unified] == [False, True, True]
    assert unified.field("id").metadata == {b"doc": b"key"}
    assert unified.metadata == {b"origin": b"first"}


def test_a_schema_with_a_repeated_column_is_refused_by_the_name_of_its_file() -> None:
    twice = pa.schema([("a", pa.int8()), ("a", pa.int8())])
    with pytest.raises(Invalid, match=r"x\.parquet has more than one column named 'a'"):
        unify_schemas([("x.parquet", twice)])


def test_no_files_have_no_columns() -> None:
    assert unify_schemas([]) == pa.schema([])


def test_a_column_that_the_schema_lacks_is_not_dropped_silently() -> None:
    with pytest.raises(Invalid, match="column 'b' is not part of the schema"):
        conform(pa.table({"a": [1], "b": [2]}), pa.schema([("a", pa.int64())]))


@pytest.mark.parametrize(("wide", "narrow"), [(pa.int64(), pa.int32()), (pa.string(), pa.int64())])
def test_nothing_is_narrowed(wide: pa.DataType, narrow: pa.DataType) -> None:
    with pytest.raises(Invalid, match=r"column 'a' is .*, which does not widen to"):
        conform(pa.table({"a": pa.array([None], wide)}), pa.schema([("a", narrow)]))


def test_a_value_that_the_finer_unit_cannot_hold_is_refused() -> None:
    far = pa.table({"at": pa.array([2**62], pa.timestamp("s"))})
    with pytest.raises(Invalid, match="column 'at' does not fit"):
        conform(far, pa.schema([("at", pa.timestamp("ns"))]))


def test_plain_values_may_be_encoded() -> None:
    schema = pa.schema([("a", pa.dictionary(pa.int16(), pa.large_string()))])
    table = conform(pa.table({"a": ["x", None, "x"]}), schema)
    assert table.schema == schema
    assert table.column("a").to_pylist() == ["x", None, "x"]


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_null_struct_may_hold_a_dictionary_without_values(kind: pa.DataType) -> None:
    schema = pa.schema([("a", pa.struct([("x", kind), ("y", pa.int8())]))])
    held = pa.struct([("x", pa.dictionary(pa.int8(), pa.string()))])
    assert conform(pa.table({"a": pa.array([None], held)}), schema).column("a").to_pylist() == [None]


def test_field_metadata_of_the_schema_is_put_on_the_table() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), metadata={"k": "v"})], metadata={"m": "n"})
    table = conform(pa.table({"a": [1]}), schema)
    assert table.schema.equals(schema, check_metadata=True)


def test_rows_survive_a_schema_without_columns() -> None:
    assert conform(pa.table({"a": [1, 2]}).select([]), pa.schema([])).num_rows == 2


# ------------------------------------------------------------------------------------------------ properties

_SMALL = st.integers(0, 100)
_LEAVES: list[tuple[list[pa.DataType], st.SearchStrategy[object]]] = [
    ([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32()], _SMALL),
    ([pa.float16(), pa.float32(), pa.float64()], st.sampled_from([0.0, 1.5, -2.25])),
    ([pa.string(), pa.large_string(), pa.string_view(), DICTIONARY], st.text(max_size=20)),
    ([pa.binary(), pa.large_binary(), pa.binary_view()], st.binary(max_size=20)),
    ([pa.date32(), pa.date64()], st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    ([pa.duration("s"), pa.duration("us")], st.none()),
]


@st.composite
def _columns(draw: st.DrawFn, depth: int = 2) -> tuple[pa.Array, pa.Array]:
    """Two arrays whose types are of one family."""
    shape = draw(st.sampled_from(["leaf", "list", "struct"])) if depth else "leaf"
    first, second, values = _kinds(draw, depth) if shape == "leaf" else _nested_kinds(draw, shape, depth)
    rows = st.lists(st.none() | values, max_size=5)
    arrays = [pa.array(draw(rows), kind) for kind in (first, second)]
    return arrays[0].slice(draw(st.integers(0, 2))), arrays[1].slice(draw(st.integers(0, 2)))


def _kinds(draw: st.DrawFn, depth: int) -> tuple[pa.DataType, pa.DataType, st.SearchStrategy[object]]:
    kinds, values = draw(st.sampled_from(_LEAVES))
    return draw(st.sampled_from(kinds)), draw(st.sampled_from(kinds)), values


def _nested_kinds(
    draw: st.DrawFn, shape: str, depth: int
) -> tuple[pa.DataType, pa.DataType, st.SearchStrategy[object]]:
    inner = draw(st.sampled_from(["leaf", "list", "struct"])) if depth > 1 else "leaf"
    kinds = _kinds(draw, depth - 1) if inner == "leaf" else _nested_kinds(draw, inner, depth - 1)
    first, second, values = kinds
    if shape == "list":
        makers = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]
        make_first, make_second = draw(st.sampled_from(makers)), draw(st.sampled_from(makers))
        return make_first(first), make_second(second), st.lists(st.none() | values, max_size=3)
    row = st.fixed_dictionaries({"x": st.none() | values})
    return pa.struct([("x", first), ("only_first", pa.bool_())]), pa.struct([("y", pa.int8()), ("x", second)]), row


@given(_columns())
def test_conforming_to_the_unified_schema_changes_no_value(columns: tuple[pa.Array, pa.Array]) -> None:
    tables = [pa.table({"a": column}) for column in columns]
    schema = unify_schemas([(str(number), table.schema) for number, table in enumerate(tables)])
    for table in tables:
        wide = conform(table, schema)
        if _is_valid(table):
            wide.validate(full=True)
        assert wide.schema == schema
        assert _comparable(wide.column("a").to_pylist()) == _comparable(table.column("a").to_pylist())
        assert conform(wide, schema) == wide


def _is_valid(table: pa.Table) -> bool:
    """PyArrow makes one kind that is not: an index under a null struct, into a dictionary without values."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _comparable(value: object) -> object:
    """A struct's fields that are null are as good as absent."""
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items() if item is not None}
    return [_comparable(item) for item in value] if isinstance(value, list) else value


_FAMILY_TYPES = [kind for kinds, _ in _LEAVES for kind in kinds] + [kind for row in WIDENS for kind in row]


@given(st.lists(st.sampled_from(_FAMILY_TYPES), min_size=3, max_size=3))
def test_the_unified_type_does_not_depend_on_grouping(kinds: list[pa.DataType]) -> None:
    a, b, c = kinds
    left, right = unify_types(a, b), unify_types(b, c)
    if left is not None and right is not None:
        assert unify_types(left, c) == unify_types(a, right)


def test_maps_and_fixed_size_lists_are_cast_within_slices() -> None:
    maps = pa.array([[("z", 9)], [("a", 1)], None, [], [("b", 2), ("c", None)]], pa.map_(pa.string(), pa.int32()))
    wide = cast_array(maps.slice(1), pa.map_(pa.large_string(), pa.int64()))
    wide.validate(full=True)
    assert wide.to_pylist() == maps.slice(1).to_pylist()
    lists = pa.array([[0, 0], [1, 2], None, [3, None]], pa.list_(pa.int8(), 2)).slice(1)
    for kind in (pa.list_(pa.int64(), 2), pa.list_(pa.int64())):
        cast = cast_array(lists, kind)
        cast.validate(full=True)
        assert cast.to_pylist() == lists.to_pylist()
