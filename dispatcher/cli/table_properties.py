"""`lithify table set` and `get`: the properties of a table."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from pydantic_core import to_jsonable_python

from compactor.catalog.properties import NAMES, TableProperties, value_of_text
from compactor.model.errors import Invalid, refuse_if
from dispatcher.cli.options import Output, OutputOption, TableArgument
from dispatcher.cli.output import answer_json, answer_records
from dispatcher.cli.table_places import LakePlace
from dispatcher.layout import Column, value_text

PropertiesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        metavar="PROPERTY=VALUE",
        help="A property of the new table, as `lithify table set` takes it, primary_keys=order_id for one; once for "
        "each.",
        show_default=False,
    ),
]

_COLUMNS = (
    Column("property"),
    Column("value", show=lambda value: "-" if value is None else value_text(value)),
    Column("meaning"),
)


def set_properties(
    table: TableArgument,
    lake: LakePlace,
    properties: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROPERTY=VALUE...", help=f"Properties and their values. Names: {', '.join(NAMES)}."),
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(help="A property to unset; once for each.")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Set properties of a table, and show these. The others stay; if one is refused, none is changed."""
    changes = parse_properties(properties or (), unset or ())
    if not changes:
        raise Invalid(f"there is nothing to set: name PROPERTY=VALUE, of {', '.join(NAMES)}, or --unset PROPERTY")
    opened = lake.open().table(table)
    _answer(output, table, opened.set_properties(changes), tuple(changes))


def get_properties(
    table: TableArgument,
    lake: LakePlace,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="PROPERTY...", help="Properties to show. Default: all.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the properties of a table."""
    opened = lake.open().table(table)
    if names:
        TableProperties().changed(dict.fromkeys(names))  # refuses one that does not exist
    _answer(output, table, opened.properties, names or NAMES)


def parse_properties(pairs: Sequence[str], unset: Sequence[str] = ()) -> dict[str, object]:
    """Changes from a command line. Raises `Invalid` for texts that are not NAME=VALUE, and for a repeated property."""
    changes: dict[str, object] = {}
    reasons = []
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            reasons.append(f"{pair!r} is not PROPERTY=VALUE")
        elif name in changes:
            reasons.append(f"property {name} is named twice")
        else:
            changes[name] = value_of_text(name, text)
    reasons += [f"property {name} is both set and unset" for name in unset if name in changes]
    refuse_if(reasons)
    return {**changes, **dict.fromkeys(unset)}


def _answer(output: Output, table: str, properties: TableProperties, names: Sequence[str]) -> None:
    rendered: Mapping[str, object] = {name: to_jsonable_python(getattr(properties, name)) for name in names}
    if output is Output.JSON:
        answer_json({"table_id": table, "properties": rendered})
        return
    records = [
        {"property": name, "value": rendered[name], "meaning": TableProperties.model_fields[name].description}
        for name in names
    ]
    answer_records(output, {"properties": records}, "properties", _COLUMNS, none="")
