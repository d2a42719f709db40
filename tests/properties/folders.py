"""A folder for one example of a property. pytest's own live as long as a test, which has hundreds of examples."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """An empty folder, gone after its use. In memory where there is such a place: a log syncs its entries to disk."""
    with tempfile.TemporaryDirectory(prefix="lithify-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder:
        yield Path(folder)
