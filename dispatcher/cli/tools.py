"""What the commands work with: made by `dispatcher/main.py`, which alone knows the concrete clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import typer

from compactor.catalog.catalog import DeltaCatalog
from compactor.clock import Clock
from compactor.events import EventSink
from compactor.object_store import ObjectStore, StoreLocation, open_store, parse_location
from compactor.sizing import Resources
from dispatcher.queue import Queue
from launcher.clusters import Cluster


@dataclass(frozen=True)
class QueueAddress:
    """Where a queue is, and the dead-letter queue if it is not the one of its redrive policy."""

    url: str
    dead_letter_queue_url: str | None
    endpoint_url: str | None
    region: str | None


class Clients(Protocol):
    """How the outside is reached."""

    def queue(self, address: QueueAddress) -> Queue: ...

    def topic(self, topic_arn: str, endpoint_url: str | None) -> EventSink: ...

    def local_cluster(self, resources: Resources, driver_memory_bytes: int, work_folder: Path) -> Cluster: ...


@dataclass(frozen=True)
class Tools:
    """
    memory_bytes  of this machine
    cores         of this machine that this process may use
    owner         how this process is called in claims
    program       how a person calls this command, in a shell
    stops_when_asked  from its call on, the event that SIGTERM and SIGINT set, instead of ending the process
    stand_in_for_aws  from its call on, the variables given are all that this process and its children know of AWS
    """

    clients: Clients
    clock: Clock
    memory_bytes: int
    cores: int
    owner: str
    program: str
    stops_when_asked: Callable[[], threading.Event]
    stand_in_for_aws: Callable[[Mapping[str, str]], None]

    def store(self, uri: str, endpoint_url: str | None, region: str | None) -> ObjectStore:
        return open_store(parse_location(uri, endpoint_url=endpoint_url, region=region))

    def lake(self, location: StoreLocation) -> DeltaCatalog:
        return DeltaCatalog(open_store(location), self.clock)


def tools_of(context: typer.Context) -> Tools:
    """The tools that `main` gave to all commands."""
    tools = context.find_object(Tools)
    if tools is None:
        raise TypeError("the commands were started without their tools")
    return tools
