"""The paper's figures 3-1 to 3-5 and its results, with our points: measured ones of `tests/benchmarks/RESULTS.md`, and
modelled ones of the product's own sizing, rates and prices, which no figure of the paper has gone into.

The paper measures bytes of decompressed Parquet; the model takes them as bytes at rest, as if nothing were compressed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import matplotlib as mpl

mpl.use("Agg")  # a backend that needs no screen, chosen before pyplot is loaded

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from compactor.planning.cluster_plan import StoreUse
from compactor.planning.sizing import (
    DEDUPE_BYTES_PER_ROW,
    Resources,
    SessionSize,
    Sizing,
    hash_buckets_for,
    size_session,
)
from launcher.sizing.cluster_choice import resources_of
from launcher.sizing.instance_types import BUILT_IN
from launcher.sizing.money import Nodes, cost_of, rates_of
from tests.pages.speed import table_of

TIB = 1024**4
ROW_BYTES = 91 * 1024**2 / 61_477
"""Of a row of the paper, decompressed ("Results", 3: 61,477 rows/s-core are 91 MiB/s-core)."""

FILE_BYTES = 512 * 1024**2
"""Of a delta file."""

CORES, S3_ROWS = 2, 1_000_000
"""Of the benchmark's machine; rows of 1 KiB that it compacts on S3 ("Limited connections")."""

INSTANCE = BUILT_IN.instance_type("r5n.8xlarge")
START_SECONDS = 205.0
"""From the request for the paper's cluster to its first task: what its points have in common."""

NODES = (4, 11, 30, 110, 250, 500)
SIZES_TIB = (20.0, 117.0, 1_075.2)
_COLOURS = dict(zip(SIZES_TIB, ("#1f77b4", "#2a7d5f", "#b5651d"), strict=True))

FIGURE_3_1 = {
    46.875e9: 313,
    93.75e9: 625,
    187.5e9: 1_250,
    375e9: 2_500,
    750e9: 5_000,
    1.5e12: 10_000,
    3e12: 20_000,
    6e12: 40_000,
}


@dataclass(frozen=True)
class PaperPoint:
    """A measurement of the paper, "Results"."""

    tib: float
    nodes: int
    seconds: float

    @property
    def vcpus(self) -> int:
        return self.nodes * INSTANCE.vcpus

    @property
    def rows_per_core_second(self) -> float:
        return self.tib * TIB / ROW_BYTES / self.vcpus / self.seconds


PAPER = (PaperPoint(20.0, 11, 655.0), PaperPoint(117.0, 250, 324.0), PaperPoint(1_075.2, 110, 10_980.0))


def modelled(tib: float, nodes: int, start_seconds: float = START_SECONDS) -> Sizing:
    """A first compaction of this many bytes, whose rounds meet one another's keys."""
    rows, files = int(tib * TIB / ROW_BYTES), int(tib * TIB / FILE_BYTES)
    resources: Resources = replace(resources_of(INSTANCE, nodes, start_seconds), driver_memory_bytes=None)
    size = SessionSize(
        index_rows=0,
        delta_rows=rows,
        delta_bytes=int(tib * TIB),
        sort_values_bytes=0,
        inherited_hash_bucket_count=None,
        delta_files=files,
        largest_delta_file_rows=rows // files,
        lake_is_remote=True,
    )
    return size_session(size, resources, None, None)


def usd_per_tib(sizing: Sizing, tib: float, nodes: int) -> float:
    """On demand, without EMR's surcharge, as the paper has it."""
    bare = INSTANCE.model_copy(update={"emr_usd_hour": 0.0})
    rates = rates_of(Nodes(nodes, 0, bare, None), BUILT_IN)
    return cost_of(rates, sizing.time.seconds, sizing.resources.start_seconds, StoreUse()).total_usd / tib


# ------------------------------------------------------------------------------------------------------------- tables


def points_table() -> Iterator[str]:
    yield "| input, decompressed | cluster | the paper, s | modelled, s | modelled / paper | hash buckets | rounds |"
    yield "|---|---|---|---|---|---|---|"
    for point in PAPER:
        ours = modelled(point.tib, point.nodes)
        yield (
            f"| {_size(point.tib)} | {point.nodes} x {INSTANCE.name} | {point.seconds:,.0f} | {ours.time.seconds:,.0f} "
            f"| {ours.time.seconds / point.seconds:.2f} | {ours.hash_bucket_count:,} | {ours.rounds} |"
        )


def results_table() -> Iterator[str]:
    wide = table_of("Whole table, wide rows")
    ratio = float(wide["Spark window"][2])
    mib_per_core_second = float(wide["lithify"][6])
    usd_core_hour = INSTANCE.on_demand_usd_hour / INSTANCE.vcpus
    usd_per_tb = 1e12 / 1024**2 / mib_per_core_second / 3_600 * usd_core_hour
    on_s3 = float(table_of("Limited connections")["without a limit"][0])
    usd_per_tb_on_s3 = on_s3 * CORES / (S3_ROWS * 1_024) * 1e12 / 3_600 * usd_core_hour
    largest, cheapest = modelled(1_075.2, 110), modelled(20.0, 11)
    goals = table_of("Expected SLA and cost, before and after")
    *killed, job_runs = (row[1] for row in table_of("Killed, and gone on").values())
    sessions_killed = [each.split(" of ") for each in killed]
    on_cluster = table_of("Expected SLA on a cluster")["all"]
    yield "| result | the paper | measured, on two cores | modelled |"
    yield "|---|---|---|---|"
    yield f"| 1. performance | 13 times Spark's window query | {ratio:.1f} times, rows of 1 KiB, in a folder | |"
    yield (
        f"| 2. scalability | 1.05 PiB in one session, 18,115 rows/s-core | "
        f"| {_rows_per_core_second(largest, 1_075.2, 110):,.0f} rows/s-core, {largest.rounds} rounds |"
    )
    yield (
        f"| 3. efficiency | $0.24 a TB | ${usd_per_tb:.3f} a TB of core-seconds, rows of 1 KiB, in a folder; on S3 "
        f"${usd_per_tb_on_s3:.2f}, those of its server included "
        f"| ${usd_per_tib(cheapest, 20.0, 11):.2f} a TiB, with the start of the cluster |"
    )
    yield (
        f"| 4. resilience | 99.3 % of job runs succeed | {sum(int(each[0]) for each in sessions_killed)} of "
        f"{sum(int(each[1]) for each in sessions_killed)} sessions of which a worker or the dispatcher was killed; "
        f"{job_runs} job runs under `make proof` | |"
    )
    beyond = goals["sessions beyond their initial expected SLA"][1]
    sessions = int(table_of("Expected SLA and cost, before and after", 1)["all"][0])
    yield (
        f"| 5. SLA | 99.3 % within the expected SLA | {1 - int(beyond) / sessions:.1%} of {sessions} sessions of "
        f"seconds on one machine; {on_cluster[1]} of {on_cluster[0]} on a cluster | |"
    )


def buckets_table() -> Iterator[str]:
    yield f"| rows | the paper's | ours, of {DEDUPE_BYTES_PER_ROW} bytes a row |"
    yield "|---|---|---|"
    for rows, paper in FIGURE_3_1.items():
        yield f"| {rows / 1e9:,.6g} billion | {paper:,} | {_buckets(rows):,} |"


def efficiency_table() -> Iterator[str]:
    low, high = _error_band()
    yield "| hash buckets | rows/s-core | which |"
    yield "|---|---|---|"
    for buckets, rate in _measured_rates():
        yield f"| {buckets:,} | {rate:,.0f} | measured: 5 million rows of 75 bytes, in a folder, 2 cores |"
    for point in PAPER:
        ours = modelled(point.tib, point.nodes)
        rate = _rows_per_core_second(ours, point.tib, point.nodes)
        which = f"{_size(point.tib)} on {point.vcpus:,} vCPUs"
        yield f"| {_paper_buckets(point):,} | {point.rows_per_core_second:,.0f} | the paper: {which} |"
        band = f"{rate / high:,.0f} to {rate / low:,.0f}"
        yield f"| {ours.hash_bucket_count:,} | {rate:,.0f} ({band}) | modelled: {which}, on S3 |"


def vcpus_table() -> Iterator[str]:
    """Figures 3-3 to 3-5: with their band, and the paper's points below."""
    low, high = _error_band()
    yield "| input | vCPUs | hash buckets | TiB an hour | minutes | US dollars a TiB | which |"
    yield "|---|---|---|---|---|---|---|"
    for tib in SIZES_TIB:
        for nodes in NODES:
            ours = modelled(tib, nodes)
            seconds, usd = ours.time.seconds, usd_per_tib(ours, tib, nodes)
            bands = (
                _banded(tib / seconds * 3_600, 1 / high, 1 / low),
                _banded(seconds / 60, low, high),
                _banded(usd, low, high),
            )
            of = f"{_size(tib)} | {nodes * INSTANCE.vcpus:,} | {ours.hash_bucket_count:,}"
            yield f"| {of} | {' | '.join(bands)} | modelled |"
        for point in PAPER:
            if point.tib == tib:
                usd = point.nodes * INSTANCE.on_demand_usd_hour * point.seconds / 3_600 / tib
                figures = " | ".join(map(_figure, (tib / point.seconds * 3_600, point.seconds / 60, usd)))
                yield f"| {_size(tib)} | {point.vcpus:,} | {_paper_buckets(point):,} | {figures} | the paper |"


def _banded(value: float, low: float, high: float) -> str:
    return f"{_figure(value)} ({_figure(value * low)} to {_figure(value * high)})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _measured_rates() -> list[tuple[int, float]]:
    """Rows a second and core by hash buckets."""
    rows = table_of("Cores and hash buckets").items()
    return [(int(row[1]), float(row[4].replace(",", ""))) for name, row in rows if name.endswith("hash buckets")]


def _paper_buckets(point: PaperPoint) -> int:
    """As figure 3-1 recommends."""
    return -(-int(point.tib * TIB / ROW_BYTES) // 150_000_000)


def _buckets(rows: float) -> int:
    """In half of 8 GiB a core, as the paper plans."""
    return hash_buckets_for(int(rows), Resources(8 * 1024**3, tasks=1), sort_values_bytes=0)


def _rows_per_core_second(sizing: Sizing, tib: float, nodes: int) -> float:
    return tib * TIB / ROW_BYTES / (nodes * INSTANCE.vcpus) / sizing.time.seconds


def _size(tib: float) -> str:
    return f"{tib / 1_024:.2f} PiB" if tib >= 1_024 else f"{tib:g} TiB"


# ------------------------------------------------------------------------------------------------------------ pictures


def pictures() -> dict[str, str]:
    """SVG, by file name."""
    drawings = {"figure-3-1": _draw_buckets, "figure-3-2": _draw_efficiency, "figure-3-3": _draw_throughput}
    drawings |= {"figure-3-4": _draw_latency, "figure-3-5": _draw_cost}
    return {f"{name}.svg": _svg(name, draw) for name, draw in drawings.items()}


def _svg(name: str, draw: Callable[[Axes], None]) -> str:
    with mpl.rc_context():
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9.0, "path.simplify": False})
        figure, axes = plt.subplots(figsize=(4.6, 3.6))
        draw(axes)
        axes.grid(visible=True, which="both", linewidth=0.3)
        axes.legend(fontsize=7)
        figure.tight_layout()
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)
    # Matplotlib's ids are digests of coordinates, whose last digits differ from processor to processor.
    drawn = written.getvalue()
    for number, digest in enumerate(dict.fromkeys(re.findall(r'id="([mp][0-9a-f]{10})"', drawn)), 1):
        drawn = drawn.replace(digest, f"{name}-{number}")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def _draw_buckets(axes: Axes) -> None:
    rows = list(FIGURE_3_1)
    axes.loglog(rows, list(FIGURE_3_1.values()), "s", color="black", label="the paper's recommendation")
    axes.loglog(rows, [_buckets(each) for each in rows], "-", color="#2a7d5f", label="ours, planned")
    axes.set_xlabel("rows to compact")
    axes.set_ylabel("hash buckets")


def _draw_efficiency(axes: Axes) -> None:
    measured = _measured_rates()
    axes.loglog(
        [buckets for buckets, _ in measured],
        [rate for _, rate in measured],
        "o",
        color="#2a7d5f",
        label="measured: 5 million rows of 75 bytes, in a folder, 2 cores",
    )
    low, high = _error_band()
    ours = [modelled(point.tib, point.nodes) for point in PAPER]
    rates = [_rows_per_core_second(each, of.tib, of.nodes) for each, of in zip(ours, PAPER, strict=True)]
    axes.errorbar(
        [sizing.hash_bucket_count for sizing in ours],
        rates,
        yerr=([each - each / high for each in rates], [each / low - each for each in rates]),
        fmt="^",
        color="#2a7d5f",
        elinewidth=0.8,
        label="modelled, and its band: the paper's inputs and clusters, on S3",
    )
    axes.loglog(
        [_paper_buckets(point) for point in PAPER],
        [point.rows_per_core_second for point in PAPER],
        "s",
        color="black",
        label="the paper (buckets as figure 3-1 recommends)",
    )
    axes.set_ylim(bottom=1_000)  # room for the legend below the bands
    axes.set_xlabel("hash buckets")
    axes.set_ylabel("rows a second and core")


def _draw_throughput(axes: Axes) -> None:
    hourly = 3_600.0
    _draw_by_vcpus(
        axes,
        lambda sizing, tib, _: tib / sizing.time.seconds * hourly,
        lambda point: point.tib / point.seconds * hourly,
        is_rate=True,
    )
    axes.set_ylabel("TiB an hour")


def _draw_latency(axes: Axes) -> None:
    _draw_by_vcpus(axes, lambda sizing, _tib, _nodes: sizing.time.seconds / 60, lambda p: p.seconds / 60)
    axes.set_ylabel("minutes, with the start of the cluster")


def _draw_cost(axes: Axes) -> None:
    hourly = INSTANCE.on_demand_usd_hour
    _draw_by_vcpus(axes, usd_per_tib, lambda p: p.nodes * hourly * p.seconds / 3_600 / p.tib)
    axes.set_ylabel("US dollars a TiB, on demand")


def _draw_by_vcpus(
    axes: Axes,
    ours: Callable[[Sizing, float, int], float],
    of_paper: Callable[[PaperPoint], float],
    *,
    is_rate: bool = False,
) -> None:
    """A line for each size, with the band in which 90 % of measured sessions lay; and the paper's points. `is_rate`:
    less time is more of it."""
    low, high = _error_band()
    if is_rate:
        low, high = 1 / high, 1 / low
    for tib in SIZES_TIB:
        vcpus = [nodes * INSTANCE.vcpus for nodes in NODES]
        values = [ours(modelled(tib, nodes), tib, nodes) for nodes in NODES]
        colour = _COLOURS[tib]
        axes.loglog(vcpus, values, "-^", markersize=3, color=colour, label=f"modelled, {_size(tib)}")
        axes.fill_between(
            vcpus, [each * low for each in values], [each * high for each in values], alpha=0.1, color=colour
        )
    for point in PAPER:
        axes.loglog([point.vcpus], [of_paper(point)], "s", color=_COLOURS[point.tib], markeredgecolor="black")
    axes.plot([], [], "s", color="white", markeredgecolor="black", label="the paper")
    axes.set_xlabel("vCPUs of workers")


def _error_band() -> tuple[float, float]:
    """Measured / predicted seconds of sessions on Spark by rows and bytes alone, at 5 % and at 95 %."""
    rows = table_of("Expected SLA and cost, before and after", 1)
    ratios = rows["on a Spark that is up, folder, by rows and bytes alone"][3].split(" / ")
    return 1 / float(ratios[6]), 1 / float(ratios[2])
