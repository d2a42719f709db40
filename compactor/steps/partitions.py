"""The tasks of a round as an engine runs them: an argument and a partition's records in, records or a value out.

A step's first argument is shared by all of its tasks, the second is the task's own: its files, its hash bucket, its
materialize tasks. No task gets the whole plan.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from compactor.model.clock import SystemClock
from compactor.model.files import DataFile, DeletionVector, IndexFile
from compactor.model.machine import peak_memory_bytes
from compactor.steps.dedupe import DedupeStep, IndexedBucket, dedupe_bucket
from compactor.steps.hash_bucket import HashedRows
from compactor.steps.index_update import BucketForWriter, FinishStep, FinishTask, finish_bucket
from compactor.steps.materialize import mark_dead, materialize
from compactor.steps.new_run import BucketPiece, DedupedBucket
from compactor.steps.output_files import WriteStep, new_task_attempt
from compactor.steps.placement import BucketCounts, WriterTask
from compactor.task_progress import RowCounter


@dataclass(frozen=True)
class WrittenFiles:
    """The files of one writer, and the index files that it passes on."""

    files: tuple[DataFile, ...]
    deletion_vectors: tuple[DeletionVector, ...]
    index_files: tuple[IndexFile, ...]
    peak_memory_bytes: int


def dedupe_partition(
    step: DedupeStep, bucket: IndexedBucket, blocks: Iterable[HashedRows]
) -> Generator[BucketPiece, None, BucketCounts]:
    done = RowCounter(step.progress)

    def counted() -> Iterator[HashedRows]:
        for block in blocks:
            done.add(len(block.digests))
            yield block

    deduping = dedupe_bucket(step, bucket, counted())
    while True:
        try:
            piece = next(deduping)
        except StopIteration as end:
            counts: BucketCounts = end.value
            return counts
        done.add(len(piece.run.digests))
        yield piece


def finish_partition(
    step: FinishStep, task: FinishTask, pieces: Iterable[BucketPiece]
) -> Iterator[tuple[int, BucketForWriter]]:
    """The input of each writer, addressed to it."""
    bucket = DedupedBucket.from_pieces(_counted(pieces, RowCounter(step.progress)))
    return finish_bucket(step, task, bucket, new_task_attempt(SystemClock()))


def _counted(pieces: Iterable[BucketPiece], done: RowCounter) -> Iterator[BucketPiece]:
    for piece in pieces:
        done.add(len(piece.run.digests))
        yield piece


def write_partition(step: WriteStep, task: WriterTask, bucket_outputs: Iterable[BucketForWriter]) -> WrittenFiles:
    """One writer: consecutive materialize tasks and marked files."""
    by_buckets, task_attempt = list(bucket_outputs), new_task_attempt(SystemClock())
    files = tuple(file for of_task in materialize(step, task.materialize, by_buckets, task_attempt) for file in of_task)
    deletion_vectors = tuple(mark_dead(step, task.marked, by_buckets, task_attempt))
    for each in by_buckets:
        if each.sending is not None:
            each.sending.wait()
    return WrittenFiles(
        files=files,
        deletion_vectors=deletion_vectors,
        index_files=tuple(file for each in by_buckets for file in each.index_files),
        peak_memory_bytes=max([peak_memory_bytes(), *(each.peak_memory_bytes for each in by_buckets)]),
    )
