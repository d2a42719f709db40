"""Tasks with room for a few rows at a time, so that tables of a few rows take the ways of large ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compactor.planning.sizing import RoundLimits
from compactor.steps import hash_bucket, materialize, parts, placement


@contextmanager
def few_rows_fit(rows: int = 3) -> Iterator[None]:
    """Hash tasks hold so many rows at a time, writers the indices of so many, source files are read page by page, in
    parts of so many rows, and a round absorbs little of the index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_bucket, "rows_per_hash_task", lambda *_: rows)
        patch.setattr(placement, "rows_per_writer", lambda *_: rows)
        patch.setattr(parts, "rows_per_part", lambda *_: rows)
        patch.setattr(materialize, "DECODED_MEMORY_SHARE", 0.0)
        patch.setattr(RoundLimits, "rows_to_absorb", lambda *_: rows)
        yield
