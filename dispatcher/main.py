"""The `lithify` command. In its processes only this module reads the environment and names concrete clients.

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted. A user's mistake is one sentence, a traceback our bug.

Options may come from variables: LITHIFY_QUEUE_URL is the default of every `--queue-url`, and so on for the names in
`OPTIONS_FROM_ENVIRONMENT`; the service takes every option from a variable.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from compactor.log_context import configure_logging
from compactor.model.clock import SystemClock
from compactor.model.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_INVALID, Invalid, LithifyError, refuse_if
from compactor.model.machine import usable_cores, usable_memory_bytes
from dispatcher.cli.app import GROUPS, app
from dispatcher.cli.output import flush, print_error
from dispatcher.clients import (
    OPTIONS_FROM_ENVIRONMENT,
    VARIABLE_PREFIX,
    CommandDependencies,
    QueueAddress,
    StandaloneAddress,
    variable_of,
)
from dispatcher.stops import Stops

if TYPE_CHECKING:  # each client is loaded by the verb that needs it
    from compactor.events.relay import EventSink
    from compactor.planning.machine_share import WorkersShare
    from compactor.planning.sizing import Resources
    from compactor.publishing.glue import GlueService
    from dispatcher.assembly import DispatcherSettings
    from dispatcher.intake.queue import Queue
    from dispatcher.workflow.callbacks import Workflows
    from launcher.clusters import AwsCluster
    from launcher.clusters.local import LocalCluster, StandaloneCluster
    from launcher.clusters.workers import Workers
    from launcher.emr.settings import AwsClusterSettings
    from launcher.sizing.cluster_choice import ClusterRoom
    from launcher.sizing.published_prices import PriceService

TASK_TOKEN_VARIABLE = "LITHIFY_TASK_TOKEN"
COMPLETION_VARIABLE = "_LITHIFY_COMPLETE"
"""Set by the shells' completion, whose answers typer's `main` gives."""

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("text", "json")


class ServiceClients:
    """The real services: SQS, SNS, and Spark on this machine. The first client that needs it imports botocore."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._clock = SystemClock()

    @property
    def _child_environment(self) -> dict[str, str]:
        """The current environment without this process's task token, a secret that a Spark job does not need."""
        return {name: value for name, value in self._environment.items() if name != TASK_TOKEN_VARIABLE}

    def queue(self, address: QueueAddress) -> Queue:
        from dispatcher.aws.sqs import SqsQueue

        return SqsQueue.open(
            address.url,
            dead_letter_queue_url=address.dead_letter_queue_url,
            endpoint_url=address.endpoint_url,
            region=address.region,
        )

    def sns_regions(self) -> Mapping[str, frozenset[str]]:
        from compactor.events.aws.sns import sns_regions

        return sns_regions()

    def topic(self, topic_arn: str, endpoint_url: str | None, *, patient: bool) -> EventSink:
        from compactor.events.aws.sns import SnsSink

        return SnsSink.open(topic_arn, self._clock, endpoint_url=endpoint_url, patient=patient)

    def check_topic(self, topic_arn: str, endpoint_url: str | None) -> None:
        from compactor.events.aws.sns import SnsSink

        SnsSink.open(topic_arn, self._clock, endpoint_url=endpoint_url, patient=False).check()

    def glue(self, region: str | None, endpoint_url: str | None) -> GlueService:
        from compactor.publishing.aws.glue import BotoGlue

        return BotoGlue.open(region, endpoint_url)

    def callbacks(self, address: QueueAddress) -> Workflows:
        from dispatcher.aws.sqs import region_of
        from dispatcher.aws.step_functions import StepFunctionsCallbacks

        region = address.region or region_of(address.url)
        return StepFunctionsCallbacks.open(endpoint_url=address.endpoint_url, region=region)

    def standalone_cluster(
        self, address: StandaloneAddress, resources: Resources, driver_memory_bytes: int, work_folder: Path
    ) -> StandaloneCluster:
        from compactor.engine.java_home import find_java_home
        from launcher.archive import check_archive, spark_release_of
        from launcher.clusters.drivers import find_spark_home
        from launcher.clusters.local import START_SECONDS, StandaloneCluster, StandaloneClusterSettings

        spark_home = find_spark_home(self._environment)
        refuse_if(check_archive(address.archive, spark_release_of(spark_home)))
        settings = StandaloneClusterSettings(
            master_url=address.master_url,
            archive=address.archive.absolute(),
            resources=replace(resources, driver_memory_bytes=driver_memory_bytes, start_seconds=START_SECONDS),
            driver_memory_bytes=driver_memory_bytes,
            spark_home=spark_home,
            java_home=find_java_home(self._environment, work_folder / "java"),
            work_folder=work_folder,
            environment=self._child_environment,
            executor_cores=address.executor_cores,
            driver_host=address.driver_host,
        )
        return StandaloneCluster(settings, self._clock)

    def local_cluster(self, resources: Resources, driver_memory_bytes: int, work_folder: Path) -> LocalCluster:
        from compactor.engine.java_home import find_java_home
        from launcher.clusters.drivers import find_spark_home
        from launcher.clusters.local import LocalCluster, LocalClusterSettings

        settings = LocalClusterSettings(
            resources=resources,
            driver_memory_bytes=driver_memory_bytes,
            spark_home=find_spark_home(self._environment),
            java_home=find_java_home(self._environment, work_folder / "java"),
            work_folder=work_folder,
            environment=self._child_environment,
        )
        return LocalCluster(settings, self._clock)

    def workers(self, share: WorkersShare, work_folder: Path) -> Workers:
        from launcher.clusters.workers import Workers, WorkersSettings

        settings = WorkersSettings(share.pool, share.memory_bytes, work_folder, self._child_environment)
        return Workers(settings, self._clock)

    def prices(self, region: str, endpoint_url: str | None) -> PriceService:
        from launcher.aws.pricing import BotoPrices

        return BotoPrices.open(region, endpoint_url)

    def aws_cluster(self, settings: AwsClusterSettings, room: ClusterRoom, owner: str) -> AwsCluster:
        from launcher.aws.emr import BotoEmr, BotoEmrServerless
        from launcher.clusters.emr import EmrCluster
        from launcher.clusters.emr_serverless import EmrServerlessCluster
        from launcher.emr.settings import EmrSettings

        if isinstance(settings, EmrSettings):
            return EmrCluster(BotoEmr.open(settings.region, settings.endpoint_url), settings, room, owner, self._clock)
        service = BotoEmrServerless.open(settings.application_id, settings.region, settings.endpoint_url)
        return EmrServerlessCluster(service, settings, room, owner, self._clock)


INTERRUPTED = "interrupted: what was written until then stays, and all its processes have ended"

UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
"""typer's error for unknown options and verbs; its module differs between releases."""


def main(stops: Stops, settings: DispatcherSettings | None = None) -> None:
    """`stops` may be set already: by a SIGTERM while this module was imported. `settings`: see `run`."""
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115  (as long as the process lives)
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere  # closed by who started us: `lithify ... >&-`
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # old terminals get an escaped text
    exit_code = run(sys.argv[1:], os.environ, stops, settings)
    try:
        sys.stdout.flush()
    except OSError:
        # The error was shown. The rest of the buffer is discarded, or Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(exit_code)


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    stops: Stops | None = None,
    settings: DispatcherSettings | None = None,
) -> int:
    """The exit code of `lithify <arguments>`. `settings`: of a dispatcher, where its options do not say otherwise."""
    try:
        _configure_logging(environment)
        dependencies = _dependencies(environment, stops or Stops(), settings)
        if COMPLETION_VARIABLE in environment:
            _commands()(args=list(arguments), prog_name=app.info.name)  # answers the shell, and ends the process
        exit_code = _run_verb(arguments, dependencies)
        flush()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_FAILED
    except (KeyboardInterrupt, typer.Abort):
        print_error(INTERRUPTED)
        return EXIT_INTERRUPTED
    except UsageError as error:
        print_error(_usage(error))
        return EXIT_INVALID
    except Invalid as error:
        for reason in error.reasons:
            print_error(reason)
        return EXIT_INVALID
    except LithifyError as error:
        print_error(str(error))
        return EXIT_FAILED
    except BrokenPipeError:  # the reader has closed the pipe: `lithify status | head`
        return EXIT_FAILED
    return exit_code


def _run_verb(arguments: Sequence[str], dependencies: CommandDependencies) -> int:
    """Does what `main` of typer's commands does, which would turn Ctrl-C into an exit code without a sentence."""
    commands = _commands()
    defaults = _defaults(arguments, dependencies.variables)
    try:
        with commands.make_context(app.info.name, list(arguments), obj=dependencies, default_map=defaults) as context:
            commands.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def _configure_logging(environment: Mapping[str, str]) -> None:
    level = environment.get("LITHIFY_LOG_LEVEL", "info")
    form = environment.get("LITHIFY_LOG_FORMAT", "text" if sys.stderr.isatty() else "json")
    if level not in LOG_LEVELS:
        raise Invalid(f"LITHIFY_LOG_LEVEL is {level!r}: write one of {', '.join(LOG_LEVELS)}")
    if form not in LOG_FORMATS:
        raise Invalid(f"LITHIFY_LOG_FORMAT is {form!r}: write one of {', '.join(LOG_FORMATS)}")
    configure_logging(as_json=form == "json", level=level)


def _usage(error: typer.BadParameter) -> str:
    """The mistake, on one line, and where to read more."""
    message = " ".join(error.format_message().split()).replace(": Value error,", ":")
    unknown = getattr(error, "option_name", None)
    if unknown is not None and error.ctx is not None and error.ctx.info_name == "plan":
        from dispatcher.options.service_options import what_instead

        message = what_instead(unknown) or message
    missing = getattr(getattr(error, "param", None), "name", None)
    if missing in OPTIONS_FROM_ENVIRONMENT:
        message += f" Give it, or set {variable_of(missing)}."
    command = error.ctx.command_path if error.ctx is not None else app.info.name
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} For help: {command} --help"


def _dependencies(
    environment: Mapping[str, str], stops: Stops, settings: DispatcherSettings | None = None
) -> CommandDependencies:
    clock = SystemClock()

    def stops_on_signal() -> Stops:
        stops.set_by(signal.SIGTERM, signal.SIGINT)
        return stops

    return CommandDependencies(
        clients=ServiceClients(environment),
        clock=clock,
        memory_bytes=usable_memory_bytes(),
        cores=usable_cores(),
        owner=f"{socket.gethostname()}/{os.getpid()}/{clock.new_id()[:8]}",
        program=_program(environment),
        variables=_variables(environment),
        stops_on_signal=stops_on_signal,
        stand_in_for_aws=_stand_in_for_aws,
        settings=settings,
    )


def _program(environment: Mapping[str, str]) -> str:
    """`lithify` if the shell finds this command by that name, else its path, relative if it is below this folder."""
    script = Path(sys.argv[0]).absolute()
    if script.name != app.info.name:
        return shlex.join([sys.executable, "-m", "dispatcher.start"])
    found = shutil.which(script.name, path=environment.get("PATH", ""))
    if found is not None and Path(found).samefile(script):
        return script.name
    return shlex.quote(str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script))


def _stand_in_for_aws(variables: Mapping[str, str]) -> None:
    """Replaces the AWS variables of this process's environment, which boto, PyArrow and child processes read."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(variables)
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """LITHIFY_* variables by option name. An empty variable counts as not set."""
    return {
        name.removeprefix(VARIABLE_PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(VARIABLE_PREFIX) and value
    }


def _defaults(arguments: Sequence[str], variables: Mapping[str, str]) -> dict[str, object]:
    """Defaults of the options of the verb that is called, from the environment; a verb ignores options that it does not
    have. The service reads all of its options from variables by itself.

    Of `table list` they stand below `table` and there below `list`.
    """
    given: dict[str, object] = {name: variables[name] for name in OPTIONS_FROM_ENVIRONMENT if name in variables}
    verb = next((each for each in arguments if not each.startswith("-")), "")
    if verb == "dispatch":
        return {}
    return {verb: dict.fromkeys(GROUPS[verb][1], given) if verb in GROUPS else given}


@cache
def _commands() -> TyperGroup:
    commands = get_command(app)
    if not isinstance(commands, TyperGroup):
        raise TypeError("lithify is no group of commands")
    return commands
