"""`lithify serve`: the page of what runs, its API, and the Iceberg REST catalog of the published tables."""

from __future__ import annotations

import errno
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compactor.model.background import BackgroundLoop
from compactor.model.errors import Invalid
from compactor.model.freed_memory import keep_few_arenas, return_freed_memory
from compactor.publishing.published_lake import PublishedLake
from dispatcher.cli.options import DeadLettersOption, EndpointOption, StateOption
from dispatcher.cli.table_places import LakePlace, check_exists
from dispatcher.clients import CommandDependencies, QueueAddress
from dispatcher.options.documents import read_limits, secret_in

if TYPE_CHECKING:
    from dispatcher.intake.queue import Queue

LOCAL = "127.0.0.1"
PORT = 8642
TRIM_SECONDS = 60.0
"""Interval of returning memory: readings free far more than is kept, and glibc would hold it between what is in use."""


def serve(
    dependencies: CommandDependencies,
    lake: LakePlace,
    state: StateOption,
    queue_url: Annotated[
        str | None,
        typer.Option(help="The SQS queue of instruction documents: its messages are counted, none is received."),
    ] = None,
    dead_letter_queue_url: DeadLettersOption = None,
    events_queue_url: Annotated[
        str | None,
        typer.Option(
            help="An SQS queue that is subscribed to the events, for this page alone: what they name is read first. "
            "Its messages are taken."
        ),
    ] = None,
    endpoint_url: EndpointOption = None,
    limits: Annotated[
        str | None, typer.Option(help="The limits of the dispatchers, JSON or a file: those on money are shown.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = LOCAL,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen on; 0: one that is free.")] = PORT,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which browsers and engines reach it, such as lithify.example.com, with its port."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the bearer token that every request must have.")
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="Write the pages into one file, for a ticket or a mail, and end.")
    ] = None,
) -> None:
    """Show job runs and tables on a page, and published tables to engines as an Iceberg REST catalog. It only reads."""
    try:
        import uvicorn

        from dispatcher.web.app import Doors, create_app
        from dispatcher.web.feed import PAUSE_SECONDS, EventsFeed
        from dispatcher.web.iceberg_rest import IcebergRestCatalog
        from dispatcher.web.readings import PATIENCE_SECONDS, Readings
        from dispatcher.web.rendering import Renderer
    except ImportError as error:
        raise Invalid(f"the page needs {error.name}: pip install 'lithify[serve]'") from error
    catalog, caps = lake.open(), None if limits is None else read_limits(limits, "--limits")
    records = dependencies.store(state, lake.s3_endpoint_url, lake.region)
    check_exists(records, "state")

    def queue_at(url: str | None, dead_letters: str | None = None) -> Queue | None:
        address = None if url is None else QueueAddress(url, dead_letters, endpoint_url, lake.region)
        return None if address is None else dependencies.clients.queue(address)

    queue = queue_at(queue_url, dead_letter_queue_url)
    readings = Readings(records, catalog, dependencies.clock, queue, caps, PATIENCE_SECONDS)
    if snapshot is not None:
        html = Renderer(readings).snapshot()
        try:
            snapshot.write_text(html, encoding="utf-8")
        except OSError as error:
            raise Invalid(f"--snapshot {snapshot} cannot be written: {error.strerror}") from error
        typer.echo(f"{snapshot} is a page of its own.")
        return
    published = IcebergRestCatalog(PublishedLake(catalog.store, dependencies.clock))
    with _listening(host, port) as listener:
        port = listener.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        hosts = [f"{each}:{port}" for each in dict.fromkeys((name, LOCAL, "localhost"))] + list(allow_host or ())
        events = queue_at(events_queue_url)
        feed = None if events is None else EventsFeed(events, readings.look_again, dependencies.clock)
        token = None if token_file is None else secret_in(token_file, "--token-file")
        app = create_app(readings, published, Doors(hosts, token), feed)
        listening = BackgroundLoop("events", feed.listen, PAUSE_SECONDS, at_once=True) if feed else nullcontext()
        url = f"http://{name}:{port}"
        typer.echo(f"Job runs and tables: {url}/\nIceberg REST catalog: {url}/iceberg", err=True)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=1_000_000,  # bytes of an address: a long id is unknown, as others are
        )
        with bounded_memory(), listening:
            uvicorn.Server(config).run(sockets=[listener])


def bounded_memory() -> BackgroundLoop:
    """Of a server that runs for weeks: freed memory is returned while the loop runs."""
    keep_few_arenas()
    return BackgroundLoop("memory", return_freed_memory, TRIM_SECONDS)


def _listening(host: str, port: int) -> socket.socket:
    """Raises `Invalid` if the port is in use, or the address is not of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise Invalid(f"--port {port} cannot be used on {host}: {reason}; 0 takes one that is free") from error
        raise Invalid(f"--host {host} cannot be used: {reason}") from error
