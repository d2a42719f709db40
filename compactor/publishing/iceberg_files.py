"""The files of Apache Iceberg's metadata as bytes: manifests, manifest lists, position delete files. Does no I/O.

PyIceberg encodes them. Its own writer has no manifests of deletes, and no place for what we keep in a header.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.io import InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DEFAULT_READ_VERSION,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    construct_partition_summaries,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from compactor.catalog.keys import partition_hash
from compactor.model.errors import Corrupt
from compactor.publishing.iceberg_partitions import IcebergPartitions
from compactor.storage.keys import decode_partition

_FORMAT_VERSION: Literal[2] = 2
_COMPRESSION: Literal["deflate"] = "deflate"

_ENTRIES_KEY = "lithify.entries"
"""The key, in the header of a group's manifest, of the published entry of each stream's log by encoded partition."""

_GROUP_KEY = "lithify.group"

_PLACES = {each.name: at for at, each in enumerate(DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields)}

_FILE_PATH_ID = 2_147_483_546
_POSITION_ID = 2_147_483_545
_FIELD_ID = "PARQUET:field_id"
_DELETES_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={_FIELD_ID: str(_FILE_PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={_FIELD_ID: str(_POSITION_ID)}),
    ]
)


@dataclass(frozen=True)
class Manifest:
    """A manifest, and its live entries: files, or position delete files.

    Attributes:
        described: what the list of manifests says of it
        group: of the streams whose files it has
        live: entries by URI: of the file, or of the file whose rows a position delete file deletes
        entries: the published entry of each stream's log, by encoded partition; empty in manifests of deletes"""

    described: ManifestFile
    group: int
    live: Mapping[str, ManifestEntry]
    entries: Mapping[str, int]

    @property
    def path(self) -> str:
        return self.described.manifest_path

    @property
    def is_of_deletes(self) -> bool:
        return bool(self.described.content == ManifestContent.DELETES)


@dataclass(frozen=True)
class Group:
    """The streams whose files are in one manifest, and their position deletes in another."""

    files: Manifest | None = None
    deletes: Manifest | None = None

    @property
    def manifests(self) -> list[Manifest]:
        return [each for each in (self.files, self.deletes) if each is not None]

    @property
    def live_files(self) -> Mapping[str, ManifestEntry]:
        return {} if self.files is None else self.files.live

    @property
    def live_deletes(self) -> Mapping[str, ManifestEntry]:
        return {} if self.deletes is None else self.deletes.live

    @property
    def entries(self) -> Mapping[str, int]:
        return {} if self.files is None else self.files.entries

    @property
    def spec_ids(self) -> set[int]:
        return {each.described.partition_spec_id for each in self.manifests}

    @cached_property
    def partitions(self) -> Mapping[str, Mapping[str, str]]:
        """The partitions of its streams, by their hashes, which are in the names of files."""
        return {partition_hash(each): each for each in map(decode_partition, self.entries)}


@dataclass(frozen=True)
class Commit:
    """What all manifests of one snapshot have in common."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    schema: Schema
    partitions: IcebergPartitions

    @cached_property
    def spec(self) -> PartitionSpec:
        return self.partitions.spec

    def added(self, file: DataFile) -> ManifestEntry:
        """The reader takes the sequence number from the manifest list."""
        return ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, data_file=file)

    def deleted(self, entry: ManifestEntry) -> ManifestEntry:
        return _with_status(entry, ManifestEntryStatus.DELETED, self.snapshot_id, entry.sequence_number)


def divided_anew(entry: ManifestEntry, partition: Record, more_bounds: Mapping[int, bytes]) -> ManifestEntry:
    """The entry under another partition spec. `more_bounds`: of columns with one value, by field id."""
    file = DataFile(*(entry.data_file[at] for at in range(len(entry.data_file))))
    file[_PLACES["partition"]] = partition
    if more_bounds:
        for place in (_PLACES["lower_bounds"], _PLACES["upper_bounds"]):
            file[place] = {**(file[place] or {}), **more_bounds}
    return ManifestEntry.from_args(
        status=entry.status,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=file,
    )


def _with_status(
    entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None, sequence_number: int | None
) -> ManifestEntry:
    file_sequence_number = entry.file_sequence_number
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=sequence_number,
        file_sequence_number=sequence_number if file_sequence_number is None else file_sequence_number,
        data_file=entry.data_file,
    )


# ----------------------------------------------------------------------------------------------------- manifests


def write_manifest(
    uri: str,
    content: ManifestContent,
    rows: Sequence[ManifestEntry],
    commit: Commit,
    group: int,
    entries: Mapping[str, int] | None = None,
) -> tuple[bytes, Manifest]:
    """A manifest as bytes, and as later snapshots have it. `entries`: of the streams, in manifests of files."""
    entry_schema = _entry_schema(commit.spec, commit.schema)
    header = {
        "schema": commit.schema.model_dump_json(),
        "partition-spec": json.dumps([each.model_dump(mode="json") for each in commit.spec.fields]),
        "partition-spec-id": str(commit.spec.spec_id),
        "format-version": str(_FORMAT_VERSION),
        "content": "data" if content is ManifestContent.DATA else "deletes",
        AVRO_CODEC_KEY: _COMPRESSION,
        _GROUP_KEY: str(group),
    }
    if entries is not None:
        header[_ENTRIES_KEY] = json.dumps(entries, separators=(",", ":"), sort_keys=True)
    output = _Output(uri)
    with AvroOutputFile[ManifestEntry](output, entry_schema, "manifest_entry", entry_schema, header) as writer:
        writer.write_block(list(rows))
    described = _described(output, content, rows, commit)
    return output.body, Manifest(described, group, _live(rows, described), entries or {})


def _described(
    output: _Output, content: ManifestContent, rows: Sequence[ManifestEntry], commit: Commit
) -> ManifestFile:
    def files(status: ManifestEntryStatus) -> list[DataFile]:
        return [each.data_file for each in rows if each.status == status]

    added, existing, deleted = map(
        files, (ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED)
    )
    known = [
        each.sequence_number
        for each in rows
        if each.status == ManifestEntryStatus.EXISTING and each.sequence_number is not None
    ]
    partitions = construct_partition_summaries(commit.spec, commit.schema, [each.data_file.partition for each in rows])
    return ManifestFile.from_args(
        manifest_path=output.location,
        manifest_length=len(output),
        partition_spec_id=commit.spec.spec_id,
        content=content,
        sequence_number=commit.sequence_number,
        min_sequence_number=min([commit.sequence_number, *known]),
        added_snapshot_id=commit.snapshot_id,
        added_files_count=len(added),
        existing_files_count=len(existing),
        deleted_files_count=len(deleted),
        added_rows_count=sum(each.record_count for each in added),
        existing_rows_count=sum(each.record_count for each in existing),
        deleted_rows_count=sum(each.record_count for each in deleted),
        partitions=partitions,
    )


def read_manifest(body: bytes, described: ManifestFile) -> Manifest:
    """Raises `Corrupt` for anything but a manifest of ours."""
    with _rows_of(described.manifest_path, body) as (rows, header):
        live = _live(rows, described)
        return Manifest(described, int(header[_GROUP_KEY]), live, json.loads(header.get(_ENTRIES_KEY, "{}")))


def bounded_columns(uri: str, body: bytes) -> dict[str, frozenset[str]]:
    """The columns with bounds in a manifest of files, by the file's URI; deleted files have them, too."""
    with _rows_of(uri, body) as (rows, header):
        names = Schema.model_validate_json(header["schema"])
        found: dict[str, frozenset[str]] = {}
        for row in rows:
            file = row.data_file
            ids = {*(file.lower_bounds or {}), *(file.upper_bounds or {})}
            found[file.file_path] = frozenset(names.find_column_name(each) or str(each) for each in ids)
        return found


@contextmanager
def _rows_of(uri: str, body: bytes) -> Iterator[tuple[list[ManifestEntry], Mapping[str, str]]]:
    """A manifest's entries, by the schema that it was written with, and its header. Raises `Corrupt` for anything but a
    manifest of ours."""
    read: AvroFile[ManifestEntry] = AvroFile(
        _Input(uri, body),
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )
    try:
        with read as rows:
            found = list(rows)
        yield found, read.header.meta
    except (ValueError, KeyError, EOFError, IndexError, TypeError) as error:
        raise Corrupt(
            f"{uri} is not a manifest that Lithify wrote: {error}; delete the table's folder iceberg/, and publish it "
            "again"
        ) from error


def _live(rows: Iterable[ManifestEntry], manifest: ManifestFile) -> dict[str, ManifestEntry]:
    """The entries that are not deleted, as later snapshots have them."""
    live = {}
    for row in rows:
        if row.status == ManifestEntryStatus.DELETED:
            continue
        if row.status == ManifestEntryStatus.ADDED:
            snapshot_id = manifest.added_snapshot_id if row.snapshot_id is None else row.snapshot_id
            # An added entry inherits its sequence number from its manifest.
            number = manifest.sequence_number if row.sequence_number is None else row.sequence_number
            row = _with_status(row, ManifestEntryStatus.EXISTING, snapshot_id, number)
        file = row.data_file
        live[file.file_path if file.content == DataFileContent.DATA else file_of(row)] = row
    return live


def write_list(uri: str, manifests: Sequence[ManifestFile], commit: Commit) -> bytes:
    output = _Output(uri)
    with write_manifest_list(
        _FORMAT_VERSION, output, commit.snapshot_id, commit.parent_snapshot_id, commit.sequence_number, _COMPRESSION
    ) as writer:
        writer.add_manifests(list(manifests))
    return output.body


def read_list(uri: str, body: bytes) -> list[ManifestFile]:
    try:
        return list(read_manifest_list(_Input(uri, body)))
    except (ValueError, KeyError, EOFError, IndexError, TypeError) as error:
        raise Corrupt(f"{uri} is not a list of manifests: {error}") from error


def _entry_schema(spec: PartitionSpec, schema: Schema) -> Schema:
    data_file = data_file_with_partition(spec.partition_type(schema), DEFAULT_READ_VERSION)
    return manifest_entry_schema_with_data_file(DEFAULT_READ_VERSION, data_file)


# --------------------------------------------------------------------------------------------------- delete files


def position_deletes(uri: str, dead_rows: npt.NDArray[np.int64]) -> bytes:
    """A position delete file that names the dead rows of one file; rows ascending, each once."""
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(dead_rows), np.int32)), [uri]).cast(pa.string())
    body = BytesIO()
    pq.write_table(
        pa.Table.from_arrays([paths, pa.array(dead_rows)], schema=_DELETES_SCHEMA),
        body,
        compression="zstd",
        store_schema=False,
        use_dictionary=["file_path"],
    )
    return body.getvalue()


def deletes_entry(uri: str, size_bytes: int, data_uri: str, partition: Record, rows: int) -> DataFile:
    """How a manifest names a position delete file. Equal bounds of the path say that it is for this file alone."""
    path = data_uri.encode()
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows,
        file_size_in_bytes=size_bytes,
        lower_bounds={_FILE_PATH_ID: path},
        upper_bounds={_FILE_PATH_ID: path},
    )


def file_of(deletes: ManifestEntry) -> str:
    """The URI of the file whose rows a position delete file deletes."""
    return deletes.data_file.lower_bounds[_FILE_PATH_ID].decode()


# --------------------------------------------------------------------------------------------- bytes as PyIceberg's


class _Stream(BytesIO):
    def __init__(self, output: _Output) -> None:
        super().__init__()
        self._output = output

    def close(self) -> None:
        if not self.closed:
            self._output.body = self.getvalue()
        super().close()


class _Output(OutputFile):
    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.body = b""

    def __len__(self) -> int:
        return len(self.body)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self.body)

    def create(self, overwrite: bool = False) -> OutputStream:
        return _Stream(self)


class _Input(InputFile):
    def __init__(self, location: str, body: bytes) -> None:
        super().__init__(location)
        self._body = body

    def __len__(self) -> int:
        return len(self._body)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return BytesIO(self._body)
