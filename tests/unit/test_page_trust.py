"""The share of a compaction that page checksums and read-back take in the benchmark."""

from __future__ import annotations

import pytest

from compactor.planning.spec import PAGE_CHECK_SHARE
from tests.benchmarks.page_trust import PageTrust


def test_the_share_is_that_of_the_default_sample() -> None:
    trust = PageTrust(rows=1, row_groups=64, compaction=97.0, checksums=1.0, read_back=2.0 / PAGE_CHECK_SHARE)
    assert trust.share == pytest.approx(0.03)
