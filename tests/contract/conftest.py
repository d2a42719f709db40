"""The stores that every contract test runs over: in memory, in a folder, on a real S3 server, and on moto's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from compactor.model.clock import SystemClock
from compactor.storage.aws.s3 import S3Clients, S3Store
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from dispatcher.demo.stand_ins import queue_server
from tests.fakes.memory_store import MemoryStore
from tests.servers import BUCKET, aws_environment, create_bucket, seaweedfs_server


@dataclass(frozen=True)
class S3Service:
    endpoint_url: str
    clients: S3Clients


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    """A real S3 server, which runs until the test session ends."""
    with aws_environment(), seaweedfs_server(tmp_path_factory.mktemp("seaweedfs")) as endpoint_url:
        yield S3Service(endpoint_url, S3Clients.open(endpoint_url, None))


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Service]:
    """A quick S3 server in this process. It proves nothing about races."""
    with aws_environment(), queue_server() as endpoint_url:
        create_bucket(endpoint_url)
        yield S3Service(endpoint_url, S3Clients.open(endpoint_url, None))


@pytest.fixture(
    params=[
        "memory",
        "folder",
        pytest.param("seaweedfs", marks=pytest.mark.servers),
        pytest.param("moto", marks=pytest.mark.servers),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind in turn. Beside the one in memory there is a folder for data files."""
    folder = StoreLocation(f"file://{tmp_path}/lake")
    match request.param:
        case "memory":
            return MemoryStore(SystemClock(), folder)
        case "folder":
            return LocalStore(folder)
        case server:
            service: S3Service = request.getfixturevalue(server)
            location = StoreLocation(f"s3://{BUCKET}/{SystemClock().new_id()}", service.endpoint_url)
            return S3Store(location, service.clients, SystemClock())
