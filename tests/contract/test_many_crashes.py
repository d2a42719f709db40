"""The contract's random rounds, crashes and races of publishers, for longer than `make test` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.model.names import OpenFormat
from tests.contract.test_publisher import maker
from tests.contract.test_publisher import test_random_rounds_of_three_publishers_and_their_crashes_are_exact as rounds
from tests.open_rounds import OpenLake


@pytest.mark.release
@pytest.mark.parametrize("format_", list(OpenFormat))
def test_a_thousand_rounds_of_publishers_that_are_cut_off_are_exact(format_: OpenFormat, tmp_path: Path) -> None:
    rounds(maker(format_), OpenLake(tmp_path), 2, 500)
