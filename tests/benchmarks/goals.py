"""The goals of the design, and what was measured of each: won or lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.model.names import OpenFormat
from tests.benchmarks.acceptance import INSTRUCTIONS, Acceptance
from tests.benchmarks.bandwidth import Bandwidth
from tests.benchmarks.bounded import Bounded
from tests.benchmarks.child import DUCKDB, FLOOR, LANCE, OURS, SPARK
from tests.benchmarks.columns import COLUMNS, Columns
from tests.benchmarks.contests import BUCKET_COUNTS, Entry
from tests.benchmarks.data import NARROW
from tests.benchmarks.feeds import JSON_LINES, PARQUET, FeedSpeed
from tests.benchmarks.garbage import STREAMS as GARBAGE_STREAMS
from tests.benchmarks.garbage import Collection
from tests.benchmarks.keeper import APPENDS as KEPT_APPENDS
from tests.benchmarks.keeper import STREAMS as WATCHED_STREAMS
from tests.benchmarks.keeper import KeeperFigures
from tests.benchmarks.object_store import (
    CHANGES,
    DELAYS_MS,
    INCREMENTAL,
    LOOKUP,
    SCAN,
    STREAMS_OF,
    WHOLE,
    FarLake,
    FarLakes,
)
from tests.benchmarks.page_trust import PageTrust
from tests.benchmarks.publishing import DEAD_ROWS, PARTITIONS, Publishing
from tests.benchmarks.rate import AtARate
from tests.benchmarks.scans import DELAY_MS, EVERYTHING, ONE_KEY, Scans
from tests.benchmarks.spark_events import HASH_BUCKET
from tests.benchmarks.streams import FOLDER, S3, STREAMS, Streams
from tests.benchmarks.wide import STREAMS as WIDE_STREAMS
from tests.benchmarks.wide import Wide
from tests.benchmarks.workers import DELAY_MS as SMALL_DELAY_MS
from tests.benchmarks.workers import InWorkers
from tests.benchmarks.years import ACCEPTED_STREAMS, APPENDS, DELTAS, FILES, Years

TIMES_SPARK = {"narrow": 6.0, "wide": 8.0}
TIMES_SPARK_OF_THE_PAPER = 13.0
OF_DUCKDB, OF_FLOOR = 1.0, 1.3
OF_DUCKDB_CLUSTERED, OF_DUCKDB_UNIFORM, INCREMENTAL_SHARE = 0.25, 0.6, 0.05
OF_HALF_THE_TABLE = 1.15
OF_LANCE = {0.05: 2.0, 0.2: 1.0}
STREAMS_SECONDS = {FOLDER: 15.0, S3: 40.0}
SMALL_SECONDS = {None: (0.5, 0.8), SMALL_DELAY_MS: (2.0, 3.0)}
IDLE_WORKER_MIB = 200.0
AT_A_RATE_SECONDS, AT_A_RATE_GROWTH = 2.0, 1.1
PLACES = {FOLDER: "a folder", S3: "S3"}
OF_THE_NEAR = {(WHOLE, 30): 1.15, (WHOLE, 100): 1.5, (str(INCREMENTAL), 30): 1.3, (str(INCREMENTAL), 100): 2.0}
OF_NEEDED_BYTES = 1.1
SECONDS_FAR = {(STREAMS_OF, None): 0.03, (STREAMS_OF, 30): 0.15, (SCAN, 30): 0.35, (LOOKUP, 30): 0.15}
OF_SPEED_WITHOUT_LIMIT = 0.8
ACCEPTED_PER_SECOND, MEMORY_GROWTH = 10.0, 1.1
SESSION_REQUESTS, IN_SEQUENCE = 30.0, 12.0
PLAN_SECONDS, WIDE_SECONDS, WIDE_REQUESTS = 2.0, 60.0, 200.0
LOAD_SECONDS, LOAD_MB, OF_THE_FIRST_APPEND, TIMES_ONE_BY_ONE = 1.0, 50.0, 1.2, 5.0
SHUFFLED_BYTES_PER_ROW, DEDUPE_BYTES_PER_ROW = 40.0, 80.0
COLUMNS_SECONDS = 10.0
OF_A_DATASET = {EVERYTHING: 1.0, ONE_KEY: 0.5}
FEED_MB_PER_SECOND = {JSON_LINES: 50.0, PARQUET: 200.0}
GARBAGE_SECONDS, GARBAGE_GROWTH_MB = 120.0, 20.0
LOOK_REQUESTS, LOOK_SECONDS, KEPT_FILES, KEPT_OVER_ONCE = 300, 60.0, 8, 1.3
PUBLISH_MS, PUBLISH_P95_MS, OF_UNPUBLISHED, BITMAP_MS = 50.0, 100.0, 1.03, 20.0
PUBLISH_REQUESTS = {OpenFormat.DELTA: 6.0, OpenFormat.ICEBERG: 10.0}


@dataclass(frozen=True)
class Goal:
    """One goal. `at_least`: the larger the better."""

    what: str
    bound: float
    measured: float
    at_least: bool = False

    @property
    def won(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


def goals_of_whole(name: str, entries: Sequence[Entry]) -> list[Goal]:
    """Against everybody, on a whole table."""
    ours, spark, duck, floor = (_find(entries, contestant) for contestant in (OURS, SPARK, DUCKDB, FLOOR))
    if ours is None:
        return []
    goals = []
    if spark is not None:
        ratio = spark.seconds / ours.seconds
        goals.append(Goal(f"{name}: Spark window / ours", TIMES_SPARK[name], ratio, at_least=True))
        goals.append(Goal(f"{name}: the same, the paper's headline", TIMES_SPARK_OF_THE_PAPER, ratio, at_least=True))
    if duck is not None:
        goals.append(Goal(f"{name}: ours / DuckDB QUALIFY", OF_DUCKDB, ours.seconds / duck.seconds))
    if floor is not None:
        goals.append(Goal(f"{name}: ours / floor", OF_FLOOR, ours.seconds / floor.seconds))
    through_spark = next((entry for entry in entries if entry.variant.through_spark), None)
    if through_spark is not None:
        shuffled = through_spark.steps[HASH_BUCKET].shuffle_written_bytes / through_spark.input_rows
        goals.append(Goal(f"{name}: bytes shuffled per row, default sort key", SHUFFLED_BYTES_PER_ROW, shuffled))
    return goals


def goals_of_bounded(found: Sequence[Bounded]) -> list[Goal]:
    """No bound that a session was given is exceeded."""
    return [goal for measured in found for goal in _goals_within_bounds(measured)]


def _goals_within_bounds(measured: Bounded) -> list[Goal]:
    given, peaks = measured.resources, measured.peaks
    what = f"{measured.rows:,} {measured.shape} rows with little of everything"
    goals = [
        Goal(f"{what}: memory of a task, of what it was given", 1.0, peaks.task / given.task_memory_bytes),
        Goal(f"{what}: the same, mapped files included", 1.0, peaks.task_in_all / given.task_memory_bytes),
    ]
    if measured.shape == NARROW.name:
        goals.append(Goal(f"{what}: rounds", 2.0, measured.rounds, at_least=True))
    if given.scratch_bytes is not None:
        goals.append(Goal(f"{what}: scratch, of what it was given", 1.0, peaks.scratch / given.scratch_bytes))
    if given.driver_memory_bytes is not None:
        share = peaks.driver / given.driver_memory_bytes
        goals.append(Goal(f"{what}: memory of the driver's Python, of what it was given", 1.0, share))
    return goals


def goals_of_linear(found: Sequence[Bounded]) -> list[Goal]:
    """The time of a row does not depend on how many there are; no bound is exceeded."""
    largest, smallest = (each.seconds / each.rows for each in (found[0], found[-1]))
    time = Goal(f"{found[0].rows:,} rows: time of a row, of that of {found[-1].rows:,}", 1.1, largest / smallest)
    return [time, *goals_of_bounded(found[:1])]


def goals_of_page_trust(measured: PageTrust) -> list[Goal]:
    """Checks of our pages are cheap enough to be always on."""
    return [Goal("checksums and row groups that are read back, of a compaction", 0.03, measured.share)]


def goals_of_incremental(name: str, entries: Sequence[Entry]) -> list[Goal]:
    """A 5 % delta, against DuckDB on the whole table."""
    goals = []
    for ours in entries:
        if ours.contestant != OURS or ours.change is None or not ours.variant.own_parquet_pages:
            continue
        duck = next((each for each in entries if each.contestant == DUCKDB and each.change == ours.change), None)
        if duck is None or abs(ours.change.rows / ours.shape.rows - INCREMENTAL_SHARE) > 1e-3:
            continue
        bound = OF_DUCKDB_CLUSTERED if ours.change.clustered else OF_DUCKDB_UNIFORM
        kept = ", dead rows kept" if ours.variant.max_dead_row_share else ""
        what = f"{name}: 5 % {ours.change.spread}{kept} / DuckDB QUALIFY on the whole table"
        goals.append(Goal(what, bound, ours.seconds / duck.seconds))
    return goals


def goals_of_merges(entries: Sequence[Entry]) -> list[Goal]:
    """Ours with dead rows kept, against Lance, which keeps them too."""
    lance = {entry.change: entry.seconds for entry in entries if entry.contestant == LANCE}
    kept = [entry for entry in entries if entry.variant.max_dead_row_share and entry.change is not None]
    return [
        Goal(
            f"{share:.0%} uniform, dead rows kept / Lance merge_insert",
            bound,
            ours.seconds / lance[ours.change],
        )
        for ours in kept
        for share, bound in OF_LANCE.items()
        if ours.change is not None and abs(ours.change.rows / ours.shape.rows - share) < 1e-3
    ]


def goals_of_growing(entries: Sequence[Entry]) -> list[Goal]:
    """A clustered delta over a table, and over one of twice the rows."""
    line = [(entry, entry.change) for entry in entries if entry.variant.incremental and entry.change is not None]
    return [
        Goal(
            f"{change.rows:,} {change.spread} rows over {large.shape.rows:,} / over {small.shape.rows:,}",
            OF_HALF_THE_TABLE,
            large.seconds / small.seconds,
        )
        for small, change in line
        for large, other in line
        if change.clustered and change == other and large.shape.rows == 2 * small.shape.rows
    ]


def goals_of_buckets(entries: Sequence[Entry]) -> list[Goal]:
    """Dedupe's memory per row: what one bucket of all rows takes more than one of half of them, per row more."""
    few, more = (
        next((entry for entry in entries if entry.variant.hash_bucket_count == count), None)
        for count in BUCKET_COUNTS[:2]
    )
    if few is None or more is None:
        return []
    rows = few.input_rows / BUCKET_COUNTS[0] - more.input_rows / BUCKET_COUNTS[1]
    bytes_per_row = (few.peak_bytes("dedupe") - more.peak_bytes("dedupe")) / rows
    return [Goal("dedupe memory, bytes per row of a bucket", DEDUPE_BYTES_PER_ROW, bytes_per_row)]


def goals_of_workers(found: Sequence[InWorkers]) -> list[Goal]:
    """One small instruction at a time."""
    goals = []
    for each in found:
        where = "in a folder" if each.delay_ms is None else f"on S3 at {each.delay_ms} ms"
        (median, p95), (median_max, p95_max) = each.median_and_p95, SMALL_SECONDS[each.delay_ms]
        goals.append(Goal(f"a small instruction {where}: median, s", median_max, median))
        goals.append(Goal(f"a small instruction {where}: 95th of 100, s", p95_max, p95))
        goals.append(Goal(f"an idle worker, lake {where}, MiB", IDLE_WORKER_MIB, max(each.idle_worker_mib)))
    return goals


def goals_of_rate(found: AtARate) -> list[Goal]:
    """A hundred small instructions a minute."""
    _, half, last = found.memory_mib
    return [
        Goal("the longest of 100 small instructions a minute, s", AT_A_RATE_SECONDS, found.median_p95_and_longest[2]),
        Goal("memory after all of them / after half", AT_A_RATE_GROWTH, last / half),
    ]


def goals_of_streams(found: Sequence[Streams]) -> list[Goal]:
    """A thousand small partition streams, through the dispatcher, in all."""
    return [
        Goal(
            f"{each.streams:,} streams of 1,000 rows on {PLACES[each.place]}, s",
            STREAMS_SECONDS[each.place],
            each.seconds,
        )
        for each in found
        if each.streams == STREAMS
    ]


def goals_of_acceptance(found: Sequence[Acceptance]) -> list[Goal]:
    """One dispatcher, on an object store."""
    on_s3 = [each for each in found if each.place == S3 and each.instructions == INSTRUCTIONS]
    return [
        goal
        for each in on_s3
        for goal in (
            Goal("instructions taken in a second, on S3", ACCEPTED_PER_SECOND, each.per_second, at_least=True),
            Goal("memory of a dispatcher after 2,000 instructions / after 200", MEMORY_GROWTH, each.memory_growth),
        )
    ]


def goals_of_wide(found: Sequence[Wide]) -> list[Goal]:
    """Memory does not grow with the streams of a job run."""
    few, many = found
    if (few.streams, many.streams) != WIDE_STREAMS:
        return []
    what = f"memory of a dispatcher over {many.streams:,} streams / over {few.streams:,}"
    return [Goal(what, MEMORY_GROWTH, many.memory_mib / few.memory_mib)]


def goals_of_years(found: Years) -> list[Goal]:
    """What years may cost: goals of the full sizes only, but for requests, which follow from the input."""
    session, plan, wide, load, appends = found.session, found.plan, found.wide, found.load, found.appends
    goals = [
        Goal("requests of a small compact()", SESSION_REQUESTS, session.compact),
        Goal("the same, in sequence", IN_SEQUENCE, session.compact_in_sequence),
        Goal("requests of a small instruction, queue to end", SESSION_REQUESTS, sum(session.dispatched.values())),
    ]
    if plan.files == FILES:
        goals.append(Goal(f"planning {plan.files:,} files at 30 ms a request, s", PLAN_SECONDS, plan.seconds))
    if wide.streams == ACCEPTED_STREAMS:
        goals.append(Goal(f"acceptance over {wide.streams:,} streams, s", WIDE_SECONDS, wide.seconds))
        goals.append(Goal("the same, requests", WIDE_REQUESTS, wide.requests))
    if load.deltas == DELTAS:
        goals.append(Goal(f"load of a stream after {load.deltas:,} deltas, s", LOAD_SECONDS, load.seconds))
        goals.append(Goal("the same, MB of memory", LOAD_MB, load.grown_bytes / 1e6))
    if appends.at == APPENDS:
        ratio = appends.last.seconds / appends.first.seconds
        goals.append(Goal(f"append at the {appends.at:,}th delta / at the 1,000th", OF_THE_FIRST_APPEND, ratio))
    times = found.writers.together / found.writers.one_by_one
    what = f"append_many / one by one, {found.writers.writers} writers"
    return [*goals, Goal(what, TIMES_ONE_BY_ONE, times, at_least=True)]


def goals_of_garbage(found: tuple[Collection, Collection]) -> list[Goal]:
    """Time of the full size only; memory must not follow the number of files."""
    tenth, whole = found
    what = f"garbage collection: memory with {whole.files:,} files over {tenth.files:,}, MB more"
    goals = [Goal(what, GARBAGE_GROWTH_MB, (whole.grown_bytes - tenth.grown_bytes) / 1e6)]
    if whole.streams == GARBAGE_STREAMS:
        goals.append(
            Goal(f"the same of {whole.files:,} files, {whole.garbage:,} to delete, s", GARBAGE_SECONDS, whole.seconds)
        )
    return goals


def goals_of_keeper(found: KeeperFigures) -> list[Goal]:
    """Of the full numbers only."""
    look, kept, goals = found.look, found.kept, list[Goal]()
    if look.streams == WATCHED_STREAMS:
        goals.append(Goal(f"keeper's look at {look.streams:,} streams, requests", LOOK_REQUESTS, look.requests))
        goals.append(Goal("the same at 30 ms a request, s", LOOK_SECONDS, look.seconds))
    if kept.appends == KEPT_APPENDS:
        lookups, scans = kept.lookup_seconds, kept.scan_seconds
        goals.append(Goal(f"{kept.appends:,} appends kept by streaming: files", KEPT_FILES, kept.files))
        goals.append(Goal("the same: lookup / after one compaction", KEPT_OVER_ONCE, lookups[0] / lookups[1]))
        goals.append(Goal("the same: scan / after one compaction", KEPT_OVER_ONCE, scans[0] / scans[1]))
    return goals


def goals_of_columns(found: Columns) -> list[Goal]:
    """Of the full number only."""
    if found.columns != COLUMNS:
        return []
    seconds = found.append_seconds + found.compact_seconds + found.read_seconds
    return [Goal(f"append, compact and read {found.columns:,} columns, processor s", COLUMNS_SECONDS, seconds)]


def goals_of_scans(found: Scans) -> list[Goal]:
    """Beside PyArrow's dataset."""
    return [
        Goal(f"scan of {what}, {where}: ours / a PyArrow dataset", bound, found.ratio(what, delay_ms))
        for what, bound in OF_A_DATASET.items()
        for where, delay_ms in (("a folder", None), (f"S3 at {DELAY_MS} ms", DELAY_MS))
    ]


def goals_of_feeds(found: Sequence[FeedSpeed]) -> list[Goal]:
    """How fast changes come in."""
    return [
        Goal(
            f"changes of {each.form}, {each.kind}: MB/s a core",
            FEED_MB_PER_SECOND[each.kind],
            each.mb_per_second,
            at_least=True,
        )
        for each in found
    ]


def goals_of_publishing(found: Publishing, entries: Sequence[Entry]) -> list[Goal]:
    """What it may cost that other engines read a table. Times of the full size only."""
    goals = []
    for times in found.times if found.partitions == PARTITIONS else ():
        what = f"publish of a round as {times.format}, {found.partitions:,} partitions"
        goals.append(Goal(f"{what}: median, ms", PUBLISH_MS, times.median_seconds * 1e3))
        goals.append(Goal(f"{what}: 95th of 100, ms", PUBLISH_P95_MS, times.p95_seconds * 1e3))
    for requests in found.requests:
        what = f"publish of a round as {requests.format} on S3"
        goals.append(Goal(f"{what}: requests", PUBLISH_REQUESTS[requests.format], requests.mean))
        goals.append(Goal(f"{what}: listings", 0.0, requests.listings))
    for spread, seconds in found.bitmap_seconds.items():
        goals.append(Goal(f"bitmap of {DEAD_ROWS:,} dead rows, {spread}, ms of processor", BITMAP_MS, seconds * 1e3))
    if entries:
        without, published = entries
        goals.append(
            Goal("narrow: published in both formats / not", OF_UNPUBLISHED, published.seconds / without.seconds)
        )
    return goals


def goals_of_object_store(found: FarLakes) -> list[Goal]:
    """What distance may cost, and what an incremental run may cost beside a whole one."""
    return [*_goals_of_lake(found.small, ""), *_goals_of_lake(found.large, f"{found.large.rows:,} rows: ")]


def _goals_of_lake(found: FarLake, prefix: str) -> list[Goal]:
    goals = [
        Goal(f"{prefix}{what} at {delay_ms} ms / at 0 ms", bound, far.seconds / near.seconds)
        for (what, delay_ms), bound in OF_THE_NEAR.items()
        if (far := found.of(what, delay_ms)) is not None and (near := found.of(what, 0)) is not None
    ]
    for delay_ms in (None, *DELAYS_MS):
        whole = found.of(WHOLE, delay_ms)
        changed = [found.of(str(change), delay_ms) for change in CHANGES]
        goals += [
            Goal(f"{prefix}{each.what} / the whole table, {distance(delay_ms)}", 1.0, each.seconds / whole.seconds)
            for each in changed
            if whole is not None and each is not None
        ]
    near = found.of(str(INCREMENTAL), 0)
    if near is not None:
        what = f"{prefix}{INCREMENTAL}: bytes down / delta, files rewritten and index"
        goals.append(Goal(what, OF_NEEDED_BYTES, near.bytes_down / found.needed_bytes))
    for (what, delay_ms), bound in SECONDS_FAR.items():
        far = found.of(what, delay_ms)
        if far is not None:
            goals.append(Goal(f"{prefix}{what}, {distance(delay_ms)}, s", bound, far.seconds))
    return goals


def distance(delay_ms: int | None) -> str:
    return "in a folder" if delay_ms is None else f"{delay_ms} ms away"


def goals_of_bandwidth(found: Bandwidth) -> list[Goal]:
    """Connections in parallel make up for what one of them lacks."""
    what = "speed with 100 MB/s a connection / without a limit, rows of 1 KiB"
    return [
        Goal(
            f"{what}: whole",
            OF_SPEED_WITHOUT_LIMIT,
            found.free.whole_seconds / found.limited.whole_seconds,
            at_least=True,
        ),
        Goal(
            f"{what}: {INCREMENTAL}",
            OF_SPEED_WITHOUT_LIMIT,
            found.free.incremental_seconds / found.limited.incremental_seconds,
            at_least=True,
        ),
    ]


def _find(entries: Sequence[Entry], contestant: str) -> Entry | None:
    """Asked for what everybody is asked for."""
    return next((entry for entry in entries if entry.contestant == contestant and not entry.variant.by_position), None)
