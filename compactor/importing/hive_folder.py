"""A folder of data files that is partitioned as Hive does it: `year=2026/month=11/part-0.parquet`.

Values are percent-decoded. Two folders whose values are then equal are one partition. Files and folders whose names
begin with `.` or `_` are passed over, as Hive and Spark do it, and so are empty files, which Hive writes for empty
buckets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from compactor.importing.source_table import OldFile, SourceTable, divided, partition_text
from compactor.model.errors import REASONS_SHOWN_MAX, Invalid, refuse_if
from compactor.storage.object_store import ObjectEntry, ObjectStore

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows whose partition column is null or empty."""


@dataclass(frozen=True)
class _Placed:
    """A data file and the pairs of its folders."""

    entry: ObjectEntry
    pairs: tuple[tuple[str, str], ...]


def read_hive_folder(store: ObjectStore, null_value: str | None = None) -> SourceTable:
    """The partitions of the folder at the store's root, in the order of their values. Lists, and reads no file.

    Args:
        null_value: what the partition of null values is called; None: it is refused

    Raises `Invalid`, with every reason, for a folder that is no such table."""
    data, passed_over, reasons = list[_Placed](), 0, list[str]()
    for entry in store.list(""):
        *folders, name = entry.key.split("/")
        if entry.size_bytes == 0 or any(map(_is_hidden, (*folders, name))):
            passed_over += 1
            continue
        try:
            data.append(_Placed(entry, _pairs(entry.key, folders, null_value)))
        except Invalid as error:
            reasons += error.reasons
    reasons += _against_keys(store.location.root_uri, data)
    refuse_if(reasons, REASONS_SHOWN_MAX)
    keys = tuple(key for key, _ in data[0].pairs)
    root_uri = store.location.root_uri
    data.sort(key=lambda each: each.entry.key)
    placed = (
        (tuple(value for _, value in each.pairs), OldFile(f"{root_uri}/{each.entry.key}", each.entry.size_bytes))
        for each in data
    )
    return SourceTable(root_uri, root_uri, keys, divided(keys, placed), passed_over=passed_over)


def _is_hidden(name: str) -> bool:
    """A partition key may begin with `_`."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _pairs(key: str, folders: Sequence[str], null_value: str | None) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for folder in folders:
        name, equals, value = folder.partition("=")
        if not equals or not name:
            raise Invalid(f"{key} lies in the folder {folder!r}: folders of partitions are named KEY=VALUE")
        if value == NULL_PARTITION:
            try:
                value = partition_text(unquote(name), None, null_value)
            except Invalid as error:
                raise Invalid(f"{key}: {error}") from error
        pairs.append((unquote(name), unquote(value)))
    return tuple(pairs)


def _against_keys(root_uri: str, data: Sequence[_Placed]) -> Iterator[str]:
    if not data:
        yield f"{root_uri} has no data file: name the folder of a table, above its partitions"
        return
    first = data[0]
    expected = [key for key, _ in first.pairs]
    if len(set(expected)) < len(expected):
        yield f"{first.entry.key} names a partition key twice"
    for each in data:
        found = [key for key, _ in each.pairs]
        if found != expected:
            yield (
                f"{each.entry.key} has the partition keys {_named(found)}, and {first.entry.key} has "
                f"{_named(expected)}: import them as different tables"
            )


def _named(keys: Sequence[str]) -> str:
    return ", ".join(keys) or "(none)"
