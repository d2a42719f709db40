"""The changes of a stream to publish: the difference of two folds of its log, by file and deletion vector. Pure.

A file is identified by its path: each attempt of a task writes under its own name, so a path never gets other rows.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from compactor.catalog.snapshot import CompactedStream
from compactor.model.files import DataFile, DeletionVector


@dataclass(frozen=True)
class LiveFile:
    """A live compacted file. `vector`: its dead rows, if it has any."""

    file: DataFile
    vector: DeletionVector | None = None

    @property
    def rows(self) -> int:
        """Live rows."""
        return self.file.rows - (self.vector.rows if self.vector else 0)


@dataclass(frozen=True)
class Marked:
    """A file that stays, with other dead rows than before."""

    before: LiveFile
    after: LiveFile


@dataclass(frozen=True)
class FileChanges:
    added: tuple[LiveFile, ...] = ()
    removed: tuple[LiveFile, ...] = ()
    marked: tuple[Marked, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.marked)


def live_files(compacted: CompactedStream | None, private_columns: Collection[str] = ()) -> dict[str, LiveFile]:
    """The live files of a fold, by path, in file number order.

    Args:
        private_columns: without their bounds, which the log still has of files from before these columns were private
    """
    if compacted is None:
        return {}
    vectors = {vector.file_number: vector for vector in compacted.deletion_vectors}
    files = [_without(compacted.files[number], private_columns) for number in sorted(compacted.files)]
    return {file.path: LiveFile(file, vectors.get(file.file_number)) for file in files}


def _without(file: DataFile, private_columns: Collection[str]) -> DataFile:
    kept = {name: stats for name, stats in file.columns.items() if name not in private_columns}
    return file if len(kept) == len(file.columns) else file.model_copy(update={"columns": kept})


def changes(before: Mapping[str, LiveFile], after: Mapping[str, LiveFile]) -> FileChanges:
    """The changes from the files of the published fold to those of the newest one."""
    return FileChanges(
        added=tuple(file for path, file in after.items() if path not in before),
        removed=tuple(file for path, file in before.items() if path not in after),
        marked=tuple(
            Marked(before[path], file)
            for path, file in after.items()
            if path in before and _vector_path(before[path]) != _vector_path(file)
        ),
    )


def _vector_path(file: LiveFile) -> str | None:
    return None if file.vector is None else file.vector.path
