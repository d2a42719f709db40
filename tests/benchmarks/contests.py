"""What is measured: each section of the benchmark, as a list of entries. Data, referees and compacted lakes are kept
for the whole of a run; every contestant of a contest gets the same files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.benchmarks import data
from tests.benchmarks.checks import Referee
from tests.benchmarks.child import DELTA_LAKE, DUCKDB, DUCKDB_JOIN, FLOOR, LANCE, OURS, SPARK
from tests.benchmarks.contestant import Task
from tests.benchmarks.data import NARROW, Change, Files, Shape, Survivors
from tests.benchmarks.processes import Lane, Timing, measure
from tests.benchmarks.spark_events import Steps, steps_of

EVERYBODY = (OURS, SPARK, DUCKDB, DUCKDB_JOIN, FLOOR)
DELTAS = tuple((share, clustered) for share in (0.01, 0.05, 0.2) for clustered in (True, False))
"""Of incremental compactions: the share of the table's rows, and whether updates fall on the recent ones."""
MERGED_SHARES = (0.05, 0.2)
"""Of a table's rows that a delta has, beside others that merge."""
TABLE_FACTORS = (1, 2, 4, 16)
ROUND_FACTORS = (1, 4, 16)
BUCKET_COUNTS = (1, 2, 8, 32)
DEAD_ROW_SHARE = 0.3
"""Of a compacted file, where dead rows are allowed."""
CORES = 2

_FULL_DELTA_SHARE = 0.25
_SMALL_SHARE = 0.25
"""The 1x table of the sections that let the table grow, against the table of the main contest."""
_ROWS_PER_ROUND_OF_SMALL = 0.5
_REPEATS_OF_GROWING_MAX = 3


@dataclass(frozen=True)
class Variant:
    """What ours is asked for beside the defaults of `compact()`."""

    by_position: bool = False
    through_spark: bool = False
    incremental: bool = False
    rows_per_compacted_file: int | None = None
    hash_bucket_count: int | None = None
    max_rows_per_round: int | None = None
    max_dead_row_share: float = 0.0
    published: bool = False
    own_parquet_pages: bool = True

    def __str__(self) -> str:
        prefix = ", dead rows kept" if self.max_dead_row_share else ""
        prefix += ", default sort key" if self.by_position else ""
        prefix += ", all records through Spark" if self.through_spark else ""
        prefix += ", published in both formats" if self.published else ""
        prefix += "" if self.own_parquet_pages else ", pages by Arrow"
        return prefix + (f", {self.hash_bucket_count} hash buckets" if self.hash_bucket_count is not None else "")


@dataclass(frozen=True)
class Start:
    """One contestant in one contest.

    repeats  timed runs after its first; None: as many as the arena has
    keep     where what its last run leaves is kept
    """

    contestant: str
    shape: Shape
    change: Change | None
    variant: Variant = Variant()
    cores: int = CORES
    repeats: int | None = None
    keep: Path | None = None

    def __str__(self) -> str:
        prefix = f"{self.contestant}: {self.shape.rows:,} {self.shape.name} rows"
        if self.change is not None:
            prefix += f" + {self.change.rows:,} {self.change.spread}"
        if self.variant.incremental:
            prefix += ", incremental"
        return f"{prefix}{self.variant}" + (f", {self.cores} core" if self.cores == 1 else "")


@dataclass(frozen=True)
class Entry:
    """One contestant's result in one contest."""

    contestant: str
    shape: Shape
    change: Change | None
    variant: Variant
    cores: int
    input_rows: int
    input_bytes: int
    timing: Timing

    @property
    def seconds(self) -> float:
        return self.timing.seconds

    @property
    def rows_per_second_core(self) -> float:
        return self.input_rows / self.seconds / self.cores

    @property
    def mib_per_second_core(self) -> float:
        return self.input_bytes / 2**20 / self.seconds / self.cores

    @property
    def arrived_rows(self) -> int:
        """Rows of the delta files that ours takes in."""
        return self.change.rows if self.variant.incremental and self.change is not None else self.input_rows

    def peak_bytes(self, step: str) -> int:
        """The largest Python worker of ours in a step of the first run, by the rounds' completions. A worker keeps the
        peak of what it did before."""
        session = self.timing.first.session
        return max((each.steps[step].peak_memory_bytes for each in session.completions), default=0) if session else 0

    @property
    def steps(self) -> Steps:
        """Of the run with the median time."""
        return steps_of(self.timing.stages_of(self.timing.median_run))


@dataclass
class Arena:
    """Where contests take place.

    folder   everything is written below it
    repeats  timed runs of a contestant after its first; 0: the first is all there is
    only     contestants that take part
    """

    folder: Path
    repeats: int
    scale: float
    only: Sequence[str] = EVERYBODY
    _referees: dict[tuple[object, ...], Referee] = field(default_factory=dict)

    def enter(self, *starts: Start) -> list[Entry]:
        """Measures contestants in turns. Raises `Wrong` if one leaves other rows than the ones that survive."""
        if not starts:
            return []
        lanes = [self._lane(number, start) for number, start in enumerate(starts)]
        print("  in turns:" if len(starts) > 1 else "  alone:", flush=True)
        entries = [self._entry(start, timing) for start, timing in zip(starts, measure(lanes), strict=True)]
        for start, entry in zip(starts, entries, strict=True):
            print(f"    {start}: {entry.seconds:.2f} s", flush=True)
        return entries

    def _lane(self, number: int, start: Start) -> Lane:
        table, delta = self._files(start)
        variant = start.variant
        task = Task(
            table_files=table.paths,
            delta_files=delta.paths,
            cores=start.cores,
            compacted_lake=str(self._compacted(start.shape, variant)) if variant.incremental else None,
            by_position=variant.by_position,
            through_spark=variant.through_spark,
            rows_per_compacted_file=variant.rows_per_compacted_file,
            hash_bucket_count=variant.hash_bucket_count,
            max_rows_per_round=variant.max_rows_per_round,
            max_dead_row_share=variant.max_dead_row_share,
            published=variant.published,
            own_parquet_pages=variant.own_parquet_pages,
        )
        repeats = self.repeats if start.repeats is None else start.repeats
        referee = self._referee(start.contestant, start.shape, start.change, variant)
        return Lane(start.contestant, task, repeats, self.folder / f"lane-{number}", referee, start.keep)

    def _entry(self, start: Start, timing: Timing) -> Entry:
        table, delta = self._files(start)
        rows, size = table.rows + delta.rows, table.size_bytes + delta.size_bytes
        return Entry(start.contestant, start.shape, start.change, start.variant, start.cores, rows, size, timing)

    def _files(self, start: Start) -> tuple[Files, Files]:
        delta = Files((), 0, 0) if start.change is None else data.write_delta(self._data, start.shape, start.change)
        return data.write_table(self._data, start.shape), delta

    @property
    def growing_repeats(self) -> int:
        """Of whole tables that grow, or on one core: they take long."""
        return min(self.repeats, _REPEATS_OF_GROWING_MAX)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _compacted(self, shape: Shape, variant: Variant) -> Path:
        lake = self.folder / "compacted" / f"{shape.name}-{shape.rows}-{variant.rows_per_compacted_file}"
        if not lake.exists():
            lake.parent.mkdir(exist_ok=True)
            base = Variant(rows_per_compacted_file=variant.rows_per_compacted_file)
            self.enter(Start(OURS, shape, None, base, repeats=0, keep=lake))
        return lake

    def _referee(self, contestant: str, shape: Shape, change: Change | None, variant: Variant) -> Referee:
        rule = "all" if contestant == FLOOR else "by position" if variant.by_position else "by time"
        key = (rule, shape, change)
        if key not in self._referees:
            self._referees[key] = Referee(_expected(rule, shape, change))
        return self._referees[key]


def whole_table(arena: Arena, shape: Shape) -> list[Entry]:
    """The main contest: an unsorted table and an unsorted delta, from nothing.

    There are at least as many turns as contestants: in so many, each comes right after every other one equally often.
    """
    shape = shape.scaled(arena.scale)
    change = Change(int(shape.rows * _FULL_DELTA_SHARE))
    starts = [Start(name, shape, change) for name in _playing(arena, EVERYBODY)]
    if not arena.repeats:
        return arena.enter(*starts)
    through_spark = []
    if OURS in arena.only:
        starts.append(Start(OURS, shape, change, Variant(by_position=True)))
        starts.append(Start(OURS, shape, change, Variant(own_parquet_pages=False)))
        through_spark.append(Start(OURS, shape, change, Variant(by_position=True, through_spark=True)))
    repeats = max(arena.repeats, len(starts))
    return arena.enter(*(replace(start, repeats=repeats) for start in starts)) + arena.enter(*through_spark)


def incremental(arena: Arena, shape: Shape, deltas: Iterable[tuple[float, bool]] = DELTAS) -> list[Entry]:
    """A delta over a compacted table, against DuckDB that has to take the whole table again."""
    shape = shape.scaled(arena.scale)
    entries = []
    for share, clustered in deltas:
        change = Change(int(shape.rows * share), clustered)
        variants = _variants(arena, shape, change)
        by_arrow = [replace(each, own_parquet_pages=False) for each in variants[:1]]
        starts = [Start(OURS, shape, change, variant) for variant in (*variants, *by_arrow)]
        entries += arena.enter(*starts, *(Start(name, shape, change) for name in _playing(arena, [DUCKDB])))
    return entries


def merges(arena: Arena) -> list[Entry]:
    """A delta with updates all over a table that is compacted, beside others that merge it into theirs."""
    shape = NARROW.scaled(arena.scale)
    entries = []
    for share in MERGED_SHARES:
        change = Change(int(shape.rows * share))
        starts = [Start(OURS, shape, change, variant) for variant in _variants(arena, shape, change)]
        entries += arena.enter(*starts, *(Start(name, shape, change) for name in (DELTA_LAKE, LANCE)))
    return entries


def growing_table(arena: Arena) -> list[Entry]:
    """Tables of 1x to 16x: everybody on the whole table, ours also on a delta of fixed size over it."""
    small = _small(arena)
    shapes = [small.times(factor) for factor in TABLE_FACTORS]
    entries = []
    for share, clustered in ((0.05, True), (0.05, False), (0.01, True), (0.01, False)):
        change = Change(int(small.rows * share), clustered)
        starts = [
            Start(OURS, shape, change, variant) for shape in shapes for variant in _variants(arena, shape, change)
        ]
        entries += arena.enter(*starts)
    change = Change(int(small.rows * 0.05), clustered=True)
    for shape in shapes:
        names = _playing(arena, [OURS, SPARK, DUCKDB])
        entries += arena.enter(*(Start(name, shape, change, repeats=arena.growing_repeats) for name in names))
    return sorted(entries, key=lambda entry: entry.shape.rows)


def rounds(arena: Arena) -> list[Entry]:
    """Tables of 1x to 16x in rounds of a fixed number of rows, with hash buckets in proportion: one run each."""
    small = _small(arena)
    entries = []
    for factor in ROUND_FACTORS:
        variant = Variant(
            rows_per_compacted_file=small.rows_per_file,
            hash_bucket_count=CORES * factor,
            max_rows_per_round=int(small.rows * _ROWS_PER_ROUND_OF_SMALL),
        )
        entries += arena.enter(Start(OURS, small.times(factor), None, variant, repeats=0))
    return entries


def cores_and_buckets(arena: Arena) -> list[Entry]:
    """Ours on one core and on two, and with other numbers of hash buckets."""
    shape = NARROW.scaled(arena.scale)
    change = Change(int(shape.rows * _FULL_DELTA_SHARE))
    repeats = arena.growing_repeats
    one_core = [Start(name, shape, change, cores=1, repeats=repeats) for name in _playing(arena, [OURS, DUCKDB])]
    buckets = [Start(OURS, shape, change, Variant(hash_bucket_count=count), repeats=repeats) for count in BUCKET_COUNTS]
    return [*arena.enter(*one_core), *arena.enter(*buckets)]


def published(arena: Arena) -> list[Entry]:
    """Ours on the whole table, which is published in both formats, and not."""
    if OURS not in arena.only:
        return []
    shape = NARROW.scaled(arena.scale)
    change = Change(int(shape.rows * _FULL_DELTA_SHARE))
    return arena.enter(*(Start(OURS, shape, change, Variant(published=each)) for each in (False, True)))


def _small(arena: Arena) -> Shape:
    return NARROW.scaled(arena.scale).times(_SMALL_SHARE)


def _variants(arena: Arena, shape: Shape, change: Change) -> list[Variant]:
    """How ours is asked for an incremental compaction; uniform updates also where files may keep dead rows."""
    if OURS not in arena.only:
        return []
    clean = Variant(incremental=True, rows_per_compacted_file=shape.rows_per_file)
    return [clean] if change.clustered else [clean, replace(clean, max_dead_row_share=DEAD_ROW_SHARE)]


def _playing(arena: Arena, names: Iterable[str]) -> list[str]:
    return [name for name in names if name in arena.only]


def _expected(rule: str, shape: Shape, change: Change | None) -> Survivors:
    if change is None:
        return data.survivors(shape, None)
    if rule == "by position":
        return data.survivors_by_position(shape, change)
    if rule == "all":
        return data.all_rows(shape, change)
    return data.survivors(shape, change)
