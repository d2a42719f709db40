"""How answers lie on a page: at the width of a terminal, without one, and in the forms that programs read."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.cli.options import Output
from dispatcher.cli.output import answer, answer_records, as_text
from dispatcher.layout import (
    FAILED,
    PARTITION,
    STATUS,
    Column,
    Line,
    count_text,
    data_columns,
    printable,
    sentence_lines,
    table_lines,
)

COLUMNS = (Column("job_run_id", "job run"), Column("rows", show=count_text))


def texts(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def test_a_table_has_a_line_a_record_with_numbers_to_the_right() -> None:
    records: list[dict[str, object]] = [{"job_run_id": "a", "rows": 1_200}, {"job_run_id": "longer", "rows": None}]
    assert texts(list(table_lines(COLUMNS, records, 80))) == ["job run   rows", "a        1,200", "longer       -"]


def test_a_record_that_is_wider_than_the_page_is_a_block_of_lines() -> None:
    records = [{"job_run_id": "orders-1995-04-04", "rows": 1}, {"job_run_id": "b", "rows": 22}]
    assert texts(list(table_lines(COLUMNS, records, 20))) == [
        "job run  orders-1995-04-04",
        "rows     1",
        "",
        "job run  b",
        "rows     22",
    ]


def test_where_there_is_no_terminal_nothing_is_folded() -> None:
    (_, line) = texts(list(table_lines(COLUMNS, [{"job_run_id": "x" * 500, "rows": 1}], None)))
    assert line.split() == ["x" * 500, "1"]


def test_one_long_value_makes_no_other_row_as_long() -> None:
    records = [{"job_run_id": "x" * 1_000_000, "rows": 1}, {"job_run_id": "y", "rows": 2}]
    lines = texts(list(table_lines(COLUMNS, records, None)))
    assert len(lines[1]) > 1_000_000
    assert len(lines[2]) < 300


cells = st.one_of(st.none(), st.integers(), st.text(), st.booleans(), st.binary(), st.lists(st.text()))


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=5), st.integers(20, 100))
@example([("日本語" * 20, "x")], 80)
def test_every_word_of_every_value_stands_on_one_line(values: list[tuple[object, object]], width: int) -> None:
    columns = data_columns(["one", "[/]"])
    records = [{"one": one, "[/]": other} for one, other in values]
    lines = texts(list(table_lines(columns, records, width)))
    words = {word for record in records for column in columns for word in _words(column, record)}
    for word in words:
        assert any(word in line for line in lines), word
    for line in lines:
        assert not any(unicodedata.category(character) == "Cc" for character in line)


def _words(column: Column, record: dict[str, object]) -> list[str]:
    return printable(column.show(record[column.key])).split(" ")


@given(st.text())
@example("x[/]")
@example("\x1b[2J")
def test_no_text_is_markup_nor_an_order_to_the_terminal(text: str) -> None:
    shown = as_text(sentence_lines(text, None), None).plain
    assert shown == printable(text.strip())
    assert "\x1b" not in shown


def test_a_sentence_is_broken_between_words_and_keeps_its_indent() -> None:
    lines = texts(list(sentence_lines("  a name: " + "x" * 30 + " and more", 20)))
    assert lines == ["  a name:", "  " + "x" * 30, "  and more"]


def test_failures_are_red() -> None:
    (_, (segment, *_), *_) = table_lines((STATUS,), [{"status": "failed"}], 80)
    assert segment == ("failed", FAILED)


# -- for programs

RECORDS = [
    {"partition": {"day": "a,b"}, "rows": 1, "note": ""},
    {"partition": {}, "rows": None, "note": 'the "last"\nof them', "more": [1, {"a": 2}]},
]


def answered(capsys: pytest.CaptureFixture[str], output: Output) -> str:
    columns = (PARTITION, Column("rows"), Column("note"), Column("more"))
    answer_records(output, {"streams": RECORDS}, "streams", columns, none="Nothing.", notes=["and more"])
    printed = capsys.readouterr()
    assert printed.out.endswith("\n")
    assert not printed.out.endswith("\n\n")
    assert printed.err == ("lithify: and more\n" if output is Output.JSONL else "")
    return printed.out


def test_records_as_json_lines_are_whole_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert [json.loads(line) for line in answered(capsys, Output.JSONL).splitlines()] == RECORDS
    assert json.loads(answered(capsys, Output.JSON))["streams"] == RECORDS


@pytest.mark.parametrize("output", list(Output))
def test_an_answer_of_one_thing_ends_in_a_line_end_in_every_form(
    capsys: pytest.CaptureFixture[str], output: Output
) -> None:
    answer(output, {"partition": {"day": "1"}, "rows": 3}, ["Three rows."])
    out = capsys.readouterr().out
    assert out.endswith("\n")
    assert (
        out.splitlines()[-1]
        == {
            Output.TEXT: "Three rows.",
            Output.JSON: "}",
            Output.JSONL: '{"partition":{"day":"1"},"rows":3}',
        }[output]
    )
