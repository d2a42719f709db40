"""Parses a user's schema (`id:int64,at:timestamp[us, UTC]`) and filter (`at >= 2026-01-01`)."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from compactor.model.arrow_types import decoded_type
from compactor.model.errors import Invalid
from compactor.model.names import is_unicode
from compactor.storage.location import StoreLocation
from dispatcher.intake.instruction import InstructionDocument, Violations, parse_instruction

if TYPE_CHECKING:
    import pyarrow.compute as pc

_COMPARISONS: Mapping[str, Callable[[pc.Expression, pa.Scalar], pc.Expression]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(r"\s*(?P<column>.+?)\s*(?P<sign>==|!=|<=|>=|=|<|>)\s*(?P<value>.*?)\s*", re.DOTALL)
_NULL_TEST = re.compile(r"\s*(?P<column>.+?)\s+is\s+(?P<negated>not\s+)?null\s*", re.IGNORECASE | re.DOTALL)
_DECIMAL = re.compile(r"decimal(?P<bits>32|64|128|256)?\((?P<precision>\d+),\s*(?P<scale>-?\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(?P<unit>s|ms|us|ns),\s*(?P<zone>[^\]]+)\]")
_BETWEEN_COLUMNS = re.compile(r",(?![^\[(]*[\])])")


def parse_schema_option(text: str, location: StoreLocation) -> pa.Schema:
    """COLUMN:TYPE pairs, or the name of a data file with these columns. Raises `Invalid` for anything else."""
    from compactor.catalog.delta_files import absolute_uri
    from compactor.tabular import TabularFile, infer_content_type, read_schema

    if ":" not in text.rpartition("/")[2]:
        uri = absolute_uri(text)
        return read_schema(location, TabularFile(uri, infer_content_type(uri)))
    fields = []
    for pair in _BETWEEN_COLUMNS.split(text):
        name, colon, kind = (part.strip() for part in pair.partition(":"))
        if not name or not colon or not is_unicode(name):
            raise Invalid(f"--schema {pair.strip()!r} is no COLUMN:TYPE, for example order_id:int64")
        fields.append(pa.field(name, _parse_type(name, kind)))
    return pa.schema(fields)


def _parse_type(name: str, text: str) -> pa.DataType:
    decimal, timestamp = _DECIMAL.fullmatch(text), _TIMESTAMP.fullmatch(text)
    try:
        if decimal is not None:
            make = {"32": pa.decimal32, "64": pa.decimal64, "256": pa.decimal256}.get(decimal["bits"], pa.decimal128)
            return make(int(decimal["precision"]), int(decimal["scale"]))
        if timestamp is not None:
            return pa.timestamp(timestamp["unit"], timestamp["zone"].removeprefix("tz=").strip())
        return pa.type_for_alias(text)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise Invalid(
            f"--schema: column {name!r} has type {text!r}, which there is not: write Arrow's names, for example int64, "
            "double, string, bool, date32, decimal(12, 2), timestamp[us] or timestamp[us, UTC]"
        ) from error


def parse_filters(texts: Sequence[str], schema: pa.Schema) -> pc.Expression | None:
    """The conjunction of all conditions; None for none. Values have the columns' types; else raises `Invalid`."""
    return reduce(operator.and_, [_parse_filter(text, schema) for text in texts]) if texts else None


def _parse_filter(text: str, schema: pa.Schema) -> pc.Expression:
    import pyarrow.compute as pc

    null_test = _NULL_TEST.fullmatch(text)
    if null_test is not None:
        column = pc.field(_known(null_test["column"], text, schema))
        return ~column.is_null() if null_test["negated"] else column.is_null()
    condition = _CONDITION.fullmatch(text)
    if condition is None:
        raise Invalid(
            f"--filter {text!r}: write COLUMN = VALUE (or != < <= > >=), COLUMN is null, or COLUMN is not null"
        )
    name, value = _known(condition["column"], text, schema), condition["value"]
    kind = decoded_type(schema.field(name).type)
    try:
        return _COMPARISONS[condition["sign"]](pc.field(name), pa.scalar(value).cast(kind))
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise Invalid(f"--filter {text!r}: {value!r} is no {kind}, which column {name!r} is") from error


def _known(name: str, text: str, schema: pa.Schema) -> str:
    if name not in schema.names:
        raise Invalid(
            f"--filter {text!r}: there is no column {name!r} (there are: {', '.join(schema.names) or 'none'})"
        )
    return name


def read_document(file: str) -> str:
    """The text of a file, or of standard input for `-`. Raises `Invalid` if it cannot be read."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise Invalid(f"there is no file {file}") from error
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{file} is not UTF-8: {error}") from error


def valid_instruction(body: str) -> InstructionDocument:
    """Raises `Invalid` with every reason."""
    document = parse_instruction(body)
    if isinstance(document, Violations):
        raise Invalid(*document.reasons)
    return document
