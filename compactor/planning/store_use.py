"""The use of a store by a session, for its cost: from figures that are predicted before and known after it. Pure.

Requests are calculated from files and bytes, before and after; they are not counted.
"""

from pydantic import Field

from compactor.model.document import Document

REQUEST_BYTES = 8 * 1024**2
"""Bytes per request for a part of a file, read or written."""

GETS_PER_FILE = 3
"""Requests to open a file of a lake on S3: its size, its footer, its first columns."""

REQUESTS_PER_ROUND = 40
"""Requests of a round in addition to its files: log entries, plan, heartbeats."""


class StoreUse(Document):
    """
    Attributes:
        puts: objects, and parts of large ones
        gets: reads of any kind
        written_bytes: that are stored afterwards"""

    puts: int = Field(default=0, ge=0)
    gets: int = Field(default=0, ge=0)
    written_bytes: int = Field(default=0, ge=0)


def store_use(*, rounds: int, files_read: int, bytes_read: int, files_written: int, bytes_written: int) -> StoreUse:
    """Worked: 1 round that reads 100 files of 1 GiB in all and writes 10 files of as much: 300 + 128 + 40 GETs, and
    10 + 128 + 40 PUTs."""
    return StoreUse(
        puts=files_written + bytes_written // REQUEST_BYTES + REQUESTS_PER_ROUND * rounds,
        gets=GETS_PER_FILE * files_read + bytes_read // REQUEST_BYTES + REQUESTS_PER_ROUND * rounds,
        written_bytes=bytes_written,
    )
