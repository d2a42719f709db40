"""Key digests against hashlib: every type, every mixture, nulls, and the values that must be equal or must differ."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import DIGEST_ENCODING, digest_keys
from compactor.model.errors import Invalid
from tests.arrow_types import KEY_TYPES, KeyType, Raw, plain_digest, plain_message, raw_array
from tests.effort import examples

VECTORS = json.loads((Path(__file__).parents[2] / "golden" / "digest_vectors.json").read_text())
NAN = float("nan")


def digests(*columns: pa.Array | pa.ChunkedArray) -> list[bytes]:
    """What the kernels make of key columns, given in sorted name order."""
    chunked = [column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column]) for column in columns]
    rows = len(chunked[0])
    words = digest_keys([canonical_column(f"k{n}", column) for n, column in enumerate(chunked)], rows)
    return [row.astype(">u4").tobytes() for row in words]


def plain_digests(*columns: tuple[KeyType, list[Raw | None]]) -> list[bytes]:
    frames = [[None if value is None else kind.canonical(value) for value in values] for kind, values in columns]
    return [plain_digest(row) for row in zip(*frames, strict=True)]


@st.composite
def key_columns(draw: st.DrawFn) -> list[tuple[KeyType, list[Raw | None]]]:
    kinds = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=4))
    rows = draw(st.integers(0, 6))
    nulls = st.none() if draw(st.booleans()) else st.nothing()
    return [(kind, draw(st.lists(nulls | kind.values, min_size=rows, max_size=rows))) for kind in kinds]


# ------------------------------------------------------------------------------------------------------ against hashlib


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
@examples(0.1)
@given(data=st.data())
def test_every_key_type_digests_as_hashlib_says(kind: KeyType, data: st.DataObject) -> None:
    values: list[Raw | None] = data.draw(st.lists(st.none() | kind.values, max_size=5))
    assert digests(kind.array(values)) == plain_digests((kind, values))


@given(key_columns())
def test_composite_keys_of_mixed_types_with_nulls_digest_as_hashlib_says(
    columns: list[tuple[KeyType, list[Raw | None]]],
) -> None:
    assert digests(*(kind.array(values) for kind, values in columns)) == plain_digests(*columns)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20))
def test_messages_of_every_length_across_the_borders_of_blocks_are_padded_right(lengths: list[int]) -> None:
    values = ["x" * length for length in lengths]
    assert digests(pa.array(values)) == [plain_digest([value.encode()]) for value in values]


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
@examples(0.1)
@given(data=st.data())
def test_slices_and_chunks_of_a_column_do_not_show(kind: KeyType, data: st.DataObject) -> None:
    values: list[Raw | None] = data.draw(st.lists(st.none() | kind.values, min_size=3, max_size=8))
    whole = kind.array(values)
    cut = data.draw(st.integers(1, len(values) - 1))
    assert digests(whole.slice(cut)) == digests(whole)[cut:]
    assert digests(pa.chunked_array([whole.slice(0, cut), whole.slice(cut)])) == digests(whole)


def test_an_empty_column_has_no_digests() -> None:
    for kind in KEY_TYPES:
        assert digests(kind.array([])) == []
        assert digests(pa.chunked_array([], kind.arrow_type)) == []


def test_bytes_under_a_null_have_no_effect() -> None:
    dirty = pa.Array.from_buffers(pa.int32(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([7, 9], "<i4"))])
    assert digests(dirty) == digests(pa.array([7, None], pa.int32()))


# -------------------------------------------------------------------------------------------------- equal and different

EQUAL_VALUES: dict[str, list[pa.Array]] = {
    "five": [pa.array([5], kind) for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")]
    + [pa.array([5]).dictionary_encode()],
    "minus one": [pa.array([-1], kind) for kind in ("int8", "int16", "int32", "int64")],
    "text": [pa.array(["abc"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())]
    + [pa.array(["abc"]).dictionary_encode(), pa.array(["zz", "abc"]).slice(1).dictionary_encode()],
    "bytes": [pa.array([b"abc"], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3))],
    "an instant": [
        raw_array(pa.timestamp(unit, zone), [-(10**9) * per_second])
        for unit, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
        for zone in (None, "UTC", "America/Los_Angeles")
    ],
    "an instant between seconds": [
        raw_array(pa.timestamp(unit), [-15 * 10**9 * per_ms // 10**4]) for unit, per_ms in (("ms", 1), ("us", 10**3))
    ],
    "a duration": [
        raw_array(pa.duration(unit), [7 * per]) for unit, per in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
    ],
    "a date": [raw_array(pa.date32(), [-3]), raw_array(pa.date64(), [-3 * 86_400_000])],
    "a time of day": [
        raw_array(pa.time32("s"), [7]),
        raw_array(pa.time32("ms"), [7_000]),
        raw_array(pa.time64("us"), [7_000_000]),
        raw_array(pa.time64("ns"), [7_000_000_000]),
    ],
    "zero": [pa.array([zero], kind) for zero in (0.0, -0.0) for kind in (pa.float16(), pa.float32(), pa.float64())],
    "one and a half": [pa.array([1.5], kind) for kind in (pa.float16(), pa.float32(), pa.float64())],
    "not a number": [
        *(pa.array([NAN], kind) for kind in (pa.float16(), pa.float32(), pa.float64())),
        pa.array(np.array([0x7FF8000000000001, 0xFFF0000000000123], "<u8").view("<f8")).slice(0, 1),
        pa.array(np.array([0x7FF8000000000001, 0xFFF0000000000123], "<u8").view("<f8")).slice(1, 1),
    ],
    "a decimal": [
        pa.array([Decimal("1.50")], pa.decimal32(5, 2)),
        pa.array([Decimal("1.500")], pa.decimal64(12, 3)),
        pa.array([Decimal("1.5")], pa.decimal128(38, 1)),
        pa.array([Decimal("1.50000")], pa.decimal256(60, 5)),
    ],
    "null": [pa.nulls(1, kind.arrow_type) for kind in KEY_TYPES] + [pa.nulls(1)],
}


@pytest.mark.parametrize("forms", EQUAL_VALUES.values(), ids=EQUAL_VALUES)
def test_equal_values_have_equal_digests_whatever_type_held_them(forms: list[pa.Array]) -> None:
    assert len({digests(each)[0] for each in forms}) == 1


def test_values_are_framed_so_that_borders_between_columns_show() -> None:
    first, second = pa.array(["ab", "a", "", "abc"]), pa.array(["c", "bc", "abc", ""])
    assert len(set(digests(first, second))) == 4


def test_null_differs_from_empty_and_from_the_text_null_and_in_every_column_of_a_key() -> None:
    first, second = pa.array([None, "", "null", "\x00", ""]), pa.array(["", None, "", "", ""])
    assert len(set(digests(first, second))) == 5
    assert digests(pa.array([None, None])) == [plain_digest([None])] * 2


def test_the_order_of_columns_shows() -> None:
    one, other = pa.array(["a"]), pa.array(["b"])
    assert digests(one, other) != digests(other, one)


def test_a_uuid_key_digests_as_its_bytes() -> None:
    values = [b"0" * 16, None, b"1" * 16]
    assert digests(pa.array(values, pa.uuid())) == digests(pa.array(values, pa.binary(16)))


def test_a_decimal_beyond_the_range_of_keys_is_refused_with_its_column() -> None:
    with pytest.raises(Invalid, match=r"'k0' of type decimal256.*outside the range of decimal keys"):
        digests(pa.array([Decimal(10**50)], pa.decimal256(60, 0)))


@pytest.mark.parametrize("nested", [pa.array([[1]]), pa.array([{"x": 1}])], ids=["list", "struct"])
def test_a_nested_column_is_refused_with_its_type(nested: pa.Array) -> None:
    with pytest.raises(Invalid, match=r"'k0' has type (list|struct)<.*keys cannot be nested"):
        digests(nested)


# --------------------------------------------------------------------------------------------------------- test vectors


def _vector_column(column: dict[str, str | None]) -> tuple[KeyType, list[Raw | None]]:
    kind = next(each for each in KEY_TYPES if str(each) == column["type"])
    text = column["value"]
    return kind, [None if text is None else _parse(kind.arrow_type, text)]


def _parse(arrow_type: pa.DataType, text: str) -> Raw:
    if pa.types.is_dictionary(arrow_type):
        return _parse(arrow_type.value_type, text)
    if pa.types.is_boolean(arrow_type):
        return text == "true"
    if pa.types.is_floating(arrow_type):
        return float(text)
    if pa.types.is_decimal(arrow_type):
        return Decimal(text)
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type) or pa.types.is_string_view(arrow_type):
        return text
    return int(text) if pa.types.is_integer(arrow_type) or pa.types.is_temporal(arrow_type) else bytes.fromhex(text)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=[vector["name"] for vector in VECTORS["vectors"]])
def test_a_vector_of_the_specification_holds(vector: dict[str, object]) -> None:
    named: dict[str, dict[str, str | None]] = vector["key"]  # type: ignore[assignment]
    columns = [_vector_column(named[name]) for name in sorted(named)]
    frames = [None if values[0] is None else kind.canonical(values[0]) for kind, values in columns]
    assert plain_message(frames).hex() == vector["message"]
    assert [each.hex() for each in digests(*(kind.array(values) for kind, values in columns))] == [vector["digest"]]


def test_the_vectors_are_those_of_the_encoding_that_is_written() -> None:
    assert VECTORS["digest_encoding"] == DIGEST_ENCODING
