"""Our subset of Parquet is named as the specification names it, and described as it is."""

from __future__ import annotations

import ast
import re
from enum import IntEnum
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.tabular import parquet_pages
from compactor.tabular.parquet_pages import page_format
from compactor.tabular.parquet_pages.page_format import Codec, Encoding, PageType, PhysicalType

ROOM = Path(parquet_pages.__file__).parent
_TAKES_A_FIELD = {"number_in", "struct_in", "structs_in"}


def _bare_field_numbers(source: str) -> list[int]:
    """Lines where a Thrift field is named by a number: an argument, a key of a struct, or a subscript."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        named: list[ast.expr | None] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TAKES_A_FIELD:
            named = [node.args[1]]
        elif isinstance(node, ast.Dict):
            calls = [value for value in node.values if isinstance(value, ast.Call)]
            thrift = {"i32", "i64", "boolean", "binary", "structure", "items"}
            if any(isinstance(call.func, ast.Name) and call.func.id in thrift for call in calls):
                named = list(node.keys)
        lines += [each.lineno for each in named if isinstance(each, ast.Constant)]
    return lines


@pytest.mark.parametrize("module", sorted(ROOM.glob("*.py")), ids=lambda path: path.name)
def test_no_field_of_the_format_is_a_bare_number(module: Path) -> None:
    assert _bare_field_numbers(module.read_text()) == []


def test_a_bare_field_number_is_found() -> None:
    assert _bare_field_numbers("number_in(header,\n 3)\nx = {1: i32(4)}\ny = {Field.A: i32(1)}") == [2, 3]


@pytest.mark.parametrize(("ours", "theirs"), [(PhysicalType, "Type"), (Encoding, "Encoding")])
def test_the_numbers_are_those_of_arrows_own_headers(ours: type[IntEnum], theirs: str) -> None:
    header = (Path(pa.get_include()) / "parquet" / "types.h").read_text()
    body = re.search(rf"struct {theirs} {{\s*enum type {{(.*?)}}", header, re.DOTALL)
    assert body is not None
    expected = {name: int(number) for name, number in re.findall(r"(\w+) = (\d+)", body[1])}
    assert expected
    found = {each.name: each.value for each in ours}
    assert found == {name: number for name, number in expected.items() if name not in {"UNDEFINED", "UNKNOWN"}}


_CELLS = {
    "page types": (page_format.PAGE_TYPES_READ, PageType),
    "encodings": (page_format.ENCODINGS_READ, Encoding),
    "codecs": (page_format.CODECS_READ, Codec),
    "physical types": (page_format.PHYSICAL_TYPES_READ, PhysicalType),
}


def _row(name: str) -> list[str]:
    (row,) = [line for line in (ROOM / "SUBSET.md").read_text().splitlines() if line.startswith(f"| {name} |")]
    return row.split("|")


@pytest.mark.parametrize("name", _CELLS)
def test_the_page_on_the_subset_says_what_is_read(name: str) -> None:
    taken, names = _CELLS[name]
    assert set(re.findall(r"`(\w+)`", _row(name)[2])) == {each.name for each in taken}
    assert set(re.findall(r"`(\w+)`", _row(name)[3])) <= {each.name for each in names}


def test_the_page_on_the_subset_says_which_logical_types_are_read() -> None:
    assert {"None", *re.findall(r"`(\w+)`", _row("logical types")[2])} == page_format.LOGICAL_TYPES_READ
