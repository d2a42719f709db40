"""A dispatcher of the release before job runs had shards, beside dispatchers of this one.

Its code is this release's; what differs is what it reads and writes, and that it never divides a job run:

- what it accepts lacks the field `shard`
- it refuses entries with that field, or with an action about shards, as a release refuses what it does not know
- it finds the sessions of a job run over many streams itself

So it runs what it has accepted, and sets aside what dispatchers of this release accept or divide. What it has begun
they go on with. `make proof ARGS="--older COMMIT"` runs the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from compactor.catalog.tables import DeltaCatalog
from compactor.model.clock import Clock
from compactor.storage.location import StoreLocation
from dispatcher.records.claims import JobRunLog
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.work_id import WorkId
from dispatcher.running.claimed_job_run import ClaimedJobRun
from dispatcher.running.session_finding import SessionFinding
from dispatcher.running.sharding import Sharding

_SHARD = b'"shard":'
_NEWER = (_SHARD, b'"job_run_sharded"', b'"shard_ended"')


def is_job_run_entry(key: str) -> bool:
    return key.startswith("job_runs/") and "/sessions/" not in key and "/log/" in key and key.endswith(".json")


def as_it_writes(key: str, body: bytes) -> bytes:
    return body.replace(b',"shard":null', b"") if is_job_run_entry(key) else body


def as_it_reads(key: str, body: bytes) -> bytes:
    """What it does not know has names that this release does not know."""
    if is_job_run_entry(key):
        for name in _NEWER:
            body = body.replace(name, name.replace(b"shard", b"newer"))
    return body


class Undivided(Sharding):
    """In the place of what divides job runs."""

    def __init__(
        self,
        finding: SessionFinding,
        records: JobRunStore,
        open_lake: Callable[[StoreLocation], DeltaCatalog],
        clock: Clock,
    ) -> None:
        super().__init__(records, open_lake, clock)
        self._finding = finding

    def go_on(self, held: ClaimedJobRun) -> Iterator[tuple[WorkId, JobRunLog]]:
        self._finding.find(held)
        return iter(())
