"""Predicts the time of a session: a sum of amounts times rates. Pure.

    seconds = start + rounds x (round + commit) + core-seconds / the cores that have a task

    core-seconds    rehash       by rows of the index, where its bucket count changes
                    read         by bytes and by files
                    hash         by arriving rows
                    shuffle      by bytes, between machines; on one machine it is part of hash and dedupe
                    dedupe       by arriving rows, by index rows that a round reads, and by those that it fetches
                    index        by rows written
                    materialize  by rows written and by bytes
                    write        by bytes

Predictions start with these rates (`tests/benchmarks/RESULTS.md` fits them). A table's own rounds correct them, step by
step (`Rates.corrected`): rows, machines and stores differ from those of the benchmark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Self

SLA_BUFFER = 1.1
"""Factor of the expected SLA: it is the predicted time and 10 % (Flash Compactor paper, "SLA Adherence")."""

SLA_BUFFER_SECONDS_MIN = 0.5
"""Least buffer of an expected SLA: a tenth of a short session is less than the noise of its machine."""


def with_buffer(seconds: float) -> float:
    """The expected SLA for predicted seconds. Worked: 20 s are 22, 1 s is 1.5."""
    return max(seconds * SLA_BUFFER, seconds + SLA_BUFFER_SECONDS_MIN)


def without_start(expected_sla: float, start_seconds: float) -> float:
    """The expected SLA without the start of a Spark, from one with it."""
    return max(expected_sla - start_seconds * SLA_BUFFER, SLA_BUFFER_SECONDS_MIN)


CORRECTION_MAX = 4.0
"""The greatest factor, up or down, by which a table's own rounds correct a step."""

SHOWN_SECONDS_MIN = 0.05
"""Parts of a predicted time that are shorter are not shown: rounded, they would be 0.0."""

CORRECTED_SECONDS_MIN = 0.05
"""Least seconds of a step in a round, predicted or measured: below, a measurement is mostly noise."""


@dataclass(frozen=True)
class SessionWork:
    """The amounts of a session, over all of its rounds.

    Attributes:
        files_read: delta files, and compacted files that are rewritten
        bytes_read: at rest, of the same files
        shuffled_bytes: pointer records in the shuffle to dedupe
        index_rows: that rounds read: each round reads the whole index before it
        rows_fetched: of the index, from the store: the first round's. Later ones find its pages on their machines
        rows_written: into compacted files
        bytes_written: into compacted files
        rounds: 0: the index is rehashed, and nothing else
        rehashed_rows: of the index, moved to another hash bucket count before the first round"""

    rounds: int
    delta_rows: int
    files_read: int
    bytes_read: int
    shuffled_bytes: int
    index_rows: int
    rows_written: int
    bytes_written: int
    rehashed_rows: int = 0
    rows_fetched: int = 0


@dataclass(frozen=True)
class TasksOfRound:
    """How many tasks of about equal size each step of a round has; infinite: at least as many as there are cores.
    Cores beyond the tasks have no work."""

    hash_bucket: float = inf
    dedupe: float = inf
    materialize: float = inf


AS_MANY_AS_CORES = TasksOfRound()


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds of one core per amount. Those of a round do not decrease with more cores.

    Attributes:
        round_seconds: scheduling of a round's two jobs
        commit_seconds: a round's entry in the log, and reading it in the next round"""

    round_seconds: float
    commit_seconds: float
    read_file: float
    read_byte: float = 0.0
    hash_row: float
    shuffle_byte: float = 0.0
    dedupe_row: float
    index_row: float
    index_fetched_row: float = 0.0
    index_written_row: float
    materialize_row: float
    materialize_byte: float
    write_byte: float = 0.0

    def corrected(self, factors: Mapping[str, float]) -> Self:
        """The same, each step times its factor (`correction_of`). Most bytes are read, and all are written, in the
        materialize step."""
        if not factors:
            return self
        hashing = factors.get("hash_bucket", 1.0)
        dedupe = factors.get("dedupe", 1.0)
        materialize = factors.get("materialize", 1.0)
        return replace(
            self,
            hash_row=self.hash_row * hashing,
            dedupe_row=self.dedupe_row * dedupe,
            index_row=self.index_row * dedupe,
            index_fetched_row=self.index_fetched_row * dedupe,
            index_written_row=self.index_written_row * materialize,
            materialize_row=self.materialize_row * materialize,
            materialize_byte=self.materialize_byte * materialize,
            read_file=self.read_file * materialize,
            read_byte=self.read_byte * materialize,
            write_byte=self.write_byte * materialize,
        )


NEAR = Rates(
    round_seconds=0.33,
    commit_seconds=0.05,
    read_file=0.002,
    hash_row=129e-9,
    dedupe_row=114e-9,
    index_row=10e-9,
    index_written_row=96e-9,
    materialize_row=300e-9,
    materialize_byte=0.9e-9,
)
"""A folder on this machine, in the page cache or on a disk that is as fast: reading and writing are part of the steps.
Fitted by `make bench` over all of its runs of narrow rows (75 bytes) and wide ones (987)."""

IN_PROCESS = Rates(
    round_seconds=0.005,
    commit_seconds=0.01,
    read_file=0.0012,
    hash_row=65e-9,
    dedupe_row=55e-9,
    index_row=5e-9,
    index_written_row=100e-9,
    materialize_row=100e-9,
    materialize_byte=1.6e-9,
)
"""The same without a Spark: nothing is scheduled, or sent between processes. Fitted by `make sla`."""


def _far(near: Rates, *, in_process: bool) -> Rates:
    """The same with the lake on S3: each request has a latency, a core transfers 100 to 200 MB/s, and the index has
    bytes too, 36 a row, most of which its first round fetches. Fitted over sessions of `make sla`, with an S3 server on
    the same machine; a table's own rounds correct the rates of more distant stores."""
    return replace(
        near,
        commit_seconds=near.commit_seconds + 0.03,
        read_file=near.read_file + 0.003,
        read_byte=4e-9,
        index_row=near.index_row + (50e-9 if in_process else 300e-9),
        index_fetched_row=100e-9 if in_process else 1e-6,
        index_written_row=near.index_written_row + 150e-9,
        write_byte=8e-9,
    )


def rates_of(*, far: bool, in_process: bool, network_byte: float = 0.0, machines: int = 1) -> Rates:
    """Initial rates: for a local or a remote store, a session with or without a Spark, one machine or several.

    Args:
        network_byte: seconds of one core for a byte over its share of its machine's network; half of it is for shuffles
    """
    near = replace(IN_PROCESS if in_process else NEAR, shuffle_byte=2 * network_byte * (machines - 1) / machines)
    if not far:
        return near
    rates = _far(near, in_process=in_process)
    return replace(rates, read_byte=max(rates.read_byte, network_byte), write_byte=max(rates.write_byte, network_byte))


@dataclass(frozen=True)
class PredictedTime:
    """Seconds, by part. The core-seconds of each step are divided by the cores already."""

    start: float
    rounds: float
    commits: float
    read: float
    hash_bucket: float
    shuffle: float
    dedupe: float
    index: float
    materialize: float
    write: float
    rehash: float = 0.0

    def corrected(self, factor: float) -> Self:
        """Everything but the start times this factor."""
        parts = {each.name: getattr(self, each.name) * factor for each in fields(self)}
        return replace(self, **{**parts, "start": self.start})

    @property
    def work_seconds(self) -> float:
        """Without the start."""
        return self.seconds - self.start

    @property
    def seconds(self) -> float:
        passes = self.rehash + self.read + self.hash_bucket + self.shuffle + self.dedupe
        return self.start + self.rounds + self.commits + passes + self.index + self.materialize + self.write

    def parts(self) -> str:
        """The longer parts, for people: `start 5.0, hash 1.2`."""
        parts = {
            "start": self.start,
            "rounds and commits": self.rounds + self.commits,
            "rehash": self.rehash,
            "read": self.read,
            "hash": self.hash_bucket,
            "shuffle": self.shuffle,
            "dedupe": self.dedupe,
            "index": self.index,
            "materialize": self.materialize,
            "write": self.write,
        }
        shown = (f"{name} {seconds:.1f}" for name, seconds in parts.items() if seconds >= SHOWN_SECONDS_MIN)
        return ", ".join(shown) or "less than 0.1 each"

    @property
    def first_pass_share(self) -> float:
        """The share of hash, shuffle and dedupe in the rounds' time. Half of the bytes are read there."""
        first = self.read / 2 + self.hash_bucket + self.shuffle + self.dedupe
        second = self.read / 2 + self.index + self.materialize + self.write
        scheduling = self.rounds + self.commits
        return (first + scheduling / 2) / max(first + second + scheduling, 1e-9)


def predict_time(
    work: SessionWork, rates: Rates, cores: int, start_seconds: float, tasks: TasksOfRound = AS_MANY_AS_CORES
) -> PredictedTime:
    """Worked: 5,000,000 delta rows of 75 bytes in 20 files, 4,200,000 written, 2 cores, a warm Spark: 0.33 s for the
    round and 0.05 for its commit, 0.02 read, 0.32 hash, 0.29 dedupe, 0.20 index, 0.77 materialize: 2.0 s."""
    hash_cores, dedupe_cores = min(cores, tasks.hash_bucket), min(cores, tasks.dedupe)
    write_cores = min(cores, tasks.materialize)
    read_seconds = work.files_read * rates.read_file + work.bytes_read * rates.read_byte
    index_seconds = work.index_rows * rates.index_row + work.rows_fetched * rates.index_fetched_row
    write_seconds = work.rows_written * rates.materialize_row + work.bytes_written * rates.materialize_byte
    return PredictedTime(
        start=start_seconds,
        rounds=work.rounds * rates.round_seconds,
        commits=work.rounds * rates.commit_seconds,
        read=(read_seconds / hash_cores + read_seconds / write_cores) / 2,
        hash_bucket=work.delta_rows * rates.hash_row / hash_cores,
        shuffle=work.shuffled_bytes * rates.shuffle_byte / cores,
        dedupe=(work.delta_rows * rates.dedupe_row + index_seconds) / dedupe_cores,
        index=work.rows_written * rates.index_written_row / dedupe_cores,
        materialize=write_seconds / write_cores,
        write=work.bytes_written * rates.write_byte / write_cores,
        rehash=_rehash_seconds(work.rehashed_rows, rates, cores),
    )


def _rehash_seconds(rows: int, rates: Rates, cores: int) -> float:
    """Each row of the index is read, passes to its new bucket, and is written; in a commit of its own."""
    if not rows:
        return 0.0
    scheduling = rates.round_seconds + rates.commit_seconds
    return scheduling + rows * (rates.index_row + rates.dedupe_row + rates.index_written_row) / cores


@dataclass(frozen=True)
class MeasuredRound:
    """A committed round: its amounts, and the tasks and the seconds of its steps."""

    work: SessionWork
    cores: int
    step_seconds: Mapping[str, float]
    tasks: TasksOfRound = AS_MANY_AS_CORES


def correction_of(measured: Sequence[MeasuredRound], rates: Rates) -> dict[str, float]:
    """By step, the greatest factor between measured and predicted seconds of this table's rounds, since an expected SLA
    must hold. Steps that were too short are omitted.

    Worked: materialize took 3.0 s, 1.2 s were predicted: 2.5.
    """
    factors: dict[str, float] = {}
    for each in measured:
        predicted = predict_time(each.work, rates, each.cores, 0.0, each.tasks)
        by_step = {
            "hash_bucket": predicted.hash_bucket,
            "dedupe": predicted.dedupe,
            "materialize": predicted.index + predicted.materialize + predicted.read + predicted.write,
        }
        for step, expected_seconds in by_step.items():
            took = each.step_seconds.get(step, 0.0)
            if min(took, expected_seconds) >= CORRECTED_SECONDS_MIN:
                factor = min(max(took / expected_seconds, 1 / CORRECTION_MAX), CORRECTION_MAX)
                factors[step] = max(factors.get(step, 0.0), factor)
    return factors
