"""`lithify schema`: the JSON Schemas of instruction documents and events."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from compactor.events.relay import event_json_schema
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer
from dispatcher.intake.instruction import FIELD_NAMES, instruction_json_schema
from dispatcher.records.job_run_events import ALL_EVENT_TYPES


class DocumentKind(StrEnum):
    INSTRUCTION = "instruction"
    EVENT = "event"


def schema(
    document: Annotated[DocumentKind, typer.Argument(help="The document whose schema to print.")],
    output: OutputOption = Output.JSON,
) -> None:
    """Print the JSON Schema of instruction documents or of events. As text: the field names, or the types of event."""
    described = instruction_json_schema() if document is DocumentKind.INSTRUCTION else event_json_schema()
    names = FIELD_NAMES if document is DocumentKind.INSTRUCTION else tuple(sorted(ALL_EVENT_TYPES))
    answer(output, described, names)
