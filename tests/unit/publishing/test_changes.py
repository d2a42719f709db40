"""The difference of two folds leads from the one to the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compactor.model.files import DataFile, DeletionVector
from compactor.model.names import ContentType
from compactor.publishing.changes import LiveFile, changes


def _live(number: int, vector: int) -> LiveFile:
    file = DataFile(file_number=number, path=f"file {number}", content_type=ContentType.PARQUET, rows=10, size_bytes=1)
    if not vector:
        return LiveFile(file)
    dead = DeletionVector(file_number=number, path=f"vector {number} {vector}", rows=vector, size_bytes=1)
    return LiveFile(file, dead)


_FOLDS = st.dictionaries(st.integers(1, 8), st.integers(0, 3)).map(
    lambda vectors: {f"file {number}": _live(number, vector) for number, vector in vectors.items()}
)


@given(_FOLDS, _FOLDS)
def test_the_changes_lead_from_the_one_fold_to_the_other_and_say_nothing_else(
    before: dict[str, LiveFile], after: dict[str, LiveFile]
) -> None:
    found = changes(before, after)
    applied = dict(before)
    for file in found.removed:
        assert applied.pop(file.file.path) == file
    for marked in found.marked:
        assert applied[marked.before.file.path] == marked.before
        assert marked.before != marked.after
        applied[marked.after.file.path] = marked.after
    for file in found.added:
        assert applied.setdefault(file.file.path, file) is file
    assert applied == after
    assert bool(found) == (before != after)
