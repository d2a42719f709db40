"""Lists the folders whose names `compactor/storage/keys.py` encodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from compactor.model.errors import Invalid
from compactor.storage.keys import continues
from compactor.storage.object_store import ObjectStore

NameT = TypeVar("NameT")


def encoded_names(store: ObjectStore, prefix: str) -> Iterator[str]:
    """The encoded folder names below a prefix; a name that spans several path parts is joined again."""
    for part in store.list_folders(prefix):
        if continues(part):
            yield from (f"{part}/{rest}" for rest in encoded_names(store, f"{prefix}{part}/"))
        else:
            yield part


def decoded_names(store: ObjectStore, prefix: str, decode: Callable[[str], NameT]) -> Iterator[NameT]:
    """The decoded names below a prefix. Folders whose names cannot be decoded belong to other programs: they are
    skipped."""
    for name in encoded_names(store, prefix):
        with suppress(Invalid):
            yield decode(name)
