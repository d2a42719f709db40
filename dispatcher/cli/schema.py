"""`lithify schema`: the JSON Schemas of what goes in and what comes out."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from compactor.events import event_json_schema
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer_json
from dispatcher.instruction import instruction_json_schema


class Document(StrEnum):
    INSTRUCTION = "instruction"
    EVENT = "event"


def schema(
    document: Annotated[Document, typer.Argument(help="Which document.")], output: OutputOption = Output.JSON
) -> None:
    """Print the JSON Schema of instruction documents or of events; it is JSON in either output."""
    answer_json(instruction_json_schema() if document is Document.INSTRUCTION else event_json_schema())
