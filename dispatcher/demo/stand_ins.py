"""Servers that stand in for AWS on this machine: moto for SQS and SNS, in this process; seaweedfs for S3, beside it.

Both listen on 127.0.0.1 only, on free ports, and stop when their context ends. Their credentials are valid nowhere
else: the demo's processes have no AWS settings but `AWS_VARIABLES`.
"""

import json
import logging
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from compactor.model.clock import Clock
from compactor.model.errors import Invalid, Unavailable

HOST = "127.0.0.1"
REGION = "us-east-1"
BUCKET = "lithify-demo"
START_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.1

AWS_VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "AWS_ACCESS_KEY_ID": "lithify-demo",
        "AWS_SECRET_ACCESS_KEY": "lithify-demo-secret",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        # A user's own profile must not lead the demo to a real account.
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }
)

_INSTALL = "pip install 'lithify[demo]'"


@contextmanager
def queue_server(port: int = 0) -> Iterator[str]:
    """Starts moto, an empty SQS and SNS and more, in this process; yields its URL.

    Raises `Invalid` if moto is not installed.

    Args:
        port: 0 is a free one.
    """
    try:
        from moto.server import ThreadedMotoServer
        from moto.sqs.models import Queue
    except ImportError as error:
        raise Invalid(f"the demo's SQS and SNS are moto's server, which is not installed: {_INSTALL}") from error
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    unlocked = Queue.delete_message

    # moto replaces its list of messages at a delete, without the lock that a send takes: of two deletes at once one
    # comes back, and a message that is sent meanwhile is lost.
    def delete_message(self: Queue, receipt_handle: str) -> None:
        with self._messages_lock:
            unlocked(self, receipt_handle)

    Queue.delete_message = delete_message  # type: ignore[method-assign]
    server = ThreadedMotoServer(ip_address=HOST, port=port, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        Queue.delete_message = unlocked  # type: ignore[method-assign]


@dataclass(frozen=True)
class S3Server:
    """A seaweedfs with its data in one folder."""

    port: int

    @property
    def endpoint_url(self) -> str:
        return f"http://{HOST}:{self.port}"


@contextmanager
def s3_server(
    folder: Path,
    create_bucket: Callable[[str], None],
    clock: Clock,
    secrets: Mapping[str, str] = MappingProxyType(
        {AWS_VARIABLES["AWS_ACCESS_KEY_ID"]: AWS_VARIABLES["AWS_SECRET_ACCESS_KEY"]}
    ),
) -> Iterator[S3Server]:
    """Starts an S3 server.

    Args:
        create_bucket: Is called with the endpoint until it no longer raises `Unavailable`.
        secrets: By access key. Who has one may do everything.
    """
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    server, command = S3Server(ports["s3"]), (str(_find_weed()), *_arguments(ports))
    (folder / "data").mkdir(parents=True)
    (folder / "identities.json").write_text(json.dumps(_identities(secrets)))
    with (folder / "log.txt").open("wb") as log:
        # In its own process group: Ctrl-C interrupts only this process, which stops the server at the end.
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _await(lambda: create_bucket(server.endpoint_url), process, folder / "log.txt", clock)
        yield server
    finally:
        # SIGTERM would delay its end; acknowledged writes are on disk.
        process.kill()
        process.wait()
        for service in _SERVICES:  # the only files that it writes outside of its folder, whatever the options
            Path(f"/tmp/seaweedfs-{service}-grpc-{ports[f'{service}.grpc']}.sock").unlink(missing_ok=True)


def free_ports(count: int) -> list[int]:
    """Different ports that are free at the time of the call."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


_SERVICES = ("master", "volume", "filer", "s3")
_PORTS = (*_SERVICES, *(f"{service}.grpc" for service in _SERVICES))


def _arguments(ports: Mapping[str, int]) -> Sequence[str]:
    """For `weed`, which runs in its own folder. Socket paths are relative: they may have about 100 bytes."""
    named = (
        f"-{service}.port{'.' + protocol if protocol else ''}={port}"
        for name, port in ports.items()
        for service, _, protocol in [name.partition(".")]
    )
    return (
        "-logdir=.",
        "server",
        "-dir=data",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        "-filer",
        "-s3",
        "-s3.config=identities.json",
        # The default is 8 volumes: a bucket takes 7, and without a free one every PUT is an InternalError.
        "-volume.max=500",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-filer.localSocket=filer.sock",
        "-s3.localSocket=s3.sock",
        *named,
    )


def _await(ready: Callable[[], None], process: subprocess.Popen[bytes], log: Path, clock: Clock) -> None:
    deadline = clock.monotonic_seconds() + START_SECONDS_MAX
    while True:
        try:
            return ready()
        except Unavailable as error:
            if process.poll() is not None or clock.monotonic_seconds() > deadline:
                raise Unavailable(f"the demo's S3 server did not start ({error}): see {log}") from error
            clock.sleep(_POLL_SECONDS)


def _find_weed() -> Path:
    """The `weed` beside this Python, where the wheel puts it, or the first on the path."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.is_file() else shutil.which("weed")
    if found is None:
        raise Invalid(f"the demo's S3 is seaweedfs, which is not installed: {_INSTALL}")
    return Path(found)


def _identities(secrets: Mapping[str, str]) -> Mapping[str, object]:
    return {
        "identities": [
            {
                "name": access_key,
                "credentials": [{"accessKey": access_key, "secretKey": secret}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            }
            for access_key, secret in secrets.items()
        ]
    }
