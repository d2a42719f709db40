"""Checksums of the pages of an index file, in its footer: who reads some pages can compare these."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal import isal_zlib

from compactor.index.shared_pages import PAGE_BYTES
from compactor.storage.ranges import Span

FOOTER_BYTES = 8 * 1024
"""Largest size of what an Arrow IPC file has after its columns, without the sums."""

_SUMS = b"lithify.page_crc32"
_SUMMED_BYTES = b"lithify.summed_bytes"


@dataclass(frozen=True)
class PageSums:
    """The CRC-32 of each page of PAGE_BYTES, of which the last one ends at `summed_bytes`: only the footer follows."""

    sums: npt.NDArray[np.uint32]
    summed_bytes: int

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> Self:
        """Of the file that will hold this batch alone."""
        pages = _Pages()
        buffered = pa.BufferedOutputStream(pa.PythonFile(pages, "w"), PAGE_BYTES)
        with buffered as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
            sink.flush()
            return cls(pages.sums(), pages.tell())

    @classmethod
    def of_file(cls, metadata: Mapping[bytes, bytes] | None) -> Self | None:
        """From the footer's metadata; None: it has no checksums."""
        if metadata is None or _SUMS not in metadata:
            return None
        try:
            sums = np.frombuffer(base64.b64decode(metadata[_SUMS], validate=True), "<u4").astype(np.uint32)
            return cls(sums, int(metadata[_SUMMED_BYTES]))
        except (KeyError, ValueError) as error:
            raise pa.ArrowInvalid(f"its page checksums are damaged: {error}") from error

    def as_metadata(self) -> dict[bytes, bytes]:
        return {
            _SUMS: base64.b64encode(self.sums.astype("<u4").tobytes()),
            _SUMMED_BYTES: str(self.summed_bytes).encode(),
        }

    def is_right(self, page: int, body: memoryview) -> bool:
        """Whether a page of the file `body` has its checksum; those of the footer have none."""
        start, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, self.summed_bytes)
        return page >= len(self.sums) or isal_zlib.crc32(body[start:end]) == int(self.sums[page])


def footer_span(size_bytes: int) -> Span:
    """Where the footer of a file of this size lies, with room to spare for its columns."""
    sums_bytes_max = 6 * (-(-size_bytes // PAGE_BYTES) + 1)
    return Span(max(size_bytes - FOOTER_BYTES - sums_bytes_max, 0), size_bytes)


class _Pages:
    """A file that keeps nothing but checksums."""

    closed = False

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._sum = 0
        self._size = 0

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        length = len(rest)
        while rest:
            piece = rest[: PAGE_BYTES - self._size % PAGE_BYTES]
            self._sum = isal_zlib.crc32(piece, self._sum)
            self._size += len(piece)
            rest = rest[len(piece) :]
            if self._size % PAGE_BYTES == 0:
                self._sums.append(self._sum)
                self._sum = 0
        return length

    def sums(self) -> npt.NDArray[np.uint32]:
        last = [self._sum] if self._size % PAGE_BYTES else []
        return np.array([*self._sums, *last], np.uint32)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
