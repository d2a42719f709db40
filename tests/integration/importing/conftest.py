from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from tests.conftest import Command
from tests.fakes.unruly_engine import UnrulyEngine

OLD = "ACME.OLD.V1"
KEYED = ("--property", "primary_keys=id")


class Importing:
    def __init__(self, command: Command, folder: Path) -> None:
        self.command, self.folder, self.lake_folder = command, folder / "old", folder / "lake"

    @property
    def lake(self) -> DeltaCatalog:
        return DeltaCatalog.open(self.lake_folder)

    def answer(self, *options: str) -> Any:  # noqa: ANN401 (it is JSON)
        result = self._run(*options, "--output", "json")
        assert result.exit_code == 0, result.err
        return json.loads(result.out)

    def text(self, *options: str) -> str:
        result = self._run(*options)
        assert result.exit_code == 0, result.err
        return " ".join(result.out.split())

    def refusal(self, *options: str) -> str:
        result = self._run(*options)
        assert (result.exit_code, result.out) == (2, ""), result
        return " ".join(result.err.split())

    def _run(self, *options: str) -> Any:  # noqa: ANN401
        return self.command(*self.arguments(*options))

    def arguments(self, *options: str) -> tuple[str, ...]:
        return ("table", "import", OLD, str(self.folder), "--lake", str(self.lake_folder), *options)

    def compacted(self) -> pa.Table:
        compact(OLD, delta_catalog_client=self.lake, engine=UnrulyEngine())
        return self.lake.table(OLD).scan().to_table()

    def write(self, name: str, rows: Mapping[str, list[object]]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(dict(rows)), path)

    def files(self) -> dict[Path, tuple[int, bytes]]:
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def importing(tmp_path: Path, command: Command) -> Importing:
    return Importing(command, tmp_path)
