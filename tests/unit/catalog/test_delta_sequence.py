"""The sequence of deltas answers as a plain tuple would, and adding one copies little."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.actions import DeltaAdded, JoinedDelta
from compactor.catalog.delta_sequence import DeltaSequence
from compactor.log.columns import RecordCodec
from compactor.model.files import DataFile
from compactor.model.names import ContentType, Operation


def delta(position: int) -> DeltaAdded:
    return DeltaAdded(
        stream_version=1,
        position=position,
        operation=Operation.UPSERT,
        delta_id=f"delta {position}",
        content_digest="",
        files=tuple(
            DataFile(
                file_number=number, path=f"{position}/{number}", content_type=ContentType.CSV, rows=1, size_bytes=1
            )
            for number in range(1, 1 + position % 3)
        ),
        joined=tuple(
            JoinedDelta(delta_id=f"part {number} of {position}", content_digest="", rows=1)
            for number in range(position % 3)
        ),
    )


CODEC = RecordCodec(DeltaAdded)


def stored(deltas: list[DeltaAdded]) -> DeltaSequence:
    rows = CODEC.to_array([delta(-1), *deltas])[1:]  # with an offset, as rows after a retirement have
    return DeltaSequence.stored(rows, lambda some: [each for each in CODEC.to_values(some) if each is not None])


steps = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "without", "split"]), st.integers(0, 200)), max_size=90
)


@given(steps, st.integers(0, 90))
def test_a_sequence_is_what_the_tuple_of_its_deltas_is(history: list[tuple[str, int]], rows: int) -> None:
    expected = [delta(-2 * number) for number in range(rows, 0, -1)]
    sequence = stored(expected)
    past: list[tuple[DeltaSequence, tuple[DeltaAdded, ...]]] = []
    for number, (step, chosen) in enumerate(history):
        past.append((sequence, tuple(expected)))
        if step == "add":
            added = delta(2 * number)
            sequence, expected = sequence.added(added), [*expected, added]
        elif step == "without":
            sequence = sequence.without(chosen)
            expected = [each for each in expected if each.position != chosen]
        else:
            before, sequence = sequence.split(chosen)
            assert list(before) == [each for each in expected if each.position <= chosen]
            expected = [each for each in expected if each.position > chosen]
        assert_same(sequence, tuple(expected), chosen)
    for sequence, deltas in past:  # what came later has not changed it
        assert_same(sequence, deltas, 7)


def assert_same(sequence: DeltaSequence, deltas: tuple[DeltaAdded, ...], position: int) -> None:
    assert list(sequence.ids()) == [each for one in deltas for each in one.ids]
    assert list(sequence.paths()) == [file.path for one in deltas for file in one.files]
    found = sequence.find(f"part 0 of {position}")
    assert found == next((each for each in deltas if each.position == position and each.joined), None)
    assert (len(sequence), bool(sequence)) == (len(deltas), bool(deltas))
    assert sequence == deltas
    assert list(reversed(sequence)) == list(reversed(deltas))
    assert [sequence[place] for place in range(-len(deltas), len(deltas))] == [*deltas, *deltas]
    assert sequence[1:3] == deltas[1:3]
    assert list(sequence.above(position)) == [each for each in deltas if each.position > position]
    found = sequence.find(f"delta {position}")
    assert found == next((each for each in deltas if each.position == position), None)


def test_a_place_that_is_not_there_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        DeltaSequence([delta(1)])[1]


def test_a_sequence_of_thousands_is_few_runs() -> None:
    """Each is searched for an id."""
    sequence = DeltaSequence()
    for position in range(5_000):
        sequence = sequence.added(delta(position))
        assert len(sequence._runs) <= 7 * 5
    assert sequence.find("delta 17") == delta(17)
    assert sequence.find("delta 5000") is None
