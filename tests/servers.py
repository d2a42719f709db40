"""Real servers on free loopback ports, for the tests that need them. Each is started once a test session and stopped.

moto's is the demo's, `queue_server`. It keeps what it holds once for the whole process, so a test gives its queues,
topics and buckets names that no other test gives: `SystemClock().new_id()`.

`seaweedfs` holds its promises about conditional writes; moto's server checks and then puts without a lock, so nothing
about a race is ever asserted on it.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from compactor.model.clock import SystemClock
from compactor.model.errors import Unavailable
from dispatcher.demo.stand_ins import free_ports, s3_server

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
    secrets = dict.fromkeys(access_keys, SECRET_KEY)
    with s3_server(folder, _create_bucket_soon, SystemClock(), secrets) as server:
        yield server.endpoint_url


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


def _create_bucket_soon(endpoint_url: str) -> None:
    try:
        create_bucket(endpoint_url)
    except (BotoCoreError, ClientError) as error:
        raise Unavailable(str(error)) from error
