"""`lithify dispatch`: the service. Its options are the rows of `OPTIONS`, in dispatcher/options/service_options.py."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from compactor.log_context import LOG, Logged
from compactor.model.errors import EXIT_FAILED, EXIT_INTERRUPTED, Invalid, Unavailable, reasons_of
from compactor.model.freed_memory import collect_seldom
from compactor.model.names import counted
from compactor.storage.object_store import ObjectStore
from dispatcher.assembly import DispatcherSettings, ExternalServices, build_dispatcher
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer
from dispatcher.clients import CommandDependencies, dependencies_of
from dispatcher.intake.queue import Queue
from dispatcher.operations.health import FirstContact
from dispatcher.operations.http_server import probes_over_http
from dispatcher.options.service_options import (
    OptionErrors,
    OptionField,
    ServiceOptions,
    check_together,
    option_fields,
    read_options,
)
from dispatcher.options.settings import (
    Clusters,
    admission,
    connections,
    dispatcher_settings,
    dispatcher_task,
    queue_address,
    session_clusters,
)
from dispatcher.service import NOT_EVERYTHING_DONE, Dispatcher, ServiceSettings, health_file
from dispatcher.stops import Stops
from dispatcher.workflow.dispatcher_task import DispatcherTask, EndOfTask, ending

_METAVARS: dict[type, str] = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}
_ADMISSION = {"lake", "s3_endpoint_url", "topic_arn", "allow_lake", "allow_topic"}


def dispatch(context: typer.Context, output: Output, **given: str | Sequence[str] | bool | None) -> None:
    """Run job runs from a queue, until SIGTERM or SIGINT. Log lines go to stderr.

    Each option may also come from a variable: LITHIFY_QUEUE_URL for --queue-url, and so on.
    """
    dependencies = dependencies_of(context)
    options, errors = read_options(given, dependencies.variables, unknown=context.args, settings=dependencies.settings)
    sns_regions = dependencies.clients.sns_regions()
    task = _task(dependencies, options, errors)
    if given.get("task_token"):
        LOG.warning("task_token_on_command_line", instead="LITHIFY_TASK_TOKEN or --task-token-file")
    with ending(task, dependencies.owner) as noted:
        state, clusters = _checked_places(dependencies, options, sns_regions, errors)
        settings = dispatcher_settings(options, sns_regions)
        stops = dependencies.stops_on_signal()

        def connect(queue: Queue) -> ExternalServices:
            return replace(connections(dependencies, options, queue, state, clusters), task=task)

        run_elsewhere = clusters.listing is not None
        stops_jobs = options.drain_jobs.stops_them(run_elsewhere=run_elsewhere, process_id=os.getpid())
        left, spark_jobs_left = _serve(dependencies, options, settings, connect, stops, stops_jobs=stops_jobs)
        noted.left = left
        noted.reason = EndOfTask.IDLE if settings.service.until_idle and not stops.is_set() else EndOfTask.STOPPED
    answer(
        output,
        {"stopped": True, "owner": dependencies.owner, "left": list(left), "spark_jobs_left": spark_jobs_left},
        [f"The dispatcher has stopped; {_in_flight(spark_jobs_left)}.", *left],
    )
    if stops.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if left:
        raise typer.Exit(EXIT_FAILED)


def _serve(
    dependencies: CommandDependencies,
    options: ServiceOptions,
    settings: DispatcherSettings,
    connect: Callable[[Queue], ExternalServices],
    stops: Stops,
    *,
    stops_jobs: bool,
) -> tuple[tuple[str, ...], int]:
    """Runs until it is stopped or no work is left; returns the remaining work, and the number of Spark jobs."""
    first_contact = _first_contact(dependencies, settings.service, stops)
    nothing_done = (NOT_EVERYTHING_DONE,) if settings.service.until_idle else ()
    with probes_over_http(options.http, first_contact) as probes:
        queue = first_contact.wait_for("queue", lambda: dependencies.clients.queue(queue_address(options)))
        dispatcher = _build(first_contact, connect(queue), settings) if queue is not None else None
        if dispatcher is None:
            return nothing_done, 0
        probes.observe(dispatcher.observed)
        collect_seldom()
        left = dispatcher.run(stops, lambda: stops.interrupted or stops_jobs)
        return left, dispatcher.spark_jobs_left


def _task(dependencies: CommandDependencies, options: ServiceOptions, errors: OptionErrors) -> DispatcherTask | None:
    """Created first, so that its workflow gets violations of the other options."""
    try:
        return dispatcher_task(dependencies, options)
    except Invalid as error:
        errors.add("task_token", *error.reasons)
        return None


def _signature() -> Signature:
    """The command's signature for typer: one parameter per option. Values stay text: `read_options`
    parses them, so that all violations are reported together."""
    keyword = Parameter.KEYWORD_ONLY
    return Signature(
        [
            Parameter("context", keyword, annotation=typer.Context),
            *(Parameter(each.name, keyword, annotation=_annotation(each), default=None) for each in option_fields()),
            Parameter("output", keyword, annotation=OutputOption, default=Output.TEXT),
        ]
    )


def _annotation(of: OptionField) -> object:
    option = partial(typer.Option, of.flag, help=of.help_text(), rich_help_panel=of.group, show_default=False)
    if of.value_type is bool:
        return Annotated[bool | None, option()]
    metavar = _METAVARS.get(of.value_type) or "|".join(of.choices)
    text = option(metavar=metavar, autocompletion=lambda: list(of.choices))
    return Annotated[list[str] | None, text] if of.is_repeatable else Annotated[str | None, text]


dispatch.context_settings = {"ignore_unknown_options": True, "allow_extra_args": True}  # type: ignore[attr-defined]
dispatch.__signature__ = _signature()  # type: ignore[attr-defined]
dispatch.__annotations__ = {name: each.annotation for name, each in _signature().parameters.items()}


def _in_flight(spark_jobs_left: int) -> str:
    if not spark_jobs_left:
        return "nothing is left in flight"
    return f"{counted(spark_jobs_left, 'Spark job')} may run on, for the next dispatcher to attach to"


def _first_contact(
    dependencies: CommandDependencies, settings: ServiceSettings, stops: threading.Event
) -> FirstContact:
    health = health_file(settings, dependencies.owner, dependencies.clock)
    return FirstContact(health, settings.health_seconds, stops, dependencies.clock)


def _build(first_contact: FirstContact, parts: ExternalServices, settings: DispatcherSettings) -> Dispatcher | None:
    """None: stopped before the state's service answered. For a folder there is no waiting."""
    if parts.state.location.is_remote:
        return first_contact.wait_for("state", lambda: build_dispatcher(parts, settings))
    return build_dispatcher(parts, settings)


def _checked_places(
    dependencies: CommandDependencies,
    options: ServiceOptions,
    sns_regions: Mapping[str, frozenset[str]],
    errors: OptionErrors,
) -> tuple[ObjectStore, Clusters]:
    """The state and the clusters. Raises one `Invalid` with all violations of single options, and of the locations
    that they name."""
    checks: tuple[tuple[set[str], Callable[[], None]], ...] = (
        (_ADMISSION, lambda: admission(options, sns_regions).check()),
        (set(), lambda: check_together(options)),  # a limit that was refused counts as not given
        ({"work_folder"}, lambda: _check_work_folder(options.places.work_folder)),
        ({"topic_arn", "endpoint_url"}, lambda: _check_topic(dependencies, options)),
    )
    reasons = list(errors.reasons)
    for names, check in checks:
        if errors.names.isdisjoint(names):
            reasons += reasons_of(check)
    if errors.names.isdisjoint({"state", "lake", "s3_endpoint_url"}):
        places = options.places
        state = dependencies.store(places.state, places.s3_endpoint_url, places.region)
        try:
            clusters = session_clusters(dependencies, options, state.location)
        except Invalid as error:
            reasons += error.reasons
        if not reasons:
            return state, clusters
    raise Invalid(*dict.fromkeys(reasons))


def _check_work_folder(work_folder: Path) -> None:
    """Raises `Invalid` for a folder that is not writable: no Spark job could run there."""
    try:
        work_folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=work_folder) as probe:
            probe.write(b"?")
    except OSError as error:
        raise Invalid(f"--work-folder {work_folder} cannot be written to: {error.strerror}") from error


def _check_topic(dependencies: CommandDependencies, options: ServiceOptions) -> None:
    """Raises `Invalid` for a topic that does not exist. If its service does not answer now, events wait for it."""
    places = options.places
    if places.topic_arn is None:
        return
    with Logged("topic_not_checked", Unavailable):
        dependencies.clients.check_topic(places.topic_arn, places.endpoint_url)
