"""Finds the rows by which a conversion of a whole column, or of many lines, fails.

Arrow converts a column at once, and its error names no row. So what fails is halved until single rows are left: a good
source costs nothing, and each bad row some conversions.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from compactor.changes.change_batch import Int64s, Refusals
from compactor.model.arrow_types import decoded_type, holds_text
from compactor.model.errors import Invalid

FAILING_ROWS_MAX = 10_000
"""Failing rows with which a source is taken for another one than it is said to be."""

_FAILS = (ValueError, ArithmeticError, Invalid)
"""Errors of values: `pa.ArrowInvalid`, `binascii.Error`, decimals that are too long; and what they were translated
into."""

_ROW_OF_A_PART = re.compile(r" in row \d+$")

ValuesT = TypeVar("ValuesT", pa.Array, pa.ChunkedArray)


def failures(rows: int, attempt: Callable[[int, int], object]) -> dict[str, Int64s]:
    """By the reason, the numbers of the rows that fail by themselves, ascending; none if rows only fail together.

    Args:
        attempt: takes the rows from a first one up to a last one, which is left out

    Raises `Invalid` if they are more than `FAILING_ROWS_MAX`."""
    found: dict[str, list[int]] = {}
    count, left = 0, [(0, rows)]
    while left:
        first, last = left.pop()
        try:
            attempt(first, last)
        except _FAILS as error:
            if last - first > 1:
                middle = (first + last) // 2
                left += [(middle, last), (first, middle)]
                continue
            found.setdefault(_ROW_OF_A_PART.sub("", str(error)), []).append(first)
            count += 1
            if count > FAILING_ROWS_MAX:
                raise Invalid(f"more than {FAILING_ROWS_MAX:,} rows cannot be read ({error})") from error
    return {reason: np.array(each, np.int64) for reason, each in found.items()}


def failing(rows: int, attempt: Callable[[int, int], object]) -> list[int]:
    """The rows of all of the `failures`, ascending."""
    return sorted(number for each in failures(rows, attempt).values() for number in each.tolist())


def refuse_wrong_text(rows: pa.Table, source_name: str) -> None:
    """Raises `ChangesRefused` with the rows that hold text that is not UTF-8, which Arrow takes."""
    refused = Refusals(source_name)
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not holds_text(column.type):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            wrong = failing(len(column), partial(_validate, column))
            refused.add(wrong, f"column {name!r} holds text that is not UTF-8")
    refused.raise_if_any()


def _validate(column: pa.ChunkedArray, first: int, last: int) -> None:
    """Of a slice, the values of all rows would be validated where they are nested or in a dictionary."""
    plain = column.slice(first, last - first).cast(decoded_type(column.type))
    plain.take(np.arange(len(plain))).validate(full=True)


def converted(values: ValuesT, convert: Callable[[ValuesT], ValuesT], numbers: Int64s, source_name: str) -> ValuesT:
    """The converted values. `numbers`: of the rows in their source.

    Raises `ChangesRefused` with the rows that cannot be converted; what `convert` raises, if no value of this type can
    be, or values fail only together.
    """
    try:
        return convert(values)
    except _FAILS:
        convert(values.slice(0, 0))
        refused = Refusals(source_name)
        for reason, rows in failures(
            len(values), lambda first, last: convert(values.slice(first, last - first))
        ).items():
            refused.add(numbers[rows].tolist(), reason)
        refused.raise_if_any()
        raise
