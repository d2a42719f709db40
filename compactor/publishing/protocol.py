"""The protocol of publishers of open table formats, and their results.

The logs of the partition streams are the only source. Published metadata are derived from them: they can be deleted and
written again. The same commit that publishes files records how far each stream is published, so a crash between two
writes loses nothing, and a repeated publish writes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from compactor.catalog.stream import PartitionStream
from compactor.model.names import OpenFormat


@dataclass(frozen=True)
class Refused:
    """A stream that cannot be published: every reason, with what to do instead."""

    partition: Mapping[str, str]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Published:
    """One commit that readers see whole or not at all.

    Attributes:
        version: of the published table
        snapshot: its id, in formats that have one
        entries: the published entry number of each published stream's log, by encoded partition
        rows: live rows of added files, minus those of removed files and newly dead rows of others
        lag_ms: from the oldest round that this commit publishes to the commit
        refused: streams that were not published now"""

    format: OpenFormat
    version: int
    entries: Mapping[str, int]
    files_added: int
    files_removed: int
    files_marked: int
    rows: int
    lag_ms: int
    refused: tuple[Refused, ...] = ()
    snapshot: int | None = None


@dataclass(frozen=True)
class NothingToPublish:
    """Every stream is up to date, except refused ones. `version` None: nothing was ever published."""

    format: OpenFormat
    version: int | None
    refused: tuple[Refused, ...] = ()


Outcome: TypeAlias = Published | NothingToPublish


@dataclass(frozen=True)
class PublishedFile:
    """A live file of the published table. `path`: as in the stream's log; `dead_rows`: those of its vector."""

    path: str
    partition: Mapping[str, str]
    rows: int
    dead_rows: int
    vector: str | None = None


@dataclass(frozen=True)
class PublishedState:
    """The newest commit. `version` None: nothing is published. `entries`: by encoded partition."""

    version: int | None = None
    entries: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, PublishedFile] = field(default_factory=dict)


class TablePublisher(Protocol):
    """Publishes the streams of one table in one format. Any number may work on a table at the same time."""

    @property
    def format(self) -> OpenFormat: ...

    def publish(self, streams: Sequence[PartitionStream]) -> Outcome:
        """Brings the published table to the end of these streams' logs, in one commit.

        Raises `Unavailable` if it is not known whether the commit exists: another call settles it.
        """

    def state(self) -> PublishedState: ...
