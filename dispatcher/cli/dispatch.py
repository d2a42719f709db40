"""`lithify dispatch`: the service. `lithify redrive`: what it gave up, once more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compactor.object_store import parse_location
from dispatcher.assembly import DispatcherSettings, Outside, build_dispatcher
from dispatcher.cli.options import (
    DeadLettersOption,
    EndpointOption,
    Output,
    OutputOption,
    QueueOption,
    RegionOption,
    S3EndpointOption,
    StateOption,
)
from dispatcher.cli.output import answer
from dispatcher.cli.tools import QueueAddress, tools_of
from dispatcher.foreman import ForemanSettings
from dispatcher.intake import IntakeSettings
from dispatcher.queue import Queue, QueueMessage
from dispatcher.receiver import ReceiverSettings
from dispatcher.service import ServiceSettings
from dispatcher.sinks import TopicSinks
from launcher.session_launcher import RetryPolicy, SessionLauncherSettings
from launcher.spark_conf import GIB, MACHINE_MEMORY_SHARE, share_of_machine
from launcher.watch import WatchTimers

REDRIVE_VISIBILITY_SECONDS = 60


def dispatch(
    context: typer.Context,
    queue_url: QueueOption,
    state: StateOption,
    dead_letter_queue_url: DeadLettersOption = None,
    topic_arn: Annotated[
        str | None, typer.Option(help="The SNS topic for events, unless an instruction names one.")
    ] = None,
    lake: Annotated[str | None, typer.Option(help="For documents that name no delta_catalog.")] = None,
    endpoint_url: EndpointOption = None,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    work_folder: Annotated[Path, typer.Option(help="For Spark's output and scratch files.")] = Path(".lithify"),
    max_sessions: Annotated[int, typer.Option(min=1, help="Sessions at a time, over all job runs.")] = 1,
    max_job_runs: Annotated[int, typer.Option(min=1, help="Job runs taken on at a time.")] = 8,
    cores: Annotated[int | None, typer.Option(min=1, help="For all sessions; left out: all of the machine.")] = None,
    memory_gib: Annotated[float | None, typer.Option(min=1.0, help="For all sessions; left out: 3/4 of it.")] = None,
    drain_seconds: Annotated[float, typer.Option(min=0, help="For running sessions after SIGTERM.")] = 60.0,
    claim_seconds: Annotated[float, typer.Option(min=0.5, help="Silence after which others take over.")] = 300.0,
    sweep_seconds: Annotated[float, typer.Option(min=0, help="Between two looks for work left behind.")] = 60.0,
    start_seconds: Annotated[float, typer.Option(min=1, help="For a Spark job to start.")] = 600.0,
    stall_seconds: Annotated[float, typer.Option(min=1, help="Without progress, before a session is retried.")] = 900.0,
    max_attempts: Annotated[int, typer.Option(min=1, help="Attempts of a session that may fail.")] = 3,
    wait_seconds: Annotated[int, typer.Option(min=0, max=20, help="Of one long poll of the queue.")] = 10,
    poll_seconds: Annotated[float, typer.Option(min=0.01, help="Between two looks at what runs.")] = 1.0,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when there is nothing left to do.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run job runs from a queue, until SIGTERM or SIGINT. Log lines go to stderr."""
    tools = tools_of(context)
    address = QueueAddress(queue_url, dead_letter_queue_url, endpoint_url, region)
    resources, driver_memory_bytes = share_of_machine(
        int(memory_gib * GIB) if memory_gib is not None else int(tools.memory_bytes * MACHINE_MEMORY_SHARE),
        cores or tools.cores,
        max_sessions,
    )
    sinks = TopicSinks(topic_arn, lambda arn: tools.clients.topic(arn, endpoint_url))
    outside = Outside(
        queue=tools.clients.queue(address),
        state=tools.store(state, s3_endpoint_url, region),
        cluster=tools.clients.local_cluster(resources, driver_memory_bytes, work_folder.absolute()),
        open_lake=tools.lake,
        sink_for=sinks.of,
        owner=tools.owner,
        clock=tools.clock,
    )
    default_lake = parse_location(lake, endpoint_url=s3_endpoint_url, region=region) if lake is not None else None
    settings = DispatcherSettings(
        intake=IntakeSettings(default_lake=default_lake, s3_endpoint_url=s3_endpoint_url, s3_region=region),
        foreman=ForemanSettings(
            max_sessions=max_sessions,
            max_job_runs=max_job_runs,
            claim_seconds=claim_seconds,
            sweep_seconds=sweep_seconds,
            tick_seconds=poll_seconds,
        ),
        receiver=ReceiverSettings(wait_seconds=wait_seconds, idle_seconds=poll_seconds),
        launcher=SessionLauncherSettings(
            poll_seconds=poll_seconds,
            timers=WatchTimers(start_seconds=start_seconds, stall_seconds=stall_seconds),
            retry=RetryPolicy(max_attempts=max_attempts),
        ),
        service=ServiceSettings(drain_seconds=drain_seconds, until_idle=until_idle),
    )
    build_dispatcher(outside, settings).run(tools.stops_when_asked())
    answer(output, {"stopped": True, "owner": tools.owner}, ["The dispatcher has stopped; nothing is left in flight."])


def redrive(
    context: typer.Context,
    queue_url: QueueOption,
    dead_letter_queue_url: DeadLettersOption = None,
    endpoint_url: EndpointOption = None,
    region: RegionOption = None,
    messages_max: Annotated[int, typer.Option("--max", min=1, help="Messages to move at most.")] = 1_000,
    list_only: Annotated[bool, typer.Option("--list", help="Show them with their reasons; move nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Send the dead-letter queue's documents again, as new messages, after what kept them from working was mended."""
    tools = tools_of(context)
    queue = tools.clients.queue(QueueAddress(queue_url, dead_letter_queue_url, endpoint_url, region))
    moved = _move(queue, messages_max, list_only=list_only)
    verb = "lie on the dead-letter queue" if list_only else "were sent again"
    lines = [f"{each['message_id']}: {each['reasons'] or 'no reasons were given'}" for each in moved]
    answer(output, {"moved": not list_only, "messages": moved}, [*lines, f"{len(moved)} messages {verb}."])


def _move(queue: Queue, messages_max: int, *, list_only: bool) -> list[dict[str, str | None]]:
    """Each is sent before it is deleted: a crash in between sends it twice, and loses none."""
    dead_letters = queue.dead_letters()
    seen: dict[str, dict[str, str | None]] = {}
    listed: list[QueueMessage] = []
    while len(seen) < messages_max:
        left = min(10, messages_max - len(seen))
        messages = [
            message
            for message in dead_letters.receive(left, 1, REDRIVE_VISIBILITY_SECONDS)
            if message.message_id not in seen
        ]
        if not messages:
            break
        for message in messages:
            told: dict[str, str | None] = {"message_id": message.message_id, "reasons": message.reasons}
            if not list_only:
                told["sent_as"] = queue.send(message.body)
                dead_letters.delete(message)
            else:
                listed.append(message)
            seen[message.message_id] = told
    for message in listed:
        dead_letters.set_visibility(message, 0)
    return list(seen.values())
