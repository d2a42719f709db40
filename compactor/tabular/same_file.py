"""Whether a file is the one that was appended, by what the log says of it.

A file in a folder that has another time than the log says may be a copy with the same bytes, so they are compared.
"""

import os
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from isal import isal_zlib

from compactor.model.errors import Corrupt

_PIECE_BYTES = 4 * 1024 * 1024
_CHECKSUMS_KEPT = 1024


def check_local_file(
    path: str, size_bytes: int, modified_at_ns: int | None, crc32: int | None, delta_id: str | None
) -> None:
    """Raises `Corrupt` if the file has another size, or another time and other bytes. Raises `OSError`.

    Args:
        modified_at_ns: None: it is not recorded, and only sizes are compared"""
    status = os.stat(path)
    if status.st_size != size_bytes:
        found = f"it has {status.st_size:,} bytes, but the log says {size_bytes:,}"
        raise not_as_logged(f"file://{path}", found, delta_id)
    if modified_at_ns is None or status.st_mtime_ns == modified_at_ns or crc32 is None:
        return
    found_crc32 = _known_checksum(path, status.st_size, status.st_mtime_ns, status.st_ino)
    if found_crc32 != crc32:
        raise not_as_logged(f"file://{path}", _other_sum(found_crc32, crc32), delta_id)


def not_as_logged(uri: str, found: str, delta_id: str | None) -> Corrupt:
    """The error of a file that differs from what the log says. `delta_id` None: it is no delta's, or not known."""
    if delta_id is None:
        return Corrupt(f"{uri} was changed or replaced since the log named it: {found}")
    return Corrupt(f"{uri} was changed or replaced after it was appended: {found}; {advice(delta_id)}")


def advice(delta_id: str) -> str:
    return f"retract delta {delta_id!r}, and append the file as it is now"


def check_crc32(uri: str, body: memoryview | pa.Buffer, crc32: int) -> None:
    """Raises `Corrupt` if these are not the bytes that the log means."""
    found = isal_zlib.crc32(body)
    if found != crc32:
        raise Corrupt(f"{uri} is damaged: {_other_sum(found, crc32)}")


def checksum(path: str) -> int:
    """The CRC-32 of a local file. Raises `OSError`."""
    found = 0
    with Path(path).open("rb", buffering=0) as file:
        room = memoryview(bytearray(_PIECE_BYTES))
        while length := file.readinto(room):
            found = isal_zlib.crc32(room[:length], found)
    return found


@lru_cache(_CHECKSUMS_KEPT)
def _known_checksum(path: str, _size_bytes: int, _modified_at_ns: int, _inode: int) -> int:
    """Each reading of a file opens it several times."""
    return checksum(path)


def _other_sum(found: int, crc32: int) -> str:
    return f"its CRC-32 is {found:08x}, but the log says {crc32:08x}"
