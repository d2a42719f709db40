"""A session that is cut off where it tells that it expects to take longer goes on after its last committed round."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.engine.in_process import InProcessEngine
from tests.crash_points import build_lake, copy_of, crash_where_another_sla_is_logged
from tests.crashes import Lake
from tests.fakes.doomed_store import Fate, When


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return build_lake(tmp_path_factory.mktemp("lakes") / "prepared", InProcessEngine())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fate", ["one answer is lost", "the store is down from then on", "the process is killed"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_session_that_is_cut_off_where_another_expected_sla_is_told_goes_on_after_its_last_committed_round(
    prepared: Lake, tmp_path: Path, when: When, fate: Fate
) -> None:
    crash_where_another_sla_is_logged(copy_of(prepared, tmp_path / "lake"), when, fate, InProcessEngine())
