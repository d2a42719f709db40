"""Whether what a contestant left is right: nobody's time counts before its rows do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from tests.benchmarks.data import FIRST_UPDATE_US, SORT, Survivors

_COLUMNS_OF = "SELECT column_name FROM (DESCRIBE SELECT * FROM read_parquet($files)) ORDER BY column_name"
_CHECKSUM = f"""
    SELECT count(*), sum(epoch_us({SORT}) - {FIRST_UPDATE_US}), sum(hash({{columns}})) FROM read_parquet($files)
"""


class Wrong(Exception):
    """A contestant left other rows than it should have."""


@dataclass(frozen=True)
class Checksum:
    """Of rows in any order and any number of files: equal rows have equal checksums. `content` covers every value."""

    survivors: Survivors
    content: int


def checksum(files: Sequence[str]) -> Checksum:
    given = {"files": list(files)}
    with duckdb.connect() as connection:
        columns = ", ".join(name for (name,) in connection.execute(_COLUMNS_OF, given).fetchall())
        answer = connection.execute(_CHECKSUM.format(columns=columns), given).fetchone()
    if answer is None:
        raise Wrong("there is nothing to check")
    rows, time_sum, content = (int(value or 0) for value in answer)
    return Checksum(Survivors(rows, time_sum), content)


class Referee:
    """Knows which rows are to survive, by the generator, and holds every contestant to the first one's values."""

    def __init__(self, expected: Survivors) -> None:
        self._expected = expected
        self._content: int | None = None

    def check(self, contestant: str, files: Sequence[str]) -> None:
        """Raises `Wrong` where rows are missing, superfluous, stale, or differ in any value."""
        found = checksum(files)
        if found.survivors != self._expected:
            raise Wrong(f"{contestant} left {found.survivors}, but it should be {self._expected}")
        if self._content is None:
            self._content = found.content
        if found.content != self._content:
            raise Wrong(f"{contestant} left {found.survivors.rows} rows as it should, but other values in them")
