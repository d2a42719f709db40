"""Progress of reading a session's input: which records, how many of how many."""

from __future__ import annotations

from compactor.catalog.actions import IndexRehashed, RoundCommitted

Commit = tuple[int, RoundCommitted | IndexRehashed]
"""A durable change of a session, with its entry number in the compacted stream's log."""


READ_FOOTERS, READ_LOG_ENTRIES = "read footers", "read log entries"
