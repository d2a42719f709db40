"""A `GlueService` in memory, with Glue's real lock, and failures on demand. Obeys tests/contract/test_glue.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from compactor.model.errors import Invalid, LithifyError, Unavailable
from compactor.publishing.glue import GlueTable


@dataclass
class MemoryGlue:
    """
    before   called before each request, with its name: it may raise, or change the tables
    lost     names of requests whose next answer is lost after they were carried out
    updates  made, of all tables
    """

    databases: set[str] = field(default_factory=set)
    tables: dict[tuple[str, str], GlueTable] = field(default_factory=dict)
    before: Callable[[str], None] = lambda _: None
    lost: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def table(self, database: str, name: str) -> GlueTable | None:
        self._begin("table")
        with self._lock:
            return self.tables.get((database, name))

    def create(self, database: str, table: GlueTable) -> bool:
        self._begin("create")
        with self._lock:
            if database not in self.databases:
                raise Invalid(f"Glue table {database}.{table.name} cannot be created: Database {database} not found.")
            if (database, table.name) in self.tables:
                return False
            self.tables[database, table.name] = replace(table, version_id="0")
        self._end("create")
        return True

    def update(self, database: str, table: GlueTable) -> bool:
        self._begin("update")
        with self._lock:
            existing = self.tables.get((database, table.name))
            if existing is None or existing.version_id != table.version_id:
                return False
            self.tables[database, table.name] = replace(table, version_id=str(int(existing.version_id) + 1))
        self._end("update")
        return True

    def fail(self, error: LithifyError) -> None:
        """From now on no request is carried out."""

        def refuse(_: str) -> None:
            raise error

        self.before = refuse

    def heal(self) -> None:
        self.before = lambda _: None

    def _begin(self, request: str) -> None:
        self.requests.append(request)
        self.before(request)

    def _end(self, request: str) -> None:
        if request in self.lost:
            self.lost.remove(request)
            raise Unavailable(f"{request}: no answer")
