"""Arrow's types and arrays behind their encodings, decoded in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

import compactor
from compactor.model import arrow_types
from compactor.model.arrow_types import decoded_type, stored_values, value_type, wide_dictionary

TEXT, UUID, BYTES = pa.string(), pa.uuid(), pa.binary(16)


@pytest.mark.parametrize(
    ("kind", "decoded", "value"),
    [
        (TEXT, TEXT, TEXT),
        (pa.dictionary(pa.int8(), TEXT), TEXT, TEXT),
        (pa.run_end_encoded(pa.int32(), pa.dictionary(pa.int8(), TEXT)), TEXT, TEXT),
        (UUID, UUID, BYTES),
        (pa.dictionary(pa.int8(), UUID), UUID, BYTES),
        (pa.list_(UUID), pa.list_(UUID), pa.list_(UUID)),
    ],
)
def test_a_type_is_unwrapped_down_to_its_values_and_no_further(
    kind: pa.DataType, decoded: pa.DataType, value: pa.DataType
) -> None:
    assert (decoded_type(kind), value_type(kind)) == (decoded, value)


def runs_of(values: pa.Array) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), values)


def dictionary_of(values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, 0, 1]), values)


PLAIN = pa.array(["a", None])
VIEWS = PLAIN.cast(pa.string_view())
UUIDS = pa.array([b"0123456789abcdef", None], pa.binary(16)).cast(UUID)


@pytest.mark.parametrize("values", [PLAIN, VIEWS, UUIDS], ids=["text", "views", "uuids"])
@pytest.mark.parametrize("sliced", [slice(0, 3), slice(1, 3), slice(0, 0)], ids=str)
def test_values_are_those_behind_all_encodings(values: pa.Array, sliced: slice) -> None:
    first = values.to_pylist()[0]
    expected = [getattr(first, "bytes", first)] * 2 + [None]
    encoded = [runs_of(values), dictionary_of(values), runs_of(dictionary_of(values)[1:])]
    for array in encoded:
        found = stored_values(array[sliced])
        assert found.to_pylist() == expected[sliced]
        views = {pa.string_view(): pa.large_string()}
        assert found.type == views.get(value_type(array.type), value_type(array.type))


def test_a_dictionary_may_be_kept_and_plain_values_are_as_they_are() -> None:
    dictionary = dictionary_of(PLAIN)
    assert stored_values(dictionary, keep_dictionary=True) is dictionary
    assert stored_values(PLAIN) is PLAIN
    assert stored_values(UUIDS, keep_dictionary=True).type == BYTES


def test_indices_of_a_dictionary_take_32_bits_at_least() -> None:
    assert wide_dictionary(pa.dictionary(pa.uint8(), TEXT, ordered=True)) == pa.dictionary(pa.int32(), TEXT, True)
    for kind in (pa.dictionary(pa.int64(), TEXT), TEXT):
        assert wide_dictionary(kind) is kind


def test_arrays_are_decoded_in_one_place() -> None:
    """A second place would decode fewer encodings, or others."""
    decoding = re.compile(r"dictionary_decode\(|run_end_decode\(|\.storage\b(?!\.)")
    room = Path(compactor.__file__).parent
    places = {
        path.relative_to(room).as_posix()
        for path in room.rglob("*.py")
        if any(decoding.search(line) for line in path.read_text().splitlines() if "import" not in line)
    }
    assert places == {Path(arrow_types.__file__).relative_to(room).as_posix()}
