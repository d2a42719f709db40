"""What the demo shows at its end: figures per session, the paper's result, and how to look further."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from compactor.catalog.catalog import DeltaCatalog
from compactor.names import render_partition
from compactor.spec import SessionResult
from dispatcher.demo import paper_example as paper
from dispatcher.demo import tpch
from dispatcher.demo.play import ORDERS_JOB_RUN
from dispatcher.demo.stage import Stage
from dispatcher.demo.stand_ins import AWS_VARIABLES, BUCKET, REGION
from dispatcher.status import JobRunView
from launcher.outcomes import Succeeded

_FIGURES = ("rows in", "rows out", "deduplicated", "deleted", "seconds", "rows/s", "expected s")


@dataclass(frozen=True)
class SessionFigures:
    """`rows_per_second`: rows in, per second of the session's own time."""

    job_run_id: str
    partition: str
    result: SessionResult

    @property
    def rows_per_second(self) -> float:
        return self.result.rows_in / self.result.seconds if self.result.seconds else 0.0


def figures_of(views: Sequence[JobRunView]) -> list[SessionFigures]:
    """Of every session that succeeded."""
    return [
        SessionFigures(view.job_run_id, render_partition(session.partition), session.end.result)
        for view in views
        for session in view.sessions
        if isinstance(session.end, Succeeded)
    ]


def sessions_table(figures: Sequence[SessionFigures]) -> Table:
    table = Table(title="What the sessions did", title_justify="left", title_style="bold", header_style="bold")
    table.add_column("job run", no_wrap=True)
    table.add_column("session", no_wrap=True)
    for name in _FIGURES:
        table.add_column(name, justify="right", no_wrap=True)
    for each in figures:
        result = each.result
        table.add_row(
            each.job_run_id,
            each.partition,
            *(f"{rows:,}" for rows in _rows(result)),
            f"{result.seconds:.1f}",
            f"{each.rows_per_second:,.0f}",
            f"{result.expected_sla:.1f}",
        )
    table.add_section()
    totals = [sum(column) for column in zip(*(_rows(each.result) for each in figures), strict=True)]
    table.add_row("all", "", *(f"{rows:,}" for rows in totals), "", "", "", style="bold")
    return table


def paper_table(lake: DeltaCatalog) -> Table:
    """The compacted rows of each order day, as they lie in the lake now."""
    table = Table(title=paper.COMPACTED_TABLE_ID, title_justify="left", title_style="bold", header_style="bold")
    for name in paper.SCHEMA.names:
        table.add_column(name, no_wrap=True)
    opened = lake.table(paper.COMPACTED_TABLE_ID)
    for partition in opened.partitions():
        for row in opened.scan(partition).to_table().sort_by(paper.PRIMARY_KEY).to_pylist():
            updated = row[paper.SORT_KEY].strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
            table.add_row(str(row["Order ID"]), str(row["Order Day"]), row["Order Status"], f"{updated} PDT")
        table.add_section()
    return table


@dataclass(frozen=True)
class LookFurther:
    """What to type, each line a whole command. `before`: once, before the others."""

    before: tuple[str, ...]
    commands: tuple[str, ...]


def look_further(program: str, stage: Stage, deltas: Sequence[tpch.OrdersDelta]) -> LookFurther:
    """Commands on what the demo has left, for somebody who is where the demo was started."""
    lake, state = f"--lake {_shown(stage, 'lake')}", f"--state {_shown(stage, 'state')}"
    before: tuple[str, ...] = ()
    if stage.s3 is not None:
        at_server = f" --s3-endpoint-url {stage.s3.endpoint_url} --region {REGION}"
        lake, state = lake + at_server, state + at_server
        credentials = (f"{name}={AWS_VARIABLES[name]}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
        serve = shlex.quote(stage.place.shown_path(stage.s3.serve))
        before = (serve, f"export {' '.join(credentials)}")
    day = shlex.quote(f"{paper.PARTITION_KEY}=1995-04-03")
    key, year = tpch.late_order(deltas[0].rows)
    one_year = f"-p {tpch.PARTITION_KEY}={year}"
    return LookFurther(
        before,
        (
            f"{program} table scan {paper.COMPACTED_TABLE_ID} -p {day} {lake}",
            f"{program} table lookup {tpch.TABLE_ID} {one_year} --key {tpch.PRIMARY_KEY}={key} {lake}",
            f"{program} table show {tpch.TABLE_ID} {lake}",
            f"{program} table verify {tpch.TABLE_ID} {one_year} {lake}",
            f"{program} table log {tpch.TABLE_ID} {one_year} {lake}",
            f"{program} status {state}",
            f"{program} status {ORDERS_JOB_RUN} {state}",
        ),
    )


def _shown(stage: Stage, name: str) -> str:
    return f"s3://{BUCKET}/{name}" if stage.s3 is not None else shlex.quote(str(stage.place.shown / name))


def _rows(result: SessionResult) -> tuple[int, int, int, int]:
    return result.rows_in, result.rows_out, result.rows_deduplicated, result.rows_deleted
