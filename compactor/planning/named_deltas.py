"""Says of which delta a file is that cannot be compacted, and how to go on without it.

Readers know a file by its URI. Their errors cross processes as sentences, so the file is found in these.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog
from compactor.model.errors import Corrupt, Invalid, LithifyError
from compactor.planning.spec import SessionSpec

_TAKES_BACK = "lithify table retract"


@contextmanager
def naming_deltas(spec: SessionSpec, lake: DeltaCatalog) -> Iterator[None]:
    """Around the reading of a session's input. An `Invalid` or `Corrupt` whose sentence has the URI of a delta file
    names the delta too, and the command that takes it back."""
    try:
        yield
    except (Invalid, Corrupt) as error:
        named = _named(error.reasons, spec, lake)
        if named == error.reasons:
            raise
        raise type(error)(*named) from error


def _named(reasons: tuple[str, ...], spec: SessionSpec, lake: DeltaCatalog) -> tuple[str, ...]:
    try:
        source = lake.table(spec.job_run.source_table_id).stream(spec.partition)
        version = source.load().state.sources.get(spec.source_stream_version)
    except LithifyError:
        return reasons  # the sentence without it is better than another one
    if version is None:
        return reasons
    delta_of = {source.uri_of(file.path): delta.delta_id for delta in version.deltas for file in delta.files}
    return tuple(f"{reason}{_whose(reason, delta_of, source)}" for reason in reasons)


def _whose(reason: str, delta_of: Mapping[str, str], source: PartitionStream) -> str:
    if _TAKES_BACK in reason:
        return ""
    found = [uri for uri in delta_of if uri in reason]
    found = [uri for uri in found if not any(uri != other and uri in other for other in found)]
    ids = list(dict.fromkeys(delta_of[uri] for uri in found))
    if not ids:
        return ""
    partition = "".join(f" --partition {shlex.quote(f'{key}={value}')}" for key, value in source.partition.items())
    where = f"{partition} --lake {shlex.quote(source.location.root_uri)}"
    commands = (f"`{_TAKES_BACK} {source.table_id} --delta {shlex.quote(each)}{where}`" for each in ids)
    return f"; to go on without that delta: {' or '.join(commands)}"
