"""README's sections on AWS: the table of permissions is the template's, and every block is run or said not to be."""

from __future__ import annotations

import re
from pathlib import Path

from infra.deploy import DESTROYED, KEPT
from infra.outputs import OUTPUTS
from infra.permission_table import permission_table
from tests.infra.templates import parts_of, synthesised

README = (Path(__file__).parents[2] / "README.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^### {title}\n(.*?)(?=^##)", README, re.S | re.M)
    assert found is not None, title
    return found[1]


def test_the_table_of_permissions_is_the_template_s() -> None:
    lines = list(permission_table(parts_of("dev"), synthesised("dev")))
    told = [line for line in section("Permissions").splitlines() if line.startswith("|")]
    assert told == lines, "\n".join(["README's table should be:", *lines])


def test_readme_says_what_a_deletion_keeps_and_destroys() -> None:
    text = " ".join(section("Tear down").split())
    for what, _ in (*KEPT, *DESTROYED):
        assert what in text


def test_every_variable_that_readme_uses_is_an_output() -> None:
    used = set(re.findall(r"\$\{?([A-Z_]+)", section("Deploy to AWS")))
    assert used
    assert used <= {output.variable for output in OUTPUTS}


def test_every_make_target_that_readme_names_is_there() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    for title in ("Deploy to AWS", "Update", "Tear down"):
        targets = re.findall(r"^\s*make ([a-z-]+)", section(title), re.M)
        assert targets
        for target in targets:
            assert re.search(rf"^{target}:", makefile, re.M), target


def test_every_block_of_commands_is_run_or_says_why_it_needs_an_account() -> None:
    for title in ("Deploy to AWS", "Watch it", "Update", "Tear down", "Permissions"):
        blocks = re.findall(r"([^\n]*)\n```sh\n", section(title))
        assert all(re.match(r"<!-- (tested|needs an account): .+ -->$", before) for before in blocks), blocks


def test_the_idle_cost_adds_up() -> None:
    table = README.partition("| what | arithmetic | USD a month |")[2].partition("\n\n")[0]
    lines = [float(line.split("|")[3]) for line in table.splitlines()[2:] if line.startswith("|")]
    told = re.search(r"costs about (\d+) US dollars a month", README)
    assert told is not None
    assert round(sum(lines)) == int(told[1])
    assert lines[0] == round(2 * (0.5 * 0.04048 + 2 * 0.004445) * 730, 2)
    assert lines[1] == round(2 * 0.005 * 730, 2)
