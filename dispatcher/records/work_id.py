"""What a dispatcher claims: a job run, or a shard of a wide one. Pure.

    job run over many streams --claimed--> streams counted --> sharded: the number of shards is in its log
        its holder: opens a few shards at a time, forwards a cancel, ends the job run once all shards have ended
        any dispatcher: claims an open shard, finds the sessions of its streams, runs and ends them

A shard has the log, claim, marker and leases of a small job run, under a name of its own. Its streams are those whose
digest leaves its number as remainder: no order of a listing has an effect, and no two shards share a stream.
"""

import re
from dataclasses import dataclass
from typing import Self

from compactor.sessions.keys import JobRunFolder

SHARED_STREAMS = 50
"""Streams that are not divided: their sessions may share a Spark job."""

SHARDS_WANTED = 8
"""Shards of a job run with enough streams, so that so many dispatchers can share it."""

STREAMS_PER_SHARD = 500
"""Average number of streams of a shard, which bounds what a dispatcher holds of a job run, however wide that is."""

OPEN_SHARDS_MAX = 16
"""Shards of one job run that are open at a time: those behind them have neither a log nor a marker yet."""

_MARK = "\x1f"
"""Separates a job run id from a shard. No job run id has this character."""

_SHARD = re.compile(rf"(?P<job_run>[^{_MARK}]+){_MARK}(?P<number>[0-9]{{1,9}})-(?P<count>[1-9][0-9]{{0,8}})")


@dataclass(frozen=True)
class ShardNumber:
    """`number`: from 0 on, below `count`."""

    number: int
    count: int


@dataclass(frozen=True)
class WorkId:
    """A job run, or one shard of it. As text it is the name of a log, a marker or a lease; `str` is for sentences."""

    job_run_id: str
    shard: ShardNumber | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        found = _SHARD.fullmatch(text) if _MARK in text else None
        if found is None:
            return cls(text)
        return cls(found["job_run"], ShardNumber(int(found["number"]), int(found["count"])))

    @property
    def text(self) -> str:
        if self.shard is None:
            return self.job_run_id
        return f"{self.job_run_id}{_MARK}{self.shard.number}-{self.shard.count}"

    def __str__(self) -> str:
        if self.shard is None:
            return self.job_run_id
        return f"{self.job_run_id} (shard {self.shard.number + 1} of {self.shard.count})"

    def may_have(self, stream: str) -> bool:
        """Whether a stream, by its digest, can belong to it: to a job run any, to a shard those of its number."""
        return self.shard is None or int(stream, 16) % self.shard.count == self.shard.number


def shard_folders(job_run_id: str) -> str:
    """What the keys of all shards of a job run begin with."""
    return JobRunFolder(f"{job_run_id}{_MARK}").key


def shard_count(streams: int) -> int:
    """Worked: 66 streams make 2 shards, 400 to 4,000 make 8, 100,000 make 200."""
    return max(min(-(-streams // SHARED_STREAMS), SHARDS_WANTED), -(-streams // STREAMS_PER_SHARD), 1)
