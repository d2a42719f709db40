"""Whole numbers beyond 64 bits in text without declared types: PyArrow infers floats, where different ones are equal.

A column with digits only, of which a value does not fit int64, is decimal(38, 0): one type, whatever the digits, so
that files of one stream agree. With more than 38 digits it is text, where the format can show numbers as text. A column
that also has other numbers is a float.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from compactor.model.errors import Invalid

WHOLE = pa.decimal128(38, 0)

_DIGITS_MAX = 38
_INT64 = range(-(2**63), 2**63)
_WHOLE_TEXT = r"^[ \t]*[+-]?[0-9]+[ \t]*$"
_NO_DIGITS_OF_IT = r"^[ \t]*[+-]?0*|[ \t]*$"


def has_great_floats(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a float of the values, at any depth, is so great that it may stand for a whole number beyond 64 bits."""
    if isinstance(values, pa.ChunkedArray):
        return any(has_great_floats(chunk) for chunk in values.chunks)
    if pa.types.is_struct(values.type):
        return any(has_great_floats(values.field(number)) for number in range(values.type.num_fields))
    if pa.types.is_list(values.type):
        return has_great_floats(values.values)
    if not pa.types.is_float64(values.type):
        return False
    return bool(pc.any(pc.greater_equal(pc.abs(values), 2.0**63)).as_py())


def type_of_texts(pieces: Iterable[pa.Array | pa.ChunkedArray]) -> pa.DataType:
    """The type of a column of numbers by their texts, which are given in pieces."""
    digits_max = 0
    for texts in pieces:
        if pc.all(pc.match_substring_regex(texts, _WHOLE_TEXT)).as_py() is False:
            return pa.float64()
        digits = pc.binary_length(pc.replace_substring_regex(texts, _NO_DIGITS_OF_IT, ""))
        digits_max = max(digits_max, pc.max(digits).as_py() or 0)
    return WHOLE if digits_max <= _DIGITS_MAX else pa.string()


def types_in_json(uri: str, lines: bytes, inferred: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The types of these columns by the numbers in the text, in place of the inferred ones. Raises `Invalid` for whole
    numbers of more than 38 digits."""
    try:
        rows = list(_objects(lines.decode(errors="replace")))  # of numbers: who reads its text refuses what is none
    except json.JSONDecodeError:  # it has numbers that JSON does not have, such as Inf, and those are floats
        return dict(inferred)
    return {
        name: _type_by_values(arrow_type, [row.get(name) for row in rows], f"{uri} has", name)
        for name, arrow_type in inferred.items()
    }


def _objects(text: str) -> Iterator[dict[str, object]]:
    """The objects of a text, one after the other. The first digits of a longer number stand for it."""
    decoder = json.JSONDecoder(parse_int=lambda digits: int(digits[: _DIGITS_MAX + 2]))
    place = 0
    while True:
        rest = text[place : place + 1]
        if not rest:
            return
        if rest.isspace():
            place += 1
            continue
        found, place = decoder.raw_decode(text, place)
        yield found


def _type_by_values(arrow_type: pa.DataType, values: Sequence[object], where: str, name: str) -> pa.DataType:
    if pa.types.is_struct(arrow_type):
        objects = [value for value in values if isinstance(value, dict)]
        fields = [
            field.with_type(_type_by_values(field.type, [each.get(field.name) for each in objects], where, name))
            for field in arrow_type
        ]
        return pa.struct(fields)
    if pa.types.is_list(arrow_type):
        items = [item for value in values if isinstance(value, list) for item in value]
        return pa.list_(_type_by_values(arrow_type.value_type, items, where, name))
    if not pa.types.is_float64(arrow_type):
        return arrow_type
    numbers = [value for value in values if value is not None]
    whole = [number for number in numbers if isinstance(number, int)]
    if len(whole) < len(numbers) or all(number in _INT64 for number in whole):
        return arrow_type
    if any(abs(number) >= 10**_DIGITS_MAX for number in whole):
        raise Invalid(
            f"{where} whole numbers of more than {_DIGITS_MAX} digits in column {name!r}: write them as text, in "
            "quotes, or declare the column's type when the table is created"
        )
    return WHOLE
