"""The report at the end of the demo: figures per session, the paper's result, and commands to try next.

With --keep-serving, also one more delta and the instruction that compacts it:

env.sh        variables for another terminal: queue, topic, lake and state
next.json     an instruction that has not run yet
next.parquet  its delta: one order, with another status
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.lake import DeltaCatalog
from dispatcher.demo import paper_example as paper
from dispatcher.demo import tpch
from dispatcher.demo.environment import DemoEnvironment
from dispatcher.demo.scenario import ORDERS_JOB_RUN, instruction_for, write_instruction
from dispatcher.demo.stand_ins import AWS_VARIABLES, HOST, REGION
from dispatcher.layout import (
    HEADING,
    OF_SESSION,
    PARTITION,
    Column,
    Line,
    count_text,
    data_columns,
    table_lines,
    word_text,
)
from dispatcher.operations.status import JobRunView
from launcher.outcomes import Succeeded


def _place(cluster: object) -> str:
    """What ran a session, without where its output is."""
    return word_text(cluster).partition(",")[0]


_SESSION_COLUMNS = (PARTITION, *OF_SESSION, Column("cluster", "place", _place))


def sessions_table(views: Sequence[JobRunView], width: int | None) -> Iterator[Line]:
    """A line for each session that succeeded, and one for their sum."""
    records = [
        {
            **session.model_dump(include={"partition", "delta_rows", "rows_out", "seconds", "expected_sla", "cluster"}),
            "rows_deduplicated": session.end.result.rows_deduplicated,
            "rows_deleted": session.end.result.rows_deleted,
        }
        for view in views
        for session in view.sessions
        if isinstance(session.end, Succeeded)
    ]
    totals = {
        column.key: sum(record[column.key] or 0 for record in records)
        for column in _SESSION_COLUMNS
        if column.show is count_text
    }
    yield (("What the sessions did", HEADING),)
    yield from table_lines(_SESSION_COLUMNS, [*records, {"partition": "all", **totals}], width)


def paper_table(lake: DeltaCatalog, width: int | None) -> Iterator[Line]:
    """The compacted rows of each order day, read from the lake."""
    opened = lake.table(paper.COMPACTED_TABLE_ID)
    rows = [
        {**row, paper.SORT_KEY: f"{row[paper.SORT_KEY].strftime('%Y-%m-%d %H:%M:%S.%f')[:-3]} PDT"}
        for partition in opened.partitions()
        for row in opened.scan(partition, paper.SCHEMA.names).to_table().sort_by(paper.PRIMARY_KEY).to_pylist()
    ]
    yield ((paper.COMPACTED_TABLE_ID, HEADING),)
    yield from table_lines(data_columns(paper.SCHEMA.names), rows, width)


def next_commands(program: str, environment: DemoEnvironment, deltas: Sequence[tpch.OrdersDelta]) -> tuple[str, ...]:
    """Commands that read the demo's results, to be typed in the folder where the demo was started, one per line. None
    where the results are on an S3 server, which ends with the demo."""
    if environment.s3 is not None:
        return ()
    shown = environment.folder.shown
    lake, state = (f"--{name} {shlex.quote(str(shown / name))}" for name in ("lake", "state"))
    order_day = shlex.quote(f"{paper.PARTITION_KEY}=1995-04-03")
    key, year = tpch.late_order(deltas[0].rows)
    one_year = f"-p {tpch.PARTITION_KEY}={year}"
    return (
        f"{program} table scan {paper.COMPACTED_TABLE_ID} -p {order_day} {lake}",
        f"{program} table lookup {tpch.TABLE_ID} {one_year} --key {tpch.PRIMARY_KEY}={key} {lake}",
        f"{program} table show {tpch.TABLE_ID} {lake}",
        f"{program} table verify {tpch.TABLE_ID} {one_year} {lake}",
        f"{program} table log {tpch.TABLE_ID} {one_year} {lake}",
        f"{program} status {state}",
        f"{program} status {ORDERS_JOB_RUN} {state}",
    )


@dataclass(frozen=True)
class Check:
    """One claim, and whether it holds."""

    claim: str
    holds: bool


def check_paper(lake: DeltaCatalog) -> Check:
    table = lake.table(paper.COMPACTED_TABLE_ID)
    rows = {
        day: table.scan({paper.PARTITION_KEY: day}, expected.column_names).to_table()
        for day, expected in paper.SURVIVORS.items()
    }
    holds = all(rows[day].sort_by(paper.PRIMARY_KEY).equals(expected) for day, expected in paper.SURVIVORS.items())
    count = sum(expected.num_rows for expected in paper.SURVIVORS.values())
    return Check(f"{paper.COMPACTED_TABLE_ID} holds the {count} rows that the paper's example leaves", holds)


def check_orders(lake: DeltaCatalog, deltas: Sequence[tpch.OrdersDelta]) -> Check:
    expected = tpch.survivors(deltas)
    found = lake.table(tpch.TABLE_ID).scan().to_table().sort_by(tpch.PRIMARY_KEY)
    rows_in = sum(delta.rows.num_rows for delta in deltas)
    claim = f"{tpch.TABLE_ID} holds the {expected.num_rows:,} rows that sorting all {rows_in:,} rows leaves"
    return Check(claim, found.select(expected.column_names).equals(expected))


NEXT_JOB_RUN = "next"
_FOREIGN_VARIABLES = ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL")
_STATUS = "R"


@dataclass(frozen=True)
class FollowUp:
    """`variables` are those of env.sh; `commands` are for a terminal that has sourced it."""

    variables: dict[str, str]
    commands: tuple[str, ...]


def make_follow_up(program: str, environment: DemoEnvironment, deltas: Sequence[tpch.OrdersDelta]) -> FollowUp:
    folder = environment.folder
    variables = {
        **AWS_VARIABLES,
        "NO_PROXY": HOST,
        "LITHIFY_QUEUE_URL": environment.queue.name,
        "LITHIFY_TOPIC_ARN": environment.topic_arn,
        "LITHIFY_ENDPOINT_URL": environment.endpoint_url,
        "LITHIFY_REGION": REGION,
        "LITHIFY_LAKE": environment.lake.location.root_uri,
        "LITHIFY_STATE": environment.state.location.root_uri,
    }
    if environment.s3 is not None:
        variables["LITHIFY_S3_ENDPOINT_URL"] = environment.s3.endpoint_url
    script = folder.path / "env.sh"
    exports = (f"export {name}={shlex.quote(value)}" for name, value in variables.items())
    script.write_text("\n".join((f"unset {' '.join(_FOREIGN_VARIABLES)}", *exports, "")))
    key, year = tpch.late_order(deltas[0].rows)
    update = folder.path / f"{NEXT_JOB_RUN}.parquet"
    pq.write_table(_later(deltas[0].rows, key), update)
    file = write_instruction(environment, NEXT_JOB_RUN, instruction_for(environment, NEXT_JOB_RUN, tpch.INSTRUCTION))
    work_folder = shlex.quote(folder.shown_path(folder.spark))
    partition = f"-p {tpch.PARTITION_KEY}={year}"
    copies = "" if environment.s3 is None else " --copy"
    return FollowUp(
        variables,
        (
            f". {shlex.quote(folder.shown_path(script))}",
            f"{program} table append {tpch.TABLE_ID} {shlex.quote(folder.shown_path(update))} {partition}{copies}",
            f"{program} plan {shlex.quote(folder.shown_path(file))}",
            f"{program} submit {shlex.quote(folder.shown_path(file))}",
            f"{program} dispatch --until-idle --work-folder {work_folder}",
            f"{program} watch {NEXT_JOB_RUN}",
            f"{program} table lookup {tpch.TABLE_ID} {partition} --key {tpch.PRIMARY_KEY}={key}",
        ),
    )


def _later(orders: pa.Table, key: int) -> pa.Table:
    """The order with another status, updated later than all of the demo's updates of it."""
    (row,) = orders.filter(pc.equal(orders.column(tpch.PRIMARY_KEY), key)).to_pylist()
    updated = row[tpch.SORT_KEY] + timedelta(days=365)
    return pa.Table.from_pylist([{**row, "o_orderstatus": _STATUS, tpch.SORT_KEY: updated}], schema=tpch.SCHEMA)
