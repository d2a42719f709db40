"""`lithify report`: job runs, sessions, clusters, dead letters and tables, each as a table to be sorted and counted.

The data of `status`, `redrive --dry-run` and `table list` for all of them, read by the same functions.
"""

from typing import Annotated

import typer

from compactor.catalog.properties import default_policy_of_text
from compactor.model.errors import EXIT_FAILED, LithifyError
from dispatcher.cli.options import (
    DeadLettersOption,
    DefaultPolicyOption,
    EndpointOption,
    Output,
    OutputOption,
    QueueOption,
    RegionOption,
)
from dispatcher.cli.output import answer_records, print_error
from dispatcher.cli.redrive import Selection, move, reasons_text
from dispatcher.cli.table_places import LakePlace, StatePlace
from dispatcher.cli.tables import table_record
from dispatcher.clients import CommandDependencies, QueueAddress
from dispatcher.layout import PARTITION, STATUS, Column, age_text, count_text, counts, seconds_text, time_text, usd_text
from dispatcher.operations.status import JobRunView, SessionView, view_all, view_job_run, view_open
from dispatcher.operations.table_lag import TableLag, most_behind_first, table_lag
from dispatcher.records.job_run_store import JobRunStore

_RUN_COLUMNS = (
    Column("job_run_id", "job run"),
    Column("table"),
    STATUS,
    Column("accepted_at_ms", "accepted (UTC)", time_text),
    Column("seconds", show=seconds_text),
    Column("expected_sla", "expected", seconds_text),
    Column("desired_sla", "desired", count_text),
    Column("late_seconds", "late", seconds_text),
    Column("usd", show=usd_text),
)
_SESSION_COLUMNS = (
    Column("job_run_id", "job run"),
    PARTITION,
    STATUS,
    Column("attempt"),
    Column("seconds", show=seconds_text),
    Column("expected_sla", "expected", seconds_text),
    Column("rows_done", "rows done", count_text),
    Column("rows", show=count_text),
)
_CLUSTER_COLUMNS = (
    Column("cluster"),
    Column("job_run_id", "job run"),
    PARTITION,
    Column("attempt"),
    Column("seconds", show=seconds_text),
)
_DEAD_LETTER_COLUMNS = (
    Column("first_message_id", "message"),
    Column("job_run_id", "job run"),
    Column("table"),
    Column("sent_at_ms", "since (UTC)", time_text),
    Column("reasons", show=reasons_text),
)


_LAG_COLUMNS = (
    Column("table_id", "table"),
    Column("pending_seconds", "pending for", age_text),
    Column("lag_bound_seconds", "bound", age_text),
    *counts("pending_rows", "pending_bytes", "small_files", "dead_rows"),
    Column("published_lag_seconds", "published lag", age_text),
)


def runs(
    dependencies: CommandDependencies,
    state: StatePlace,
    only_open: Annotated[bool, typer.Option("--open", help="Only job runs that have not ended.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Job runs, the latest first: how long each took, against what was expected and desired, and what it cost."""
    recorded = state.open(dependencies)
    views = view_open(recorded, dependencies.clock) if only_open else view_all(recorded, dependencies.clock)
    records = [_run(view) for view in views]
    answer_records(output, {"job_runs": records}, "job_runs", _RUN_COLUMNS, none="There is no job run here.")


def sessions(
    dependencies: CommandDependencies,
    state: StatePlace,
    output: OutputOption = Output.TEXT,
) -> None:
    """Sessions of all job runs that have not ended."""
    found = _open_sessions(dependencies, state.open(dependencies))
    none = "No job run is open here."
    answer_records(output, {"sessions": found}, "sessions", _SESSION_COLUMNS, none=none)


def clusters(
    dependencies: CommandDependencies,
    state: StatePlace,
    output: OutputOption = Output.TEXT,
) -> None:
    """What runs where: the cluster, or the Spark job on this machine, of each session that runs."""
    found = _open_sessions(dependencies, state.open(dependencies))
    running = [each for each in found if each["status"] == "running" and each["cluster"] is not None]
    none = "No session runs here."
    answer_records(output, {"clusters": running}, "clusters", _CLUSTER_COLUMNS, none=none)


def dead_letters(
    dependencies: CommandDependencies,
    queue_url: QueueOption,
    dead_letter_queue_url: DeadLettersOption = None,
    endpoint_url: EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Documents that were given up, with their reasons. They stay where they are: `redrive` sends them again."""
    queue = dependencies.clients.queue(QueueAddress(queue_url, dead_letter_queue_url, endpoint_url, region))
    found = move(queue, Selection(), None, dependencies.clock.now_ms(), dry_run=True)
    none = "There is no dead letter."
    answer_records(output, {"dead_letters": found}, "dead_letters", _DEAD_LETTER_COLUMNS, none=none)


def tables(
    dependencies: CommandDependencies,
    lake: LakePlace,
    default_policy: DefaultPolicyOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Tables by lag: for how long the oldest rows have been waiting to be compacted, and how many wait. Those that are
    most behind the bound of their policy come first. Exit code 1 if some cannot be read."""
    catalog, clock = lake.open(), dependencies.clock
    policy = default_policy_of_text(default_policy)
    lags: list[TableLag] = []
    failed: dict[str, str] = {}
    for table_id in catalog.tables():
        try:
            lags.append(table_lag(catalog.store, catalog.table(table_id), clock, policy))
        except LithifyError as error:
            failed[table_id] = str(error)
    records = [_lag(each) for each in most_behind_first(lags)]
    value = {"tables": records, "failed": failed}
    answer_records(output, value, "tables", _LAG_COLUMNS, none="There is no table here yet.")
    for table_id, reason in failed.items():
        print_error(f"{table_id}: {reason}")
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _lag(lag: TableLag) -> dict[str, object]:
    figures = lag.figures
    return {
        **table_record(lag),
        "lag_bound_seconds": lag.bound_seconds,
        "behind": lag.behind if lag.bound_seconds is not None else None,
        "pending_bytes": figures.pending_bytes,
        "small_files": figures.small_files,
        "dead_rows": figures.dead_rows,
        "published_lag_seconds": figures.published_lag_seconds(lag.at_ms) if lag.is_published else None,
    }


def _run(view: JobRunView) -> dict[str, object]:
    late = view.seconds_late(view.seconds)
    record = view.model_dump(mode="json", exclude={"sessions", "rejections"})
    return {**record, "late_seconds": max(late, 0.0) if late is not None else None}


def _open_sessions(dependencies: CommandDependencies, records: JobRunStore) -> list[dict[str, object]]:
    views = view_open(records, dependencies.clock)
    whole = [view_job_run(records, view.job_run_id, dependencies.clock) for view in views]
    return [_session(view, session) for view in whole for session in view.sessions]


def _session(view: JobRunView, session: SessionView) -> dict[str, object]:
    beat = session.heartbeat
    record = session.model_dump(mode="json", exclude={"heartbeat", "end"})
    progress = {"rows_done": beat.rows_done if beat else None, "rows": beat.rows if beat else None}
    return {"job_run_id": view.job_run_id, "table": view.table, **record, **progress}
