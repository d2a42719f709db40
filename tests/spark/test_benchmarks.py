from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.checks import Referee, Wrong
from tests.benchmarks.contestant import Answer, Task
from tests.benchmarks.data import SORT, Change, Shape, survivors, write_delta, write_table
from tests.benchmarks.ours import Ours
from tests.benchmarks.report import write
from tests.fakes.unruly_engine import UnrulyEngine

SHAPE = Shape("tiny", 2_000, 500, (5, 20), readable=True)
CHANGE = Change(400)


def latest_rows(folder: Path) -> pa.Table:
    """The survivors, by a plain dict."""
    latest: dict[object, dict[str, object]] = {}
    files = (*write_table(folder, SHAPE).paths, *write_delta(folder, SHAPE, CHANGE).paths)
    for row in pq.read_table(list(files)).sort_by(SORT).to_pylist():
        latest[row["o_orderkey"]] = row
    return pa.Table.from_pylist(list(latest.values()), schema=pq.read_schema(files[0]))


def run(task: Task, folder: Path) -> Answer:
    """A run of ours, on a Spark of lists."""
    contestant = Ours(task, UnrulyEngine())
    contestant.prepare(folder)
    contestant.run(folder)
    return contestant.describe(folder, Answer(seconds=0, started_ms=0, ended_ms=0))


def check(folder: Path, table: pa.Table, right: pa.Table | None = None) -> None:
    referee = Referee(survivors(SHAPE, CHANGE))
    for number, rows in enumerate(table for table in (right, table) if table is not None):
        path = folder / f"left-{number}.parquet"
        pq.write_table(rows, path)
        referee.check(f"contestant {number}", [str(path)])


def test_the_generator_knows_which_rows_survive(tmp_path: Path) -> None:
    check(tmp_path, latest_rows(tmp_path))


def test_a_delta_brings_late_rows_and_rows_of_one_key_twice(tmp_path: Path) -> None:
    latest, delta = latest_rows(tmp_path), pq.read_table(list(write_delta(tmp_path, SHAPE, CHANGE).paths))
    won = set(delta[SORT].to_pylist()) & set(latest[SORT].to_pylist())
    assert 0 < len(won) < delta.num_rows


def test_a_contestant_that_loses_a_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="left"):
        check(tmp_path, latest_rows(tmp_path).slice(1))


def test_a_contestant_that_keeps_a_stale_row_is_refused(tmp_path: Path) -> None:
    right = latest_rows(tmp_path)
    times = right[SORT].to_pylist()
    swapped = pa.array([times[1], *times[1:]], pa.timestamp("us"))
    stale = right.set_column(right.schema.get_field_index(SORT), SORT, swapped)
    with pytest.raises(Wrong, match="left"):
        check(tmp_path, stale)


def test_a_contestant_that_changes_a_value_is_refused(tmp_path: Path) -> None:
    right = latest_rows(tmp_path)
    comments = right["o_comment"].to_pylist()
    changed = right.set_column(right.schema.get_field_index("o_comment"), "o_comment", pa.array(["", *comments[1:]]))
    with pytest.raises(Wrong, match="other values"):
        check(tmp_path, changed, right)


def test_a_section_takes_the_place_of_its_last_writing_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    write(path, [("One", "first"), ("Two", "second"), ("Against the goals", "| a | 1 |\n| b | 2 |")])
    write(path, [("One", "again"), ("Against the goals", "| b | 3 |\n| c | 4 |")])
    text = path.read_text()
    assert "## One\n\nagain\n" in text
    assert "## Two\n\nsecond\n" in text
    assert "| a | 1 |\n| b | 3 |\n| c | 4 |\n" in text


@pytest.mark.parametrize("max_dead_row_share", [0.0, 0.5])
def test_readers_see_the_files_of_an_incremental_run(tmp_path: Path, max_dead_row_share: float) -> None:
    table, delta = write_table(tmp_path, SHAPE), write_delta(tmp_path, SHAPE, CHANGE)
    base = Task(table_files=table.paths, cores=2, rows_per_compacted_file=SHAPE.rows_per_file)
    change = {"delta_files": delta.paths, "compacted_lake": str(tmp_path / "base")}
    task = base.model_copy(update={**change, "max_dead_row_share": max_dead_row_share})
    run(base, tmp_path / "base")
    answer = run(task, tmp_path / "lake")
    Referee(survivors(SHAPE, CHANGE)).check("lithify", answer.written)
    assert answer.bytes_read >= delta.size_bytes
    assert answer.bytes_written


@pytest.mark.spark
@pytest.mark.release
def test_the_quick_benchmark_runs_everybody_and_says_who_won(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "RESULTS.md"
    main(["--quick", "--folder", str(tmp_path), "--results", str(results)])
    text = results.read_text()
    for contestant in ("lithify", "Spark window", "DuckDB QUALIFY", "DuckDB semi join", "floor"):
        assert f"| {contestant} |" in text
    for heading in ("The machine", "Against the goals", "Whole table, narrow rows", "Incremental, narrow rows"):
        assert f"## {heading}\n" in text
    assert str(tmp_path) not in text.replace(str(results), "")
    assert [path.name for path in tmp_path.iterdir()] == ["RESULTS.md"]
