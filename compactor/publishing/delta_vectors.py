"""Deletion vectors as Delta Lake reads them: a file with one vector, named by a UUID.

    version 1 (one byte), size (uint32), vector, CRC-32 of the vector (uint32): both numbers big-endian
    vector  magic number 1681511377 (uint32, little-endian), 64-bit Roaring bitmap

The UUID follows from the name of Lithify's own vector. The folder is of the attempt to commit: garbage collection may
delete what an attempt left that failed, while the next one writes the same vector.
"""

import struct
from base64 import b85decode, b85encode
from uuid import UUID, uuid5
from zlib import crc32

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from compactor.publishing.delta_actions import VectorReference

FOLDER = "dead"
"""Folder of vectors below the table's root. References begin with it."""

_ID_CHARACTERS = 20
"""Characters of a UUID in base 85, with which a reference ends."""

_FILE_VERSION = b"\x01"
_MAGIC = 1_681_511_377
_NAMESPACE = UUID("6f2c1d0e-9b57-5a83-8a0e-3d1b6c2f7e44")
_ZEROMQ_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_PYTHON_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_ZEROMQ = bytes.maketrans(_PYTHON_DIGITS, _ZEROMQ_DIGITS)
_TO_PYTHON = bytes.maketrans(_ZEROMQ_DIGITS, _PYTHON_DIGITS)
"""Delta names files in ZeroMQ's base 85, which has other digits than that of `base64`."""


def vector_id(path: str) -> UUID:
    """The UUID of the vector that Lithify has at `path`."""
    return uuid5(_NAMESPACE, path)


def vector_file(dead_rows: npt.NDArray[np.int64]) -> bytes:
    """The whole file; rows ascending, each once."""
    bitmap = BitMap64(dead_rows.astype(np.uint64))
    bitmap.run_optimize()
    data = struct.pack("<I", _MAGIC) + bitmap.serialize()
    return _FILE_VERSION + struct.pack(">I", len(data)) + data + struct.pack(">I", crc32(data))


def reference(path: str, commit_id: str, file: bytes, cardinality: int) -> VectorReference:
    """How an action names the vector that Lithify has at `path`, written as `file` by an attempt to commit."""
    return VectorReference(
        storage_type="u",
        path_or_inline_dv=f"{FOLDER}/{commit_id}" + b85encode(vector_id(path).bytes).translate(_TO_ZEROMQ).decode(),
        offset=len(_FILE_VERSION),
        size_in_bytes=len(file) - 9,
        cardinality=cardinality,
    )


def referred_id(vector: VectorReference) -> UUID:
    """The inverse of `reference`: the UUID in the file's name."""
    digits = vector.path_or_inline_dv[-_ID_CHARACTERS:].encode()
    return UUID(bytes=b85decode(digits.translate(_TO_PYTHON)))


def referred_commit(vector: VectorReference) -> str:
    """The inverse of `reference`: the attempt in whose folder the file is."""
    return vector.path_or_inline_dv[:-_ID_CHARACTERS].removeprefix(f"{FOLDER}/")
