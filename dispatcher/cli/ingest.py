"""`lithify ingest`: takes in files that announce themselves on a queue."""

import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from compactor.log_context import LOG, Logged
from compactor.model.background import BackgroundLoop
from compactor.model.errors import EXIT_FAILED, Invalid, LithifyError, Unavailable
from compactor.model.names import counted
from dispatcher.cli.options import DeadLettersOption, EndpointOption, Output, OutputOption
from dispatcher.cli.output import answer
from dispatcher.cli.table_places import LakePlace
from dispatcher.clients import CommandDependencies, QueueAddress
from dispatcher.ingest.ingest import Ingest, Ingested, IngestSettings
from dispatcher.records.keys import LiveIngest
from dispatcher.records.liveness import INGEST_SILENT_SECONDS, LivenessSignal

AWAY_SECONDS = 5.0
"""Pause after the queue or the lake did not answer."""


def ingest(
    dependencies: CommandDependencies,
    lake: LakePlace,
    queue_url: Annotated[str, typer.Option(help="The SQS queue on which files are announced.")],
    dead_letter_queue_url: DeadLettersOption = None,
    endpoint_url: EndpointOption = None,
    collect_seconds: Annotated[
        float, typer.Option(min=0, help="Files that are announced within so long become one entry of each stream.")
    ] = IngestSettings.collect_seconds,
    files_max: Annotated[
        int, typer.Option(min=1, help="Files after which a collection ends.")
    ] = IngestSettings.files_max,
    backfill: Annotated[
        bool,
        typer.Option("--backfill", help="First announce all files that have landed before, and are not taken in yet."),
    ] = False,
    state: Annotated[
        str | None,
        typer.Option(help="The state of the dispatchers: there it signals that it lives, for `lithify serve`."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when the queue is empty: for a schedule.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Append files to the tables that they land for (property landing), as notifications of S3 announce them.

    Several may run on one queue. Once an hour a listing finds files whose notifications were lost. Exit code 1, with
    --once: a file could not be taken in, and is among the dead letters, or its table cannot be read or written now.
    """
    queue = dependencies.clients.queue(QueueAddress(queue_url, dead_letter_queue_url, endpoint_url, lake.region))
    queue.dead_letters()  # refuses a queue without: what cannot be taken in would come again for ever
    catalog = lake.open()
    settings = IngestSettings(collect_seconds=0.0 if once else collect_seconds, files_max=files_max)
    taking = Ingest(queue, catalog, settings, dependencies.clock)
    if backfill:
        found = taking.look_at_all()
        LOG.info("backfilled", announced=found.announced, forgotten=found.forgotten)
        for trouble in found.troubles:
            typer.echo(f"{trouble}; the other files were announced: fix it, and run --backfill again", err=True)
        if found.forgotten:
            typer.echo(
                f"{counted(found.forgotten, 'file')} left out, more than 30 days old: what was compacted then is no "
                "longer known by its files. Append them by lithify table append, if they are in no table.",
                err=True,
            )
    if not once:
        signal_of = None
        if state is not None:
            store = dependencies.store(state, lake.s3_endpoint_url, lake.region)
            signal_of = LivenessSignal(
                store, dependencies.owner, INGEST_SILENT_SECONDS, dependencies.clock, signer=LiveIngest
            )
        _until_stopped(taking, signal_of, ends=threading.Event())
        return
    whole = Ingested()
    while (taken := taking.collect_once()).messages:
        whole = Ingested(*(before + now for before, now in zip(asdict(whole).values(), asdict(taken).values())))
    answer(
        output,
        asdict(whole),
        [
            f"{counted(whole.files, 'file')} taken in, {counted(whole.rows, 'row')}; {whole.refused:,} refused.",
            *([f"{counted(whole.left_out, 'file')} left out by landing_suffixes."] if whole.left_out else ()),
            *([f"{counted(whole.quarantined_rows, 'row')} quarantined."] if whole.quarantined_rows else ()),
            *([f"{counted(whole.waiting, 'message')} left on the queue: see the log."] if whole.waiting else ()),
        ],
    )
    if whole.refused or whole.waiting:
        raise typer.Exit(EXIT_FAILED)


def _until_stopped(taking: Ingest, liveness: LivenessSignal | None, ends: threading.Event) -> None:
    """What has begun is finished first: a message that is not deleted comes again."""

    def work() -> None:
        _or_log(liveness.signal_when_due if liveness is not None else None)
        try:
            taking.look_for_lost()
            taking.collect_once()
        except Unavailable as error:
            LOG.warning("ingest_waits", reason=str(error))
            ends.wait(AWAY_SECONDS)
        except Invalid:
            raise
        except Exception as error:  # noqa: BLE001  (no message ends the service)
            LOG.error("ingest_failed", error_kind=type(error).__name__, exc_info=error)
            ends.wait(AWAY_SECONDS)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ends.set())
    with BackgroundLoop("ingest", work, 0.0, at_once=True, ends=ends) as loop:
        while not ends.wait(1.0):
            if not loop.is_running:
                return
    _or_log(liveness.stop if liveness is not None else None)


def _or_log(signals: Callable[[], None] | None) -> None:
    """A state that does not answer stops no file."""
    with Logged("ingest_not_signalled", LithifyError):
        if signals is not None:
            signals()
