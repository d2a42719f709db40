"""`make sla ARGS=--clusters`: how well sessions on a cluster are predicted before they are launched.

A standalone Spark of two workers in processes of their own, lake and state on S3, one dispatcher. Each table gets an
instruction after the other, as its users would send them; what counts is the expected SLA of a session's first plan,
against the time from its launch to its end.

All run under one dispatcher, which learns from them; nothing is collected, so they fill some 25 GB. With
`--outcomes FILE` each is noted there when it has ended.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.planning.own_errors import ENOUGH
from compactor.storage.opening import open_store
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.sessions import SessionPlanned
from launcher.outcomes import Succeeded
from tests.benchmarks import report
from tests.benchmarks.one_dispatcher import Mail, dispatcher, on_s3, open_mail
from tests.servers import aws_environment, seaweedfs_server
from tests.standalone_spark import packed_once, standalone_spark
from tests.waiting import wait_until

TABLES = 4
SESSIONS_OF_A_TABLE = 12
COVERAGE_GOAL = 0.993
MEDIAN_GOAL = 1.15

_END_SECONDS_MAX = 900.0
_PREDICTED = re.compile(r"^([\d.]+) s predicted on")


@dataclass(frozen=True)
class ClusterTrial:
    """One session. `number`: of the table's; 0 is its first compaction."""

    table: int
    number: int
    delta_rows: int
    base_rows: int
    text_bytes: int
    rounds: int


@dataclass(frozen=True)
class ClusterOutcome:
    """`predicted_seconds`, `expected_sla`: of the first plan. `seconds`: of the last attempt, from its launch."""

    trial: ClusterTrial
    predicted_seconds: float
    expected_sla: float
    seconds: float
    rounds: int
    attempts: int

    @property
    def ratio(self) -> float:
        """Predicted / actual."""
        return self.predicted_seconds / self.seconds


def cluster_trials(seed: int, scale: float = 1.0) -> list[list[ClusterTrial]]:
    """The sessions of each table: a first compaction, then deltas of 2 to 60 % of its rows."""
    chance = random.Random(seed)
    return [_of_table(table, chance, scale) for table in range(TABLES)]


def _of_table(table: int, chance: random.Random, scale: float) -> list[ClusterTrial]:
    text_bytes = (0, 20, 100, 400)[table % 4]
    rows = int(chance.uniform(2e8, 6e8) / (text_bytes + 100) * scale)
    found = [ClusterTrial(table, 0, rows, 0, text_bytes, chance.choice((1, 2, 3)))]
    for number in range(1, SESSIONS_OF_A_TABLE):
        share = 0.02 * 30 ** chance.random()
        rounds = chance.choice((1, 1, 2, 3, 4, 6))
        found.append(ClusterTrial(table, number, max(int(rows * share), 60), rows, text_bytes, rounds))
    return found


def run_cluster_trials(folder: Path, tables: Sequence[Sequence[ClusterTrial]]) -> Iterator[ClusterOutcome]:
    """Table by table, session by session."""
    with ExitStack() as up:
        up.enter_context(aws_environment())
        s3_url = up.enter_context(seaweedfs_server(folder / "s3"))
        archive = packed_once(folder)
        spark = up.enter_context(standalone_spark(folder / "spark"))
        state, lake = on_s3("sla", s3_url)
        mail = up.enter_context(open_mail())
        options = ("--master-url", spark.master_url, "--archive", str(archive), "--driver-host", "127.0.0.1")
        sizes = ("--cores", "2", "--memory-gib", "2", "--workers", "0", "--max-sessions", "1")
        with dispatcher(folder, state, lake, mail, *options, *sizes, log_level="info", real_spark=True) as process:
            catalog = DeltaCatalog(open_store(lake), SystemClock())
            records = JobRunStore(open_store(state), SystemClock())
            for trials in tables:
                spark.await_workers(2)
                table = catalog.create_table(f"SLA.CLUSTER_{trials[0].table}.V1")
                for trial in trials:
                    yield _run(trial, table, records, mail)
            process.terminate()


def _run(trial: ClusterTrial, table: Table, records: JobRunStore, mail: Mail) -> ClusterOutcome:
    numbers = np.random.default_rng([trial.table, trial.number])
    rows_of_a_round = -(-trial.delta_rows // trial.rounds)
    for start in range(0, trial.delta_rows, rows_of_a_round):
        count = min(rows_of_a_round, trial.delta_rows - start)
        table.append({}, _rows(trial, start, count, numbers))
    job_run_id = f"sla-{trial.table}-{trial.number}"
    document = {
        "schema_version": "1",
        "job_run_id": job_run_id,
        "source_table_id": table.table_id,
        "primary_keys": ["id"],
        "max_rows_per_round": rows_of_a_round,
    }
    mail.sqs().send_message(QueueUrl=mail.queue_url, MessageBody=json.dumps(document))
    wait_until(lambda: records.log(job_run_id).load().state.ended is not None, _END_SECONDS_MAX, every_seconds=0.5)
    return _outcome(trial, records, job_run_id)


def _rows(trial: ClusterTrial, start: int, count: int, numbers: np.random.Generator) -> pa.Table:
    """Of a first compaction keys that are new; else four fifths updates all over the table."""
    new = np.arange(start, start + count) + (0 if trial.number == 0 else trial.base_rows * (trial.number + 1))
    updates = 0 if trial.number == 0 else count * 4 // 5
    keys = np.concatenate([numbers.integers(0, max(trial.base_rows, 1), updates), new[updates:]])
    columns: dict[str, pa.Array] = {"id": pa.array(keys, pa.int64()), "amount": pa.array(numbers.random(count))}
    if trial.text_bytes:
        letters = numbers.integers(97, 123, count * trial.text_bytes, dtype=np.uint8).tobytes()
        offsets = np.arange(count + 1, dtype=np.int32) * trial.text_bytes
        columns["text"] = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
    return pa.table(columns)


def _outcome(trial: ClusterTrial, records: JobRunStore, job_run_id: str) -> ClusterOutcome:
    log = records.log(job_run_id)
    (session,) = log.load().state.sessions.values()
    plans = [action for entry in log.entries() for action in entry.actions if isinstance(action, SessionPlanned)]
    if not isinstance(session.end, Succeeded):
        raise RuntimeError(f"{job_run_id} did not succeed: {session.end}")
    result = session.end.result
    predicted = next(float(found[1]) for line in plans[0].arithmetic if (found := _PREDICTED.match(line)))
    return ClusterOutcome(trial, predicted, plans[0].expected_sla, result.seconds, result.rounds, session.attempt)


def run_and_note(folder: Path, tables: Sequence[Sequence[ClusterTrial]], noted: Path | None) -> list[ClusterOutcome]:
    found = []
    for outcome in run_cluster_trials(folder, tables):
        print(_line(outcome), flush=True)
        found.append(outcome)
        if noted is not None:
            with noted.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
    return found


def _line(outcome: ClusterOutcome) -> str:
    trial = outcome.trial
    return (
        f"table {trial.table}, session {trial.number}: {trial.base_rows:>10,} + {trial.delta_rows:>10,} rows of "
        f"{16 + trial.text_bytes:>3} bytes, {outcome.rounds} rounds: predicted {outcome.predicted_seconds:6.1f} s, "
        f"expected within {outcome.expected_sla:6.1f} s, took {outcome.seconds:6.1f} s: {outcome.ratio:.2f}"
    )


def cluster_section(outcomes: Sequence[ClusterOutcome], seed: int, load: float) -> report.Section:
    seconds = [each.seconds for each in outcomes]
    conditions = (
        f"{len(outcomes)} sessions of {min(seconds):.0f} to {max(seconds):.0f} s and 1 to "
        f"{max(each.rounds for each in outcomes)} rounds (seed {seed}), {SESSIONS_OF_A_TABLE} of each table, each by "
        "an instruction to one dispatcher; a standalone Spark of two workers in processes of their own, which get the "
        f"archive; lake and state on seaweedfs, all on the same cores; load average {load:.1f} at the start. Predicted "
        "is what the first plan says, before the launch; actual is from the launch to the end.\n\n"
    )
    parts = {
        "all": outcomes,
        f"the first {ENOUGH + 1}, with the flat 10 %": outcomes[: ENOUGH + 1],
        f"later ones, whose place has seen {ENOUGH} that are alike": outcomes[ENOUGH + 1 :],
    }
    rows = [_row(name, part) for name, part in parts.items() if part]
    table = report.markdown_table(
        ["sessions", "of them", "within the first expected SLA", "goal", "median predicted / actual", "goal"], rows
    )
    return "Expected SLA on a cluster", conditions + table


def _row(name: str, outcomes: Sequence[ClusterOutcome]) -> tuple[str, ...]:
    kept = sum(each.seconds <= each.expected_sla for each in outcomes)
    ratio = median(each.ratio for each in outcomes)
    return (
        name,
        str(len(outcomes)),
        f"{kept} ({kept / len(outcomes):.1%})",
        f"at least {COVERAGE_GOAL:.1%}",
        f"{ratio:.2f}",
        f"at most {MEDIAN_GOAL}",
    )
