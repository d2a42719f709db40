"""What published metadata repeat of the values of rows, and when garbage collection deletes it. Writes nothing.

Published metadata name files, count rows, and have bounds of columns, which are values of rows. Deletion vectors and
position deletes have row numbers and paths only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class PublishedObject:
    """An object of published metadata.

    Attributes:
        bounded: the columns with bounds, by the key of the file that they are of; None: it cannot be read
        goes_from_ms: garbage collection deletes it a grace period after this time; None: not before the step in `how`
    """

    key: str
    bounded: Mapping[str, frozenset[str]] | None
    goes_from_ms: int | None
    how: str


class PublishedBounds(Protocol):
    """The published metadata of a table in one format, as they were when this was made."""

    def objects(self) -> Iterator[PublishedObject]: ...

    def shown_until_ms(self, path: str, stream: str, unnamed_at: int) -> int | None:
        """The time of the version that left out a file, which no reader needs a grace period later.

        0: no version that readers may see has it; None: the newest version has it, or the one that readers begin with.

        Args:
            stream: its encoded partition
            unnamed_at: the entry from which on the stream's log does not name the file"""
