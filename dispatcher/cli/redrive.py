"""`lithify redrive`: sends dead letters again after the cause was repaired."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated

import typer

from compactor.model.errors import LithifyError
from compactor.model.names import counted
from dispatcher.cli.options import DeadLettersOption, EndpointOption, Output, OutputOption, QueueOption, RegionOption
from dispatcher.cli.output import answer
from dispatcher.clients import CommandDependencies, QueueAddress
from dispatcher.intake.queue import ORIGIN_ATTRIBUTE, REASONS_ATTRIBUTE, Queue, QueueMessage

VISIBILITY_SECONDS = 900
"""Visibility timeout of dead letters while they are read; those that stay are released at the end."""

KNOWN_AT_A_TIME_MAX = 10
"""Receives in a row that may bring nothing new: a queue may deliver a message twice, and letters come again when they
are read for longer than they are invisible."""

RELEASED_AT_ONCE = 16
"""Releases that are requested side by side: each is one request, which is mostly waiting."""

DeadLetter = dict[str, str | int | None]


@dataclass(frozen=True)
class Selection:
    """Selects the dead letters that match all given conditions. `ids`: of the message, on this queue or as it first
    came, or of the job run."""

    ids: frozenset[str] = frozenset()
    table: str | None = None

    def takes(self, message: QueueMessage) -> bool:
        document = _fields(message.body)
        own_ids = {message.message_id, message.origin.message_id, str(document.get("job_run_id"))}
        return (not self.ids or not self.ids.isdisjoint(own_ids)) and (
            self.table is None or document.get("source_table_id") == self.table
        )


def redrive(
    dependencies: CommandDependencies,
    queue_url: QueueOption,
    dead_letter_queue_url: DeadLettersOption = None,
    endpoint_url: EndpointOption = None,
    region: RegionOption = None,
    only_id: Annotated[
        list[str] | None,
        typer.Option("--id", help="Only this message or job run; once for each.", metavar="ID"),
    ] = None,
    table: Annotated[str | None, typer.Option(help="Only documents of this source table.", metavar="TABLE")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--list", help="Show the messages with their reasons, and send nothing.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Send the dead-letter queue's documents again, as new messages, after their cause of failure was fixed."""
    queue = dependencies.clients.queue(QueueAddress(queue_url, dead_letter_queue_url, endpoint_url, region))
    report = move(queue, Selection(frozenset(only_id or ()), table), dry_run=dry_run)
    count = counted(len(report), "message")
    last = f"{count} would be sent again; nothing was." if dry_run else f"{count} sent again."
    answer(output, {"moved": not dry_run, "messages": report}, [*map(_line, report), last])


def move(queue: Queue, selection: Selection, *, dry_run: bool) -> list[DeadLetter]:
    """Each is sent before it is deleted: a crash in between sends it twice, and loses none. The rest are released. What
    was sent here and is dead-lettered again meanwhile is not sent a second time."""
    dead_letters = queue.dead_letters()
    report: list[DeadLetter] = []
    stays: dict[str, QueueMessage] = {}
    sent: set[str] = set()
    known_receives = 0
    try:
        while known_receives < KNOWN_AT_A_TIME_MAX:
            received = dead_letters.receive(10, 1, VISIBILITY_SECONDS)
            if not received:
                break
            is_known = all(message.message_id in stays for message in received)
            known_receives = known_receives + 1 if is_known else 0
            for message in received:
                is_new = message.message_id not in stays and message.origin.message_id not in sent
                stays[message.message_id] = message  # with the latest receipt, if it came a second time
                if not is_new or not selection.takes(message):
                    continue
                report.append(_shown(message))
                if not dry_run:
                    report[-1]["sent_as"] = sent_as = _send_again(queue, message)
                    sent.add(sent_as)
                    dead_letters.delete(message)
                    del stays[message.message_id]
        return report
    finally:
        with ThreadPoolExecutor(RELEASED_AT_ONCE, thread_name_prefix="dead-letters") as threads:
            list(threads.map(lambda message: _give_back(dead_letters, message), stays.values()))


def _send_again(queue: Queue, message: QueueMessage) -> str:
    """A new message without the attributes that were added to the dead letter."""
    noted = (ORIGIN_ATTRIBUTE, REASONS_ATTRIBUTE)
    kept = {name: each for name, each in message.attributes.items() if name not in noted}
    return queue.send(message.body, kept, message.group)


def _give_back(dead_letters: Queue, message: QueueMessage) -> None:
    try:
        dead_letters.set_visibility(message, 0)
    except LithifyError:
        return  # it comes back when its visibility timeout ends


def _shown(message: QueueMessage) -> DeadLetter:
    document = _fields(message.body)
    return {
        "message_id": message.message_id,
        "first_message_id": message.origin.message_id,
        "job_run_id": _text(document.get("job_run_id")),
        "table": _text(document.get("source_table_id")),
        "sent_at_ms": message.sent_at_ms,
        "reasons": message.reasons,
    }


def _line(report: DeadLetter) -> str:
    named = " ".join(str(report[key]) for key in ("job_run_id", "table") if report[key] is not None)
    reasons = reasons_text(report["reasons"]) or "no reasons were given"
    return f"{report['first_message_id']}{f' ({named})' if named else ''}: {reasons}"


def reasons_text(reasons: object) -> str:
    """Of a dead letter, without JSON's escapes, for users to read and to search."""
    try:
        listed = json.loads(str(reasons or "[]"))
    except ValueError:
        return str(reasons)
    return "; ".join(map(str, listed)) if isinstance(listed, list) else str(listed)


def _fields(body: str) -> dict[str, object]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
