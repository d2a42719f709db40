"""`lithify report tables`: tables by lag."""

from compactor.catalog.properties import default_policy_of_text
from compactor.model.errors import LithifyError
from dispatcher.cli.options import DefaultPolicyOption, Output, OutputOption
from dispatcher.cli.output import answer_records, exit_if_failed
from dispatcher.cli.table_places import LakePlace
from dispatcher.cli.tables import table_record
from dispatcher.clients import CommandDependencies
from dispatcher.layout import Column, age_text, counts
from dispatcher.operations.table_lag import TableLag, most_behind_first, table_lag

_LAG_COLUMNS = (
    Column("table_id", "table"),
    Column("pending_seconds", "pending for", age_text),
    Column("lag_bound_seconds", "bound", age_text),
    *counts("pending_rows", "pending_bytes", "small_files", "dead_rows"),
    Column("published_lag_seconds", "published lag", age_text),
)


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
    exit_if_failed(failed)


def _lag(lag: TableLag) -> dict[str, object]:
    figures = lag.figures
    return {
        **table_record(lag),
        "lag_bound_seconds": lag.bound_seconds,
        "behind": lag.behind if lag.bound_seconds is not None else None,
        "pending_bytes": figures.pending_bytes,
        "small_files": figures.small_files,
        "dead_rows": figures.dead_rows,
        "published_lag_seconds": lag.published_lag_seconds,
    }
