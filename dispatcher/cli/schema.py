"""`lithify schema`: the JSON Schemas of instruction documents, of events, and of the property `compact_when`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from compactor.catalog.compact_when import CompactWhen, policy_json_schema
from compactor.events.relay import event_json_schema
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer
from dispatcher.intake.instruction import FIELD_NAMES, instruction_json_schema
from dispatcher.records.job_run_events import ALL_EVENT_TYPES


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
