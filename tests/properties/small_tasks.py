"""Tasks with room for a few rows at a time, so that tables of a few rows take the ways of large ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compactor.planning import task_memory
from compactor.planning.rounds import RoundLimits
from compactor.steps import hash_bucket, materialize, parts, placement
from compactor.tabular import text, writer


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


@contextmanager
def files_are_cut(rows: int = 1) -> Iterator[None]:
    """Row groups have so many rows, text has pieces of few, and a file of more is read and written by several tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "PIECE_ROWS_MAX", rows)
        patch.setattr(text, "TEXT_PIECE_BYTES", 64)
        patch.setattr(task_memory, "ROWS_PER_CUT", rows)
        patch.setattr(parts, "ROWS_PER_SMALL_FILE", rows)
        patch.setattr(placement, "ROWS_PER_SMALL_FILE", rows)
        yield
