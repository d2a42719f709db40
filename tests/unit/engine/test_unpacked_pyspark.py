"""Spark's archives give way to an installed PySpark of the same release, and to no other."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from compactor.engine.pyspark_path import prefer_unpacked_pyspark


@pytest.fixture
def archives(tmp_path: Path) -> list[str]:
    return [str(tmp_path / "pyspark.zip"), str(tmp_path / "py4j-0.10-src.zip")]


def _pack(archive: str, name: str, source: str) -> None:
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr(name, source)


@pytest.mark.parametrize("source", ['__version__: str = "{}"\n', "__version__ = '{}'\n"])
def test_archives_of_the_installed_release_are_looked_at_last(
    archives: list[str], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pack(archives[0], "pyspark/version.py", "# words\n" + source.format(pyspark.__version__))
    rest = [entry for entry in sys.path if not entry.endswith(".zip")]
    monkeypatch.setattr(sys, "path", ["", *archives, *rest])
    prefer_unpacked_pyspark()
    assert sys.path == ["", *rest, *archives]


@pytest.mark.parametrize("version", ["1.2.3", None])
def test_archives_of_another_release_stay_where_spark_put_them(
    archives: list[str], version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version is None:
        _pack(archives[0], "other.py", "")
    else:
        _pack(archives[0], "pyspark/version.py", f'__version__ = "{version}"\n')
    before = [*archives, *sys.path]
    monkeypatch.setattr(sys, "path", list(before))
    prefer_unpacked_pyspark()
    assert sys.path == before


def test_archives_stay_first_where_nothing_is_installed_and_where_they_cannot_be_read(
    archives: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _pack(archives[0], "pyspark/version.py", f'__version__ = "{pyspark.__version__}"\n')
    monkeypatch.setattr(sys, "path", list(archives))
    prefer_unpacked_pyspark()
    assert sys.path == archives
    Path(archives[0]).write_bytes(b"no archive")
    monkeypatch.setattr(sys, "path", [*archives, *sys.path])
    prefer_unpacked_pyspark()
    assert sys.path[:2] == archives
