"""Tells files on this machine from objects on S3, and translates PyArrow's errors into Lithify's."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from compactor.model.errors import Corrupt, Denied, Invalid, LithifyError, Unavailable
from compactor.storage.location import bucket_and_key, is_remote
from compactor.tabular.remote_file import last_failure


def local_path(uri: str) -> str | None:
    """The path of a file on this machine; None for an object on S3.

    URIs are not percent-decoded: they contain the file's name as it is. Raises `Invalid` for any scheme but `s3://` and
    `file://` (an absolute path is local).
    """
    if is_remote(uri):
        bucket, key = bucket_and_key(uri)
        if not bucket or not key:
            raise Invalid(f"{uri!r} names no object: write s3://bucket/key")
        return None
    path = uri.removeprefix("file://")
    if not path.startswith("/"):
        raise Invalid(f"{uri!r} is not the URI of a data file: use s3://bucket/key or file:///absolute/path")
    return path


@contextmanager
def reading(uri: str, content: str) -> Iterator[None]:
    """Translates every error of PyArrow while `uri` is read as `content`.

    A missing file is `Corrupt`, since a log refers to it; for other errors see `_translated`.
    """
    last_failure()  # discard the failure of an earlier file
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        failure = last_failure()
        if failure is not None:
            raise failure from error
        if isinstance(error, FileNotFoundError):
            raise Corrupt(f"{uri} does not exist") from error
        raise _translated(error, uri, f"cannot be read as {content}") from error


@contextmanager
def written_here() -> Iterator[None]:
    """Around the reading of a file that Lithify wrote: malformed bytes are `Corrupt`, not a user's invalid input."""
    try:
        yield
    except Invalid as error:
        raise Corrupt(str(error)) from error


@contextmanager
def writing(uri: str, content: str) -> Iterator[None]:
    """Translates every error of PyArrow while `uri` is written as `content`; see `_translated`."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise Invalid(f"{uri} cannot be written: its bucket or folder does not exist") from error
        raise _translated(error, uri, f"cannot be written as {content}") from error


def _translated(error: Exception, uri: str, complaint: str) -> LithifyError:
    """`Unavailable` for a disk that fails, `Denied` for one that denies access, `Invalid` for malformed bytes. PyArrow
    raises OSError for all of them; a disk's failure has an errno."""
    sentence = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return Invalid(f"{uri} is a folder, not a file")
    if isinstance(error, PermissionError):
        return Denied(f"{uri} may not be accessed with these credentials: {sentence}")
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return Unavailable(f"{uri} cannot be written, its disk is full: free some space and try again ({sentence})")
    if isinstance(error, OSError) and error.errno is not None:
        return Unavailable(f"{uri} cannot be reached now: {sentence}")
    return Invalid(f"{uri} {complaint}: {sentence}")


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
