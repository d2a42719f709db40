"""What is remembered of retired deltas takes bytes, and refuses their ids for as long as it must."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.retired import RetiredDeltas

batches = st.lists(
    st.tuples(st.sets(st.text(max_size=3), max_size=6), st.integers(0, 5), st.integers(0, 4)), max_size=8
)


@given(batches)
def test_an_id_is_refused_until_its_time_and_others_never_are(history: list[tuple[set[str], int, int]]) -> None:
    retired, at_ms = RetiredDeltas(0), 0
    refused: dict[str, int] = {}
    seen: set[str] = set()
    for position, (ids, later_ms, window_ms) in enumerate(history):
        at_ms += later_ms
        fresh = sorted(ids - seen)
        seen |= ids
        retired = retired.with_more(position, fresh, at_ms + window_ms, at_ms)
        refused |= dict.fromkeys(fresh, at_ms + window_ms)
        for delta_id in seen:
            assert retired.refuses(delta_id) == (refused[delta_id] >= at_ms)
        assert not retired.refuses("never used")
    assert retired.count == len(seen)


def test_a_hundred_thousand_ids_take_eight_bytes_each() -> None:
    retired = RetiredDeltas(0).with_more(9, (f"delta {number}" for number in range(100_000)), until_ms=9, at_ms=1)
    assert sum(len(ids.digests) for ids in retired.refused) == 800_000
    assert retired.refuses("delta 99999")
    assert not retired.refuses("delta 100000")
