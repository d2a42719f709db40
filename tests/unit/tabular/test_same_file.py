"""A local file is the one that the log means by its size and its time, or by its bytes."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from compactor.model.errors import Corrupt
from compactor.tabular.same_file import check_local_file

BODY = b"a registered file"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.parquet"
    path.write_bytes(BODY)
    os.utime(path, ns=(7, 7))
    return path


def check(path: Path, modified_at_ns: int | None = 7, crc32: int | None = zlib.crc32(BODY)) -> None:
    check_local_file(str(path), len(BODY), modified_at_ns, crc32, "d7")


def test_a_file_of_the_same_size_and_time_is_not_read(path: Path) -> None:
    check(path, crc32=1)


def test_a_file_of_another_time_is_compared_by_its_bytes_each_time_that_it_has_changed(path: Path) -> None:
    os.utime(path, ns=(9, 9))
    check(path)
    path.write_bytes(BODY.upper())
    os.utime(path, ns=(10, 10))
    with pytest.raises(
        Corrupt, match=r"x\.parquet was changed or replaced after it was appended: .*retract delta 'd7'"
    ):
        check(path)


def test_a_file_of_another_size_is_corrupt_whoever_registered_it(path: Path) -> None:
    path.write_bytes(BODY + b".")
    with pytest.raises(Corrupt, match="it has 18 bytes, but the log says 17"):
        check(path, modified_at_ns=None, crc32=None)


def test_a_file_that_an_earlier_release_registered_is_compared_by_its_size_alone(path: Path) -> None:
    path.write_bytes(BODY.upper())
    check(path, modified_at_ns=None, crc32=None)
