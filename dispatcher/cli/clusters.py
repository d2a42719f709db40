"""`lithify clusters`: running jobs of a state on EMR, and those without an owner. `prices`: a region's price file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from compactor.model.clock import date_of
from compactor.model.errors import EXIT_FAILED, Unavailable
from compactor.model.names import counted
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer, answer_records
from dispatcher.cli.table_places import StatePlace
from dispatcher.clients import CommandDependencies
from dispatcher.layout import Column, plain, time_text
from dispatcher.operations.ownerless import owners_in
from dispatcher.options.documents import document_body
from dispatcher.records.job_run_store import JobRunStore
from launcher.clusters import LaunchedJob
from launcher.emr.settings import ATTEMPT_TAG, JOB_RUN_TAG, OWNER_TAG, SESSION_TAG, parse_settings
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.sizing.instance_types import PriceList, parse_price_list
from launcher.sizing.published_prices import published_prices
from launcher.sweep import Sweep

SECONDS_BETWEEN_LOOKS = 60.0


_COLUMNS = (
    *plain("cluster", "state", "job_run_id", "session_id", "attempt"),
    Column("created_at_ms", show=time_text),
    Column("standing"),
)


def clusters(
    dependencies: CommandDependencies,
    state: StatePlace,
    cluster_settings: Annotated[
        str,
        typer.Option(help="The cluster settings of the dispatchers: JSON of EMR or EMR Serverless, or a file of it."),
    ],
    end: Annotated[
        bool,
        typer.Option(
            "--end",
            help="End jobs that no open session owns, after a second check. Without this option, they are only listed.",
        ),
    ] = False,
    seconds_between_looks: Annotated[
        float, typer.Option(min=1, help="Time between two checks; a cluster ends if both find no owner.")
    ] = SECONDS_BETWEEN_LOOKS,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the clusters that dispatchers of a state launched and that still run; with --end, end those without
    an owner."""
    settings = parse_settings(*document_body(cluster_settings, "the cluster settings"))
    records = JobRunStore(state.store(dependencies), dependencies.clock)
    sweep = Sweep(
        dependencies.clients.aws_cluster(settings, ClusterRoom(), dependencies.owner),
        records.store.location,
        lambda job_run_tags: owners_in(records, job_run_tags),
        dependencies.clock,
        seconds_between_looks,
    )
    look = sweep.look()
    ended: tuple[LaunchedJob, ...] = ()
    if end and look.ownerless:
        ownerless = counted(len(look.ownerless), "cluster")
        typer.echo(f"{ownerless} without an owner: a second look in {seconds_between_looks:g} s", err=True)
        dependencies.clock.sleep(seconds_between_looks)
        look = sweep.look()
        ended = sweep.end(look.to_end)
    answer_records(
        output,
        {
            "ended": end,
            "clusters": [
                *(_figures(job, "owned") for job in look.owned),
                *(_figures(job, "ended" if job in ended else "ownerless") for job in look.ownerless),
            ],
        },
        "clusters",
        _COLUMNS,
        none="No cluster of this state runs.",
        after=list(_conclusion(len(look.ownerless), len(ended), is_to_end=end)),
    )
    if end and len(ended) < len(look.ownerless):
        raise typer.Exit(EXIT_FAILED)


def _figures(job: LaunchedJob, ownership: str) -> dict[str, object]:
    """`ownership`: owned, ownerless, or ended, if its end was requested now."""
    return {
        "cluster": job.service_id,
        "name": job.name,
        "state": job.state,
        "job_run_id": job.tags.get(JOB_RUN_TAG),
        "session_id": job.tags.get(SESSION_TAG),
        "attempt": job.tags.get(ATTEMPT_TAG),
        "launched_by": job.tags.get(OWNER_TAG),
        "created_at_ms": job.created_at_ms,
        "standing": ownership,
    }


def _conclusion(ownerless: int, ended: int, *, is_to_end: bool) -> Iterator[str]:
    if not ownerless:
        return
    if not is_to_end:
        yield f"Nothing was ended. To end {counted(ownerless, 'cluster')} that no open session owns, add --end."
        return
    yield f"Asked {counted(ended, 'cluster')} to end."
    if ended < ownerless:
        left = counted(ownerless - ended, "cluster")
        yield f"{left} could not be asked, or had an owner a moment ago: the log says which; call it again."


def prices(
    dependencies: CommandDependencies,
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
    today = date_of(dependencies.clock.now_ms())
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
