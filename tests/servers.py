"""Real servers on free loopback ports, for the tests that need them. Each is started once a test session and stopped.

`seaweedfs` holds its promises about conditional writes; moto's server checks and then puts without a lock, so nothing
about a race is ever asserted on it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

ACCESS_KEY, SECRET_KEY, REGION = "lithify-tests", "lithify-tests-secret", "us-east-1"
BUCKET = "lake"
START_SECONDS_MAX = 60.0
MINISTACK = Path(__file__).parents[1] / ".venv-ministack" / "bin" / "python"
"""It pins botocore, so it has an environment of its own."""


@contextmanager
def aws_environment() -> Iterator[None]:
    """Credentials for the stand-ins, where boto3, PyArrow and child processes all look for them."""
    wanted = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def moto_server() -> Iterator[str]:
    """The URL of an in-process moto server: S3, SQS, SNS and more.

    moto keeps what they hold once for the whole process, so a test gives its queues, topics and buckets names that no
    other test gives: `SystemClock().new_id()`.
    """
    from moto.server import ThreadedMotoServer  # the environment of infra/ has none

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def ministack_server(program: Sequence[str] = ("-m", "ministack"), **variables: str) -> Iterator[str]:
    """The URL of ministack, another process: SQS, SNS, Step Functions and more. `program`: what its Python runs."""
    if not MINISTACK.exists():
        raise RuntimeError("ministack is not installed: `make .venv-ministack/.installed` brings it")
    (port,) = free_ports(1)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))},
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        **variables,
    }
    # It is killed, so what it has in its folder of temporary files stays there.
    with TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [str(MINISTACK), *program],
            env={**environment, "TMPDIR": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            endpoint_url = f"http://127.0.0.1:{port}"
            _await_health(endpoint_url, process)
            yield endpoint_url
        finally:
            process.kill()  # asked to end, it waits for executions that wait
            process.wait()


def _await_health(endpoint_url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"ministack ended with exit code {process.returncode}")
        try:
            urllib.request.urlopen(f"{endpoint_url}/_ministack/health", timeout=2).close()
        except OSError:
            if time.monotonic() > until:
                raise RuntimeError("ministack does not answer") from None
            time.sleep(0.1)
        else:
            return


@contextmanager
def seaweedfs_server(folder: Path, access_keys: Sequence[str] = (ACCESS_KEY,)) -> Iterator[str]:
    """The URL of a `weed` S3 service with its data in `folder` and one bucket, `BUCKET`. Whoever has one of the keys
    may do everything."""
    names = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc")
    ports = dict(zip(names, free_ports(len(names))))
    (folder / "data").mkdir(parents=True)
    (folder / "s3.json").write_text(json.dumps({"identities": [_identity(each) for each in access_keys]}))
    command = [
        _weed(),
        f"-logdir={folder}",  # else it leaves logs where the system keeps temporary files
        "server",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        f"-s3.config={folder / 's3.json'}",
        # The default, 8 volumes, is soon spent: a bucket takes 7 of its own, and then every PUT is an InternalError.
        "-volume.max=500",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-filer.localSocket={folder}/filer.sock",
        f"-s3.localSocket={folder}/s3.sock",
    ]
    for name, port in ports.items():
        room, _, kind = name.partition(".")
        command.append(f"-{room}.port{'.' + kind if kind else ''}={port}")
    with (folder / "log.txt").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        endpoint_url = f"http://127.0.0.1:{ports['s3']}"
        _await_s3(endpoint_url, server, folder / "log.txt")
        yield endpoint_url
    finally:
        # It takes long to stop by itself, and nobody needs what it holds.
        server.kill()
        server.wait()
        # A killed server leaves its sockets, which it puts into /tmp whatever it is told.
        for port in ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def create_bucket(endpoint_url: str) -> None:
    """Raises what boto3 raises while the server is not ready."""
    client = boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, read_timeout=5),
    )
    if BUCKET not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=BUCKET)
    client.put_object(Bucket=BUCKET, Key="ready", Body=b"")


def _await_s3(endpoint_url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            return create_bucket(endpoint_url)
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"seaweedfs did not start ({error}):\n{log.read_text()[-2000:]}") from error
            time.sleep(0.1)


def _weed() -> str:
    found = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if found is None:
        raise RuntimeError("there is no `weed` beside this Python: `make install` brings it")
    return found


def _identity(access_key: str) -> dict[str, object]:
    return {
        "name": access_key,
        "credentials": [{"accessKey": access_key, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
