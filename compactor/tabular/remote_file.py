"""A remote file as Arrow reads it: a file object over `storage/ranges.py`.

Formats that know the bytes they will read request them first (`hold`), and then read them from memory. Other reads
fetch blocks and prefetch the blocks after them, so text is streamed.
"""

import io
import threading
from collections.abc import Iterator, Sequence

from compactor.model.errors import Corrupt, LithifyError
from compactor.storage.ranges import REQUEST_BYTES_MAX, RangeReader, Span, Tail
from compactor.tabular.same_file import advice, check_crc32, not_as_logged

WHOLE_BYTES_MAX = 512 * 1024
"""A file of at most so many bytes, as the log says, is read by one request and not in parts."""

BLOCKS_AHEAD = 3

_failures = threading.local()


class RemoteFile(io.RawIOBase):
    """The file object behind a `pa.PythonFile`. Used by one thread at a time."""

    def __init__(
        self,
        reader: RangeReader,
        uri: str,
        size_bytes: int | None = None,
        *,
        etag: str | None = None,
        crc32: int | None = None,
        delta_id: str | None = None,
    ) -> None:
        """All but the first two are from the log. Raises `Corrupt` if the object has others, see `open_tail`."""
        super().__init__()
        self.uri = uri
        self._reader = reader
        self._delta_id = delta_id
        self._tail = open_tail(reader, uri, size_bytes, etag=etag, crc32=crc32, delta_id=delta_id)
        self._held: list[tuple[Span, memoryview]] = []
        self._block: tuple[Span, memoryview] | None = None
        self._position = 0
        self._has_begun = False

    @property
    def size_bytes(self) -> int:
        return self._tail.size_bytes

    @property
    def whole(self) -> memoryview | None:
        """All bytes of a file that is no longer than what was read of its end."""
        return self._tail.data if len(self._tail.data) == self.size_bytes else None

    def hold(self, spans: Sequence[Span]) -> None:
        """Fetches these ranges and keeps them until `release`."""
        whole = Span(0, self.size_bytes)
        inside = [Span(max(span.start, 0), min(span.end, whole.end)) for span in spans]
        wanted = [span for span in inside if span.length > 0 and self._found(span.start, span.length) is None]
        self._held += zip(wanted, self._read(wanted), strict=True)

    def release(self) -> None:
        """Drops the held ranges."""
        self._held.clear()

    def begin(self, spans: Sequence[Span]) -> None:
        """Prefetches ranges that will be held next, if there is room."""
        self._has_begun = True
        self._reader.begin(self.uri, [span for span in spans if self._found(span.start, span.length) is None])

    def read_groups(self, groups: Sequence[Sequence[Span]]) -> Iterator[list[memoryview]]:
        """Yields groups of ranges within the file, all requested together."""
        kept = {span: self._found(span.start, span.length) for group in groups for span in group}
        missing = [[span for span in group if kept[span] is None] for group in groups]
        try:
            for group, fetched in zip(groups, self._reader.read_groups(self.uri, missing), strict=True):
                arrived = iter(fetched)
                yield [next(arrived) if (data := kept[span]) is None else data for span in group]
        except LithifyError as error:
            raise self._failed(error) from error

    # -- as a file

    def read(self, size: int = -1) -> memoryview:
        """Arrow takes any buffer."""
        left = max(self.size_bytes - self._position, 0)
        length = left if size < 0 else min(size, left)
        start, self._position = self._position, self._position + length
        found = self._found(start, length)
        if found is None:
            self._block = self._fetch_block(start, length)
            found = self._block[1][:length]
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._has_begun:
                self._reader.forget(self.uri)
            self._held.clear()
            self._block = None

    # -- held and fetched bytes

    def _found(self, start: int, length: int) -> memoryview | None:
        kept = [(self._tail.span, self._tail.data), *self._held, *([self._block] if self._block else [])]
        for span, data in kept:
            if span.start <= start and start + length <= span.end:
                return data[start - span.start : start - span.start + length]
        return memoryview(b"") if not length else None

    def _fetch_block(self, start: int, length: int) -> tuple[Span, memoryview]:
        follows = self._block is not None and self._block[0].end == start
        block = Span(start, min(max(start + length, start + REQUEST_BYTES_MAX), self.size_bytes))
        data = self._read([block])[0]
        if follows:
            self._has_begun = True
            self._reader.begin(self.uri, self._next_blocks(block.end))
            if self.closed:  # meanwhile, while a thread of Arrow's reads ahead
                self._reader.forget(self.uri)
        return block, data

    def _next_blocks(self, start: int) -> list[Span]:
        ends = range(start, min(start + BLOCKS_AHEAD * REQUEST_BYTES_MAX, self.size_bytes), REQUEST_BYTES_MAX)
        return [Span(each, min(each + REQUEST_BYTES_MAX, self.size_bytes)) for each in ends]

    def _read(self, spans: Sequence[Span]) -> list[memoryview]:
        try:
            return self._reader.read(self.uri, spans)
        except LithifyError as error:
            raise self._failed(error) from error

    def _failed(self, error: LithifyError) -> LithifyError:
        """The error to raise, which `last_failure` returns as well."""
        if isinstance(error, Corrupt) and self._delta_id is not None:
            error = Corrupt(f"{error}; {advice(self._delta_id)}")
        _failures.last = error
        return error


def open_tail(
    reader: RangeReader,
    uri: str,
    size_bytes: int | None = None,
    *,
    etag: str | None = None,
    crc32: int | None = None,
    delta_id: str | None = None,
    refresh: bool = False,
) -> Tail:
    """The end of a file, or all of a small one. Raises `Corrupt` if the log has another size, another ETag where the
    store has one, or another CRC-32 of a file that was read whole.

    Args:
        delta_id: of a delta file, for the error
        refresh: read again, since the file may have been replaced"""
    tail = _tail(reader, uri, size_bytes, delta_id, refresh=refresh)
    try:
        _check_tail(tail, uri, etag, crc32, delta_id)
    except Corrupt:
        if refresh:
            raise
        # The end may have been kept from a time before the file was replaced and appended again.
        tail = _tail(reader, uri, size_bytes, delta_id, refresh=True)
        _check_tail(tail, uri, etag, crc32, delta_id)
    return tail


def _check_tail(tail: Tail, uri: str, etag: str | None, crc32: int | None, delta_id: str | None) -> None:
    if etag is not None and tail.version is not None and tail.version != etag:
        raise not_as_logged(uri, f"its ETag is {tail.version}, but the log says {etag}", delta_id)
    if crc32 is not None and len(tail.data) == tail.size_bytes:
        check_crc32(uri, tail.data, crc32)


def _tail(reader: RangeReader, uri: str, size_bytes: int | None, delta_id: str | None, *, refresh: bool) -> Tail:
    if size_bytes is not None and size_bytes <= WHOLE_BYTES_MAX:
        tail = reader.tail(uri, size_bytes=size_bytes, length=max(size_bytes, 1), refresh=refresh)
    else:
        tail = reader.tail(uri, size_bytes=size_bytes, refresh=refresh)
    if size_bytes is not None and tail.size_bytes != size_bytes:
        found = f"it has {tail.size_bytes:,} bytes, but the log says {size_bytes:,}"
        raise not_as_logged(uri, found, delta_id)
    return tail


def last_failure() -> LithifyError | None:
    """The error of the last failed read of a remote file in this thread, returned once: some libraries of Arrow replace
    it with their own error."""
    failure: LithifyError | None = getattr(_failures, "last", None)
    _failures.last = None
    return failure
