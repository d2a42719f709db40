"""Large text has pieces of whole rows, which are read by themselves as they are read in the file."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.model.errors import Corrupt
from compactor.model.files import DataFile
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation, parse_location
from compactor.tabular import TabularFile, measure, read_table, text
from compactor.tabular.files import read_batches_around

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
NOTES = st.text(st.sampled_from('ab "\\\ufeff'), max_size=6)
ROWS = st.lists(st.tuples(st.integers(-99, 99), st.none() | NOTES), min_size=1, max_size=30)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "TEXT_PIECE_BYTES", 64)
    monkeypatch.setattr(text, "BLOCK_BYTES", 96)


def csv_of(rows: list[tuple[int, str | None]], line_end: str, header: str) -> bytes:
    def field(note: str | None) -> str:
        quoted = note is not None and (not note or '"' in note)
        return f'"{note.replace(chr(34), chr(34) * 2)}"' if note is not None and quoted else note or ""

    lines = [header, *(f"{number},{field(note)}" for number, note in rows)]
    return line_end.join(lines).encode()


def json_of(rows: list[tuple[int, str | None]], line_end: str) -> bytes:
    return line_end.join(json.dumps({"id": number, "note": note}) for number, note in rows).encode()


@given(
    rows=ROWS,
    content_type=st.sampled_from([ContentType.CSV, ContentType.JSON]),
    line_end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    header=st.sampled_from(["id,note", '"id","note"']),
    ends=st.booleans(),
    packed=st.booleans(),
    data=st.data(),
)
def test_any_rows_of_a_text_are_read_from_the_pieces_around_them(
    rows: list[tuple[int, str | None]],
    content_type: ContentType,
    line_end: str,
    header: str,
    ends: bool,
    packed: bool,
    data: st.DataObject,
) -> None:
    body = csv_of(rows, line_end, header) if content_type is ContentType.CSV else json_of(rows, line_end)
    body += line_end.encode() * ends
    with tempfile.TemporaryDirectory() as folder:
        location, file = written(Path(folder), content_type, gzip.compress(body) if packed else body)
        whole = read_table(location, file, schema=SCHEMA)
        assert whole.num_rows == len(rows)
        first = data.draw(st.integers(0, len(rows) - 1))
        last = data.draw(st.integers(first, len(rows) - 1))
        columns = data.draw(st.sampled_from([None, ["note"], ["note", "id"]]))
        found: dict[int, dict[str, object]] = {}
        for row, batch in read_batches_around(location, file, len(rows), (first, last), SCHEMA, columns=columns):
            assert not found.keys() & set(range(row, row + batch.num_rows))
            found |= dict(enumerate(batch.to_pylist(), start=row))
        expected = whole.select(columns or SCHEMA.names).to_pylist()
        assert {row: expected[row] for row in range(first, last + 1)}.items() <= found.items()
        assert all(expected[row] == of_file for row, of_file in found.items())


def written(folder: Path, content_type: ContentType, body: bytes) -> tuple[StoreLocation, TabularFile]:
    """The file as the log has it after it is measured."""
    path = folder / "text"
    path.write_bytes(body)
    location, file = parse_location(str(folder / "lake")), TabularFile(path.as_uri(), content_type)
    measured = measure(location, file, SCHEMA)
    pieces = measured.row_groups
    assert not pieces or sum(piece.rows for piece in pieces) == measured.rows
    assert sum(piece.size_bytes for piece in pieces) <= len(body)
    logged = DataFile(
        file_number=1,
        path=file.uri,
        content_type=content_type,
        rows=measured.rows,
        size_bytes=measured.size_bytes,
        row_groups=pieces,
    )
    return location, TabularFile.of(file.uri, logged)


ROWS_OF_EIGHT_BYTES = b"".join(b"%03d,abc\n" % number for number in range(32))


@pytest.mark.parametrize(
    ("begins_with", "rows_of_pieces"),
    [
        (b"id,note\n", [7, 8, 8, 8, 1]),
        (b'id,note\n1,"a\nb"\n', [33]),
        (b'"id","note"\n', [6, 8, 8, 8, 2]),
        (b'"id","no\nte"\n', [32]),
        (b"\xef\xbb\xbfid,note\n", [6, 8, 8, 8, 2]),
    ],
)
def test_text_is_cut_up_to_its_first_quote(begins_with: bytes, rows_of_pieces: list[int], tmp_path: Path) -> None:
    _, file = written(tmp_path, ContentType.CSV, begins_with + ROWS_OF_EIGHT_BYTES)
    assert [piece.rows for piece in file.pieces] == (rows_of_pieces if len(rows_of_pieces) > 1 else [])


def test_a_piece_that_has_other_rows_than_the_log_says_is_corrupt(tmp_path: Path) -> None:
    location, file = written(tmp_path, ContentType.CSV, b"id,note\n" + ROWS_OF_EIGHT_BYTES)
    other = TabularFile(file.uri, file.content_type, pieces=(file.pieces[1], *file.pieces[1:]))
    with pytest.raises(Corrupt, match="has other rows than the log says, before row 8"):
        list(read_batches_around(location, other, 33, (0, 0), SCHEMA))
