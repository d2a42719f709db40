"""Which row groups are read back after they were written."""

from __future__ import annotations

from compactor.steps.output_files import sample_number

SHARE = 1 / 64
FILES = range(1, 25)


def sampled_files(commit_id: str) -> list[int]:
    return [file for file in FILES if sample_number(commit_id, file, 0) < SHARE]


def test_the_sample_has_its_share_of_the_row_groups_and_similar_names_are_sampled_independently() -> None:
    sessions = [sampled_files(f"{number:032x}/1") for number in range(4_000)]
    assert 0.9 * SHARE < sum(map(len, sessions)) / (len(sessions) * len(FILES)) < 1.1 * SHARE
    # Independent: 1 - (1 - 1/64) ** 24 = 0.315 of the sessions read at least one row group back.
    assert 0.29 < sum(bool(files) for files in sessions) / len(sessions) < 0.34


def test_a_retried_task_reads_the_same_row_groups_back() -> None:
    assert sample_number("session/1", 3, 2) == sample_number("session/1", 3, 2) != sample_number("session/1", 3, 3)
