"""The fold of Delta's log as a Parquet file: a classic (V1) checkpoint, one action a row."""

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from compactor.model.document import not_understood
from compactor.model.errors import Corrupt
from compactor.publishing.delta_actions import (
    AddFile,
    DeltaState,
    Features,
    MetaData,
    RemoveFile,
    Transaction,
    VectorReference,
    plain,
)

ActionT = TypeVar("ActionT", AddFile, RemoveFile, Transaction, MetaData, Features)

_TEXTS = pa.map_(pa.string(), pa.string())
_NAMES = pa.list_(pa.string())
_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
_ADD = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": _TEXTS,
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
        "stats": pa.string(),
        "deletionVector": _VECTOR,
    }
)
_REMOVE = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": _TEXTS,
        "size": pa.int64(),
        "deletionTimestamp": pa.int64(),
        "dataChange": pa.bool_(),
        "extendedFileMetadata": pa.bool_(),
        "deletionVector": _VECTOR,
    }
)
_TXN = pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()})
_META_DATA = pa.struct(
    {
        "id": pa.string(),
        "name": pa.string(),
        "description": pa.string(),
        "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
        "schemaString": pa.string(),
        "partitionColumns": _NAMES,
        "configuration": _TEXTS,
        "createdTime": pa.int64(),
    }
)
_PROTOCOL = pa.struct(
    {
        "minReaderVersion": pa.int32(),
        "minWriterVersion": pa.int32(),
        "readerFeatures": _NAMES,
        "writerFeatures": _NAMES,
    }
)
_SCHEMA = pa.schema({"txn": _TXN, "add": _ADD, "remove": _REMOVE, "metaData": _META_DATA, "protocol": _PROTOCOL})

_AT_MS = b"lithify.at_ms"


def write_checkpoint(state: DeltaState) -> tuple[bytes, int]:
    """The file, and its number of rows."""
    tables = [
        _one("protocol", _PROTOCOL, state.features),
        _one("metaData", _META_DATA, state.metadata),
        _column("txn", _txns(state)),
        _column("add", _files(list(state.adds.values()), _ADD)),
        _column("remove", _files(list(state.removed.values()), _REMOVE)),
    ]
    table = pa.concat_tables(tables, promote_options="default").select(_SCHEMA.names)
    table = table.cast(_SCHEMA).replace_schema_metadata({_AT_MS: str(state.at_ms).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="snappy", write_page_checksum=True)
    return sink.getvalue().to_pybytes(), table.num_rows


def read_checkpoint(body: bytes, version: int, where: str) -> DeltaState:
    """Raises `Corrupt` for a file that is not a checkpoint."""
    try:
        table = pq.read_table(pa.BufferReader(body), page_checksum_verification=True)
        (features,) = _parsed(Features, table.column("protocol"))
        (metadata,) = _parsed(MetaData, table.column("metaData"))
        adds = _parsed(AddFile, table.column("add"))
        live = {add.file for add in adds}
        removed = [each for each in _parsed(RemoveFile, table.column("remove")) if each.file not in live]
        return DeltaState(
            version=version,
            features=features,
            metadata=metadata,
            adds={add.path: add for add in adds},
            removed={each.file: each for each in removed},
            positions={each.app_id: each.version for each in _parsed(Transaction, table.column("txn"))},
            at_ms=int((table.schema.metadata or {}).get(_AT_MS, b"0")),
        )
    except ValidationError as error:
        raise not_understood(error, where, "a checkpoint") from error
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise Corrupt(f"{where} does not hold a checkpoint: {error}") from error


def _column(name: str, structs: pa.StructArray) -> pa.Table:
    return pa.table({name: structs})


def _one(name: str, kind: pa.StructType, action: Features | MetaData | None) -> pa.Table:
    row = {} if action is None else plain(action)
    return _column(name, pa.array([] if action is None else [_with_maps(row)], kind))


def _with_maps(row: Mapping[str, object]) -> dict[str, object]:
    """PyArrow takes maps as lists of pairs."""
    changed: dict[str, object] = {}
    for name, value in row.items():
        if name in ("options", "configuration") and isinstance(value, dict):
            changed[name] = list(value.items())
        else:
            changed[name] = _with_maps(value) if isinstance(value, dict) else value
    return changed


def _txns(state: DeltaState) -> pa.StructArray:
    positions = sorted(state.positions.items())
    return pa.StructArray.from_arrays(
        [
            pa.array([app_id for app_id, _ in positions], pa.string()),
            pa.array([number for _, number in positions], pa.int64()),
            pa.array([state.at_ms] * len(positions), pa.int64()),
        ],
        fields=list(_TXN),
    )


def _files(files: Sequence[AddFile | RemoveFile], kind: pa.StructType) -> pa.StructArray:
    """The files as a struct array, built column by column, since there may be thousands."""
    columns: dict[str, pa.Array] = {
        "path": pa.array([file.path for file in files], pa.string()),
        "partitionValues": pa.array([list(file.partition_values.items()) for file in files], _TEXTS),
        "size": pa.array([file.size for file in files], pa.int64()),
        "dataChange": pa.array([False] * len(files), pa.bool_()),
        "extendedFileMetadata": pa.array([True] * len(files), pa.bool_()),
        "deletionVector": _vectors([file.deletion_vector for file in files]),
    }
    columns["modificationTime"] = pa.array([f.modification_time for f in files if isinstance(f, AddFile)], pa.int64())
    columns["stats"] = pa.array([file.stats for file in files if isinstance(file, AddFile)], pa.string())
    columns["deletionTimestamp"] = pa.array(
        [file.deletion_timestamp for file in files if isinstance(file, RemoveFile)], pa.int64()
    )
    return pa.StructArray.from_arrays([columns[field.name] for field in kind], fields=list(kind))


def _vectors(vectors: Sequence[VectorReference | None]) -> pa.Array:
    return pa.array([None if vector is None else vector.model_dump(by_alias=True) for vector in vectors], _VECTOR)


def _parsed(model: type[ActionT], column: pa.ChunkedArray) -> list[ActionT]:
    """The actions of one kind, parsed from JSON, because the models accept its lists as tuples."""
    rows = column.drop_null().to_pylist(maps_as_pydicts="strict")
    return [model.model_validate_json(json.dumps(_without_nulls(row))) for row in rows]


def _without_nulls(row: Mapping[str, object]) -> dict[str, object]:
    return {
        name: _without_nulls(value) if isinstance(value, dict) and name != "partitionValues" else value
        for name, value in row.items()
        if value is not None
    }
