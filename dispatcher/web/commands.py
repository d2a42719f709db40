"""Commands that a page offers to copy: quoted for a shell, since ids are of any characters. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from dispatcher.records.pauses import Pause


@dataclass(frozen=True)
class Commands:
    """For one state and one lake, by their URIs. `queue_url` None: the reader fills it in."""

    state_uri: str
    lake_uri: str
    queue_url: str | None = None

    def dispatch(self) -> str:
        return self._with_state("dispatch", *self._queue())

    def keeper(self) -> str:
        return self._with_state("keeper", "--lake", self.lake_uri, *self._queue())

    def history(self) -> str:
        return self._with_state("history")

    def retry(self, job_run_id: str) -> str:
        return self._with_state("retry", job_run_id)

    def resume(self, pause: Pause) -> str:
        if pause.table is not None:
            return self._with_state("resume", "--table", pause.table)
        return self._with_state("resume", pause.job_run_id if pause.job_run_id is not None else "--everything")

    def redrive(self, first_message_id: str | None = None) -> str:
        """Of one dead letter; None: shows all of them, and sends none."""
        rest = ("--dry-run",) if first_message_id is None else ("--id", first_message_id)
        return shlex.join(("lithify", "redrive", *self._queue(), *rest))

    def table(self, verb: str, table_id: str, *rest: str) -> str:
        """Of a table of the lake."""
        return shlex.join(("lithify", *verb.split(), table_id, "--lake", self.lake_uri, *rest))

    def _with_state(self, *words: str) -> str:
        return shlex.join(("lithify", *words, "--state", self.state_uri))

    def _queue(self) -> tuple[str, str]:
        return "--queue-url", "QUEUE_URL" if self.queue_url is None else self.queue_url
