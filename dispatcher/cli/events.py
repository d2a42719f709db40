"""`lithify events publish`, `lithify schema`: pending events of job runs; the JSON Schemas of documents."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from compactor.catalog.compact_when import CompactWhen, policy_json_schema
from compactor.events.relay import event_json_schema
from compactor.model.errors import EXIT_FAILED, LithifyError
from compactor.model.names import counted
from dispatcher.cli.options import EndpointOption, Output, OutputOption
from dispatcher.cli.output import answer, answer_records
from dispatcher.cli.table_places import StatePlace
from dispatcher.clients import CommandDependencies, TopicSinks
from dispatcher.intake.instruction import FIELD_NAMES, instruction_json_schema
from dispatcher.layout import Column
from dispatcher.outbox.event_publisher import publish_to_the_end
from dispatcher.records.job_run_events import ALL_EVENT_TYPES
from dispatcher.records.job_run_store import JobRunStore

_COLUMNS = (Column("job_run_id"), Column("told"), Column("reason"))


def publish(
    dependencies: CommandDependencies,
    state: StatePlace,
    job_run_ids: Annotated[
        list[str] | None,
        typer.Argument(help="Ended job runs. By default all that have unpublished events.", metavar="JOB_RUN_ID..."),
    ] = None,
    topic_arn: Annotated[str | None, typer.Option(help="The topic for job runs whose instruction names none.")] = None,
    endpoint_url: EndpointOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Publish the events of ended job runs that their topic refused, after the topic was fixed. Each event keeps
    its id. An event may be published twice if the record of its publication was lost."""
    records = JobRunStore(state.store(dependencies), dependencies.clock)
    sinks = TopicSinks(topic_arn, lambda arn: dependencies.clients.topic(arn, endpoint_url, patient=True))
    tried = [_publish(records, sinks, each) for each in job_run_ids or _waiting(records)]
    failed = sum(not each["told"] for each in tried)
    answer_records(
        output,
        {"job_runs": tried},
        "job_runs",
        _COLUMNS,
        none="No job run has unpublished events.",
        after=[f"{counted(len(tried) - failed, 'job run')} published, {failed} not."] if tried else [],
    )
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _waiting(records: JobRunStore) -> Iterator[str]:
    """Job runs whose topic refused events, and ended ones whose events are not all published."""
    unpublished = records.unpublished_job_run_ids()
    yield from unpublished
    for job_run_id in sorted(work.text for work in records.open_work()):
        if job_run_id not in unpublished and _has_ended(records, job_run_id):
            yield job_run_id


def _has_ended(records: JobRunStore, job_run_id: str) -> bool:
    try:
        state = records.state(job_run_id)
    except LithifyError:
        return False  # `lithify status` reports it
    return state.ended is not None or state.rejected is not None


def _publish(records: JobRunStore, sinks: TopicSinks, job_run_id: str) -> dict[str, object]:
    try:
        is_published = publish_to_the_end(records, job_run_id, sinks.of)
    except LithifyError as error:
        return {"job_run_id": job_run_id, "told": False, "reason": str(error)}
    reason = None if is_published else "it has not ended: its dispatcher publishes its events"
    return {"job_run_id": job_run_id, "told": is_published, "reason": reason}


class DocumentKind(StrEnum):
    INSTRUCTION = "instruction"
    EVENT = "event"
    COMPACT_WHEN = "compact_when"


def schema(
    document: Annotated[DocumentKind, typer.Argument(help="The document whose schema to print.")],
    output: OutputOption = Output.JSON,
) -> None:
    """Print the JSON Schema of instruction documents, of events, or of policies. As text: the fields, or the types."""
    match document:
        case DocumentKind.INSTRUCTION:
            answer(output, instruction_json_schema(), FIELD_NAMES)
        case DocumentKind.EVENT:
            answer(output, event_json_schema(), tuple(sorted(ALL_EVENT_TYPES)))
        case DocumentKind.COMPACT_WHEN:
            answer(output, policy_json_schema(), tuple(CompactWhen.model_fields))
