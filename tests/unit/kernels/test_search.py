"""Searching the older runs of the index finds what a plain set finds."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.search import find_digests
from compactor.kernels.sha1 import Digests


def in_digest_order(keys: list[int]) -> tuple[Digests, list[int]]:
    stored = np.frombuffer(b"".join(hashlib.sha1(str(key).encode()).digest() for key in keys), ">u4")
    digests = stored.astype(np.uint32).reshape(-1, 5)
    order = np.lexsort(digests.T[::-1])
    return digests[order], [keys[row] for row in order]


@given(st.sets(st.integers(0, 300)), st.lists(st.integers(0, 300)))
def test_a_digest_is_found_where_it_lies_once_for_each_key(run: set[int], wanted: list[int]) -> None:
    run_digests, run_keys = in_digest_order(sorted(run))
    digests, _ = in_digest_order(wanted)
    raw = np.frombuffer(run_digests.astype(">u4").tobytes(), np.uint32).reshape(-1, 5)
    found = find_digests(raw, digests).tolist()
    assert found == sorted(found)
    assert {run_keys[position] for position in found} == run & set(wanted)
    assert len(found) == len(run & set(wanted))
