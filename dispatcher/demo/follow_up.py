"""Files and commands for `lithify demo --keep-serving`: one more delta, and one more instruction to compact it.

env.sh        variables for another terminal: queue, topic, lake and state
next.json     an instruction that has not run yet
next.parquet  the delta that it compacts: one order, with another status
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dispatcher.demo import tpch
from dispatcher.demo.environment import DemoEnvironment
from dispatcher.demo.scenario import instruction_for, write_instruction
from dispatcher.demo.stand_ins import AWS_VARIABLES, HOST, REGION

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
