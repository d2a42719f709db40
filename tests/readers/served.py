"""The Iceberg REST catalog of a lake as `lithify serve` has it, for as long as a test reads through it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from compactor import DeltaCatalog


@contextmanager
def served(lake: DeltaCatalog) -> Iterator[str]:
    """The catalog's URL."""
    place = lake.location
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "dispatcher.start", "serve", "--lake", place.root_uri, "--state", state]
        command += ["--port", "0"]
        for name, value in {"--s3-endpoint-url": place.endpoint_url, "--region": place.region}.items():
            command += [name, value] if value is not None else []
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            try:
                said = [server.stderr.readline() for _ in range(2)]
                assert "catalog" in said[1], said + server.stderr.readlines()
                yield said[1].rpartition(" ")[2].strip()
            finally:
                server.terminate()
                server.wait(30)
