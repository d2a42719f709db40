"""`make sla`: how well the time and the money of a session are predicted before it is launched.

Sessions of many sizes: rows, widths, keys, rounds, hash buckets, the first compaction of a table and later ones, with
updates that are clustered, uniform, or kept as dead rows; half of them on a folder, half on an S3 server of this
machine. Most run in this process, some on a Spark that is up. Each is planned as a dispatcher would before a launch,
which has seen the sessions before it in the same place; what counts is the *first* expected SLA, whatever it is refined
to later.

    make sla ARGS="--sessions 150 --spark 12 --seed 7"
    make sla ARGS=--clusters                                (see `cluster_sla.py`)

With `--outcomes FILE` each session is noted there when it has ended, and a later run with the same options goes on
after those, as a dispatcher that is started anew: `--at-most 50` measures 50 now.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from compactor import DeltaCatalog
from compactor.engine.in_process import InProcessEngine
from compactor.engine.protocol import Engine
from compactor.model.clock import SystemClock
from compactor.model.counts import SortKey
from compactor.planning.cluster_plan import PaidRates, StoreUse
from compactor.planning.own_errors import NONE_SEEN, PlaceFactors
from compactor.planning.session_planner import measure_session, pin_sessions, plan_sized
from compactor.planning.sizing import (
    Sizing,
    size_session,
)
from compactor.planning.spec import JobRunSpec, SessionResult
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.opening import open_store
from launcher.sizing.money import SECONDS_MIN, cost_of, expected_store_use
from tests.benchmarks import report
from tests.benchmarks.cluster_sla import cluster_section, cluster_trials, run_and_note
from tests.benchmarks.machine import describe_machine
from tests.benchmarks.plot import draw_predictions
from tests.fakes.attempts import run_attempt
from tests.servers import BUCKET, aws_environment, create_bucket, seaweedfs_server

RESULTS = Path(__file__).with_name("RESULTS.md")
SESSIONS_MIN = 150
TABLE = "SLA.ROWS.V1"

GOAL_BEYOND = 1
GOAL_MEDIAN = 1.15
GOAL_COST_SHARE = 0.95
GOAL_COST_ERROR = 0.1

PRICES = PaidRates(
    instances_usd_hour=7.2,
    surcharge_usd_hour=1.8,
    volumes_usd_hour=0.09,
    put_usd_1000=0.005,
    get_usd_1000=0.0004,
    storage_usd_gib_month=0.023,
    priced_on="2026-01-01",
)
"""Made up: $9.09 an hour."""

WARM = 10**6
"""The number of the first trial that is not measured."""


@dataclass(frozen=True)
class Trial:
    """One session, and the table that it finds.

    base_rows   compacted before it; 0: it is the table's first
    text_bytes  of a column of text that hardly compresses
    keys        primary key columns
    change      what the deltas do to the table: "first", "clustered", "uniform", "dead rows"
    """

    number: int
    far: bool
    on_spark: bool
    base_rows: int
    delta_rows: int
    delta_files: int
    text_bytes: int
    keys: int
    sorts: bool
    rounds: int
    hash_buckets: int | None
    change: str


@dataclass(frozen=True)
class Outcome:
    """What was expected of a trial before it began, and what it took.

    model_seconds  predicted by rows and bytes, without what other sessions in the place say
    """

    trial: Trial
    expected_sla: float
    predicted_seconds: float
    seconds: float
    model_seconds: float
    rounds: int
    expected_usd: float
    usd: float
    expected_usd_by_second: float
    usd_by_second: float

    @property
    def ratio(self) -> float:
        """Predicted / actual."""
        return self.predicted_seconds / self.seconds

    @property
    def is_beyond(self) -> bool:
        return self.seconds > self.expected_sla


def trials(count: int, spark: int, seed: int, scale: float = 1.0) -> list[Trial]:
    """Half of them far; `spark` of the near ones on a Spark."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        change = ("first", "clustered", "uniform", "dead rows", "first", "uniform")[number % 6]
        base_rows = 0 if change == "first" else _rows(chance, 20_000, 1_000_000, scale)
        delta_rows = _rows(chance, 5_000, 600_000, scale)
        if base_rows:
            delta_rows = max(min(delta_rows, base_rows // chance.choice((2, 5, 20, 100))), 10)
        files = chance.choice((1, 2, 4, 8))
        far = number // 6 % 2 == 1
        found.append(
            Trial(
                number=number,
                far=far,
                on_spark=False,
                base_rows=base_rows,
                delta_rows=delta_rows,
                delta_files=files,
                text_bytes=chance.choice((0, 20, 60, 200, 800)),
                keys=chance.choice((1, 1, 2, 3)),
                sorts=chance.random() < 0.5,
                rounds=chance.choice((1, 1, 1, 2, 3, 4)) if files > 1 else 1,
                hash_buckets=chance.choice((None, None, 1, 4, 16)),
                change=change,
            )
        )
    near = [trial.number for trial in found if not trial.far]
    chosen = set(near[:: max(len(near) // spark, 1)][:spark]) if spark else set()
    return [replace(trial, on_spark=trial.number in chosen) for trial in found]


def _rows(chance: random.Random, least: int, most: int, scale: float) -> int:
    """As many of each order of magnitude."""
    return max(int(least * (most / least) ** chance.random() * scale), 10)


@dataclass
class Place:
    """Where sessions run. `factors`: of those that ran there, as its dispatcher would know them."""

    engine: Engine
    factors: PlaceFactors = NONE_SEEN


def run_trial(trial: Trial, lake: DeltaCatalog, place: Place) -> Outcome:
    """Makes the table, plans the session, runs it."""
    numbers = np.random.default_rng(trial.number)
    table = lake.create_table(TABLE)
    run = _spec(trial, lake)
    if trial.base_rows:
        for places in np.array_split(np.arange(trial.base_rows), 4):
            table.append({}, _table_of(trial, places, numbers))
        _run(run.model_copy(update={"job_run_id": "before", "max_rows_per_round": None}), lake, place)
    for places in np.array_split(_changed(trial, numbers), trial.delta_files):
        table.append({}, _table_of(trial, places, numbers))
    sizing, result, expected_use = _run(run, lake, place)
    used = result.store or StoreUse()
    if not trial.far:
        used = StoreUse()
    predicted = sizing.time.seconds
    return Outcome(
        trial=trial,
        expected_sla=sizing.expected_sla,
        predicted_seconds=predicted,
        seconds=result.seconds,
        model_seconds=sizing.prediction.model.seconds,
        rounds=result.rounds,
        expected_usd=cost_of(PRICES, predicted, 0.0, expected_use).total_usd,
        usd=cost_of(PRICES, result.seconds, 0.0, used).total_usd,
        expected_usd_by_second=_usd_by_second(predicted, expected_use),
        usd_by_second=_usd_by_second(result.seconds, used),
    )


def _usd_by_second(seconds: float, use: StoreUse) -> float:
    """As if there were no least time that is paid for."""
    whole = cost_of(PRICES, SECONDS_MIN, 0.0, use).total_usd
    return whole + PRICES.usd_hour * (seconds - SECONDS_MIN) / 3600


def _spec(trial: Trial, lake: DeltaCatalog) -> JobRunSpec:
    return JobRunSpec(
        job_run_id="measured",
        source_table_id=TABLE,
        primary_keys=tuple(f"key{number}" for number in range(trial.keys)),
        sort_keys=(SortKey(column="updated"),) if trial.sorts else JobRunSpec.model_fields["sort_keys"].default,
        lake=lake.location,
        destination_compacted_table_id=TABLE,
        hash_bucket_count=trial.hash_buckets,
        rows_per_compacted_file=max(trial.base_rows // 8, 50_000),
        max_rows_per_round=-(-trial.delta_rows // trial.rounds),
        max_dead_row_share=0.5 if trial.change == "dead rows" else 0.0,
    )


def _changed(trial: Trial, numbers: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The places of the rows that the deltas hold: four fifths updates, and new ones."""
    if not trial.base_rows:
        places = numbers.permutation(trial.delta_rows)
        return np.where(places < trial.delta_rows // 5, places * 5 % trial.delta_rows, places)
    updates = trial.delta_rows * 4 // 5
    new = np.arange(trial.base_rows, trial.base_rows + trial.delta_rows - updates)
    if trial.change == "clustered":
        start = trial.base_rows - min(2 * updates, trial.base_rows)
        old = numbers.integers(start, trial.base_rows, updates)
        return np.sort(np.concatenate([old, new]))
    old = numbers.integers(0, trial.base_rows, updates)
    return numbers.permutation(np.concatenate([old, new]))


def _table_of(
    trial: Trial, places: np.ndarray[tuple[int], np.dtype[np.int64]], numbers: np.random.Generator
) -> pa.Table:
    columns: dict[str, pa.Array] = {"key0": pa.array(places, pa.int64())}
    if trial.keys > 1:
        columns["key1"] = pa.array((places % 1_000).astype("int32"))
    if trial.keys > 2:
        columns["key2"] = pa.array(np.char.mod("k%d", places % 97))
    columns["updated"] = pa.array(numbers.integers(0, 10**12, len(places)), pa.int64())
    if trial.text_bytes:
        letters = numbers.integers(97, 123, len(places) * trial.text_bytes, dtype=np.uint8).tobytes()
        offsets = np.arange(len(places) + 1, dtype=np.int32) * trial.text_bytes
        columns["text"] = pa.StringArray.from_buffers(len(places), pa.py_buffer(offsets), pa.py_buffer(letters))
    columns["amount"] = pa.array(numbers.random(len(places)))
    return pa.table(columns)


def _run(run: JobRunSpec, lake: DeltaCatalog, place: Place) -> tuple[Sizing, SessionResult, StoreUse]:
    (pinned,) = pin_sessions(run, lake)
    measured = measure_session(pinned.spec, lake)
    resources = replace(place.engine.resources(), start_seconds=0.0, place_factors=place.factors)
    sizing = size_session(measured.size, resources, run.hash_bucket_count, run.max_rows_per_round)
    plan = plan_sized(measured, sizing)
    result = run_attempt(plan, lake, lake.store, place.engine, 1, SystemClock())
    of_session = PlaceFactors.of_session(plan.plain_work_seconds, plan.work_seconds, result.work_seconds)
    place.factors = place.factors.then(of_session)
    return sizing, result, expected_store_use(sizing.work, measured.size, sizing.hash_bucket_count)


@contextmanager
def _lakes(folder: Path, with_s3: bool) -> Iterator[tuple[StoreLocation, StoreLocation | None]]:
    """Where lakes are made: below a folder, and on an S3 server."""
    near = parse_location(str(folder / "lakes"))
    if not with_s3:
        yield near, None
        return
    with aws_environment(), seaweedfs_server(folder) as url:
        create_bucket(url)
        yield near, StoreLocation(f"s3://{BUCKET}/lakes", endpoint_url=url)


def run_trials(folder: Path, chosen: Sequence[Trial]) -> Iterator[Outcome]:
    """One after the other; a first one that is not measured loads what a process loads once."""
    with ExitStack() as stack:
        near, s3 = stack.enter_context(_lakes(folder, any(trial.far for trial in chosen)))
        engines: dict[bool, Engine] = {False: InProcessEngine()}
        if any(trial.on_spark for trial in chosen):
            engines[True] = _spark(stack)
        places = {(on_spark, far): Place(engine) for on_spark, engine in engines.items() for far in (False, True)}
        warm = [replace(chosen[0], number=WARM + on_spark, far=False, on_spark=on_spark) for on_spark in engines]
        for trial in (*warm, *chosen):
            root = s3 if trial.far and s3 is not None else near
            location = replace(root, root_uri=f"{root.root_uri}/{trial.number}")
            lake = DeltaCatalog(open_store(location), SystemClock())
            is_warm = trial.number >= WARM
            place = Place(engines[trial.on_spark]) if is_warm else places[trial.on_spark, trial.far]
            outcome = run_trial(trial, lake, place)
            shutil.rmtree(folder / "lakes" / str(trial.number), ignore_errors=True)
            if not is_warm:
                yield outcome


def run_missing(folder: Path, chosen: Sequence[Trial], noted: Path | None, at_most: int) -> list[Outcome]:
    """Runs those that no earlier run has noted, and notes them. Returns all that there are of `chosen`."""
    found = {} if noted is None else {outcome.trial: outcome for outcome in read_outcomes(noted)}
    if noted is not None:
        noted.write_text("".join(_note(outcome) for outcome in found.values()))
    missing = [trial for trial in chosen if trial not in found][:at_most]
    for outcome in run_trials(folder, missing) if missing else ():
        print(_line(outcome), flush=True)
        found[outcome.trial] = outcome
        if noted is not None:
            with noted.open("a") as file:
                file.write(_note(outcome))
    return [found[trial] for trial in chosen if trial in found]


def _note(outcome: Outcome) -> str:
    return json.dumps(asdict(outcome)) + "\n"


def read_outcomes(noted: Path) -> list[Outcome]:
    """Without a last line that a killed run has written in part."""
    lines = noted.read_text().splitlines(keepends=True) if noted.exists() else []
    values = [json.loads(line) for line in lines if line.endswith("\n")]
    return [Outcome(**{**value, "trial": Trial(**value["trial"])}) for value in values]


def _spark(stack: ExitStack) -> Engine:
    from compactor.engine.local import local_spark
    from compactor.engine.spark import SparkEngine

    return SparkEngine(stack.enter_context(local_spark("lithify sla")))


def _line(outcome: Outcome) -> str:
    trial = outcome.trial
    where = "s3" if trial.far else "spark" if trial.on_spark else "folder"
    return (
        f"{trial.number:>4} {where:<6} {trial.change:<9} {trial.base_rows:>9,} + {trial.delta_rows:>8,} rows of "
        f"{24 + trial.text_bytes:>3} bytes, {outcome.rounds} rounds: predicted "
        f"{outcome.predicted_seconds:6.2f} s, took {outcome.seconds:6.2f} s: {outcome.ratio:.2f}"
    )


@dataclass(frozen=True)
class Summary:
    """What the section says."""

    outcomes: tuple[Outcome, ...]

    def of(self, *, far: bool | None = None, on_spark: bool | None = None) -> Summary:
        return Summary(
            tuple(
                each
                for each in self.outcomes
                if far in (None, each.trial.far) and on_spark in (None, each.trial.on_spark)
            )
        )

    @property
    def beyond(self) -> int:
        return sum(each.is_beyond for each in self.outcomes)

    @property
    def median_ratio(self) -> float:
        return median(each.ratio for each in self.outcomes)

    def quantiles(self, *, of_model: bool = False) -> tuple[float, ...]:
        """Least, 1 %, 5 %, 25 %, 50 %, 75 %, 95 %, greatest predicted / actual. `of_model`: by rows and bytes alone."""
        ratios = sorted(each.model_seconds / each.seconds if of_model else each.ratio for each in self.outcomes)
        places = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
        return tuple(ratios[min(int(place * len(ratios)), len(ratios) - 1)] for place in places)

    def cost_share(self, *, by_second: bool = False) -> float:
        """Of the sessions, those whose cost after was within 10 % of the cost before."""
        pairs = [
            (each.expected_usd_by_second, each.usd_by_second) if by_second else (each.expected_usd, each.usd)
            for each in self.outcomes
        ]
        within = [abs(before - after) <= GOAL_COST_ERROR * after for before, after in pairs]
        return sum(within) / len(within)


def section(outcomes: Sequence[Outcome], seed: int, load: float, scale: float = 1.0) -> report.Section:
    whole = Summary(tuple(outcomes))
    quantiles = "least / 1 % / 5 % / 25 % / 50 % / 75 % / 95 % / greatest"
    tables = (
        report.markdown_table(["what", "goal", "measured", ""], _goals(whole)),
        report.markdown_table(["predicted / actual", "sessions", "beyond", "median", quantiles], _ratios(whole)),
    )
    return "Expected SLA and cost, before and after", _conditions(outcomes, seed, load, scale) + "\n".join(tables)


def _conditions(outcomes: Sequence[Outcome], seed: int, load: float, scale: float) -> str:
    seconds = [each.seconds for each in outcomes]
    on_spark = sum(each.trial.on_spark for each in outcomes)
    small = f", of {scale:g} of the usual rows" if scale != 1 else ""
    return (
        f"{len(outcomes)} sessions of {min(seconds):.2f} to {max(seconds):.1f} s (seed {seed}{small}), "
        f"{on_spark} of them on Spark, one after the other; load average {load:.1f} at the start, and what else runs "
        "disturbs every one of them. The expected SLA is the predicted time and 10 %, half a second at least, or what "
        "the sessions before it in the same place say, and half a second. Prices are made up; requests are calculated "
        "from files and bytes, before and after.\n\n"
    )


def _ratios(whole: Summary) -> list[tuple[str, ...]]:
    """Predicted by actual seconds, by kind of session."""
    parts = {
        "all": whole,
        "in this process, folder": whole.of(far=False, on_spark=False),
        "in this process, S3": whole.of(far=True),
        "on a Spark that is up, folder": whole.of(on_spark=True),
    }
    rows: list[tuple[str, ...]] = []
    for of_model, which in ((False, ""), (True, ", by rows and bytes alone")):
        for name, part in parts.items():
            if part.outcomes:
                found = part.quantiles(of_model=of_model)
                beyond = "" if of_model else str(part.beyond)
                ratios = " / ".join(f"{each:.2f}" for each in found)
                rows.append((f"{name}{which}", str(len(part.outcomes)), beyond, f"{found[4]:.2f}", ratios))
    return rows


def _goals(whole: Summary) -> list[tuple[str, ...]]:
    """What was aimed at, the aim, what was measured, and whether that is within the aim."""
    cost_share, cost_share_by_second = whole.cost_share(), whole.cost_share(by_second=True)
    cost_goal = f"{GOAL_COST_SHARE:.0%} of sessions"
    goals = [
        ("sessions beyond their initial expected SLA", f"at most {GOAL_BEYOND}", str(whole.beyond), whole.beyond <= 1),
        (
            "median predicted / actual",
            f"at most {GOAL_MEDIAN}",
            f"{whole.median_ratio:.2f}",
            whole.median_ratio <= GOAL_MEDIAN,
        ),
        (
            "cost after within 10 % of cost before, made-up prices, a minute at least",
            cost_goal,
            f"{cost_share:.0%}",
            cost_share >= GOAL_COST_SHARE,
        ),
        (
            "the same, as if there were no least minute",
            cost_goal,
            f"{cost_share_by_second:.0%}",
            cost_share_by_second >= GOAL_COST_SHARE,
        ),
    ]
    return [(what, goal, value, "won" if won else "**lost**") for what, goal, value, won in goals]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="make sla", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS_MIN)
    parser.add_argument("--spark", type=int, default=12, help="of them, on a Spark that is up")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows")
    parser.add_argument("--clusters", action="store_true", help="on a standalone Spark of two workers instead")
    parser.add_argument("--results", type=Path, help=f"file to write to ({RESULTS.name}, where all is measured)")
    parser.add_argument("--outcomes", type=Path, help="file to note each session in, and to go on after")
    parser.add_argument("--at-most", type=int, default=sys.maxsize, help="sessions now; the others by a later run")
    options = parser.parse_args(arguments)
    if options.clusters:
        _measure_clusters(options)
        return
    load = os.getloadavg()[0]
    chosen = trials(options.sessions, options.spark, options.seed, options.scale)
    with tempfile.TemporaryDirectory(prefix="lithify-sla-") as folder:
        outcomes = run_missing(Path(folder), chosen, options.outcomes, options.at_most)
    if len(outcomes) < len(chosen):
        print(f"\n{len(outcomes)} of {len(chosen)} sessions are measured: run it again for the others.")
        return
    points = [(each.predicted_seconds, each.seconds, each.is_beyond) for each in outcomes]
    _report(section(outcomes, options.seed, load, options.scale), "predicted_sessions", points, options)


def _measure_clusters(options: argparse.Namespace) -> None:
    load = os.getloadavg()[0]
    tables = cluster_trials(options.seed, options.scale)
    with tempfile.TemporaryDirectory(prefix="lithify-sla-") as folder:
        outcomes = run_and_note(Path(folder), tables, options.outcomes)
    points = [(each.predicted_seconds, each.seconds, each.seconds > each.expected_sla) for each in outcomes]
    _report(cluster_section(outcomes, options.seed, load), "predicted_on_a_cluster", points, options)


def _report(
    measured: report.Section, plot_name: str, points: Sequence[tuple[float, float, bool]], options: argparse.Namespace
) -> None:
    """Beside the file of results lies a plot: predicted seconds, actual ones, whether they were beyond the SLA."""
    title, text = measured
    sections = [(title, f"{text}\n![{title}]({plot_name}.png)\n")]
    report.show([report.machine_section(describe_machine()), measured])
    results = options.results
    if results is None and (options.clusters or options.sessions >= SESSIONS_MIN) and options.scale == 1:
        results = RESULTS
    if results is not None:
        draw_predictions(points, results.with_name(f"{plot_name}.png"))
        report.write(results, sections)
        print(f"\nWritten to {results}")


if __name__ == "__main__":
    main(sys.argv[1:])
