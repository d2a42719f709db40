"""A table that exists already, outside of Lithify, as an import takes it: its partitions and their files. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from compactor.model.errors import Invalid, Unavailable
from compactor.storage.location import StoreLocation

METADATA_SUFFIX = ".metadata.json"
"""The ending of the names of metadata files of Apache Iceberg."""


@dataclass(frozen=True)
class Rewrite:
    """A file that cannot be registered as it is.

    Attributes:
        why: what it has that a registered file may not have, in words that go on "is rewritten: it"
        schema: of the rows that are written, the same for all files of a table
        rows: reads them, or some columns and maybe more of them, in the same order whenever it is called
        count: their number, from metadata, and of files with equality deletes from the columns of these"""

    why: tuple[str, ...]
    schema: pa.Schema
    rows: Callable[[StoreLocation, Sequence[str] | None], Iterator[pa.RecordBatch]]
    count: Callable[[StoreLocation], int]


@dataclass(frozen=True)
class OldFile:
    """`rewrite` None: it is registered in place."""

    uri: str
    size_bytes: int
    rewrite: Rewrite | None = None


@dataclass(frozen=True)
class SourcePartition:
    """Files of one partition, the oldest first where the table says it; of two rows of a key the later one survives."""

    values: Mapping[str, str]
    files: tuple[OldFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class SourceTable:
    """`description`: kind and place, for people. `partition_by`: derived keys, as a table's property of that name.

    Attributes:
        version: of a table that has versions: the one that is imported
        passed_over: files that are no data: hidden, markers of writers, empty"""

    uri: str
    description: str
    partition_keys: tuple[str, ...]
    partitions: tuple[SourcePartition, ...]
    partition_by: Mapping[str, str] = field(default_factory=dict)
    version: int | None = None
    passed_over: int = 0


def divided(keys: Sequence[str], placed: Iterable[tuple[tuple[str, ...], OldFile]]) -> tuple[SourcePartition, ...]:
    """The partitions of files, by the values of their keys, in the order of these; files stay in theirs."""
    files: defaultdict[tuple[str, ...], list[OldFile]] = defaultdict(list)
    for values, file in placed:
        files[values].append(file)
    return tuple(SourcePartition(dict(zip(keys, each)), tuple(files[each])) for each in sorted(files))


def partition_text(key: str, text: str | None, null_value: str | None) -> str:
    """The value of a partition. Raises `Invalid` for null, unless it is given a name."""
    if text is not None:
        return text
    if null_value is None:
        raise Invalid(
            f"there are rows whose {key} is null, and a partition value is a text: name the one to use instead with "
            "--null-partition"
        )
    return null_value


def plain_uri(uri: str) -> str:
    """The URI of a file as Lithify writes it, of what Hadoop (`s3a://`, `file:/`) and paths say."""
    for scheme in ("s3a://", "s3n://"):
        if uri.startswith(scheme):
            return f"s3://{uri.removeprefix(scheme)}"
    if uri.startswith("s3://"):
        return uri
    path = uri.removeprefix("file:")
    if not path.startswith("/"):
        raise Invalid(f"{uri} is neither on S3 nor on this machine: only such files can be imported")
    return f"file:///{path.lstrip('/')}"


def library_lacks(uri: str, kind: str, extra: str) -> Invalid:
    return Invalid(
        f"{uri} is a table of {kind}, and the package that reads it is not installed here: "
        f"pip install 'lithify[{extra}]'"
    )


def is_metadata(location: StoreLocation) -> bool:
    """Whether a metadata file of Apache Iceberg is named, and not a folder."""
    return location.root_uri.endswith(METADATA_SUFFIX)


@contextmanager
def reading_table(uri: str, kind: str, *own: type[Exception]) -> Iterator[None]:
    """Around calls of a format's library, which raises its own errors, and OSError. `Unavailable` for a place that does
    not answer, else `Invalid`: what is there cannot be read."""
    unreadable: tuple[type[Exception], ...] = (FileNotFoundError, *own)
    try:
        yield
    except unreadable as error:
        raise Invalid(f"{uri} cannot be read as a table of {kind}: {_sentence(error)}") from error
    except OSError as error:
        raise Unavailable(f"{uri} cannot be reached now: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
