"""`lithify plan`: the plan of a document, with the arithmetic and totals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Invalid, refuse_if
from compactor.model.names import counted
from compactor.planning.bundle_plan import BundleBounds
from compactor.planning.machine_share import workers_share
from compactor.planning.session_planner import PinnedSession, pin_sessions
from compactor.planning.spec import JobRunSpec, SessionPlan
from compactor.planning.table_terms import complete_by_table
from compactor.planning.where_to_run import WorkerPool
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.cli.expressions import read_document, valid_instruction
from dispatcher.cli.options import (
    CoresOption,
    DocumentArgument,
    KnownLakeOption,
    MemoryOption,
    Output,
    OutputOption,
    PricesOption,
    RegionOption,
    S3EndpointOption,
    WorkerSecondsOption,
    WorkersOption,
    WorkFolderOption,
)
from dispatcher.cli.output import answer_records, page_width, write_lines
from dispatcher.clients import CommandDependencies, machine_share, sessions_bytes
from dispatcher.intake.instruction import fields_given, job_run_spec
from dispatcher.intake.pinning import check_against_lake
from dispatcher.layout import (
    HEADING,
    PARTITION,
    STOPPED,
    SUCCEEDED,
    Column,
    Line,
    count_text,
    counts,
    partition_text,
    printable,
    seconds_text,
    sentence_lines,
    usd_text,
)
from dispatcher.options.documents import read_limits
from dispatcher.options.settings import cluster_room
from launcher.clusters.local import session_resources
from launcher.outcomes import NothingToDo
from launcher.plan import Room, plan_as_dispatched
from launcher.sizing.cluster_choice import ClusterLimits

NOTHING_TO_DO = (
    "nothing to do: no delta is pending, no compacted file has more dead rows than max_dead_row_share, and no index "
    "has another hash bucket count than was asked for"
)

_NOTHING_TO_REHASH = (
    "nothing to do: there is no index, or it has the hash buckets that it should have; a rehash compacts no delta"
)

_IDLE_SHOWN_MAX = 10


class PlannedCluster(StrEnum):
    """The cluster for which sessions are planned."""

    LOCAL = "local"
    EMR = "emr"
    EMR_SERVERLESS = "emr_serverless"


_COLUMNS = (
    PARTITION,
    Column("nothing_to_do"),
    *counts("rows_before", "delta_rows"),
    Column("hash_bucket_count", "hash buckets", count_text),
    Column("max_rows_per_round", show=count_text),
    Column("expected_sla", "expected s", seconds_text),
    Column("expected_usd", "expected $", usd_text),
)


@dataclass(frozen=True)
class PlannedSession:
    pinned: PinnedSession
    plan: SessionPlan | None

    def answer(self) -> dict[str, object]:
        plan = {} if self.plan is None else self.plan.model_dump(mode="json", exclude={"spec"})
        return {
            "partition": self.pinned.spec.partition,
            "nothing_to_do": self.plan is None,
            "rows_before": self.pinned.compacted_rows,
            "delta_rows": self.pinned.pending_rows,
            "expected_usd": self.expected_usd,
            **plan,
        }

    @property
    def expected_usd(self) -> float | None:
        """None: nothing is launched for it."""
        return None if self.plan is None or self.plan.cluster is None else self.plan.cluster.cost.total_usd


@dataclass(frozen=True)
class Total:
    """A whole job run. `expected_sla`: from its start to its end, with `at_a_time` concurrent sessions. `expected_usd`:
    of the clusters of all sessions, and their use of S3; None: they run on an existing machine."""

    sessions: int
    nothing_to_do: int
    rows_before: int
    delta_rows: int
    at_a_time: int
    expected_sla: float
    desired_sla: int | None
    expected_usd: float | None = None

    @property
    def within_desired_sla(self) -> bool | None:
        return None if self.desired_sla is None else self.expected_sla <= self.desired_sla


def plan(
    dependencies: CommandDependencies,
    file: DocumentArgument,
    lake: KnownLakeOption = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Sessions that run on Spark at the same time.")] = 1,
    workers: WorkersOption = None,
    worker_seconds: WorkerSecondsOption = WorkerPool.seconds,
    cores: CoresOption = None,
    memory_gib: MemoryOption = None,
    work_folder: WorkFolderOption = Path(".lithify"),
    cluster: Annotated[
        PlannedCluster,
        typer.Option(help="Where sessions run: on this machine, an EMR cluster, or EMR Serverless, chosen for each."),
    ] = PlannedCluster.LOCAL,
    price_file: PricesOption = None,
    instance_type: Annotated[
        list[str] | None, typer.Option(help="An instance type for clusters; default: all of the list.")
    ] = None,
    limits: Annotated[
        str, typer.Option(help="JSON, or a file of it, as `dispatch` has it; those of a session are used.")
    ] = "{}",
    spot_share: Annotated[
        float, typer.Option(help="Share of a cluster's worker nodes on Spot; at least one node is not.")
    ] = ClusterLimits.spot_share,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what a document would do, with the arithmetic, where `dispatch` has these options. Writes nothing."""
    spec, catalog, source = _checked_spec(dependencies, file, lake, s3_endpoint_url, region)
    spark_is_here = cluster is PlannedCluster.LOCAL
    share = workers_share(
        sessions_bytes(dependencies, memory_gib),
        cores or dependencies.cores,
        workers if spark_is_here or workers is not None else 0,
        worker_seconds,
        spark_is_here=spark_is_here,
    )
    machine = machine_share(dependencies, cores, memory_gib, max_sessions, share if spark_is_here else None)
    room: Room = session_resources(*machine, work_folder)
    given = read_limits(limits, "--limits")
    if contradictions := list(given.contradictions()):
        raise Invalid(*contradictions)
    if spark_is_here and (given.of_clusters() or spot_share or price_file or instance_type):
        raise Invalid("limits, prices and instance types are those of clusters: add --cluster emr")
    if not spark_is_here:
        serverless = cluster is PlannedCluster.EMR_SERVERLESS
        room = cluster_room(
            given, spot_share, price_file, instance_type or (), dependencies.clock, region, serverless=serverless
        )
    pins = pin_sessions(spec, catalog, source)
    pool = share.pool if share is not None else None
    planned = plan_as_dispatched([pinned.spec for pinned in pins], catalog, room, BundleBounds(), pool)
    sessions = [
        PlannedSession(pinned, None if isinstance(found, NothingToDo) else found)
        for pinned, found in zip(pins, planned.plans, strict=True)
    ]
    seconds = planned.seconds(max_sessions, pool.workers if pool is not None else 1)
    total = _total(sessions, seconds, max_sessions, spec.desired_sla)
    if output is Output.TEXT:
        write_lines([*_session_lines(sessions), *_total_lines(total)])
        return
    value = {
        "table": spec.source_table_id,
        "sessions": [session.answer() for session in sessions],
        "total": {**vars(total), "within_desired_sla": total.within_desired_sla},
    }
    answer_records(output, value, "sessions", _COLUMNS, none="")


def _checked_spec(
    dependencies: CommandDependencies, file: str, lake: str | None, s3_endpoint_url: str | None, region: str | None
) -> tuple[JobRunSpec, DeltaCatalog, Table]:
    """The job run that the document asks for, its lake and its source table. Raises `Invalid` if it can never run."""
    document = valid_instruction(read_document(file))
    uri = document.delta_catalog or lake
    if uri is None:
        raise Invalid("delta_catalog is missing: name the lake's root URI in the document, or give --lake")
    location = parse_location(uri, endpoint_url=s3_endpoint_url, region=region)
    catalog = DeltaCatalog(open_store(location), dependencies.clock)
    requested = job_run_spec(document, document.job_run_id or "dry-run", location)
    source = catalog.table(requested.source_table_id)
    spec = complete_by_table(requested, fields_given(document), source)
    refuse_if(check_against_lake(spec, source))
    return spec, catalog, source


def _total(sessions: Sequence[PlannedSession], expected_sla: float, at_a_time: int, desired_sla: int | None) -> Total:
    costs = [session.expected_usd for session in sessions if session.expected_usd is not None]
    return Total(
        sessions=len(sessions),
        nothing_to_do=sum(session.plan is None for session in sessions),
        rows_before=sum(session.pinned.compacted_rows for session in sessions),
        delta_rows=sum(session.pinned.pending_rows for session in sessions),
        at_a_time=at_a_time,
        expected_sla=expected_sla,
        desired_sla=desired_sla,
        expected_usd=sum(costs) if costs else None,
    )


def _session_lines(sessions: Sequence[PlannedSession]) -> Iterator[str | Line]:
    if not sessions:
        yield "The table has no partition stream: there is nothing to do."
    for session in sessions:
        if session.plan is not None:
            yield ((printable(partition_text(session.pinned.spec.partition)), HEADING),)
            yield from (f"  {sentence}" for sentence in session.plan.arithmetic)
    idle = [session.pinned.spec for session in sessions if session.plan is None]
    for spec in idle[:_IDLE_SHOWN_MAX]:
        yield ((printable(partition_text(spec.partition)), HEADING),)
    if len(idle) > _IDLE_SHOWN_MAX:
        yield f"and {counted(len(idle) - _IDLE_SHOWN_MAX, 'more partition')}"
    if idle:
        yield f"  {NOTHING_TO_DO if idle[0].job_run.operation == 'compact' else _NOTHING_TO_REHASH}"


def _total_lines(total: Total) -> Iterator[str | Line]:
    if not total.sessions:
        return
    yield (("in all", HEADING),)
    idle = f", {total.nothing_to_do} of them with nothing to do" if total.nothing_to_do else ""
    yield f"  {counted(total.sessions, 'session')}{idle}"
    yield f"  {counted(total.delta_rows, 'delta row')} for {counted(total.rows_before, 'compacted row')}"
    side_by_side = "one after the other" if total.at_a_time == 1 else f"{total.at_a_time} side by side"
    yield f"  {total.expected_sla:,.1f} s expected, from the launch of the first to the end of the last, {side_by_side}"
    if total.expected_usd is not None:
        yield f"  ${total.expected_usd:,.4f} expected in all"
    match total.within_desired_sla:
        case True:
            yield from sentence_lines(f"  within the desired {total.desired_sla:,} s", page_width(), SUCCEEDED)
        case False:
            late = total.expected_sla - (total.desired_sla or 0)
            yield from sentence_lines(
                f"  {late:,.1f} s more than the desired {total.desired_sla:,} s on these cores",
                page_width(),
                STOPPED,
            )
        case None:
            pass
