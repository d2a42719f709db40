"""The benchmark of instructions taken in measures what really was: all of them, to their ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.storage.location import parse_location
from tests.benchmarks.acceptance import Acceptance, ends_of, measure_in
from tests.benchmarks.report import acceptance_section
from tests.servers import aws_environment

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Acceptance]]:
    folder = tmp_path_factory.mktemp("acceptance")
    with aws_environment():
        yield folder, measure_in(folder, parse_location(str(folder / "state")), parse_location(str(folder / "lake")), 3)


def test_every_instruction_is_taken_in_and_its_cost_is_told(measured: tuple[Path, Acceptance]) -> None:
    _, found = measured
    assert found.seconds > 0
    assert found.cpu_seconds > 0
    assert all(mib > 10 for mib in found.memory_mib)
    heading, text = acceptance_section([found])
    assert heading == "Instructions taken in"
    assert "3 instructions on the queue" in text


def test_instructions_that_were_not_taken_in_are_no_measurement(measured: tuple[Path, Acceptance]) -> None:
    folder, _ = measured
    with pytest.raises(RuntimeError, match="3 of 4 instructions were accepted"):
        ends_of(parse_location(str(folder / "state")), 4)
