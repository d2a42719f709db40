"""The keys of what other engines read beside the open files: the metadata of Delta Lake and of Apache Iceberg."""

from typing import Annotated

from compactor.storage.keys import Key, Spelling, spelled

CommitId = Annotated[str, spelled("[0-9a-f]{32}")]
"""The id of one attempt to commit. Each attempt writes under names of its own."""

VectorId = Annotated[str, spelled("[0-9a-f-]{36}")]
"""A UUID in its usual text form."""

_HINT = "version-hint.text"

_MetadataVersion = Annotated[
    int | None,
    Spelling[int | None](
        r"v[0-9]+\.metadata\.json|version-hint\.text",
        lambda version: _HINT if version is None else f"v{version}.metadata.json",
        lambda name: None if name == _HINT else int(name.removeprefix("v").removesuffix(".metadata.json")),
    ),
]


class DeltaLogFolder(Key, template="tables/{table_id}/compacted/_delta_log"):
    """The transaction log of Delta Lake."""

    table_id: str


class DeltaLogCommit(Key, template="tables/{table_id}/compacted/_delta_log/{version:020}.json"):
    table_id: str
    version: int


class DeltaLogCheckpoint(Key, template="tables/{table_id}/compacted/_delta_log/{version:020}.checkpoint.parquet"):
    table_id: str
    version: int


class DeltaLogHint(Key, template="tables/{table_id}/compacted/_delta_log/_last_checkpoint"):
    table_id: str


class DeltaVectorPath(Key, template="tables/{table_id}/compacted/dead/{commit_id}/deletion_vector_{vector_id}.bin"):
    """A deletion vector as Delta Lake reads it."""

    table_id: str
    vector_id: VectorId
    commit_id: CommitId


class IcebergFolder(Key, template="tables/{table_id}/iceberg"):
    """The location of the Apache Iceberg table: metadata and position deletes."""

    table_id: str


class IcebergMetadata(Key, template="tables/{table_id}/iceberg/metadata/{version}"):
    """A version of an Apache Iceberg table. None: the hint that names the newest one."""

    table_id: str
    version: _MetadataVersion


class IcebergManifestList(Key, template="tables/{table_id}/iceberg/metadata/snap-{commit_id}.avro"):
    """The manifests of a snapshot."""

    table_id: str
    commit_id: CommitId


class IcebergManifest(Key, template="tables/{table_id}/iceberg/metadata/{commit_id}-{group}-{content}.avro"):
    """The files of a group of streams (`data`), or their position deletes (`deletes`)."""

    table_id: str
    commit_id: CommitId
    group: int
    content: Annotated[str, spelled("data|deletes")]


class IcebergDeletes(Key, template="tables/{table_id}/iceberg/dead/{vector_id}-{commit_id}.parquet"):
    """The dead rows of one file, as Apache Iceberg reads them."""

    table_id: str
    vector_id: VectorId
    commit_id: CommitId


DELTA_LOG_KEYS = (DeltaLogCommit, DeltaLogCheckpoint, DeltaLogHint)
ICEBERG_KEYS = (IcebergMetadata, IcebergManifestList, IcebergManifest, IcebergDeletes)
KEYS = (*DELTA_LOG_KEYS, DeltaVectorPath, *ICEBERG_KEYS)
