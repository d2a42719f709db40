"""What properties are held against."""

from __future__ import annotations

import pytest

from compactor.steps import dedupe, hash_bucket


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are small here: the rows and keys that go through Spark in pieces must do so all the same."""
    monkeypatch.setattr(hash_bucket, "ROWS_PER_PIECE", 2)
    monkeypatch.setattr(dedupe, "KEYS_PER_PIECE", 2)
