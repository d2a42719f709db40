"""After the kernels were warmed, a compaction compiles nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import importlib, pkgutil, sys
import numpy as np
import pyarrow as pa
from numba.core.dispatcher import Dispatcher
import compactor.kernels
from compactor import DeltaCatalog, compact
from compactor.kernels.warm import warm_kernels
from compactor.steps import materialize
from tests.fakes.unruly_engine import UnrulyEngine

def compiled():
    names = [f"compactor.kernels.{each.name}" for each in pkgutil.iter_modules(compactor.kernels.__path__)]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    kernels = {value for value in values if isinstance(value, Dispatcher)}
    return {(each.py_func.__module__, each.py_func.__name__): set(map(str, each.signatures)) for each in kernels}

materialize.ROW_GROUP_BYTES_MIN = 0
warm_kernels()
before = compiled()
lake = DeltaCatalog.open(sys.argv[1])
table = lake.create_table("ACME.ORDERS.V1")
for run in range(4):
    ids, times = range(run * 100, run * 100 + 1000), pa.array(range(1000), pa.timestamp("us"))
    rows = pa.table({"id": ids, "name": ["x", "y"] * 500, "time": times})
    table.append({}, rows, rows_per_file=400)
    table.append({}, rows.select(["id", "name"]).slice(5, 9), operation="delete")
    compact(
        "ACME.ORDERS.V1", {"id", "name"}, [("time", "ascending")], delta_catalog_client=lake, hash_bucket_count=2,
        rows_per_compacted_file=100, max_dead_row_share=0.5 if run < 3 else 0.0, engine=UnrulyEngine(),
    )
for kernel, signatures in sorted(compiled().items()):
    for signature in sorted(signatures - before[kernel]):
        print(*kernel, signature)
"""


def test_a_compaction_finds_every_kernel_warm(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "lake")],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "", "kernels were compiled for types that they had not been warmed for"
