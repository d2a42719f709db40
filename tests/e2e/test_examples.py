"""The programs of examples/, each run as a user runs it."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from lithify import DeltaCatalog
from tests.e2e.conftest import House, Mailroom
from tests.e2e.test_workflows import Running
from tests.fakes.dispatch_desk import TABLE
from tests.servers import aws_environment
from tests.workflows import ROLE, ministack_workflows

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, *arguments: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def write_changes(folder: Path, name: str, rows: Sequence[str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("op,customer_id,name,changed_at\n" + "".join(f"{row}\n" for row in rows))


def test_every_example_is_in_the_list() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    programs = [each.name for each in EXAMPLES.iterdir() if each.suffix in {".py", ".ipynb"}]
    assert len(programs) >= 6
    assert [name for name in programs if f"| `{name}` |" not in listed] == []


@pytest.mark.parametrize("program", sorted(each.name for each in EXAMPLES.glob("*.py")))
def test_an_example_without_its_arguments_says_which_it_takes(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    with pytest.raises(SystemExit, match=re.escape(f"python {program} ")):
        runpy.run_path(str(EXAMPLES / program), run_name="__main__")


@pytest.mark.long
def test_change_files_become_a_table_and_a_person_is_forgotten(tmp_path: Path) -> None:
    changes = tmp_path / "changes"
    write_changes(changes, "1.csv", ["I,1,Ann,10", "I,2,Bob,10", "I,3,Cid,10"])
    write_changes(changes, "2.csv", ["U,2,Bill,20", "D,3,Cid,21"])
    first = run_example("change_files.py", changes, "lake", cwd=tmp_path)
    assert first.stdout.splitlines() == [
        "{'customer_id': 1, 'name': 'Ann', 'changed_at': 10}",
        "{'customer_id': 2, 'name': 'Bill', 'changed_at': 20}",
    ]
    again = run_example("change_files.py", changes, "lake", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, first.stdout)

    for _ in range(2):  # it may be repeated
        forgotten = run_example("forget_a_person.py", "lake", 1, cwd=tmp_path)
        assert forgotten.returncode == 1, forgotten.stderr  # the files are younger than the grace period
        assert "may hold values of the key" in forgotten.stdout
        assert "never" not in forgotten.stdout  # the exit code will be 0
    left = run_example("change_files.py", changes, "lake", cwd=tmp_path)
    assert "Ann" not in left.stdout
    assert "Bill" in left.stdout


def test_every_night_compacts_all_tables_and_reports_the_one_that_cannot_be(tmp_path: Path) -> None:
    write_changes(tmp_path / "changes", "1.csv", ["I,1,Ann,10"])
    run_example("change_files.py", "changes", "lake", cwd=tmp_path)
    fine = run_example("every_night.py", "lake", cwd=tmp_path)
    assert (fine.returncode, fine.stdout) == (0, "SHOP.CUSTOMERS.V1: 0 partitions compacted, 0 rows in them\n")
    DeltaCatalog.open(tmp_path / "lake").create_table("A.NO_KEYS.V1").append({}, pa.table({"id": [1]}))
    failed = run_example("every_night.py", "lake", cwd=tmp_path)
    assert (failed.returncode, "A.NO_KEYS.V1 is not compacted" in failed.stderr) == (1, True)
    assert failed.stdout == fine.stdout


def test_other_engines_read_what_is_published(tmp_path: Path) -> None:
    done = run_example("other_engines.py", "lake", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("(35.0, 35.0)\n", 0), done.stderr


def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    cells = json.loads((EXAMPLES / "first_table.ipynb").read_text())["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            *before, last = "".join(cell["source"]).split("\n")
            exec("\n".join(before), names)
            try:
                names["shown"] = eval(last, names)
            except SyntaxError:
                exec(last, names)
    assert names["shown"] == {"order_id": 2, "status": "SHIPPED", "last_updated": 30}


@pytest.mark.servers
def test_the_workflow_waits_for_its_job_run_and_prints_the_result(tmp_path: Path) -> None:
    with ministack_workflows() as services:
        house = House(tmp_path, Mailroom.open(services.endpoint_url))
        house.append([{"order_id": 1, "last_updated": 5}, {"order_id": 1, "last_updated": 7}])
        house.lake.table(TABLE).set_properties({"primary_keys": "order_id", "sort_keys": "last_updated"})
        with aws_environment(), Running(house):
            queue_url = house.mailroom.queue_url
            done = run_example(
                "workflow.py", queue_url, ROLE, TABLE, cwd=tmp_path, AWS_ENDPOINT_URL=services.endpoint_url
            )
    result = json.loads(done.stdout)
    assert (result["status"], result["rows_in"], result["rows_out"]) == ("succeeded", 2, 1), done.stderr
