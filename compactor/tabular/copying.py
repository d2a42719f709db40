"""Copies a data file as it is into another store. Text is uncompressed on the way: the name of a delta's file says
whether it is gzipped, and those that the catalog writes are not."""

from collections.abc import Iterator
from typing import Protocol

from compactor.storage.location import StoreLocation
from compactor.storage.ranges import REQUEST_BYTES_MAX
from compactor.tabular.filesystems import reading, writing
from compactor.tabular.formats import Source, TabularFile
from compactor.tabular.output_file import OutputFile
from compactor.tabular.text import open_text


class Digest(Protocol):
    """A hash of `hashlib`, which takes the bytes in order."""

    def update(self, data: bytes, /) -> None: ...


def digest_file(location: StoreLocation, file: TabularFile, digest: Digest) -> None:
    """Adds the bytes that `copy_file` would write."""
    for piece in _pieces(location, file):
        digest.update(piece)


def copy_file(location: StoreLocation, file: TabularFile, uri: str, digest: Digest) -> tuple[int, int]:
    """Writes the file to `uri`, whole or not at all; returns its size in bytes and its CRC-32. Adds the bytes to the
    digest. One piece is in memory at a time."""
    with writing(uri, file.content_type):
        target = OutputFile.open(location, uri)
        try:
            for piece in _pieces(location, file):
                digest.update(piece)
                target.stream.write(piece)
            return target.finish(), target.crc32
        except BaseException:  # an interrupt too: no upload and no temporary file may stay
            target.discard()
            raise


def _pieces(location: StoreLocation, file: TabularFile) -> Iterator[bytes]:
    with reading(file.uri, file.content_type):
        source = Source.of(location, file)
        with open_text(source) if file.content_type.is_text else source.open() as opened:
            while piece := opened.read(REQUEST_BYTES_MAX):
                yield piece
