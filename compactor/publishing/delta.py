"""Publishes a table as Delta Lake: our own log, beside the files that it names.

The order of writes: deletion vectors, under names of this attempt, then one commit for all changed
streams. The commit has a `txn` per stream with the published entry number of its log: this is the only cursor. Of two
publishers the slower one finds its version taken, reads the winner's commit, and computes the remaining changes.

The table has a writer feature that only Lithify knows: VACUUM, DELETE and OPTIMIZE of other engines refuse it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import pyarrow as pa

from compactor.catalog.keys import TableFolder
from compactor.catalog.stream import PartitionStream
from compactor.index.deletion_vectors import read_dead_rows
from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Corrupt
from compactor.model.files import DeletionVector
from compactor.model.names import OpenFormat
from compactor.publishing.changes import LiveFile
from compactor.publishing.delta_actions import (
    AddFile,
    DeltaAction,
    DeltaState,
    Features,
    MetaData,
    RemoveFile,
    Transaction,
    VectorReference,
)
from compactor.publishing.delta_log import DeltaLog
from compactor.publishing.delta_schema import delta_schema, has_zoneless_timestamp, stats_json
from compactor.publishing.delta_vectors import reference, referred_commit, referred_id, vector_file, vector_id
from compactor.publishing.due_streams import DueStream, DueStreams, fitting_schema, outcome_of
from compactor.publishing.keys import DeltaVectorPath
from compactor.publishing.protocol import NothingToPublish, Outcome, PublishedFile, PublishedState, Refused
from compactor.schemas.unify import render_schema
from compactor.storage.concurrently import run_concurrently
from compactor.storage.object_store import ObjectStore

OWN_WRITER_FEATURE = "lithify"
COMMIT_ATTEMPTS_MAX = 100
"""Attempts of one publish to commit. Each that fails is the success of another publisher."""

_SCHEMA_KEY = "lithify.schema"
"""The table property with the Arrow schema of all published rows."""


class DeltaPublisher:
    """Publishes one table. Caches the published state, so that repeated publishes read each log entry once.

    Args:
        private_columns: those whose bounds are not published"""

    format = OpenFormat.DELTA

    def __init__(
        self,
        store: ObjectStore,
        table_id: str,
        partition_keys: tuple[str, ...],
        clock: Clock,
        private_columns: Collection[str] = (),
    ) -> None:
        self._store = store
        self._table_id = table_id
        self._partition_keys = partition_keys
        self._clock = clock
        self._log = DeltaLog(store, table_id, clock)
        self._root = f"{TableFolder(table_id).open_files}/"
        self._due = DueStreams(private_columns)

    def publish(self, streams: Sequence[PartitionStream]) -> Outcome:
        commit_id = self._clock.new_id()
        folds = [(stream, stream.load()) for stream in streams]
        state = self._log.newest if self._log.newest.version >= 0 else self._log.load()
        for _ in range(COMMIT_ATTEMPTS_MAX):
            refused: list[Refused] = []
            due = self._due.find(folds, state.positions, refused)
            known = state.metadata.configuration.get(_SCHEMA_KEY) if state.metadata is not None else None
            schema, due = fitting_schema(known, due, refused)
            if not due:
                return self._nothing(state, refused)
            after = self._log.commit(state, self._actions(state, schema, due, commit_id), commit_id)
            if after is not None:
                self._due.published(due)
                return outcome_of(self.format, after.version, after.at_ms, due, refused)
            state = self._log.load()
        raise Conflict(f"{COMMIT_ATTEMPTS_MAX} other publishers of {self._table_id} were faster: publish again")

    def state(self) -> PublishedState:
        state = self._log.load()
        files = [self._published_file(add) for add in state.adds.values()]
        version = state.version if state.version >= 0 else None
        return PublishedState(version, state.positions, {file.path: file for file in files})

    def paths_since(self, since_ms: int) -> frozenset[str]:
        """Keys of the data files and vectors of every version that was the newest one at that time or later."""
        state = self._log.load()
        recent = [each for each in state.removed.values() if each.deletion_timestamp >= since_ms]
        paths = {self._root + path for path in (*state.adds, *(each.path for each in recent))}
        vectors = [each.deletion_vector for each in state.adds.values()] + [each.deletion_vector for each in recent]
        return frozenset(paths | {self._vector_key(vector) for vector in vectors if vector is not None})

    # -- changes to publish

    def _actions(
        self, state: DeltaState, schema: pa.Schema, due: Sequence[DueStream], commit_id: str
    ) -> list[DeltaAction]:
        marked = [file.vector for each in due for file in each.after if file.vector is not None]

        def write(vector: DeletionVector) -> VectorReference:
            return self._write_vector(vector, commit_id)

        vectors = dict(zip([vector.path for vector in marked], run_concurrently(self._store.location, write, marked)))
        features = self._features(state, schema, has_vectors=bool(vectors))
        metadata = self._metadata(state, schema, features)
        table: list[DeltaAction] = [
            each for each, before in ((features, state.features), (metadata, state.metadata)) if each != before
        ]
        now_ms = max(self._clock.now_ms(), state.at_ms)
        cursors = [Transaction(app_id=each.name, version=each.now.entry_number, last_updated=now_ms) for each in due]
        removes = [self._remove(file, each, state, now_ms) for each in due for file in each.before]
        adds = [self._add(file, each, schema, vectors) for each in due for file in each.after]
        return [*table, *cursors, *removes, *adds]

    def _features(self, state: DeltaState, schema: pa.Schema, has_vectors: bool) -> Features:
        """Table features of readers are required only after the first vector or timestamp without a zone."""
        needed = set(state.features.reader_features or ()) if state.features is not None else set()
        needed |= {"deletionVectors"} if has_vectors else set()
        needed |= {"timestampNtz"} if has_zoneless_timestamp(schema) else set()
        names = tuple(sorted(needed))
        return Features(
            min_reader_version=3 if names else 1,
            min_writer_version=7,
            reader_features=names or None,
            writer_features=tuple(sorted({*names, OWN_WRITER_FEATURE})),
        )

    def _metadata(self, state: DeltaState, schema: pa.Schema, features: Features) -> MetaData:
        configuration = {_SCHEMA_KEY: render_schema(schema)}
        if "deletionVectors" in (features.reader_features or ()):
            configuration["delta.enableDeletionVectors"] = "true"
        before = state.metadata
        return MetaData(
            id=str(UUID(self._clock.new_id())) if before is None else before.id,
            schema_string=delta_schema(schema, self._partition_keys),
            partition_columns=self._partition_keys,
            configuration=configuration,
            created_time=self._clock.now_ms() if before is None else before.created_time,
        )

    def _remove(self, file: LiveFile, due: DueStream, state: DeltaState, now_ms: int) -> RemoveFile:
        """The action that removes a file. It repeats the file's published vector."""
        path = file.file.path.removeprefix(self._root)
        existing = state.adds.get(path)
        expected = None if file.vector is None else vector_id(file.vector.path)
        if existing is None or _referred(existing.deletion_vector) != expected:
            raise Corrupt(
                f"{self._root}_delta_log does not have {path} as entry {state.positions.get(due.name, 0)} of "
                f"{due.stream} left it: delete that folder and publish the table again"
            )
        return RemoveFile(
            path=path,
            deletion_timestamp=now_ms,
            partition_values=existing.partition_values,
            size=existing.size,
            deletion_vector=existing.deletion_vector,
        )

    def _add(
        self, file: LiveFile, due: DueStream, schema: pa.Schema, vectors: Mapping[str, VectorReference]
    ) -> AddFile:
        return AddFile(
            path=file.file.path.removeprefix(self._root),
            partition_values=dict(due.stream.partition),
            size=file.file.size_bytes,
            modification_time=due.now.at_ms,
            stats=stats_json(file.file, schema, file.vector is not None),
            deletion_vector=None if file.vector is None else vectors[file.vector.path],
        )

    def _write_vector(self, vector: DeletionVector, commit_id: str) -> VectorReference:
        """Writes a vector, under a name that no other attempt uses."""
        body = vector_file(read_dead_rows(self._store.location, vector))
        self._store.put_if_absent(DeltaVectorPath(self._table_id, str(vector_id(vector.path)), commit_id).key, body)
        return reference(vector.path, commit_id, body, vector.rows)

    # -- published state

    def _nothing(self, state: DeltaState, refused: Sequence[Refused]) -> NothingToPublish:
        return NothingToPublish(self.format, state.version if state.version >= 0 else None, tuple(refused))

    def _published_file(self, add: AddFile) -> PublishedFile:
        vector = add.deletion_vector
        return PublishedFile(
            path=self._root + add.path,
            partition={key: value or "" for key, value in add.partition_values.items()},
            rows=_rows_of(add),
            dead_rows=0 if vector is None else vector.cardinality,
            vector=None if vector is None else self._vector_key(vector),
        )

    def _vector_key(self, vector: VectorReference) -> str:
        return DeltaVectorPath(self._table_id, str(referred_id(vector)), referred_commit(vector)).key


def _rows_of(add: AddFile) -> int:
    return int(json.loads(add.stats or "{}").get("numRecords", 0))


def _referred(vector: VectorReference | None) -> UUID | None:
    return None if vector is None else referred_id(vector)
