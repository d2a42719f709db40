"""What properties are held against."""

from __future__ import annotations

import pytest

from compactor.engine import records as spark_records
from compactor.steps import dedupe, hash_bucket


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are small here: rows and keys must go through Spark in pieces, or lie in files, all the same."""
    monkeypatch.setattr(spark_records, "FILE_BYTES_MIN", 0)
    monkeypatch.setattr(hash_bucket, "ROWS_PER_PIECE", 2)
    monkeypatch.setattr(dedupe, "KEYS_PER_PIECE", 2)
