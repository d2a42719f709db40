"""`import lithify`: the door, which loads only what is asked for."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pytest
from numba.core import event
from typer.core import TyperGroup

import compactor
import lithify
from compactor.api import compact
from compactor.engine.in_process import InProcessEngine
from compactor.lake import DeltaCatalog, Table
from compactor.model import errors
from dispatcher.main import COMPLETION_VARIABLE, INTERRUPTED, run

REPOSITORY = Path(__file__).parents[2]
LITHIFY = Path(sys.executable).with_name("lithify")


Completions = Callable[..., str]


@pytest.fixture
def completions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Completions]:
    """What `lithify` answers a shell that asks for completions by these variables."""

    def complete(shell: str, **asks: str) -> str:
        for name, value in {COMPLETION_VARIABLE: f"complete_{shell}", **asks}.items():
            monkeypatch.setenv(name, value)
        assert run([], os.environ) == 0
        return capsys.readouterr().out

    yield complete
    logging.getLogger().handlers.clear()


def test_importing_it_loads_no_library() -> None:
    program = (
        "import lithify, sys; "
        "print([name for name in ('botocore', 'numba', 'numpy', 'pyarrow', 'pydantic', 'pyspark') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_its_names_are_those_of_the_compactor() -> None:
    assert (lithify.DeltaCatalog, lithify.Table, lithify.compact) == (DeltaCatalog, Table, compact)
    assert lithify.__version__ == metadata.version("lithify")
    for name in ("Conflict", "Corrupt", "Denied", "Fenced", "Invalid", "LithifyError", "Unavailable"):
        assert getattr(lithify, name) is getattr(errors, name)


def test_it_lists_every_name_and_has_no_other() -> None:
    assert dir(lithify) == sorted(lithify.__all__) == dir(compactor)
    assert all(getattr(lithify, name) is not None for name in lithify.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'lake'"):
        lithify.lake  # noqa: B018


def test_it_is_the_command_whose_version_loads_neither_verbs_nor_libraries() -> None:
    started = [sys.executable, "-X", "importtime", "-m", "lithify", "--version"]
    done = subprocess.run(started, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == f"lithify {lithify.__version__}\n"
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "dispatcher.stops" in loaded
    assert not loaded & {
        "dispatcher.main",
        "typer",
        "pydantic",
        "pydantic_core",
        "numpy",
        "pyarrow",
        "rich",
        "botocore",
    }


def test_a_version_that_cannot_be_written_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([LITHIFY, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("lithify: the answer cannot be written to standard output: No space left")


def test_a_verb_loads_what_it_needs_and_no_kernels(tmp_path: Path) -> None:
    lake = ["--lake", str(tmp_path / "lake")]
    catalog, rows = DeltaCatalog.open(tmp_path / "lake"), pa.table({"id": [1]})
    catalog.create_table("ACME.ORDERS.V1", schema=rows.schema, primary_keys=["id"]).append({}, rows)
    compact("ACME.ORDERS.V1", delta_catalog_client=catalog)
    catalog.table("ACME.ORDERS.V1").append({}, rows)
    document = tmp_path / "document.json"
    document.write_text('{"schema_version": "1", "source_table_id": "ACME.ORDERS.V1"}')
    assert _loaded(["table", "list", *lake], tmp_path) == "[]"
    assert _loaded(["plan", str(document), *lake], tmp_path) == "['numpy', 'pyarrow', 'pyarrow.compute']"


def _loaded(arguments: Sequence[str], folder: Path) -> str:
    slow = ("asyncio", "botocore", "numba", "numpy", "pyarrow", "pyarrow.compute", "pyspark", "structlog")
    program = (
        "import sys; from dispatcher.main import run; "
        f"assert run({list(arguments)}, {{}}) == 0; "
        f"print([name for name in {slow} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_bash_completes_by_the_script_that_is_shown() -> None:
    program = (
        f'eval "$({LITHIFY} --show-completion)"; COMP_WORDS=(lithify table scan --view ""); COMP_CWORD=4; '
        f'_lithify_completion {LITHIFY}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["compacted", "merged"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("lithify", "cl"), ["clusters"]),
        (("lithify", "table", "re"), ["retract", "release", "restore"]),
        (("lithify", "table", "list", "--l"), ["--lake"]),
        (("lithify", "status", "--output", ""), ["text", "json", "jsonl"]),
        (("lithify", "table", "append", "--changes", "d"), ["dms", "debezium"]),
        (("lithify", "history", "--status", "re"), ["rejected"]),
        (("lithify", "dispatch", "--drain-jobs", ""), ["auto", "leave", "stop"]),
        (("lithify", "keeper", "plan", "--default-policy", "ma"), ["manual"]),
    ],
)
def test_bash_is_offered_verbs_options_and_their_values(
    completions: Completions, words: Sequence[str], offered: Sequence[str]
) -> None:
    asked = " ".join(words)
    assert completions("bash", COMP_WORDS=asked, COMP_CWORD=str(len(words) - 1)).split() == offered


@pytest.mark.parametrize(
    ("shell", "offered"), [("zsh", ["_arguments", "'*:", ':(("merged"))\'']), ("fish", ["merged"])]
)
def test_other_shells_complete_values_by_what_their_completion_asks(
    completions: Completions, shell: str, offered: Sequence[str]
) -> None:
    asks = {"_TYPER_COMPLETE_ARGS": "lithify table scan --view m", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert completions(shell, **asks).split() == offered


def test_ctrl_c_while_the_options_are_read_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TyperGroup, "parse_args", interrupted)
    assert run(["table", "list"], {}) == 130
    assert capfd.readouterr() == ("", f"lithify: {INTERRUPTED}\n")


def test_a_folder_with_packages_of_the_same_names_hides_none_of_ours(tmp_path: Path) -> None:
    for package in ("compactor", "dispatcher", "infra", "launcher", "lithify"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise ImportError('this is not Lithify')")
    DeltaCatalog.open(str(tmp_path / "lake")).create_table("ACME.A.V1").append({}, pa.table({"id": [1]}))
    for arguments in (
        ["--help"],  # loads every verb that is in no group
        ["compact", "ACME.A.V1", "--lake", "lake", "--primary-key", "id"],
    ):
        subprocess.run([LITHIFY, *arguments], cwd=tmp_path, check=True)


def test_kernels_that_are_compiled_are_announced_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    InProcessEngine()
    for _ in range(20):
        with event.trigger_event("numba:compile"), event.trigger_event("numba:compile"):
            pass
    announced = [record.getMessage() for record in caplog.records if record.name == "compactor.engine.in_process"]
    assert all("`lithify warm`" in line and "(0" not in line for line in announced)
    first, second = (int("".join(re.findall(r"\((\d+) are done\)", line)) or 0) for line in announced)
    assert second == first + 10


def test_a_warm_environment_compiles_nothing_and_says_nothing_of_it(tmp_path: Path) -> None:
    program = """
import pyarrow as pa
from lithify import DeltaCatalog, compact
lake = DeltaCatalog.open("lake")
table = lake.create_table("ACME.A.V1", primary_keys=["id"])
for operation, ids in (("upsert", [1, 2]), ("delete", [2]), ("upsert", [3])):
    table.append({}, pa.table({"id": ids, "name": ["a"] * len(ids)}), operation=operation)
    compact("ACME.A.V1", delta_catalog_client=lake, max_dead_row_share=0.0)
assert table.scan().to_table().num_rows == 2
"""
    assert run(["warm"], {}) == 0
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
