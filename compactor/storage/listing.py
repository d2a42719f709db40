"""Lists the folders whose names `paths.py` encodes."""

from __future__ import annotations

from collections.abc import Iterator

from compactor.storage.object_store import ObjectStore
from compactor.storage.paths import continues


def encoded_names(store: ObjectStore, prefix: str) -> Iterator[str]:
    """The encoded folder names below a prefix; a name that spans several path parts is joined again."""
    for part in store.list_folders(prefix):
        if continues(part):
            yield from (f"{part}/{rest}" for rest in encoded_names(store, f"{prefix}{part}/"))
        else:
            yield part
