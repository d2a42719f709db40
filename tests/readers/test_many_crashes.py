"""The contract's random rounds, crashes and races of publishers, for longer than `make test` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.publishing.delta import DeltaPublisher
from tests.builders import TABLE_ID
from tests.contract.test_publisher import test_random_rounds_of_three_publishers_and_their_crashes_are_exact as rounds
from tests.crashes import HurriedClock
from tests.open_rounds import OpenLake


@pytest.mark.slow
def test_a_thousand_rounds_of_publishers_that_are_cut_off_are_exact(tmp_path: Path) -> None:
    rounds(lambda store: DeltaPublisher(store, TABLE_ID, ("region",), HurriedClock()), OpenLake(tmp_path), 2, 500)
