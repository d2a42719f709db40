"""Lists what `paths.py` names: the encoded texts that are folders below a place."""

from __future__ import annotations

from collections.abc import Iterator

from compactor.catalog.paths import continues
from compactor.object_store import ObjectStore


def encoded_names(store: ObjectStore, prefix: str) -> Iterator[str]:
    """The encoded texts that are folders under a prefix, those that go on over several path parts put together."""
    for part in store.list_folders(prefix):
        if continues(part):
            yield from (f"{part}/{rest}" for rest in encoded_names(store, f"{prefix}{part}/"))
        else:
            yield part
