"""`import lithify`: the door, which loads only what is asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import compactor
import lithify
from compactor.api import compact
from compactor.lake import DeltaCatalog, Table
from compactor.model import errors

REPOSITORY = Path(__file__).parents[2]


def test_importing_it_loads_no_library() -> None:
    program = (
        "import lithify, sys; "
        "print([name for name in ('boto3', 'numba', 'numpy', 'pyarrow', 'pydantic', 'pyspark') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_its_names_are_those_of_the_compactor() -> None:
    assert (lithify.DeltaCatalog, lithify.Table, lithify.compact) == (DeltaCatalog, Table, compact)
    assert lithify.__version__ == metadata.version("lithify")
    for name in ("Conflict", "Corrupt", "Denied", "Fenced", "Invalid", "LithifyError", "Unavailable"):
        assert getattr(lithify, name) is getattr(errors, name)


def test_it_lists_every_name_and_has_no_other() -> None:
    assert dir(lithify) == sorted(lithify.__all__) == dir(compactor)
    assert all(getattr(lithify, name) is not None for name in lithify.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'lake'"):
        lithify.lake  # noqa: B018


def test_it_is_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    subprocess.run([sys.executable, "-m", "lithify", "--version"], cwd=REPOSITORY, check=True)
    assert capfd.readouterr().out == f"lithify {lithify.__version__}\n"
