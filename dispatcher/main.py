"""The `lithify` command: the one file of its processes that reads the environment and names concrete clients.

Exit codes: 0 done, 1 failed, 2 bad input. A user's mistake is one sentence on stderr; a traceback is a bug of ours.

Every option may come from a variable: LITHIFY_QUEUE_URL is the default of every `--queue-url`, and so on for the names
in `OPTIONS_FROM_ENVIRONMENT`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from typer.core import TyperGroup
from typer.main import get_command

from compactor.clock import SystemClock
from compactor.errors import Invalid, LithifyError
from compactor.events import EventSink
from compactor.java_home import find_java_home
from compactor.log_context import configure_logging
from compactor.machine import usable_cores, usable_memory_bytes
from compactor.sizing import Resources
from dispatcher.cli.app import app
from dispatcher.cli.tools import QueueAddress, Tools
from dispatcher.queue import Queue
from launcher.clusters.local import LocalCluster, LocalClusterSettings, find_spark_home

EXIT_FAILED = 1
EXIT_INVALID = 2

OPTIONS_FROM_ENVIRONMENT = (
    "dead_letter_queue_url",
    "endpoint_url",
    "lake",
    "queue_url",
    "region",
    "s3_endpoint_url",
    "state",
    "topic_arn",
)


class ServiceClients:
    """The real services: SQS, SNS, and Spark on this machine. boto3 is imported with the first that needs it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._clock = SystemClock()

    def queue(self, address: QueueAddress) -> Queue:
        from dispatcher.aws.sqs import SqsQueue

        return SqsQueue.open(
            address.url,
            dead_letter_queue_url=address.dead_letter_queue_url,
            endpoint_url=address.endpoint_url,
            region=address.region,
        )

    def topic(self, topic_arn: str, endpoint_url: str | None) -> EventSink:
        from compactor.aws.sns import SnsSink

        return SnsSink.open(topic_arn, self._clock, endpoint_url=endpoint_url)

    def local_cluster(self, resources: Resources, driver_memory_bytes: int, work_folder: Path) -> LocalCluster:
        settings = LocalClusterSettings(
            resources=resources,
            driver_memory_bytes=driver_memory_bytes,
            spark_home=find_spark_home(self._environment),
            java_home=find_java_home(self._environment, work_folder / "java"),
            work_folder=work_folder,
            environment=self._environment,
        )
        return LocalCluster(settings, self._clock)


def main() -> None:
    sys.exit(run(sys.argv[1:], os.environ))


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code of `lithify <arguments>`."""
    as_json = environment.get("LITHIFY_LOG_FORMAT", "text" if sys.stderr.isatty() else "json") == "json"
    configure_logging(as_json=as_json, level=environment.get("LITHIFY_LOG_LEVEL", "info"))
    tools = _tools(environment)
    try:
        answered = app(args=list(arguments), standalone_mode=True, obj=tools, default_map=_defaults(environment))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_FAILED
    except Invalid as error:
        for reason in error.reasons:
            sys.stderr.write(f"lithify: {reason}\n")
        return EXIT_INVALID
    except LithifyError as error:
        sys.stderr.write(f"lithify: {error}\n")
        return EXIT_FAILED
    return answered if isinstance(answered, int) else 0


def _tools(environment: Mapping[str, str]) -> Tools:
    clock = SystemClock()
    return Tools(
        clients=ServiceClients(environment),
        clock=clock,
        memory_bytes=usable_memory_bytes(),
        cores=usable_cores(),
        owner=f"{socket.gethostname()}/{os.getpid()}/{clock.new_id()[:8]}",
        program=_program(environment),
        stops_when_asked=_stops_when_asked,
        stand_in_for_aws=_stand_in_for_aws,
    )


def _program(environment: Mapping[str, str]) -> str:
    """`lithify` where the shell finds this one by that name, else its path, from here if it lies below."""
    script = Path(sys.argv[0]).absolute()
    if script.name != app.info.name:
        return shlex.join([sys.executable, "-m", "dispatcher.main"])
    found = shutil.which(script.name, path=environment.get("PATH", ""))
    if found is not None and Path(found).samefile(script):
        return script.name
    return shlex.quote(str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script))


def _stand_in_for_aws(variables: Mapping[str, str]) -> None:
    """Boto, PyArrow and child processes all look into this process's environment, and find nothing else there."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(variables)
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))


def _stops_when_asked() -> threading.Event:
    stops = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stops.set())
    return stops


def _defaults(environment: Mapping[str, str]) -> dict[str, object]:
    """Per command, what the environment says of its options; a command ignores those it does not have."""
    given = {
        name: environment[f"LITHIFY_{name.upper()}"]
        for name in OPTIONS_FROM_ENVIRONMENT
        if environment.get(f"LITHIFY_{name.upper()}")
    }
    return _for_every_command(get_command(app), given)


def _for_every_command(command: object, given: dict[str, str]) -> dict[str, object]:
    """What is given; of a group, for each of its commands, by their names."""
    if not isinstance(command, TyperGroup):
        return dict(given)
    return {name: _for_every_command(each, given) for name, each in command.commands.items()}


if __name__ == "__main__":
    main()
