"""The engines, each a small program that runs in a process of its own, in the environment of the readers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

HERE = Path(__file__).parent
PYTHON = HERE.parent.parent / ".venv-readers" / "bin" / "python"


@dataclass(frozen=True)
class Engine:
    """`environment`: of its process, beside what every process has: credentials of an S3 server."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def read(self, table: str) -> pa.Table:
        """All rows of the Delta Lake table at a path or a URI."""
        # ClickHouse reads only what lies below the folder that it runs in.
        folder = "/" if "://" in table else table
        ran = subprocess.run(
            [PYTHON, HERE / f"read_{self.name}.py", table],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **self.environment},
            capture_output=True,
            check=False,
        )
        if ran.returncode:
            raise AssertionError(f"{self.name} cannot read {table}: {ran.stderr.decode()[-2_000:]}")
        with pa.ipc.open_stream(ran.stdout) as stream:
            return stream.read_all()


ENGINES = ("deltalake", "duckdb", "polars", "chdb")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(request.param)
