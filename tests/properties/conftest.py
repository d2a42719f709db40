"""What properties are held against."""

from __future__ import annotations

import pytest

from compactor.steps import dedupe


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are small here: the keys that go through Spark in pieces must do so all the same."""
    monkeypatch.setattr(dedupe, "KEYS_PER_PIECE", 2)
