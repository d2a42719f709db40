"""An ingest that is killed (SIGKILL) at its n-th durable write or deletion, before or after it, or never."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.storage.location import parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from dispatcher.aws.sqs import SqsQueue
from dispatcher.ingest import ingest
from dispatcher.intake.queue import Queue
from tests.servers import REGION

_WRITES = ("put_if_absent", "overwrite", "delete_all", "dead_letter")


class _Killing:
    """Counts the writes of a store or a queue, twice each: before and after."""

    def __init__(self, inner: Any, counted: list[int], kill_at: int) -> None:  # noqa: ANN401  (a store or a queue)
        self._inner = inner
        self._counted = counted
        self._kill_at = kill_at

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        found = getattr(self._inner, name)
        return self._counting(found) if name in _WRITES else found

    def _counting(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object) -> object:
            self._count()
            answer = call(*arguments)
            self._count()
            return answer

        return counted

    def _count(self) -> None:
        self._counted[0] += 1
        if self._counted[0] == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Service:
    """What a process takes in: messages of a queue, for tables of a lake. `s3_url`: of a lake that is on S3.

    visibility_seconds  so short that messages of a killed service come again at once, and those of a slow one twice
    """

    lake_uri: str
    queue_url: str
    sqs_url: str
    s3_url: str | None = None
    files_max: int = 40
    visibility_seconds: int = 2

    def catalog(self, counted: list[int] | None = None, kill_at: int = 0) -> DeltaCatalog:
        region = None if self.s3_url is None else REGION
        store: ObjectStore = open_store(parse_location(self.lake_uri, endpoint_url=self.s3_url, region=region))
        return DeltaCatalog(store if counted is None else _Killing(store, counted, kill_at), SystemClock())

    def serve(self, kill_at: int = 0) -> None:
        """Takes files in until the queue has none left. `kill_at`: 1 is before the first write; 0: never."""
        ingest.VISIBILITY_SECONDS = self.visibility_seconds
        clock, counted = SystemClock(), [0]
        opened = SqsQueue.open(self.queue_url, endpoint_url=self.sqs_url, region=REGION)
        queue: Queue = _Killing(opened, counted, kill_at)
        settings = ingest.IngestSettings(collect_seconds=0.1, files_max=self.files_max)
        taking = ingest.Ingest(queue, self.catalog(counted, kill_at), settings, clock)
        while opened.messages_left():
            taking.collect_once()
            time.sleep(0.01)


def programs() -> Sequence[str]:
    """What a process that starts services has imported."""
    return [__name__]
