"""Options that several commands share. Their defaults may come from LITHIFY_* variables, which `main` reads."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from compactor.catalog.compact_when import Preset
from compactor.model.names import ContentType


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Format of the answer.")]
LakeOption = Annotated[str, typer.Option("--lake", help="The lake: s3://bucket/prefix, file:///path or a path.")]
StateOption = Annotated[
    str, typer.Option("--state", help="Where job runs are recorded: s3://bucket/prefix, file:///path or a path.")
]
KnownStateOption = Annotated[
    str | None,
    typer.Option(
        "--state", help="Where job runs are recorded; with it, the answer says what happened to this id before."
    ),
]
KnownLakeOption = Annotated[
    str | None, typer.Option("--lake", help="The lake of a document that names no delta_catalog.")
]
QueueOption = Annotated[str, typer.Option("--queue-url", help="The SQS queue of instruction documents.")]
DeadLettersOption = Annotated[
    str | None,
    typer.Option(
        "--dead-letter-queue-url", help="The dead-letter queue, if it is not the one of the queue's redrive policy."
    ),
]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint-url", help="The endpoint of SQS and SNS, if it is not AWS's own.")
]
S3EndpointOption = Annotated[
    str | None, typer.Option("--s3-endpoint-url", help="The endpoint of S3, if it is not AWS's own.")
]
RegionOption = Annotated[str | None, typer.Option("--region", help="The AWS region.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show Spark's stack of every task that fails.")]
TableArgument = Annotated[
    str, typer.Argument(help="The table, OWNER.NAME.Vn; for example ACME.ORDERS.V1.", metavar="TABLE")
]
TablesArgument = Annotated[
    list[str] | None, typer.Argument(help="Tables, OWNER.NAME.Vn. Default: all tables of the lake.", metavar="TABLE...")
]
PartitionOption = Annotated[
    list[str] | None,
    typer.Option("--partition", "-p", help="A partition key and its value; once for each key.", metavar="KEY=VALUE"),
]
KeyOption = typer.Option(
    "--key", "-k", metavar="COLUMN=VALUE", help="A key column and its value; once for each column."
)
ContentTypeOption = Annotated[ContentType, typer.Option(help="Format of files whose name does not tell it.")]
CopyOption = Annotated[
    bool, typer.Option("--copy", help="Copy the files into the lake instead of registering them in place.")
]
DefaultPolicyOption = Annotated[
    str | None,
    typer.Option(
        "--default-policy",
        autocompletion=lambda: list(Preset),
        help="The policy of tables without `compact_when`: JSON, or a preset. Left out: they are left alone. Tables "
        "that do not declare `primary_keys` are only watched, if it is `manual`.",
    ),
]
PricesOption = Annotated[
    str | None,
    typer.Option(help="JSON, or a file of it: instance types and their prices, instead of the built-in list."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(min=0, help="Warm processes that run small sessions without Spark; 0: none. Default: as `dispatch`."),
]
WorkerSecondsOption = Annotated[
    float, typer.Option(min=1, help="A session that is predicted to take as long in a worker runs on Spark.")
]
CoresOption = Annotated[
    int | None, typer.Option(min=1, help="Cores for all sessions together. Default: the machine's.")
]
MemoryOption = Annotated[
    float | None, typer.Option(min=1.0, help="Memory for all sessions together, in GiB. Default: 3/4 of the machine's.")
]
WorkFolderOption = Annotated[Path, typer.Option(help="The folder for Spark's output and scratch files.")]
JobRunArgument = Annotated[str, typer.Argument(help="The job run's id.", metavar="JOB_RUN_ID")]
DocumentArgument = Annotated[
    str, typer.Argument(help="A file with the instruction document, or - for standard input.", metavar="FILE")
]
