"""`lithify prices`: writes a price file of a region, as AWS publishes its prices now."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from compactor.model.errors import Unavailable
from compactor.model.names import counted
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer
from dispatcher.clients import dependencies_of
from launcher.sizing.instance_types import PriceList, parse_price_list
from launcher.sizing.published_prices import published_prices


def prices(
    context: typer.Context,
    region: Annotated[str, typer.Option(help="The AWS region in which clusters run; for example eu-west-1.")],
    file: Annotated[
        Path | None, typer.Argument(help="The file to write, or to replace; left out: prices-REGION.json here.")
    ] = None,
    endpoint_url: Annotated[str | None, typer.Option(help="Endpoint of the price list, instead of AWS's.")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write the list prices of a region for --price-file, as AWS publishes them now: instance types of EMR, EMR
    Serverless, volumes, S3. It needs the right pricing:GetProducts. Prices on Spot are not published: without them,
    Spot counts as on demand."""
    dependencies = dependencies_of(context)
    today = datetime.fromtimestamp(dependencies.clock.now_ms() / 1000, UTC).date()
    found = published_prices(dependencies.clients.prices(region, endpoint_url), region, today)
    target = file or Path(f"prices-{region}.json")
    body = found.model_dump_json(indent=1, exclude_none=True)
    parse_price_list(body.encode(), f"the prices of {region}", today)  # what --price-file would refuse is not written
    beside = target.with_name(f".{target.name}")
    try:
        beside.write_text(body + "\n")
        beside.replace(target)
    except OSError as error:
        raise Unavailable(f"{target} cannot be written: {error.strerror}") from error
    value = {"file": str(target), **found.model_dump(mode="json", exclude_none=True)}
    answer(output, value, _lines(target, found))


def _lines(target: Path, found: PriceList) -> tuple[str, ...]:
    serverless = "and EMR Serverless" if found.serverless is not None else "which has no EMR Serverless"
    types = counted(len(found.instance_types), "instance type")
    return (
        f"{target}: {types} of {found.region}, {serverless}, on {found.priced_on}.",
        f"Give it to the dispatcher, and to `lithify plan`: --price-file {target}",
    )
