"""`lithify privacy`: what may still hold the values of a deleted key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from compactor.maintenance.privacy import KeyValues, PrivacyProof, key_schema, prove_many
from compactor.model.errors import Invalid
from compactor.model.names import counted, render_partition
from dispatcher.cli.expressions import read_document
from dispatcher.cli.options import Output, OutputOption, PartitionOption, TableArgument
from dispatcher.cli.output import answer_records
from dispatcher.cli.table_places import LakePlace, parse_key, parse_keys, partition_even_dropped
from dispatcher.clients import dependencies_of
from dispatcher.layout import Column, count_text, time_text

_COLUMNS = (
    Column("kind"),
    Column("key", "object"),
    Column("goes_at_ms", "goes at (UTC)", time_text),
    Column("why"),
    Column("how"),
)


def prove_key(
    context: typer.Context,
    table: TableArgument,
    lake: LakePlace,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", "-k", metavar="COLUMN=VALUE", help="A key column and its value; once for each column."),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys",
            metavar="FILE",
            help='Many keys: a file of JSON lines, {"COLUMN": VALUE, ...} for each key; - for standard input.',
        ),
    ] = None,
    partition: PartitionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Name every object that may still hold the values of a key, and when it goes. Exit code 1 while there is one. Of
    many keys, say for each whether it is proved gone; every file is read once.

    The values of a key are those of its columns and of the table's private columns; of a table without private columns,
    those of all columns.
    """
    if (key is None) == (keys is None):
        raise Invalid("which key? Give --key COLUMN=VALUE for each of its columns, or --keys FILE for many keys")
    catalog, clock = lake.open(), dependencies_of(context).clock
    wanted = partition_even_dropped(catalog, table, partition)
    schema = key_schema(catalog, table, wanted)
    if keys is not None:
        many = parse_keys(read_document(keys), schema.names, schema)
        _answer_many(output, table, many, prove_many(catalog, table, wanted, many, clock))
        return
    (proof,) = prove_many(catalog, table, wanted, [parse_key(key or (), schema.names, schema)], clock)
    searched, left = counted(proof.searched_objects, "object"), len(proof.holders)
    answer_records(
        output,
        {"table_id": table, **proof.model_dump(mode="json")},
        "holders",
        _COLUMNS,
        none=f"None of {searched} holds a value of the key in {render_partition(wanted)} of {', '.join(proof.tables)}.",
        after=[f"{counted(left, 'object')} of {searched} may hold values of the key."] if left else [],
    )
    if proof.holders:
        raise typer.Exit(1)


_KEY_COLUMNS = (
    Column("key", show=lambda key: ", ".join(f"{name}={value}" for name, value in key.items())),  # type: ignore[attr-defined]
    Column("proved"),
    Column("objects", show=count_text),
    Column("goes_at_ms", "all gone at (UTC)", time_text),
)


def _answer_many(output: Output, table: str, keys: Sequence[KeyValues], proofs: Sequence[PrivacyProof]) -> None:
    records = [
        {
            "key": key,
            "proved": not proof.holders,
            "objects": len(proof.holders),
            "goes_at_ms": _goes_at_ms(proof),
            "holders": [holder.model_dump(mode="json") for holder in proof.holders],
        }
        for key, proof in zip(keys, proofs, strict=True)
    ]
    held = sum(not record["proved"] for record in records)
    answer_records(
        output,
        {"table_id": table, "searched_objects": proofs[0].searched_objects, "keys": records},
        "keys",
        _KEY_COLUMNS,
        none="",
        after=[f"{counted(len(records) - held, 'key')} of {len(records):,} proved gone."],
    )
    if held:
        raise typer.Exit(1)


def _goes_at_ms(proof: PrivacyProof) -> int | None:
    """When the last object goes; None: nothing is held, or one does not go by itself."""
    times = [holder.goes_at_ms for holder in proof.holders]
    known = [each for each in times if each is not None]
    return max(known) if known and len(known) == len(times) else None
