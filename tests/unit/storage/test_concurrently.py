"""Many requests in flight, of any number of elements."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compactor.model.errors import Unavailable
from compactor.storage.concurrently import run_many
from compactor.storage.location import StoreLocation

REMOTE, LOCAL = StoreLocation("s3://lake/x"), StoreLocation("file:///lake")


@pytest.mark.parametrize(("location", "ahead"), [(REMOTE, 8), (LOCAL, 1)])
def test_results_are_in_order_and_few_elements_are_taken_ahead_of_them(location: StoreLocation, ahead: int) -> None:
    taken: list[int] = []

    def elements() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = run_many(location, lambda number: number * number, elements(), 4)
    assert next(results) == 0
    assert len(taken) == ahead
    assert list(results) == [number * number for number in range(1, 100)]


def test_the_first_error_ends_it_after_the_results_before_it() -> None:
    def call(number: int) -> int:
        if number >= 5:
            raise Unavailable(f"{number} does not answer")
        return number

    found: list[int] = []
    with pytest.raises(Unavailable, match="5 does not answer"):
        found.extend(run_many(REMOTE, call, range(100), 2))
    assert found == [0, 1, 2, 3, 4]
