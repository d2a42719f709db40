"""The stores that every contract test runs over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.clock import SystemClock
from compactor.local_store import LocalStore
from compactor.object_store import ObjectStore, StoreLocation
from tests.fakes.memory_store import MemoryStore


def _memory(folder: Path) -> ObjectStore:
    return MemoryStore(SystemClock(), StoreLocation(f"file://{folder}/lake"))


def _folder(folder: Path) -> ObjectStore:
    return LocalStore(StoreLocation(f"file://{folder}/lake"))


_MAKERS: dict[str, Callable[[Path], ObjectStore]] = {"memory": _memory, "folder": _folder}


@pytest.fixture(params=[*_MAKERS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind in turn."""
    return _MAKERS[request.param](tmp_path)
