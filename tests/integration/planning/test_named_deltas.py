"""A delta that cannot be compacted is named by its id, with the command that takes it back."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.tables import Table
from compactor.model.errors import Corrupt, Invalid
from tests.builders import TABLE_ID
from tests.conftest import Command

DAY = {"day": "the 3rd of 'April'"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = DeltaCatalog.open(tmp_path / "lake").create_table(TABLE_ID, ["day"])
    table.append(DAY, pa.table({"id": [1, 2], "v": [1, 1]}), delta_id="good")
    return table


def registered(table: Table, tmp_path: Path, delta_id: str, rows: pa.Table) -> Path:
    file = tmp_path / f"{delta_id}.parquet"
    pq.write_table(rows, file, use_dictionary=False, compression="zstd")
    table.append(DAY, [file], delta_id=delta_id)
    return file


def commands_in(sentence: str) -> list[list[str]]:
    return [shlex.split(found) for found in re.findall(r"`lithify ([^`]+)`", sentence)]


def test_the_command_that_the_error_names_lets_the_others_be_compacted(
    table: Table, tmp_path: Path, command: Command
) -> None:
    file = registered(table, tmp_path, "it's bad", pa.table({"id": np.arange(1_000)}))
    file.write_bytes(file.read_bytes()[:4] + b"\xff" * 396 + file.read_bytes()[400:])
    lake = DeltaCatalog.open(tmp_path / "lake")
    with pytest.raises(Corrupt, match="was changed or replaced") as error:
        compact(TABLE_ID, {"id"}, delta_catalog_client=lake)
    (given,) = commands_in(str(error.value))
    assert given[:2] == ["table", "retract"]
    assert command(*given, "--lake", str(tmp_path / "lake")).exit_code == 0
    (session,) = compact(TABLE_ID, {"id"}, delta_catalog_client=lake).sessions
    assert session.rows_out == 2


def test_a_file_that_is_gone_is_named_with_its_delta(table: Table, tmp_path: Path) -> None:
    registered(table, tmp_path, "gone", pa.table({"id": [3], "v": [1]})).unlink()
    with pytest.raises(Corrupt, match=r"gone\.parquet does not exist; .*`lithify table retract .* --delta gone "):
        compact(TABLE_ID, {"id"}, delta_catalog_client=DeltaCatalog.open(tmp_path / "lake"))


def test_a_file_without_a_key_is_named_with_its_delta_before_anything_runs(table: Table, tmp_path: Path) -> None:
    registered(table, tmp_path, "keyless", pa.table({"v": [1]}))
    with pytest.raises(Invalid, match=r"lacks primary key column 'id'.*`lithify table retract .* --delta keyless "):
        compact(TABLE_ID, {"id"}, delta_catalog_client=DeltaCatalog.open(tmp_path / "lake"))
