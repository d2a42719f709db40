"""A table that exists already, outside of Lithify, as an import takes it: its partitions and their files. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SourcePartition:
    """Files of one partition, as URIs in the order of their names; of two rows of a key the later one survives."""

    values: Mapping[str, str]
    files: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True)
class SourceTable:
    """`passed_over`: files that are no data: hidden, markers of writers, empty."""

    uri: str
    partition_keys: tuple[str, ...]
    partitions: tuple[SourcePartition, ...]
    passed_over: int
