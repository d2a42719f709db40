"""Turns what was measured into the sections of RESULTS.md."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

from compactor.model.names import counted
from compactor.planning.spec import PAGE_CHECK_SHARE, SessionResult
from tests.benchmarks.acceptance import BEATS_PER_SECOND, Acceptance
from tests.benchmarks.bandwidth import Bandwidth
from tests.benchmarks.bounded import Bounded
from tests.benchmarks.child import DUCKDB, LANCE, OURS
from tests.benchmarks.columns import Columns
from tests.benchmarks.contests import DEAD_ROW_SHARE, Entry, Variant
from tests.benchmarks.feeds import REPEATS as FEED_REPEATS
from tests.benchmarks.feeds import FeedSpeed
from tests.benchmarks.fit import Fit
from tests.benchmarks.garbage import Collection
from tests.benchmarks.goals import Goal
from tests.benchmarks.keeper import KEYS_AN_APPEND, KeeperFigures
from tests.benchmarks.object_store import (
    COMPACTED_FILES,
    DELTA_FILES,
    DOLLARS_PER_READ,
    DOLLARS_PER_WRITE,
    INCREMENTAL,
    REPEATS,
    ROWS_OF_A_STREAM,
    STREAMS,
    FarLake,
    FarLakes,
    dollars_of,
)
from tests.benchmarks.page_trust import PageTrust
from tests.benchmarks.publishing import COUNTED, DEAD_ROWS, FILES, Publishing
from tests.benchmarks.rate import A_MINUTE, TABLES, AtARate
from tests.benchmarks.scans import DATASET, Scans
from tests.benchmarks.scans import REPEATS as SCAN_REPEATS
from tests.benchmarks.spark_events import STEPS, Step
from tests.benchmarks.streams import ROWS, Streams
from tests.benchmarks.wide import Wide
from tests.benchmarks.workers import ROWS as SMALL_ROWS
from tests.benchmarks.workers import InWorkers
from tests.benchmarks.years import WITH_NEWS, Years

_TITLE = """\
# What Lithify takes, beside what else one would pick

Written by `make bench`, on one machine, every contest on the same cores and files with the page cache warm. Times are
medians without start-up; a contestant's first run, in a cold process whose memory is watched, stands apart. Those that
are compared run in turns, so that a minute in which the machine is slow is slow for all of them. A time counts only
when the surviving rows are right in number and in every value. Ours flushes what it writes to the disk; nobody else
does. `rows/s-core` and `MiB/s-core` are of all rows and bytes at rest that a contestant is given, table and delta.
What is compared is of one run; sections may be of several, as `--section` measures one anew.
"""
_GOALS = "Against the goals"
_QUESTIONS = (
    ("What was reached, and what was missed?", _GOALS),
    ("How fast is a first compaction, beside Spark and DuckDB?", "Whole table, narrow rows"),
    ("How fast is a delta over a compacted table?", "Incremental, narrow rows"),
    ("How fast beside MERGE of Delta Lake and merge_insert of Lance?", "Merged into a table, beside others"),
    ("Is it fast on S3, and what do its requests cost?", "On an object store"),
    ("What if the connection to S3 is slow?", "Limited connections"),
    ("How many small partitions or instructions, on a folder and on S3?", "Many small partition streams"),
    ("Does one dispatcher keep up with many small instructions?", "A hundred small instructions a minute"),
    ("Does it stay as fast when the table grows?", "A growing table"),
    ("Does it stay as fast after years of appends?", "A log for years"),
    ("How fast are the changes of a feed appended?", "Changes coming in"),
    ("How long does garbage collection take?", "Garbage collection"),
    ("How long does a scan take?", "Scans"),
    ("How long does a small instruction take?", "Small instructions in workers"),
    ("What does a look of the keeper take, and how well does it keep a table?", "The keeper"),
    ("What do very many columns take?", "Very many columns"),
    ("How much memory and disk does it need?", "Little memory, little disk"),
    ("Does a row take as long in a table of 256 million?", "Time follows rows"),
    ("What does publishing for other engines cost?", "Publishing"),
    ("How long until a session has begun?", "Start-up"),
    ("How fast is the page, and what does it cost the store?", "The page"),
    ("Are predictions of time and money right?", "Expected SLA and cost, before and after"),
    ("Are they right on a cluster?", "Expected SLA on a cluster"),
    ("What if something is killed?", "Killed, and gone on"),
)
"""What readers come for, and the section that answers it."""

ROUND_STEPS = ("hash_bucket", "dedupe", "materialize")
_MIB = 2**20

Section = tuple[str, str]
"""A heading, and the Markdown below it."""


def machine_section(machine: Iterable[tuple[str, str]]) -> Section:
    return "The machine", markdown_table(["what", "which"], machine)


def goals_section(goals: Iterable[Goal]) -> Section:
    rows = [
        (
            goal.what,
            f"{'at least' if goal.at_least else 'at most'} {goal.bound:g}",
            f"{goal.measured:.2f}",
            "won" if goal.won else "**lost**",
        )
        for goal in goals
    ]
    return _GOALS, markdown_table(["what", "goal", "measured", ""], rows)


def whole_table_section(name: str, entries: Sequence[Entry]) -> Section:
    """The main contest: times and memory of everybody, and where ours goes."""
    ours = next((entry for entry in entries if entry.contestant == OURS), None)
    rows = [
        (
            _who(entry),
            f"{entry.seconds:.2f}",
            "{:.2f} - {:.2f}".format(*entry.timing.range_seconds),
            f"{entry.seconds / ours.seconds:.2f}" if ours else "",
            f"{entry.timing.first.seconds:.2f}",
            f"{entry.timing.start_seconds:.1f}",
            f"{entry.rows_per_second_core:,.0f}",
            f"{entry.mib_per_second_core:.1f}",
            f"{entry.timing.memory.worker / _MIB:,.0f}" if entry.timing.memory.worker else "",
            f"{entry.timing.memory.tree / _MIB:,.0f}",
            f"{entry.timing.written_bytes / _MIB:,.0f}",
        )
        for entry in entries
    ]
    given = entries[0]
    text = f"{given.shape.rows:,} rows and a delta of {given.input_rows - given.shape.rows:,}, 80 % of them updates; "
    text += f"{given.input_bytes / given.input_rows:.0f} bytes a row at rest; {given.cores} cores. "
    text += "What passes all records through Spark ran by itself: its bytes are to be compared, its time is not.\n\n"
    columns = ["who", "s", "least - most, s", "/ ours", "first run, s", "start, s", "rows/s-core", "MiB/s-core"]
    columns += ["largest Python worker, MiB", "all processes, MiB", "written, MiB"]
    return f"Whole table, {name} rows", text + markdown_table(columns, rows) + _steps_table(entries)


def incremental_section(name: str, entries: Sequence[Entry]) -> Section:
    """A delta over a compacted table, beside DuckDB on the whole."""
    theirs = {entry.change: entry for entry in entries if entry.contestant == DUCKDB}
    rows = []
    for entry in _ours(entries):
        duck, change = theirs.get(entry.change), entry.change
        if change is None:
            continue
        rows.append(
            (
                f"{change.rows / entry.shape.rows:.0%} {change.spread}{entry.variant}",
                f"{entry.seconds:.2f}",
                f"{entry.timing.first.seconds:.2f}",
                f"{duck.seconds:.2f}" if duck else "",
                f"{entry.seconds / duck.seconds:.2f}" if duck else "",
                f"{change.rows / entry.seconds / entry.cores:,.0f}",
                *_bytes_moved(entry),
                f"{entry.timing.memory.worker / _MIB:,.0f}",
            )
        )
    columns = ["delta", "ours, s", "first run, s", "DuckDB on the whole, s", "ours / DuckDB", "delta rows/s-core"]
    columns += ["MiB read", "MiB written", "largest Python worker, MiB"]
    text = f"Ours has compacted the table of {entries[0].shape.rows:,} rows, in 16 files; "
    text += "DuckDB takes the whole table and the delta. Where dead rows are kept, files with up to "
    text += f"{DEAD_ROW_SHARE:.0%} of them are not rewritten: they are noted in deletion vectors.\n\n"
    return f"Incremental, {name} rows", text + markdown_table(columns, rows) + _steps_table(entries)


def merges_section(entries: Sequence[Entry]) -> Section:
    """A delta merged into a table, by everybody that does it."""
    rows = []
    for entry in entries:
        change = entry.change
        if change is None:
            continue
        lance = next(each for each in entries if each.contestant == LANCE and each.change == change)
        least, most = entry.timing.range_seconds
        rows.append(
            (
                f"{change.rows / entry.shape.rows:.0%}",
                f"{entry.contestant}{entry.variant}",
                f"{entry.seconds:.2f}",
                f"{least:.2f} - {most:.2f}",
                f"{entry.seconds / lance.seconds:.2f}",
                f"{entry.timing.memory.tree / _MIB:,.0f}",
            )
        )
    text = f"A delta, 80 % of it updates all over a table of {entries[0].shape.rows:,} narrow rows in 16 files, on a "
    text += (
        "folder. Ours reads the delta's files and chooses the latest row of each key; the others get that from memory, "
    )
    text += "and it is not timed. Lance, and ours with dead rows kept, leave the table's files as they are.\n\n"
    columns = ["delta, of the rows", "who", "s", "least - most, s", "/ Lance", "all processes, MiB"]
    return "Merged into a table, beside others", text + markdown_table(columns, rows)


def bounded_section(found: Sequence[Bounded]) -> Section:
    """What jobs take that have little of everything, and the plans that keep them there."""
    return "Little memory, little disk", "\n".join(map(_bounded_text, found))


def _bounded_text(measured: Bounded) -> str:
    given, peaks = measured.resources, measured.peaks
    rows = [
        ("a task, for itself", peaks.task, given.task_memory_bytes),
        ("a task, with the files that it has mapped", peaks.task_in_all, given.task_memory_bytes),
        ("a worker that has seen no row yet, for itself", measured.idle_task, None),
        ("the driver's Python, for itself", peaks.driver, given.driver_memory_bytes),
        ("scratch folders", peaks.scratch, given.scratch_bytes),
    ]
    shown = [
        (what, f"{peak / _MIB:,.0f}", "" if bound is None else f"{bound / _MIB:,.0f}") for what, peak, bound in rows
    ]
    text = f"{measured.rows:,} {measured.shape} rows in {counted(measured.files, 'file')} on {given.tasks} cores, "
    text += f"launched as the dispatcher launches: {counted(measured.rounds, 'round')} of its own choosing, "
    text += f"{measured.seconds:.0f} s from launch to end. "
    text += "The least that a worker was seen with is what it takes without rows.\n\n"
    plan = "\n".join(f"- {sentence}" for sentence in measured.plan.arithmetic)
    return f"{text}{markdown_table(['what', 'peak, MiB', 'given, MiB'], shown)}\n{plan}\n"


def linear_section(found: Sequence[Bounded]) -> Section:
    """Whether time follows rows."""
    rows = [
        (
            f"{each.rows:,}",
            f"{each.rounds}",
            f"{each.seconds:.0f}",
            f"{1e9 * each.seconds / each.rows:.0f}",
            *(f"{peak / _MIB:,.0f}" for peak in (each.peaks.task, each.peaks.driver, each.peaks.scratch)),
        )
        for each in found
    ]
    given = found[0].resources
    text = (
        f"Narrow rows on {given.tasks} cores, launched as the dispatcher launches: {given.task_memory_bytes // _MIB} "
    )
    text += f"MiB a task, {(given.scratch_bytes or 0) // _MIB:,} MiB of scratch. Seconds are from launch to end, the "
    text += "start of Spark included.\n\n"
    columns = ["rows", "rounds", "s", "ns a row", "task, MiB", "driver, MiB", "scratch, MiB"]
    return "Time follows rows", text + markdown_table(columns, rows)


def page_trust_section(measured: PageTrust) -> Section:
    """What checksums and row groups that are read back take of a compaction."""
    rows = [
        ("the compaction, without the two", f"{measured.compaction:.2f}"),
        ("checksums of all pages read and written", f"{measured.checksums:.3f}"),
        (f"reading back all {measured.row_groups} row groups", f"{measured.read_back:.2f}"),
    ]
    text = f"{measured.rows:,} narrow rows, in one process. At the default sample of {PAGE_CHECK_SHARE:.1%} of the row "
    text += f"groups, checksums and reading back take {measured.share:.1%} of a compaction's processor time.\n\n"
    return "Trust in written pages", text + markdown_table(["what", "processor s"], rows)


def growing_section(entries: Sequence[Entry], plot: str) -> Section:
    """Everybody on growing tables, and a delta of fixed size over them."""
    rows = [(*_size(entry, entries), _who(entry), f"{entry.seconds:.2f}", *_bytes_moved(entry)) for entry in entries]
    table = markdown_table(["table", "rows", "who", "s", "MiB read", "MiB written"], rows)
    return "A growing table", f"![time by table size]({plot})\n\n{table}"


def rounds_section(entries: Sequence[Entry]) -> Section:
    """Whether memory stays flat while the table grows."""
    rows = []
    for entry in entries:
        session = entry.timing.first.session
        if session is None:
            continue
        buckets = entry.variant.hash_bucket_count or 1
        peaks = [entry.peak_bytes(step) for step in ROUND_STEPS]
        held = _rows_held(session, entry.variant, buckets)
        rows.append(
            (
                *_size(entry, entries),
                f"{session.rounds}",
                f"{buckets}",
                f"{entry.seconds:.1f}",
                " / ".join(f"{peak / _MIB:,.0f}" for peak in peaks),
                " / ".join(f"{count:,}" for count in held),
                " / ".join(f"{peak / count:,.0f}" for peak, count in zip(peaks, held, strict=True)),
                f"{entry.timing.memory.tree / _MIB:,.0f}",
            )
        )
    columns = ["table", "rows", "rounds", "hash buckets", "s", "largest worker, MiB", "rows it holds", "bytes / row"]
    columns += ["all processes, MiB"]
    text = (
        "Rounds of a fixed number of rows, and hash buckets in proportion to the table, as sizing has them where "
        f"memory is short. By step: {' / '.join(ROUND_STEPS)}. A worker's memory contains what it holds before any row "
        "(see Start-up), which is most of it where it holds few rows.\n\n"
    )
    return "Memory while the table grows", text + markdown_table(columns, rows)


def _rows_held(session: SessionResult, variant: Variant, buckets: int) -> list[int]:
    """The rows that a task of each step holds: of a round, of a bucket, of a file."""
    hash_tasks = max(each.steps["hash_bucket"].tasks for each in session.completions)
    return [
        (variant.max_rows_per_round or session.rows_in) // hash_tasks,
        session.rows_out // buckets,
        variant.rows_per_compacted_file or session.rows_out,
    ]


def cores_section(entries: Sequence[Entry]) -> Section:
    rows = [
        (
            _who(entry),
            f"{entry.cores}",
            f"{entry.variant.hash_bucket_count or ''}",
            f"{entry.seconds:.2f}",
            f"{entry.timing.first.seconds:.2f}",
            f"{entry.rows_per_second_core:,.0f}",
            f"{entry.peak_bytes('dedupe') / _MIB:,.0f}",
        )
        for entry in entries
    ]
    columns = ["who", "cores", "hash buckets", "s", "first run, s", "rows/s-core", "worker in dedupe, MiB"]
    return "Cores and hash buckets", markdown_table(columns, rows) + _steps_table(entries)


def startup_section(split: dict[str, float]) -> Section:
    return "Start-up", markdown_table(["what", "s"], [(name, f"{seconds:.2f}") for name, seconds in split.items()])


def acceptance_section(found: Sequence[Acceptance]) -> Section:
    """How fast instructions are taken in."""
    text = f"{found[0].instructions:,} instructions on the queue, with nothing to compact; one dispatcher, which looks "
    text += (
        "for work every 0.1 s. Queue and topic are ministack, S3 is seaweedfs, on the same cores. Latency is from the "
    )
    text += (
        "sending of a message until it is accepted and deleted, in a run with fewer of them a second. Load average, "
    )
    text += f"these processes included, {os.getloadavg()[1]:.1f}.\n\n"
    rows = [
        (
            each.place,
            f"{each.per_second:.1f}",
            f"{each.cpu_seconds / each.instructions * 1_000:.0f}",
            f"{' / '.join(f'{mib:.0f}' for mib in each.memory_mib)} ({each.memory_growth:.2f})",
            ", ".join(f"{count:.1f} {operation}" for operation, count in each.requests.items()),
            " / ".join(f"{seconds * 1_000:.0f}" for seconds in each.latency_seconds or ()),
        )
        for each in found
    ]
    columns = ["state and lake on", "instructions/s", "ms of processor each, of the dispatcher"]
    columns += ["its memory after a tenth / half / all of them, MiB (the most after that tenth / then)"]
    columns += ["requests to S3 each", f"latency at {BEATS_PER_SECOND:g}/s, median / 99 %, ms"]
    return "Instructions taken in", text + markdown_table(columns, rows)


def workers_section(found: Sequence[InWorkers]) -> Section:
    """How long one small instruction takes."""
    text = (
        f"{len(found[0].seconds)} instructions, one after the other, each for {SMALL_ROWS:,} new rows of one stream: "
    )
    text += "from SendMessage to `job_run.succeeded` on a queue that is subscribed to the topic. One dispatcher with "
    text += "its defaults; lake and state in a folder, or on S3 (seaweedfs behind a proxy that delays each answer); "
    text += "queue and topic are ministack, on the same cores. Memory is by a process's share of pages in common. Load "
    text += f"average, these processes included, {os.getloadavg()[1]:.1f}.\n\n"
    columns = ["lake and state", "median, s", "95 %, s", "the first, with the start of the dispatcher, s"]
    columns += ["an idle worker, MiB", "requests to S3", "of them in sequence"]
    rows = []
    for each in found:
        median, p95 = each.median_and_p95
        memory = " / ".join(f"{mib:.0f}" for mib in each.idle_worker_mib)
        where = "folder" if each.delay_ms is None else f"S3, {each.delay_ms} ms a request"
        requests = ("", "") if each.delay_ms is None else (f"{each.requests:.0f}", f"{each.in_sequence:.0f}")
        rows.append((where, f"{median:.2f}", f"{p95:.2f}", f"{each.first_seconds:.1f}", memory, *requests))
    return "Small instructions in workers", text + markdown_table(columns, rows)


def rate_section(found: AtARate) -> Section:
    """What one dispatcher does at a steady pace."""
    text = f"{len(found.seconds):,} instructions, {A_MINUTE} a minute, each for {SMALL_ROWS:,} new rows of one of "
    text += (
        f"{TABLES} tables; from SendMessage to `job_run.succeeded`. One dispatcher with its defaults, lake and state "
    )
    text += (
        "in a folder, queue and topic are ministack, on the same cores. Memory is of the dispatcher and its workers, "
    )
    text += "without pages that others have too, after a tenth of the instructions, after half, and after all. Load "
    text += f"average, these processes included, {os.getloadavg()[1]:.1f}.\n\n"
    columns = ["median, s", "95 %, s", "the longest, s", "memory, MiB"]
    median, p95, longest = found.median_p95_and_longest
    memory = " / ".join(f"{mib:.0f}" for mib in found.memory_mib)
    row = (f"{median:.2f}", f"{p95:.2f}", f"{longest:.2f}", memory)
    return "A hundred small instructions a minute", text + markdown_table(columns, [row])


def streams_section(found: Sequence[Streams]) -> Section:
    """How long many small partition streams take."""
    text = (
        f"One instruction for a table of {found[0].streams:,} partition streams with one delta of {ROWS:,} rows each; "
    )
    text += (
        "bundles of small sessions run in workers. Queue, topic and S3 are stand-ins on the same cores; load average, "
    )
    text += f"these processes included, {os.getloadavg()[1]:.1f}.\n\n"
    rows = [
        (
            each.place,
            f"{each.seconds:.1f}",
            f"{each.run_seconds:.1f}",
            f"{each.launches}",
            f"{each.job_run_entries}",
            ", ".join(f"{count:.1f} {operation}" for operation, count in each.requests.items() if count),
        )
        for each in found
    ]
    columns = ["state and lake on", "in all, s", "from acceptance to the end, s", "bundles"]
    columns += ["entries of the job-run log", "requests a stream"]
    return "Many small partition streams", text + markdown_table(columns, rows)


def wide_section(found: Sequence[Wide]) -> Section:
    """What memory many streams take."""
    text = "One instruction for a table of so many partition streams with a row each, compacted without a Spark; one "
    text += "dispatcher of 2 sessions at a time.\n\n"
    rows = [(f"{each.streams:,}", f"{each.shards}", f"{each.seconds:.0f}", f"{each.memory_mib:.0f}") for each in found]
    columns = ["streams", "shards", "in all, s", "the dispatcher's memory at most, MiB"]
    return "Wide job runs", text + markdown_table(columns, rows)


def years_section(found: Years) -> Section:
    """What a table costs after years, and a small session on S3."""
    text = (
        "S3 is seaweedfs behind a proxy, on the same cores. Requests follow from the input, times from the machine as "
    )
    text += f"well; load average, these processes included, {os.getloadavg()[1]:.1f}.\n\n"
    session, plan, wide, load = found.session, found.plan, found.wide, found.load
    by_operation = ", ".join(f"{count:.1f} {name}" for name, count in session.dispatched.items())
    rows = [
        ("a small `compact()`: requests, of them in sequence", f"{session.compact}, {session.compact_in_sequence}"),
        (
            "a small instruction through the dispatcher, from the queue to its end, the Spark job's included: requests",
            f"{sum(session.dispatched.values()):.1f} ({by_operation})",
        ),
        (
            f"planning {plan.files:,} pending files of one schema, 30 ms a request: seconds, requests",
            f"{plan.seconds:.2f}, {plan.requests}",
        ),
        (
            f"accepting a job run over {wide.streams:,} streams, {WITH_NEWS} with news: seconds, requests",
            f"{wide.seconds:.2f}, {wide.requests}",
        ),
        (
            f"loading a stream after {load.deltas:,} deltas, {load.live:,} of them live: seconds, MB of memory",
            f"{load.seconds:.2f}, {load.grown_bytes / 1e6:.0f}",
        ),
        ("all checkpoints of that stream, MB", f"{load.checkpoint_bytes / 1e6:.1f}"),
        (
            f"an append in a folder: at the 1,000th unretired delta, at the {found.appends.at:,}th, ms",
            f"{found.appends.first.seconds * 1e3:.2f}, {found.appends.last.seconds * 1e3:.2f}",
        ),
        (
            "the same, of processor, ms",
            f"{found.appends.first.processor_seconds * 1e3:.2f}, {found.appends.last.processor_seconds * 1e3:.2f}",
        ),
        (
            f"{found.writers.writers} writers on one stream: deltas/s one by one, by `append_many`",
            f"{found.writers.one_by_one:.0f}, {found.writers.together:.0f}",
        ),
    ]
    return "A log for years", text + markdown_table(["what", "measured"], rows)


def garbage_section(found: tuple[Collection, Collection]) -> Section:
    """What `lithify gc --delete` takes, by the number of files."""
    text = "A store in memory that counts: requests follow from the input, seconds are the processor's.\n\n"
    columns = ["streams", "files", "garbage", "s", "MB of memory", "requests, with 1,000 deletes in each"]
    rows = [
        (
            f"{each.streams:,}",
            f"{each.files:,}",
            f"{each.garbage:,}",
            f"{each.seconds:.1f}",
            f"{each.grown_bytes / 1e6:.0f}",
            ", ".join(f"{count:,} {name}" for name, count in each.requests.items()),
        )
        for each in found
    ]
    return "Garbage collection", text + markdown_table(columns, rows)


def keeper_section(found: KeeperFigures) -> Section:
    """What a keeper takes and leaves."""
    look, kept = found.look, found.kept
    text = (
        "The look is the first one at a table with news hints, in a store in memory that answers each request after "
        f"30 ms. The table is in a folder: {kept.appends:,} appends of {KEYS_AN_APPEND:,} new keys, one a minute, kept "
        "by `streaming`; beside it the same appends after one compaction. Both are read in turns: medians of the "
        "processor's seconds, of all threads.\n\n"
    )
    rows = [
        (
            f"a look at {look.streams:,} streams, of which {look.with_news:,} have something: requests, s",
            f"{look.requests:,}, {look.seconds:.1f}",
        ),
        ("compactions, files that are left", f"{kept.compactions:,}, {kept.files:,}"),
        ("a lookup: kept, compacted once, ms", ", ".join(f"{each * 1e3:.2f}" for each in kept.lookup_seconds)),
        ("a scan of all rows: kept, compacted once, ms", ", ".join(f"{each * 1e3:.1f}" for each in kept.scan_seconds)),
    ]
    return "The keeper", text + markdown_table(["what", "measured"], rows)


def columns_section(found: Columns) -> Section:
    """What very many columns take."""
    text = f"A table of {found.columns:,} columns of whole numbers and few rows, on a folder, in one process. Seconds "
    text += "are the processor's, of all threads.\n\n"
    rows = [
        ("append", f"{found.append_seconds:.1f}"),
        ("compact", f"{found.compact_seconds:.1f}"),
        ("read whole", f"{found.read_seconds:.1f}"),
    ]
    return "Very many columns", text + markdown_table(["what", "s"], rows)


def scans_section(found: Scans) -> Section:
    """What it takes to read a table."""
    text = f"{found.rows[0]:,} rows in {found.files[0]} files in a folder, {found.rows[1]:,} in {found.files[1]} on S3 "
    text += "(seaweedfs on the same cores, behind a proxy that delays each answer), read into memory in one process by "
    text += f"contestants in turns; medians of {SCAN_REPEATS}. Processor seconds are of all threads.\n\n"
    rows = [
        (
            each.what,
            "folder" if each.delay_ms is None else f"{each.delay_ms}",
            each.who,
            f"{each.seconds:.3f}",
            f"{each.cpu_seconds:.3f}",
            f"{each.seconds / found.of(each.what, DATASET, each.delay_ms).seconds:.2f}",
            "" if each.delay_ms is None else f"{each.requests}",
        )
        for each in found.found
    ]
    header = ["scan of", "ms away", "by", "s", "processor s", "of a PyArrow dataset", "requests"]
    return "Scans", text + markdown_table(header, rows)


def feeds_section(found: Sequence[FeedSpeed]) -> Section:
    """What it takes to append changes."""
    text = "Files of changes, appended to a table of eight partitions in a folder by `append_changes`: updates, one in "
    text += (
        "forty a delete, of which the last one of each key is written. Processor seconds are of all threads, medians "
    )
    text += (
        f"of {FEED_REPEATS}; those of PyArrow are for reading the file and writing its rows as one Parquet file, in "
    )
    text += "turns with ours. Of Parquet MB are of the values in memory. Load average, these processes included, "
    text += f"{os.getloadavg()[1]:.1f}.\n\n"
    rows = [
        (
            each.form,
            each.kind,
            f"{each.rows:,}",
            f"{each.mb:.0f}",
            f"{each.arrow_mb:.0f}",
            f"{each.cpu_seconds:.2f}",
            f"{each.mb_per_second:.0f}",
            f"{each.floor_seconds:.2f}",
            f"{each.cpu_seconds / each.floor_seconds:.1f}",
        )
        for each in found
    ]
    header = ["feed", "form", "changes", "MB of the file", "MB of rows", "processor s", "MB/s a core"]
    return "Changes coming in", text + markdown_table([*header, "PyArrow, processor s", "ours / PyArrow"], rows)


def publishing_section(found: Publishing, entries: Sequence[Entry]) -> Section:
    """What it costs that other engines read a table."""
    text = f"A table of {found.partitions:,} partitions of {FILES} files. A round replaces a file of one partition and "
    text += (
        "marks rows of another one dead; its publish is of a process that has published the table before. Times are "
    )
    text += (
        f"on a folder; requests are of one publish on S3, the mean of {COUNTED}, with Delta Lake's checkpoints. S3 is "
    )
    text += f"seaweedfs, on the same cores; load average, these processes included, {os.getloadavg()[1]:.1f}.\n\n"
    formats = [
        (
            str(times.format),
            f"{times.median_seconds * 1e3:.1f} / {times.p95_seconds * 1e3:.1f}",
            ", ".join(f"{count:.1f} {name}" for name, count in requests.by_operation.items()),
            f"{requests.mean:.1f}, {requests.most}",
        )
        for times, requests in zip(found.times, found.requests, strict=True)
    ]
    columns = ["format", "median / 95th of 100, ms", "requests to S3", "in all: mean, most"]
    text += markdown_table(columns, formats)
    spreads = ", ".join(f"{seconds * 1e3:.1f} ms ({spread})" for spread, seconds in found.bitmap_seconds.items())
    text += f"\nA Roaring bitmap of {DEAD_ROWS:,} dead rows takes, of processor, {spreads}."
    if entries:
        ranges = ["{:.2f} - {:.2f}".format(*each.timing.range_seconds) for each in entries]
        rows = [(_who(each), f"{each.seconds:.2f}", span) for each, span in zip(entries, ranges, strict=True)]
        text += "\n\nThe whole narrow table, compacted as above:\n\n"
        text += markdown_table(["who", "s", "least - most, s"], rows)
    return "Publishing", text


def object_store_section(found: FarLakes) -> Section:
    """What distance costs."""
    small, large = found.small, found.large
    text = f"{small.rows:,} rows in {DELTA_FILES} deltas, compacted into {COMPACTED_FILES} files of "
    text += f"{small.table_bytes / 1e6:.0f} MB in all; then a delta of a share of the rows, with neighbouring keys "
    text += f"(clustered) or keys from all over the table (uniform); medians of {REPEATS} tables each, for the "
    text += f"whole compaction of all of them. {STREAMS} streams of {ROWS_OF_A_STREAM:,} rows in one "
    text += "`compact()`. In one process, over seaweedfs behind a proxy that delays each answer; the server and the "
    text += "proxy are on the same cores. Requests and bytes follow from the input, times from the machine as well. "
    text += f"List prices of S3 in us-east-1: ${DOLLARS_PER_WRITE * 1000:.3f} for 1,000 writes or listings, "
    text += f"${DOLLARS_PER_READ * 1000:.4f} for 1,000 reads.\n\n"
    text += _far_table(small)
    text += (
        f"\n\nThe same once with {large.rows:,} rows, {large.table_bytes / 1e6:.0f} MB, which `compact()` gives to a "
    )
    text += "Spark of its own; its start is a part of the times.\n\n"
    return "On an object store", text + _far_table(large)


def _far_table(found: FarLake) -> str:
    rows = [
        (
            each.what,
            "folder" if each.delay_ms is None else f"{each.delay_ms}",
            f"{each.seconds:.3f}",
            ", ".join(f"{count:,.1f} {operation}" for operation, count in each.requests.items()),
            f"{each.bytes_down / 1e6:.2f}",
            f"{each.bytes_up / 1e6:.2f}",
            f"{1e6 * dollars_of(each.requests):,.0f}",
        )
        for each in found.found
    ]
    return markdown_table(
        ["what", "ms away", "s", "requests", "MB down", "MB up", "$ of requests, a million times"], rows
    )


def bandwidth_section(found: Bandwidth) -> Section:
    """What a limit of each connection costs, and what requests cost."""
    text = f"{found.rows:,} rows of 1 KiB that no codec makes shorter, compacted; then {INCREMENTAL}. Over seaweedfs "
    text += "behind a proxy that limits each connection; both are on the same cores.\n\n"
    rows = [
        (name, f"{wire.whole_seconds:.2f}", f"{wire.incremental_seconds:.2f}")
        for name, wire in (("without a limit", found.free), ("100 MB/s a connection", found.limited))
    ]
    text += markdown_table(["connections", "whole, s", f"{INCREMENTAL}, s"], rows)
    requests = ", ".join(f"{count:,} {operation}" for operation, count in found.free.requests.items())
    text += f"\nRequests of {INCREMENTAL}: {requests}; ${dollars_of(found.free.requests):.6f} at list prices."
    return "Limited connections", text


def fit_section(fits: Sequence[Fit]) -> Section:
    """Figures for compactor/planning/sizing.py."""
    rows = [
        (
            fit.what,
            "; ".join(_cost(term, seconds) for term, seconds in fit.costs.items()),
            f"{fit.median_error:.0%}",
            f"{fit.largest_error:.0%}",
            f"{fit.observations}",
        )
        for fit in fits
    ]
    text = "Least squares of relative errors, over every run of ours on narrow rows in this benchmark.\n\n"
    return "What predictions are made of", text + markdown_table(
        ["what", "costs", "median error", "largest", "runs"], rows
    )


def write(path: Path, measured: Iterable[Section]) -> None:
    """Puts sections in the place of those with the same heading, new ones at the end; others stay as they were."""
    sections = dict(_read(path.read_text())) if path.exists() else {}
    for heading, text in measured:
        before = sections.get(heading, "") if heading == _GOALS else ""
        sections[heading] = _merge_rows(before, text)
    body = "\n".join(f"## {heading}\n\n{text.strip()}\n" for heading, text in sections.items())
    path.write_text(f"{_TITLE}\n{_contents(sections)}\n{body}")


def _contents(sections: Container[str]) -> str:
    """The questions that these sections answer, with links to them; those that none answers are named as such."""
    rows = [
        (question, f"[{heading}](#{_anchor(heading)})" if heading in sections else f"not in this file yet: {heading}")
        for question, heading in _QUESTIONS
    ]
    rows.append(("What of the paper's figures and results?", "[their page](../../docs/internals/figures.md)"))
    return markdown_table(["question", "section"], rows)


def _anchor(heading: str) -> str:
    """As Markdown's viewers name it."""
    return "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -").replace(" ", "-")


def show(sections: Iterable[Section]) -> None:
    for heading, text in sections:
        print(f"\n## {heading}\n\n{text.strip()}")


def _read(text: str) -> Iterator[Section]:
    for section in text.split("\n## ")[1:]:
        heading, below = section.split("\n", 1)
        yield heading, below


def _merge_rows(before: str, now: str) -> str:
    """A table's rows by their first cell, those of now in the place of those before."""
    rows = {line.split(" | ")[0]: line for text in (before.strip(), now.strip()) for line in text.splitlines()}
    return "\n".join(rows.values()) if before else now


def _steps_table(entries: Iterable[Entry]) -> str:
    """Where the time of ours goes: seconds by the clock / core-seconds of all tasks."""
    rows = []
    for entry in _ours(entries):
        steps, given = entry.steps, entry.arrived_rows
        staged = sum(step.seconds for step in steps.values())
        shuffled = [steps.get(name, Step()).shuffle_written_bytes / given for name in (STEPS[0], STEPS[2])]
        rows.append(
            (
                _who(entry),
                *(
                    f"{steps[name].seconds:.2f} / {steps[name].busy_seconds:.2f}" if name in steps else ""
                    for name in STEPS
                ),
                f"{entry.timing.median_run.seconds - staged:.2f}",
                *(f"{each:.1f}" for each in shuffled),
            )
        )
    columns = [*(f"{name}, s / core-s" for name in STEPS), "outside of stages, s"]
    columns += ["pointer bytes through Spark / row", "row index bytes through Spark / row"]
    return "\n" + markdown_table(["ours, by step", *columns], rows)


def _ours(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.contestant == OURS]


def _who(entry: Entry) -> str:
    text = entry.contestant
    if entry.variant.incremental and entry.change is not None:
        text += f", incremental {entry.change.rows:,} {entry.change.spread}"
    return f"{text}{entry.variant}" + (", 1 core" if entry.cores == 1 else "")


def _size(entry: Entry, entries: Sequence[Entry]) -> tuple[str, str]:
    return f"{entry.shape.rows / entries[0].shape.rows:g}x", f"{entry.shape.rows:,}"


def _bytes_moved(entry: Entry) -> tuple[str, str]:
    if entry.contestant != OURS:
        return "", ""
    run = entry.timing.median_run
    return f"{run.bytes_read / _MIB:,.0f}", f"{run.bytes_written / _MIB:,.0f}"


def _cost(term: str, seconds: float) -> str:
    if term == "round":
        return f"{seconds:.2f} s a {term}"
    return f"{seconds * 1e9:.0f} ns a {term} ({1 / seconds:,.0f}/s)" if seconds > 0 else f"nothing a {term}"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
