"""A lake with one table, and `compact` with what every test of the compaction says anyway already said."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from compactor import DeltaCatalog, compact
from compactor.engine.in_process import InProcessEngine
from compactor.engine.protocol import Engine
from compactor.lake import Table
from compactor.planning.spec import JobRunResult
from tests.builders import TABLE_ID
from tests.crash_points import build_lake, copy_of
from tests.crashes import Lake


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    return DeltaCatalog.open(tmp_path / "lake")


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    """A table without partition keys; its key is `id` wherever a test names no other."""
    return lake.create_table(TABLE_ID)


@pytest.fixture
def compact_orders(lake: DeltaCatalog) -> partial[JobRunResult]:
    return partial(compact, TABLE_ID, {"id"}, delta_catalog_client=lake, hash_bucket_count=2)


@pytest.fixture(scope="session")
def engine() -> Engine:
    return InProcessEngine()


@pytest.fixture(scope="session")
def prepared_lake(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return build_lake(tmp_path_factory.mktemp("prepared") / "lake", engine)


@pytest.fixture
def pending_lake(prepared_lake: Lake, tmp_path: Path) -> Lake:
    """A lake of one's own in which a session of a rehash and three rounds is due, see tests.crash_points."""
    return copy_of(prepared_lake, tmp_path / "pending")
