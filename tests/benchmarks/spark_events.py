"""Reads what Spark's event log says of every stage: when it ran, its tasks' time, and what it sent over the network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_METRIC = "internal.metrics."


@dataclass(frozen=True)
class Stage:
    """One stage that ran. `number` is its place among those of its job; `job` counts the application's jobs from 0.

    busy_seconds           of all of its tasks together
    shuffle_written_bytes  what the stages after it fetch
    """

    job: int
    number: int
    submitted_ms: int
    seconds: float
    busy_seconds: float
    tasks: int
    shuffle_written_bytes: int


@dataclass(frozen=True)
class Step:
    """A step of ours, over all rounds of a run. Seconds as in `Stage`."""

    seconds: float = 0.0
    busy_seconds: float = 0.0
    shuffle_written_bytes: int = 0

    def and_stage(self, stage: Stage) -> Step:
        return Step(
            self.seconds + stage.seconds,
            self.busy_seconds + stage.busy_seconds,
            self.shuffle_written_bytes + stage.shuffle_written_bytes,
        )


Steps = dict[str, Step]
STEPS = HASH_BUCKET, DEDUPE, INDEX, MATERIALIZE = "hash bucket", "dedupe", "index", "materialize"
_STAGES_OF_A_ROUND = ((HASH_BUCKET, DEDUPE), (INDEX, MATERIALIZE))
"""A round is two Spark jobs of two stages (compactor/sessions/round_runner.py)."""


def steps_of(stages: Sequence[Stage]) -> Steps:
    """A run's stages, summed up by step."""
    jobs = sorted({stage.job for stage in stages})
    steps: Steps = {}
    for stage in stages:
        name = _STAGES_OF_A_ROUND[jobs.index(stage.job) % 2][stage.number]
        steps[name] = steps.get(name, Step()).and_stage(stage)
    return steps


def read_stages(folder: Path) -> list[Stage]:
    """Every completed stage in the event logs of a folder, in the order in which they were submitted."""
    return sorted(
        (stage for path in sorted(folder.iterdir()) for stage in _stages_of(path)), key=lambda stage: stage.submitted_ms
    )


def _stages_of(path: Path) -> Iterator[Stage]:
    job_of: dict[int, int] = {}
    finished: dict[int, int] = {}
    with path.open() as lines:
        for line in lines:
            event = json.loads(line)
            if event["Event"] == "SparkListenerJobStart":
                job_of.update(dict.fromkeys(event["Stage IDs"], event["Job ID"]))
            elif event["Event"] == "SparkListenerStageCompleted":
                stage = event["Stage Info"]
                job = job_of[stage["Stage ID"]]
                finished[job] = finished.get(job, 0) + 1
                metrics = {each["Name"].removeprefix(_METRIC): each["Value"] for each in stage["Accumulables"]}
                yield Stage(
                    job=job,
                    number=finished[job] - 1,
                    submitted_ms=stage["Submission Time"],
                    seconds=(stage["Completion Time"] - stage["Submission Time"]) / 1_000,
                    busy_seconds=int(metrics.get("executorRunTime", 0)) / 1_000,
                    tasks=stage["Number of Tasks"],
                    shuffle_written_bytes=int(metrics.get("shuffle.write.bytesWritten", 0)),
                )
