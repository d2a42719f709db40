"""References of Delta Lake to deletion vectors name the vector and the attempt that wrote it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compactor.publishing.delta_vectors import FOLDER, reference, referred_commit, referred_id, vector_file, vector_id


@given(st.text(min_size=1), st.uuids().map(lambda each: each.hex))
def test_a_reference_names_the_vector_and_the_folder_of_its_attempt(path: str, commit_id: str) -> None:
    found = reference(path, commit_id, b"123456789", 3)
    assert (referred_id(found), referred_commit(found)) == (vector_id(path), commit_id)
    assert found.path_or_inline_dv.startswith(f"{FOLDER}/{commit_id}")


def test_neighbouring_dead_rows_are_a_run_and_not_bits() -> None:
    cookie_of_runs = (12_347).to_bytes(2, "little")
    file = vector_file(np.arange(90_000, dtype=np.int64))
    assert len(file) < 100
    assert cookie_of_runs in file
