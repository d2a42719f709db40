"""`make bench`: runs the contests, prints and writes what came of them. `make bench ARGS=--help` lists the choices."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.benchmarks import contests, goals, plot, report
from tests.benchmarks.acceptance import measure_acceptance
from tests.benchmarks.bandwidth import measure_bandwidth
from tests.benchmarks.bounded import measure_bounded, measure_linear
from tests.benchmarks.columns import measure_columns
from tests.benchmarks.contests import DELTAS, EVERYBODY, Arena, Entry
from tests.benchmarks.data import NARROW, WIDE
from tests.benchmarks.feeds import measure_feeds
from tests.benchmarks.fit import OBSERVATIONS_MIN, fit_steps, observe
from tests.benchmarks.garbage import measure_garbage
from tests.benchmarks.goals import Goal
from tests.benchmarks.keeper import measure_keeper
from tests.benchmarks.landing import goals_of_landing, landing_section, measure_landing
from tests.benchmarks.machine import describe_machine
from tests.benchmarks.object_store import measure_object_store
from tests.benchmarks.page_trust import measure_page_trust
from tests.benchmarks.publishing import measure_publishing
from tests.benchmarks.rate import measure_rate
from tests.benchmarks.report import Section
from tests.benchmarks.scans import measure_scans
from tests.benchmarks.startup import measure_startup
from tests.benchmarks.streams import measure_streams
from tests.benchmarks.wide import measure_wide
from tests.benchmarks.workers import measure_workers
from tests.benchmarks.years import measure_years

SECTIONS = (
    "whole",
    "incremental",
    "merges",
    "growing",
    "rounds",
    "cores",
    "startup",
    "bounded",
    "pages",
    "acceptance",
    "workers",
    "rate",
    "streams",
    "wide",
    "object-store",
    "bandwidth",
    "years",
    "garbage",
    "keeper",
    "columns",
    "publishing",
    "scan",
    "in",
    "landing",
)
ON_REQUEST = ("linear",)
"""Sections that take 50 GB and half an hour."""

RESULTS = Path(__file__).with_name("RESULTS.md")
PLOT = "time_by_table_size.png"

_SHAPES = {shape.name: shape for shape in (NARROW, WIDE)}
_QUICK_SCALE = 0.005

_Measured = TypeVar("_Measured")
_Measure = Callable[[Path, float], tuple[Section, Sequence[Goal]]]
"""A section without contestants, by the folder and the scale."""


def _section(
    measure: Callable[[Path, float], _Measured],
    write: Callable[[_Measured], Section],
    judge: Callable[[_Measured], Sequence[Goal]],
) -> _Measure:
    def measured(folder: Path, scale: float) -> tuple[Section, Sequence[Goal]]:
        found = measure(folder, scale)
        return write(found), judge(found)

    return measured


_WITHOUT_CONTESTANTS: Mapping[str, _Measure] = {
    "bounded": _section(measure_bounded, report.bounded_section, goals.goals_of_bounded),
    "linear": _section(measure_linear, report.linear_section, goals.goals_of_linear),
    "pages": _section(measure_page_trust, report.page_trust_section, goals.goals_of_page_trust),
    "acceptance": _section(measure_acceptance, report.acceptance_section, goals.goals_of_acceptance),
    "workers": _section(measure_workers, report.workers_section, goals.goals_of_workers),
    "rate": _section(measure_rate, report.rate_section, goals.goals_of_rate),
    "streams": _section(measure_streams, report.streams_section, goals.goals_of_streams),
    "wide": _section(measure_wide, report.wide_section, goals.goals_of_wide),
    "object-store": _section(measure_object_store, report.object_store_section, goals.goals_of_object_store),
    "bandwidth": _section(measure_bandwidth, report.bandwidth_section, goals.goals_of_bandwidth),
    "years": _section(measure_years, report.years_section, goals.goals_of_years),
    "garbage": _section(measure_garbage, report.garbage_section, goals.goals_of_garbage),
    "keeper": _section(measure_keeper, report.keeper_section, goals.goals_of_keeper),
    "columns": _section(measure_columns, report.columns_section, goals.goals_of_columns),
    "scan": _section(measure_scans, report.scans_section, goals.goals_of_scans),
    "in": _section(measure_feeds, report.feeds_section, goals.goals_of_feeds),
    "landing": _section(measure_landing, landing_section, goals_of_landing),
}


def main(arguments: Sequence[str]) -> None:
    options = _parse(arguments)
    machine = report.machine_section(describe_machine())
    with tempfile.TemporaryDirectory(prefix="lithify-bench-", dir=options.folder) as folder:
        arena = Arena(Path(folder), options.repeats, options.scale, options.only)
        plot_path = options.results.with_name(PLOT) if options.results is not None else Path(folder) / PLOT
        found = _run(arena, options, plot_path)
    sections = [machine, report.goals_section(found.goals), *found.sections]
    report.show(sections)
    if options.results is not None:
        report.write(options.results, sections)
        print(f"\nWritten to {options.results}")


@dataclass
class _Found:
    """What the sections have given so far."""

    sections: list[Section]
    goals: list[Goal]
    entries: list[Entry]

    def add(self, section: Section, goals: Sequence[Goal], entries: Sequence[Entry]) -> None:
        self.sections.append(section)
        self.goals += goals
        self.entries += entries


def _run(arena: Arena, options: argparse.Namespace, plot_path: Path) -> _Found:
    """Every section asked for, in order; then the fit over all of their runs of ours."""
    found = _Found([], [], [])
    for name in options.section:
        print(f"{name}:", flush=True)
        if name in {"whole", "incremental"}:
            for shape in options.shape:
                _run_shape(arena, name, shape, options.deltas, found)
        else:
            _run_other(arena, name, plot_path, found)
    narrow = [
        entry
        for entry in found.entries
        if entry.shape.name == NARROW.name and entry.variant.own_parquet_pages and not entry.variant.through_spark
    ]
    observations = [seen for entry in narrow if (seen := observe(entry))]
    if len(observations) >= OBSERVATIONS_MIN:
        found.sections.append(report.fit_section(fit_steps(observations)))
    return found


def _run_shape(arena: Arena, section: str, shape: str, deltas: Sequence[tuple[float, bool]], found: _Found) -> None:
    if section == "whole":
        entries = contests.whole_table(arena, _SHAPES[shape])
        found.add(report.whole_table_section(shape, entries), goals.goals_of_whole(shape, entries), entries)
    else:
        entries = contests.incremental(arena, _SHAPES[shape], deltas)
        found.add(report.incremental_section(shape, entries), goals.goals_of_incremental(shape, entries), entries)


def _run_other(arena: Arena, section: str, plot_path: Path, found: _Found) -> None:
    if section == "merges":
        entries = contests.merges(arena)
        found.add(report.merges_section(entries), goals.goals_of_merges(entries), entries)
    elif section == "growing":
        entries = contests.growing_table(arena)
        plot.draw(entries, plot_path)
        found.add(report.growing_section(entries, PLOT), goals.goals_of_growing(entries), entries)
    elif section == "rounds":
        entries = contests.rounds(arena)
        found.add(report.rounds_section(entries), [], entries)
    elif section == "cores":
        entries = contests.cores_and_buckets(arena)
        found.add(report.cores_section(entries), goals.goals_of_buckets(entries), entries)
    elif section == "publishing":
        entries = contests.published(arena)
        folder = arena.folder / section
        folder.mkdir()
        publishing = measure_publishing(folder, arena.scale)
        found.add(report.publishing_section(publishing, entries), goals.goals_of_publishing(publishing, entries), [])
    elif section == "startup":
        found.add(report.startup_section(measure_startup(arena.folder, arena.repeats)), [], [])
    else:
        folder = arena.folder / section
        folder.mkdir()
        written, reached = _WITHOUT_CONTESTANTS[section](folder, arena.scale)
        found.add(written, reached, [])


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each contestant, after a first one (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="of 4,000,000 narrow and 800,000 wide rows (1)")
    parser.add_argument("--only", nargs="+", choices=EVERYBODY, default=EVERYBODY, help="contestants that take part")
    parser.add_argument(
        "--section", nargs="+", choices=(*SECTIONS, *ON_REQUEST), default=SECTIONS, help="what to measure"
    )
    parser.add_argument(
        "--shape", nargs="+", choices=_SHAPES, default=tuple(_SHAPES), help="rows of 75 bytes, of 1 KiB"
    )
    parser.add_argument("--folder", type=Path, help="where everything is written and removed again (the system's own)")
    parser.add_argument("--results", type=Path, help=f"file to write to ({RESULTS.name}, where all is measured)")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: shows that it works")
    options = parser.parse_args(arguments)
    options.deltas = DELTAS
    if options.quick:
        options.scale, options.repeats, options.shape = _QUICK_SCALE, 0, [NARROW.name]
        options.section, options.deltas = ["whole", "incremental"], [(goals.INCREMENTAL_SHARE, False)]
    everything = (1.0, EVERYBODY, SECTIONS, tuple(_SHAPES))
    if options.results is None and (options.scale, options.only, options.section, options.shape) == everything:
        options.results = RESULTS
    return options


if __name__ == "__main__":
    main(sys.argv[1:])
