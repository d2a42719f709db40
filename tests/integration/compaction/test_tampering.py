"""Files of the compacted side that are not what the log says: the round fails before its commit, and names the file."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from compactor.engine.protocol import Engine
from compactor.model.errors import Corrupt
from compactor.model.names import Operation
from compactor.sessions.session_log import SessionFailed
from tests.builders import TABLE_ID, CompactedSide
from tests.crash_points import OPTIONS
from tests.crashes import Delta, Lake, Options, attempt, session_log

Tamper = Callable[[Path], None]
NO_REHASH = Options(hash_bucket_count=2)


def without_its_last_row(path: Path) -> None:
    rows = pq.read_table(path)
    pq.write_table(rows.slice(0, rows.num_rows - 1), path)


def with_a_row_twice(path: Path) -> None:
    rows = pq.read_table(path)
    pq.write_table(pa.concat_tables([rows, rows.slice(0, 1)]), path)


def index_without_its_last_row(path: Path) -> None:
    with pa.ipc.open_file(path.read_bytes()) as reader:
        rows = reader.read_all()
    with pa.ipc.new_file(str(path), rows.schema) as writer:
        writer.write_batch(rows.slice(0, rows.num_rows - 1).combine_chunks().to_batches()[0])


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()


def vector_without_its_last_row(path: Path) -> None:
    rows = feather.read_table(path)
    feather.write_feather(rows.slice(0, rows.num_rows - 1), path)


def fails_without_a_trace(lake: Lake, options: Options, engine: Engine) -> str:
    """Why the session fails, as the log says it too; nothing is committed, and the rows can be read as before."""
    stream = lake.catalog().table(TABLE_ID).stream({})
    before = stream.load()
    plan = lake.plan(options)
    with pytest.raises(Corrupt) as failure:
        attempt(plan, lake, engine, 1)
    assert lake.catalog().table(TABLE_ID).stream({}).load() == before
    end = session_log(plan, lake.store()).load().state.end
    assert isinstance(end, SessionFailed)
    assert (end.error_kind, end.reasons) == ("Corrupt", (str(failure.value),))
    return str(failure.value)


@pytest.mark.parametrize("tamper", [without_its_last_row, with_a_row_twice, cut_off, emptied, gone])
def test_a_compacted_file_that_was_tampered_with_fails_the_round_and_is_named(
    tamper: Tamper, pending_lake: Lake, engine: Engine
) -> None:
    side = CompactedSide.of(pending_lake.catalog())
    touched = side.path_of(side.files[0])
    tamper(touched)
    assert f"file://{touched}" in fails_without_a_trace(pending_lake, NO_REHASH, engine)


@pytest.mark.parametrize("options", [NO_REHASH, OPTIONS], ids=["in a round", "in a rehash"])
@pytest.mark.parametrize("tamper", [index_without_its_last_row, cut_off, emptied, gone])
def test_an_index_file_that_was_tampered_with_fails_the_session_and_is_named(
    tamper: Tamper, options: Options, pending_lake: Lake, engine: Engine
) -> None:
    side = CompactedSide.of(pending_lake.catalog())
    touched = side.path_of(side.stream.index_files[0])
    tamper(touched)
    assert f"file://{touched}" in fails_without_a_trace(pending_lake, options, engine)


@pytest.mark.parametrize("options", [NO_REHASH, OPTIONS], ids=["in a round", "in a rehash"])
def test_an_index_file_in_another_one_s_place_is_noticed(options: Options, pending_lake: Lake, engine: Engine) -> None:
    side = CompactedSide.of(pending_lake.catalog())
    first, *others = side.stream.index_files
    other = next(file for file in others if file.hash_bucket != first.hash_bucket)
    side.path_of(first).write_bytes(side.path_of(other).read_bytes())
    reason = fails_without_a_trace(pending_lake, options, engine)
    found = zlib.crc32(side.path_of(other).read_bytes())
    assert reason == (
        f"file://{side.path_of(first)} is damaged: its CRC-32 is {found:08x}, but the log says {first.crc32:08x}"
    )


def test_a_delta_file_that_was_tampered_with_fails_the_round_and_is_named(pending_lake: Lake, engine: Engine) -> None:
    stream = pending_lake.catalog().table(TABLE_ID).stream({})
    newest = stream.load().state.sources[1].deltas[-1].files[0]
    touched = Path(stream.uri_of(newest.path).removeprefix("file://"))
    with_a_row_twice(touched)
    assert f"file://{touched}" in fails_without_a_trace(pending_lake, NO_REHASH, engine)


@pytest.mark.parametrize("tamper", [vector_without_its_last_row, cut_off, gone])
def test_a_deletion_vector_that_was_tampered_with_fails_the_round_and_is_named(
    tamper: Tamper, pending_lake: Lake, engine: Engine
) -> None:
    leaves_vectors = Options(hash_bucket_count=2, max_dead_row_share=0.9)
    attempt(pending_lake.plan(leaves_vectors, "before"), pending_lake, engine, 1)
    dead_too = [{"id": n, "time": 30} for n in range(30, 40)]
    pending_lake.append([Delta(Operation.DELETE, dead_too)])
    side = CompactedSide.of(pending_lake.catalog())
    touched = side.path_of(side.stream.deletion_vectors[0])
    tamper(touched)
    assert f"file://{touched}" in fails_without_a_trace(pending_lake, NO_REHASH, engine)
