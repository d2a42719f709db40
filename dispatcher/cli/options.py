"""Options that several commands share. Their defaults may come from LITHIFY_* variables, which `main` reads."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How the answer is written.")]
LakeOption = Annotated[str, typer.Option("--lake", help="The lake: s3://bucket/prefix, file:///path or a path.")]
StateOption = Annotated[
    str, typer.Option("--state", help="Where job runs are recorded: s3://bucket/prefix, file:///path or a path.")
]
QueueOption = Annotated[str, typer.Option("--queue-url", help="The SQS queue of instruction documents.")]
DeadLettersOption = Annotated[
    str | None,
    typer.Option("--dead-letter-queue-url", help="Where it is not the one of the queue's redrive policy."),
]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint-url", help="Of SQS and SNS, where it is not AWS's own.")
]
S3EndpointOption = Annotated[
    str | None, typer.Option("--s3-endpoint-url", help="Of the S3 service, where it is not AWS's own.")
]
RegionOption = Annotated[str | None, typer.Option("--region", help="The AWS region.")]
TableArgument = Annotated[str, typer.Argument(help="OWNER.NAME.Vn, for example ACME.ORDERS.V1.", metavar="TABLE")]
PartitionOption = Annotated[
    list[str] | None,
    typer.Option("--partition", "-p", help="key=value; once for each partition key.", metavar="KEY=VALUE"),
]
DocumentArgument = Annotated[
    str, typer.Argument(help="A file with the instruction document, or - for standard input.", metavar="FILE")
]
