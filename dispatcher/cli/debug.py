"""`lithify debug log`: any log of a lake or a state, entry by entry, with its fold. The logs are what is true; every
other verb shows a view of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from pydantic import JsonValue
from pydantic_core import to_json, to_jsonable_python

from compactor.catalog.definition import TABLE_LOG, TableDefinition
from compactor.catalog.keys import StreamLogFolder, TableLogFolder
from compactor.catalog.stream import STREAM_LOG
from compactor.log.durable_log import DurableLog, LogFormat
from compactor.model.errors import Invalid
from compactor.sessions.keys import SessionLogFolder
from compactor.sessions.session_log import SESSION_LOG
from compactor.storage.keys import Key
from dispatcher.cli.options import (
    Output,
    OutputOption,
    RegionOption,
    S3EndpointOption,
)
from dispatcher.cli.output import answer
from dispatcher.cli.table_places import check_exists
from dispatcher.clients import CommandDependencies
from dispatcher.keeper.decision_log import DECISION_LOG
from dispatcher.keeper.keys import DecisionLogFolder
from dispatcher.layout import time_text
from dispatcher.records.history import HISTORY_LOG
from dispatcher.records.job_run_log import JOB_RUN_LOG
from dispatcher.records.keys import HistoryDayLog, JobRunLogFolder, TurnsLog
from dispatcher.scheduling.lease_log import LEASE_LOG

ENTRIES_SHOWN = 20


@dataclass(frozen=True)
class _Kind:
    """A kind of log: its folders, and its format."""

    folder: type[Key]
    format: LogFormat[Any, Any]


_KINDS = (
    _Kind(StreamLogFolder, STREAM_LOG),
    _Kind(TableLogFolder, TABLE_LOG),
    _Kind(SessionLogFolder, SESSION_LOG),
    _Kind(JobRunLogFolder, JOB_RUN_LOG),
    _Kind(DecisionLogFolder, DECISION_LOG),
    _Kind(HistoryDayLog, HISTORY_LOG),
    _Kind(TurnsLog, LEASE_LOG),
)


def show_log(
    dependencies: CommandDependencies,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The log's folder in the lake or the state: it ends with log.")
    ],
    lake: Annotated[str | None, typer.Option("--lake", help="The lake that has the log.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="The state that has the log.")] = None,
    as_of: Annotated[int | None, typer.Option(min=1, help="The last entry to show. Default: the newest.")] = None,
    last: Annotated[int, typer.Option(min=1, help="How many entries to show.")] = ENTRIES_SHOWN,
    s3_endpoint_url: S3EndpointOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print a log entry by entry, and then what they fold to. A key of `tables/` is looked up in the lake, any other in
    the state, or in the lake where no state is given: sessions of `compact()` have their logs there."""
    kind = _kind_of(key.strip("/"))
    root = lake if key.startswith("tables/") or state is None else state
    if root is None:
        raise Invalid(f"give --{'lake' if key.startswith('tables/') else 'state'}: {key} is in it")
    store = dependencies.store(root, s3_endpoint_url, region)
    check_exists(store, "lake or state")
    log: DurableLog[Any, Any] = DurableLog(store, key.strip("/"), kind.format, dependencies.clock)
    found = log.load(as_of=as_of)
    if found.entry_number == 0:
        raise Invalid(f"there is no log {key} in {store.location.root_uri}: it has no entry")
    first = max(found.entry_number - last + 1, 1)
    entries = [
        {"entry": each.number, "at_ms": each.at_ms, "entry_id": each.entry_id, "actions": _json(each.actions)}
        for each in log.entries_between(first, found.entry_number)
    ]
    fold = _fold(found.state)
    value: dict[str, object] = {"log": key, "kind": kind.format.name, "entries": entries, "fold": fold}
    answer(output, value, list(_lines(entries, found.entry_number, fold)))


def _kind_of(key: str) -> _Kind:
    for kind in _KINDS:
        if kind.folder.parse_or_none(key) is not None:
            return kind
    raise Invalid(
        f"{key} is no folder of a log: write one of {', '.join(str(kind.folder.template) for kind in _KINDS)}"
    )


def _fold(state: object) -> JsonValue:
    """A declared schema is shown by its columns."""
    fold = _json(state)
    if isinstance(state, TableDefinition) and isinstance(fold, dict):
        del fold["arrow_schema"]
        fold["schema"] = _json(state.schema)
    return fold


def _json(value: object) -> JsonValue:
    """Folds are values of dataclasses, with collections of their own that are shown as they describe themselves."""
    found: JsonValue = to_jsonable_python(value, fallback=_as_known)
    return found


def _as_known(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence | frozenset | set) else repr(value)


def _lines(entries: Sequence[dict[str, Any]], newest: int, fold: JsonValue) -> Iterator[str]:
    for each in entries:
        yield f"entry {each['entry']}  {time_text(each['at_ms'])} UTC  {each['entry_id']}"
        for action in each["actions"]:
            yield f"  {to_json(action).decode()}"
    yield f"fold of entries 1 to {newest}"
    yield from (f"  {line}" for line in to_json(fold, indent=2).decode().splitlines())
