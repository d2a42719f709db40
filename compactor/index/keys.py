"""The keys of a primary key index's files, and of the vectors that say which rows are dead."""

from compactor.catalog.keys import StreamFolder
from compactor.storage.keys import Hex, Key


class IndexFilePath(
    Key,
    template="tables/{stream.table_id}/data/{stream.partition}/index/{index_version}-{commit_id}/"
    "{hash_bucket}-{part}-{task_attempt}.arrow",
):
    """A file of the primary key index; `part` is its number among the files of its hash bucket."""

    stream: StreamFolder
    index_version: int
    commit_id: str
    hash_bucket: int
    part: int
    task_attempt: Hex


class IndexPointersPath(
    Key,
    template="tables/{stream.table_id}/data/{stream.partition}/index/{index_version}-{commit_id}/"
    "{hash_bucket}-{part}-{task_attempt}.of-run-{run}.arrow",
):
    """Pointers that replace those of one index file, of an older run."""

    stream: StreamFolder
    index_version: int
    commit_id: str
    hash_bucket: int
    run: int
    part: int
    task_attempt: Hex


class DeletionVectorPath(
    Key,
    template="tables/{stream.table_id}/data/{stream.partition}/dead/{commit_id}/{file_number}-{task_attempt}.arrow",
):
    """Which rows of a compacted file are dead, as of one commit."""

    stream: StreamFolder
    commit_id: str
    file_number: int
    task_attempt: Hex


KEYS = (IndexFilePath, IndexPointersPath, DeletionVectorPath)
