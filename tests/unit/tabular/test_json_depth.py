"""Deeply nested JSON lines are refused before PyArrow's parser sees them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.model.errors import Invalid
from compactor.tabular.json_depth import DEPTH_MAX, refuse_deep_lines


def nested(depth: int) -> bytes:
    """An object that is so deep, its own braces included; objects and arrays in turns."""
    inner = depth - 1
    begin = "".join('{"a":' if level % 2 else "[" for level in range(inner))
    end = "".join("}" if level % 2 else "]" for level in reversed(range(inner)))
    return f'{{"a":{begin}1{end}}}'.encode()


def test_as_deep_as_allowed_is_no_error_and_one_level_more_is_one_that_names_the_file_and_the_line() -> None:
    lines = b'{"a":0}\n' + nested(DEPTH_MAX) + b"\n"
    refuse_deep_lines("file:///x.json", lines)
    with pytest.raises(Invalid, match=r'file:///x\.json has a line that is nested deeper than 100 .*\{"a":\[\{"a":\['):
        refuse_deep_lines("file:///x.json", lines + nested(DEPTH_MAX + 1))


def test_a_line_that_would_end_the_process_is_refused() -> None:
    with pytest.raises(Invalid, match="nested deeper"):
        refuse_deep_lines("x.json", nested(1_000_000))


@pytest.mark.parametrize("text", ["[" * 500, "]" * 500, '"' * 301, "\\" * 301, '\\"[' * 201, '"[' * 200])
def test_what_is_in_texts_neither_counts_nor_hides(text: str) -> None:
    refuse_deep_lines("x.json", json.dumps({"a": text}).encode() * 2)
    with pytest.raises(Invalid, match="nested deeper"):
        refuse_deep_lines("x.json", json.dumps({"a": text}).encode()[:-1] + b',"b":' + nested(DEPTH_MAX) + b"}")


@pytest.mark.parametrize("before", [b"]" * 500, b'{"a": "', b"}}}}"])
def test_a_damaged_line_hides_no_deep_one_after_it(before: bytes) -> None:
    with pytest.raises(Invalid, match="nested deeper"):
        refuse_deep_lines("x.json", before + b"\n" + nested(DEPTH_MAX + 1))


@given(
    st.recursive(st.text('[]{}"\\n', max_size=4) | st.none(), lambda each: st.lists(each, max_size=3), max_leaves=20)
)
def test_valid_lines_of_few_levels_are_never_refused(value: object) -> None:
    line = json.dumps({"a": value}).encode() + b"\n"
    refuse_deep_lines("x.json", line * 60)
