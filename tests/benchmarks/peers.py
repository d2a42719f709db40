"""What a user would pick to apply a delta to a table: MERGE of `deltalake`, `merge_insert` of Lance.

Both get one row per key, from memory: reading the delta and choosing the latest row of each of its keys is not timed,
and ours does both. Their tables have the files that ours has.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.contestant import Answer, Task
from tests.benchmarks.data import KEY, SORT

LANCE_FOLDER = Path(__file__).parents[2] / ".venv-lance"
"""Where `make bench` installs Lance, which nothing else needs."""

_LATEST = f"""
    SELECT * FROM read_parquet($files)
    QUALIFY row_number() OVER (PARTITION BY {KEY} ORDER BY {SORT} DESC) = 1
"""


class _Merges:
    """A contestant that merges a delta into a table, which each run gets as it was."""

    def __init__(self, task: Task) -> None:
        import duckdb

        self._task = task
        with duckdb.connect(config={"threads": task.cores}) as connection:
            found = connection.execute(_LATEST, {"files": list(task.delta_files)}).to_arrow_table()
        if found is None:
            raise RuntimeError("the delta has no rows")
        self._delta = found.cast(pq.read_schema(task.delta_files[0]))

    def prepare(self, folder: Path) -> None:
        written = folder.parent / "as-it-was"
        if not written.exists():
            for path in self._task.table_files:
                self._append(pq.read_table(path), written)
        # Every file is written once, so links are as good as copies.
        shutil.copytree(written, folder, copy_function=os.link)

    def run(self, folder: Path) -> None:
        raise NotImplementedError

    def describe(self, folder: Path, answer: Answer) -> Answer:
        return answer.model_copy(update={"written": self._rows_in_parquet(folder)})

    def _append(self, rows: pa.Table, folder: Path) -> None:
        raise NotImplementedError

    def _rows_in_parquet(self, folder: Path) -> tuple[str, ...]:
        raise NotImplementedError


class DeltaLakeMerge(_Merges):
    """MERGE, with an update only where the delta's row is not older."""

    def run(self, folder: Path) -> None:
        from deltalake import DeltaTable

        merge = DeltaTable(folder).merge(
            self._delta, predicate=f"source.{KEY} = target.{KEY}", source_alias="source", target_alias="target"
        )
        merge.when_matched_update_all(f"source.{SORT} >= target.{SORT}").when_not_matched_insert_all().execute()

    def _append(self, rows: pa.Table, folder: Path) -> None:
        from deltalake import write_deltalake

        write_deltalake(folder, rows, mode="append")

    def _rows_in_parquet(self, folder: Path) -> tuple[str, ...]:
        from deltalake import DeltaTable

        return tuple(uri.removeprefix("file://") for uri in DeltaTable(folder).file_uris())


class LanceMerge(_Merges):
    """`merge_insert`, with an update only where the delta's row is not older."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        sys.path.append(str(LANCE_FOLDER))
        import lance

        self._lance = lance

    def run(self, folder: Path) -> None:
        merge = self._lance.dataset(str(folder)).merge_insert(KEY)
        merge = merge.when_matched_update_all(condition=f"source.{SORT} >= target.{SORT}")
        merge.when_not_matched_insert_all().execute(self._delta)

    def _append(self, rows: pa.Table, folder: Path) -> None:
        self._lance.write_dataset(rows, str(folder), mode="append" if folder.exists() else "create")

    def _rows_in_parquet(self, folder: Path) -> tuple[str, ...]:
        path = folder / "all.parquet"
        dataset = self._lance.dataset(str(folder))
        with pq.ParquetWriter(path, dataset.schema) as writer:
            for batch in dataset.to_batches():
                writer.write_batch(batch)
        return (str(path),)
