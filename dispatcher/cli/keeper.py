"""`lithify keeper`: looks at tables and has them compacted by their policies; what it would do, and what it did."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from compactor.catalog.properties import KEPT_SECONDS_MAX, default_policy_of_text
from compactor.events.relay import NoSink
from compactor.lake import DeltaCatalog
from compactor.log.durable_log import DurableLog
from compactor.log_context import LOG
from compactor.model.background import BackgroundLoop
from compactor.model.errors import EXIT_FAILED, EXIT_INTERRUPTED, Invalid, Unavailable
from compactor.model.names import counted
from compactor.planning.due import Due, NotDue, Postponed
from compactor.planning.machine_share import WORKER_BYTES_MIN, WORKER_START_BYTES
from compactor.planning.where_to_run import WorkerPool
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.cli.options import (
    DefaultPolicyOption,
    EndpointOption,
    LakeOption,
    Output,
    OutputOption,
    PricesOption,
    QueueOption,
    RegionOption,
    S3EndpointOption,
    StateOption,
    TablesArgument,
    WorkersOption,
)
from dispatcher.cli.output import answer, answer_records, print_error
from dispatcher.cli.plan import PlannedCluster
from dispatcher.cli.table_places import check_exists
from dispatcher.clients import CommandDependencies, QueueAddress, machine_share
from dispatcher.keeper.decision_log import DECISION_LOG, decision_records
from dispatcher.keeper.decision_queue import DecisionQueue
from dispatcher.keeper.keeper import Keeper, KeeperLook
from dispatcher.keeper.keys import DecisionLogFolder, lake_name
from dispatcher.keeper.table_keeper import KeeperServices, KeeperSettings, TableOutlook, over_budgets
from dispatcher.keeper.upkeep import LakeUpkeep, Upkeep
from dispatcher.layout import PARTITION, Column, count_text, seconds_text, time_text, usd_text
from dispatcher.operations.http_server import HttpAddress, Observed, http_server
from dispatcher.operations.lag_board import LagBoard
from dispatcher.operations.metrics import EmbeddedMetrics, parse_namespace
from dispatcher.options.documents import read_limits
from dispatcher.options.settings import cluster_room
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.scheduling.lease_log import QuotaExceeded, lease_log
from dispatcher.scheduling.limits import Limits
from launcher.clusters.local import session_resources
from launcher.plan import Room
from launcher.sizing.cluster_choice import ClusterLimits

METRICS_SECONDS = 60.0
"""Interval between two lines of metrics: CloudWatch has one value a minute."""

LOOKS_MISSED_MAX = 10
ENTRIES_PER_DECISION = 8
"""Entries that are read for each decision that is shown: more than it has."""

_DAY_MS = 86_400_000


@dataclass(frozen=True)
class KeeperPlaces:
    state: StateOption
    lake: LakeOption
    s3_endpoint_url: S3EndpointOption = None
    region: RegionOption = None

    def open(self, dependencies: CommandDependencies) -> tuple[DeltaCatalog, JobRunStore]:
        location = parse_location(self.lake, endpoint_url=self.s3_endpoint_url, region=self.region)
        lake = DeltaCatalog(open_store(location), dependencies.clock)
        return lake, JobRunStore(dependencies.store(self.state, self.s3_endpoint_url, self.region), dependencies.clock)


ClusterOption = Annotated[
    PlannedCluster, typer.Option(help="Where the dispatchers run sessions: what time and money are predicted for.")
]


def keep(
    dependencies: CommandDependencies,
    places: KeeperPlaces,
    queue_url: QueueOption,
    once: Annotated[bool, typer.Option("--once", help="Look once, do what is due, and end: for a schedule.")] = False,
    look_seconds: Annotated[
        float, typer.Option(min=1, max=86_400, help="Seconds between two looks at all tables.")
    ] = KeeperSettings.look_seconds,
    upkeep_hours: Annotated[
        float, typer.Option(min=1, help="Hours between two collections of garbage, and two cleanings of the state.")
    ] = KeeperSettings.upkeep_seconds / 3600,
    grace_hours: Annotated[
        float | None,
        typer.Option(
            min=1, max=KEPT_SECONDS_MAX / 3600, help="Grace of tables that set no `gc_grace_seconds`. Default: a week."
        ),
    ] = None,
    default_policy: DefaultPolicyOption = None,
    topic_arn: Annotated[str | None, typer.Option(help="The SNS topic for the keeper's events.")] = None,
    cluster: ClusterOption = PlannedCluster.LOCAL,
    workers: WorkersOption = None,
    price_file: PricesOption = None,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port for /live, /ready and /metrics; 0 is any that is free.")
    ] = None,
    http_host: Annotated[str, typer.Option(help="Address on which these are served.")] = HttpAddress.host,
    metrics_namespace: Annotated[
        str | None,
        typer.Option(help="Namespace of metrics that are written to stdout in CloudWatch's embedded format."),
    ] = None,
    endpoint_url: EndpointOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Look at all tables, and send instructions for what their policies say is due. Retire deltas, delete garbage,
    clean the state and publish what lags, too.

    Several may run. Exit code 1, with --once: some tables could not be looked after, or the queue or the topic accepts
    nothing; the others were looked after.
    """
    settings = KeeperSettings(
        look_seconds=look_seconds,
        default_policy=default_policy_of_text(default_policy),
        upkeep_seconds=upkeep_hours * 3600,
        grace_seconds=None if grace_hours is None else grace_hours * 3600,
    )
    room = _room(dependencies, cluster, price_file, Limits())
    lake, records = places.open(dependencies)
    address = QueueAddress(queue_url, None, endpoint_url, places.region)
    queue = DecisionQueue(lambda: dependencies.clients.queue(address), dependencies.clock)
    queue_away = queue.try_to_open()
    sink = NoSink() if topic_arn is None else dependencies.clients.topic(topic_arn, endpoint_url, patient=False)
    glue = partial(dependencies.clients.glue, places.region, endpoint_url)
    services = KeeperServices(lake, records, queue, room, sink, dependencies.clock, _pool(workers), glue)
    keeper = Keeper(services, settings)
    board, upkeep = keeper.board, LakeUpkeep(services, settings, keeper.board)
    namespace = None if metrics_namespace is None else parse_namespace(metrics_namespace)
    embedded = EmbeddedMetrics(namespace, METRICS_SECONDS, board.samples, dependencies.owner, dependencies.clock)
    if once:
        try:
            look, done = keeper.look(), upkeep.do_what_is_due()
        finally:  # an alarm is raised by what failed
            embedded.write()
        _answer_once(output, look, done, look.queue_away or queue_away)
        return
    stops = dependencies.stops_on_signal()
    LOG.info("keeper_started", owner=dependencies.owner, lake=lake.location.root_uri, queue=queue_url)
    if queue_away is not None:
        LOG.warning("queue_away", reason=queue_away)
    observed = _observed(board, settings)
    metrics = BackgroundLoop("metrics", embedded.write, METRICS_SECONDS, ends=stops)
    served = http_server(HttpAddress(http_host, http_port), lambda: observed)
    with served, keeper.loop(stops), upkeep.loop(stops), metrics:
        stops.wait()
    answer(output, {"stopped": True, "owner": dependencies.owner}, ["The keeper has stopped."])
    if stops.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _observed(board: LagBoard, settings: KeeperSettings) -> Observed:
    """It hangs if no look has ended for ten times their distance."""
    hangs_after = LOOKS_MISSED_MAX * settings.look_seconds
    return Observed(
        lambda: ("looks",) if board.look_age_seconds > hangs_after else (),
        lambda: {what: Unavailable(why) for what, why in board.troubles.items()},
        board.samples,
    )


def _answer_once(output: Output, look: KeeperLook, upkeep: Upkeep, queue_away: str | None) -> None:
    sent = f"{counted(look.decided, 'decision')}, {counted(look.sent, 'instruction')} sent"
    unsent = f", {look.waiting:,} of them not sent" if look.waiting else ""
    lines = [f"{counted(look.tables, 'table')}: {sent}, {look.ended:,} ended, {look.open:,} open{unsent}"]
    if upkeep.steps:
        lines.append(
            f"{', '.join(upkeep.steps)}: {counted(upkeep.retired_deltas, 'delta')} retired, "
            f"{counted(upkeep.deleted_files, 'file')} deleted, {counted(len(upkeep.published), 'table')} published"
        )
    value = {**asdict(look), "queue_away": queue_away, "upkeep": asdict(upkeep)}
    answer(output, value, lines)
    failed = {**look.set_aside, **upkeep.failed}
    for what, reason in failed.items():
        print_error(f"{what}: {reason}")
    if queue_away is not None:
        print_error(f"not sent, and left to the next look: {counted(look.waiting, 'decision')}: {queue_away}")
    if look.events_wait is not None:
        print_error(f"events wait, and are published by the next look: {look.events_wait}")
    if failed or queue_away is not None or look.events_wait is not None:
        raise typer.Exit(EXIT_FAILED)


# ---------------------------------------------------------------------------------------------------------- plan

_PLAN_COLUMNS = (
    Column("table"),
    PARTITION,
    Column("state"),
    Column("by"),
    Column("until_ms", "until (UTC)", time_text),
    Column("pending_rows", show=count_text),
    Column("lag_seconds", "lag s", seconds_text),
    Column("expected_seconds", "expected s", seconds_text),
    Column("expected_usd", "expected $", usd_text),
    Column("why"),
)


def plan(
    dependencies: CommandDependencies,
    places: KeeperPlaces,
    table: TablesArgument = None,
    default_policy: DefaultPolicyOption = None,
    cluster: ClusterOption = PlannedCluster.LOCAL,
    workers: WorkersOption = None,
    price_file: PricesOption = None,
    limits: Annotated[
        str | None,
        typer.Option(
            help="The limits of the dispatchers, JSON or a file. The plan names daily budgets that would be exceeded."
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what is due, by which figure, when the rest will be due if nothing changes, and at what cost. Sends and
    writes nothing."""
    lake, records = places.open(dependencies)
    check_exists(lake.store, "lake")
    settings = KeeperSettings(default_policy=default_policy_of_text(default_policy))
    for table_id in table or ():
        lake.table(table_id)
    given = Limits() if limits is None else read_limits(limits, "--limits")
    room = _room(dependencies, cluster, price_file, given)
    services = KeeperServices(lake, records, None, room, NoSink(), dependencies.clock, _pool(workers))
    found = Keeper(services, settings).outlook(table or ())
    now_ms = dependencies.clock.now_ms()
    leases = lease_log(records.store, dependencies.clock).load().state
    over = over_budgets(found, given, leases, now_ms)
    shown = [record for each in found for record in _outlook_records(each, over, now_ms)]
    answer_records(output, {"streams": shown}, "streams", _PLAN_COLUMNS, none="The lake has no table.")


def _outlook_records(
    outlook: TableOutlook, over: Mapping[tuple[str, str], QuotaExceeded], now_ms: int
) -> Iterator[dict[str, object]]:
    if outlook.why_not is not None:
        yield {"table": outlook.table_id, "state": "not kept", "why": outlook.why_not}
    for each in outlook.streams:
        figures = each.stream.figures
        record: dict[str, object] = {
            "table": outlook.table_id,
            "partition": each.stream.partition,
            "state": "at work",
            "by": None,
            "until_ms": None,
            "pending_deltas": figures.pending_deltas,
            "pending_rows": figures.pending_rows,
            "pending_bytes": figures.pending_bytes,
            "lag_seconds": figures.lag_seconds(now_ms),
            "expected_seconds": None if each.cost is None or each.cost.unknown else each.cost.seconds,
            "expected_usd": None if each.cost is None else each.cost.usd,
            "why": "",
        }
        match each.decision:
            case Due(rule=rule, why=why):
                record |= {"state": "due", "by": rule, "why": why}
                exceeded = over.get((outlook.table_id, each.stream.key))
                if exceeded is not None:
                    until_ms = (now_ms // _DAY_MS + 1) * _DAY_MS
                    record |= {"state": "over budget", "until_ms": until_ms, "why": f"{why}; {exceeded.reason}"}
            case NotDue(until_ms=until_ms, figure=figure, why=why):
                record |= {"state": "not due", "by": figure, "until_ms": until_ms, "why": why}
            case Postponed(by=by, until_ms=until_ms, why=why):
                record |= {"state": "postponed", "by": by.value, "until_ms": until_ms, "why": why}
            case None:
                record["why"] = outlook.at_work.get(each.stream.key, "")
        yield record


# ----------------------------------------------------------------------------------------------------------- log

_LOG_COLUMNS = (
    Column("at_ms", "at (UTC)", time_text),
    Column("table"),
    Column("what"),
    Column("streams", show=count_text),
    Column("by"),
    Column("expected_seconds", "expected s", seconds_text),
    Column("seconds", show=seconds_text),
    Column("expected_usd", "expected $", usd_text),
    Column("usd", "$", usd_text),
    Column("job_run_id", "job run"),
    Column("why"),
)


def log(
    dependencies: CommandDependencies,
    places: KeeperPlaces,
    table: TablesArgument = None,
    limit: Annotated[int, typer.Option(min=1, help="Most decisions of a table to show, the latest.")] = 50,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the keeper's decisions: which figure was reached, what was expected, and what the job run took."""
    lake, records = places.open(dependencies)
    check_exists(lake.store, "lake")
    shown: list[dict[str, object]] = []
    for table_id in table or lake.tables():
        folder = DecisionLogFolder(lake_name(lake.location), table_id)
        decisions = DurableLog(records.store, folder.key, DECISION_LOG, dependencies.clock)
        last = decisions.load().entry_number
        first = max(last - ENTRIES_PER_DECISION * limit + 1, 1)
        shown += decision_records(table_id, decisions.entries_between(first, last), limit)
    shown.sort(key=lambda each: (str(each["at_ms"]), str(each["table"])))
    answer_records(output, {"decisions": shown}, "decisions", _LOG_COLUMNS, none="The keeper has decided nothing yet.")


# ------------------------------------------------------------------------------------------------------- options


def _pool(workers: int | None) -> WorkerPool | None:
    """Workers of dispatchers elsewhere, of which the number is known, and that each has the least memory of one."""
    return WorkerPool(workers, WORKER_BYTES_MIN - WORKER_START_BYTES) if workers else None


def _room(dependencies: CommandDependencies, cluster: PlannedCluster, price_file: str | None, limits: Limits) -> Room:
    if cluster is not PlannedCluster.LOCAL:
        serverless = cluster is PlannedCluster.EMR_SERVERLESS
        # Budgets are the keeper's to count: what passes one waits, at its price.
        limits = Limits(session=limits.session.model_copy(update={"vcpus": limits.session_vcpus}))
        return cluster_room(limits, ClusterLimits.spot_share, price_file, (), dependencies.clock, serverless=serverless)
    if price_file is not None:
        raise Invalid("prices are those of clusters: add --cluster emr")
    return session_resources(*machine_share(dependencies, None, None, 1), Path(".lithify"))
