"""The keys of a durable log's objects, below its folder. Every log is in a folder named `log`, and nothing else is."""

from typing import Annotated, Self

from compactor.storage.keys import Hex, Key, spelled

LogFolder = Annotated[str, spelled("(?:[^/]+/)+log")]
"""The folder of a log; the log's owner has its template."""


class EntryObject(Key, template="{folder}/{entry_number:020}.json"):
    folder: LogFolder
    entry_number: int


class WholeCheckpointObject(Key, template="{folder}/{entry_number:020}.checkpoint.parquet"):
    folder: LogFolder
    entry_number: int


class HintObject(Key, template="{folder}/_last_checkpoint"):
    folder: LogFolder


class CheckpointObject(Key, template="{folder}/checkpoints/{name}"):
    """A head or a piece of a checkpoint that shares its pieces with others (`compactor/log/checkpoints.py`)."""

    folder: LogFolder
    name: Annotated[str, spelled(r"[0-9]{20}(?:\.json|-[0-9a-f]+\.parquet)")]

    @staticmethod
    def head_name(entry_number: int) -> str:
        return f"{entry_number:020d}.json"

    @classmethod
    def head(cls, log_folder: str, entry_number: int) -> Self:
        return cls(log_folder, cls.head_name(entry_number))

    @classmethod
    def piece(cls, log_folder: str, entry_number: int, piece_id: str) -> Self:
        """`piece_id`: hexadecimal digits, fresh for every piece."""
        return cls(log_folder, f"{entry_number:020d}-{piece_id}.parquet")


class ListsObject(Key, template="{folder}/lists/{entry_number:020}-{entry_id}.parquet"):
    """Long lists of an entry (`compactor/log/long_lists.py`). `entry_id`: a writer's, perhaps too late."""

    folder: LogFolder
    entry_number: int
    entry_id: Hex


KEYS = (EntryObject, WholeCheckpointObject, HintObject, CheckpointObject, ListsObject)
