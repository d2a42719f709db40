"""Shards of a wide job run: parts of it with logs of their own, which dispatchers claim separately.

    job run over many streams --claimed--> streams counted --> sharded: the number of shards is in its log
        its holder: opens a few shards at a time, forwards a cancel, ends the job run once all shards have ended
        any dispatcher: claims an open shard, finds the sessions of its streams, runs and ends them

A shard has the log, claim, marker and turns of a small job run, under a name of its own. Its streams are those whose
digest leaves its number as remainder: no order of a listing has an effect, and no two shards share a stream. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from compactor.storage.paths import JobRunFolder

SHARED_STREAMS = 50
"""Streams that are not divided: their sessions may share a Spark job."""

SHARDS_WANTED = 8
"""Shards of a job run with enough streams, so that so many dispatchers can share it."""

STREAMS_PER_SHARD = 500
"""On average, which bounds what a dispatcher holds of a job run, however many streams that has."""

OPEN_SHARDS_MAX = 16
"""Shards of one job run that are open at a time: those behind them have neither a log nor a marker yet."""

_MARK = "\x1f"
"""Stands in no job run id."""

_NAME = re.compile(rf"(?P<job_run>[^{_MARK}]+){_MARK}(?P<number>[0-9]{{1,9}})-(?P<count>[1-9][0-9]{{0,8}})")


@dataclass(frozen=True)
class ShardName:
    job_run_id: str
    number: int
    count: int

    @property
    def text(self) -> str:
        """In the place of a job run id: of a log, a marker, a turn."""
        return f"{self.job_run_id}{_MARK}{self.number}-{self.count}"

    def has(self, stream: str) -> bool:
        """Whether a stream, by its digest, belongs to the shard."""
        return int(stream, 16) % self.count == self.number


def shard_of(text: str) -> ShardName | None:
    """The shard with this name; None: it is the id of a job run."""
    found = _NAME.fullmatch(text)
    return ShardName(found["job_run"], int(found["number"]), int(found["count"])) if found is not None else None


def shard_folders(job_run_id: str) -> str:
    """What the keys of all shards of a job run begin with."""
    return JobRunFolder(f"{job_run_id}{_MARK}").key


def run_of(text: str) -> str:
    """The id of a job run, or of the job run of a shard."""
    shard = shard_of(text)
    return text if shard is None else shard.job_run_id


def shown(text: str) -> str:
    """For log lines and sentences."""
    shard = shard_of(text)
    return text if shard is None else f"{shard.job_run_id} (shard {shard.number + 1} of {shard.count})"


def shard_count(streams: int) -> int:
    """Worked: 66 streams make 2 shards, 400 to 4,000 make 8, 100,000 make 200."""
    return max(min(-(-streams // SHARED_STREAMS), SHARDS_WANTED), -(-streams // STREAMS_PER_SHARD), 1)
