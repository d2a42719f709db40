"""The benchmark of page checksums and of row groups that are read back measures both, in a whole compaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.steps import materialize
from tests.benchmarks.page_trust import measure_page_trust


def test_every_row_group_is_read_back_and_every_page_has_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "ROW_GROUP_BYTES_MIN", 0)
    measured = measure_page_trust(tmp_path, 0.002)
    assert measured.row_groups == 16, "one of each source file"
    assert measured.checksums > 0
    assert measured.read_back > 0
    assert list(tmp_path.iterdir()) == []
