"""The engines, each a small program that runs in a process of its own, in the environment of the readers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest

from compactor.catalog.keys import TableFolder
from compactor.model.names import OpenFormat
from compactor.publishing.keys import IcebergFolder

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYTHON = ROOT / ".venv-readers" / "bin" / "python"
OTHER_PYTHONS = MappingProxyType({"spark_iceberg": ROOT / ".venv-spark-iceberg" / "bin" / "python"})
"""Of engines whose packages do not fit with those of the others."""

KEPT = ("PATH", "HOME", "JAVA_HOME")
"""Of the environment, what every engine's process has."""


def environment_of(given: Mapping[str, str]) -> dict[str, str]:
    """Of an engine's process: programs import each other, and nothing of Lithify."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), **given}


@dataclass(frozen=True)
class Engine:
    """`environment`: of its process, beside what every process has: credentials of an S3 server."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def read(self, table: str) -> pa.Table:
        """All rows of the table at a path or a URI."""
        return self.run(f"read_{self.name}.py", table)

    def run(self, program: str, *arguments: str) -> pa.Table:
        """What one of the programs beside this file reads."""
        ran = subprocess.run(
            [OTHER_PYTHONS.get(self.name, PYTHON), HERE / program, *arguments],
            cwd="/",  # ClickHouse reads only files below the folder that it runs in
            env=environment_of(self.environment),
            capture_output=True,
            check=False,
        )
        if ran.returncode:
            raise AssertionError(f"{self.name} cannot read {arguments}: {ran.stderr.decode()[-2_000:]}")
        with pa.ipc.open_stream(ran.stdout) as stream:
            return stream.read_all()


ENGINES: Mapping[str, OpenFormat] = MappingProxyType(
    {
        "deltalake": OpenFormat.DELTA,
        "duckdb": OpenFormat.DELTA,
        "polars": OpenFormat.DELTA,
        "chdb": OpenFormat.DELTA,
        "sail": OpenFormat.DELTA,
        "pyiceberg": OpenFormat.ICEBERG,
        "duckdb_iceberg": OpenFormat.ICEBERG,
        "polars_iceberg": OpenFormat.ICEBERG,
        "chdb_iceberg": OpenFormat.ICEBERG,
        "sail_iceberg": OpenFormat.ICEBERG,
    }
)


def published_folder(engine: str, table_id: str) -> str:
    """Where an engine finds a published table, below the lake's root."""
    is_iceberg = ENGINES[engine] is OpenFormat.ICEBERG
    return IcebergFolder(table_id).key if is_iceberg else TableFolder(table_id).open_files


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(request.param)
