"""README's sections on AWS: its tables are the template's, and every block is run or said not to be."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from infra.app import checked_stage
from infra.deploy import SURE
from infra.outputs import OUTPUTS
from tests.infra.templates import readme_tables
from tests.readme_tables import GENERATE, table_in

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()
SECTIONS = ("Deploy to AWS", "Watch it", "Update", "Tear down")


def section(title: str) -> str:
    found = re.search(rf"^### {title}\n(.*?)(?=^##)", README, re.S | re.M)
    assert found is not None, title
    return found[1]


@pytest.mark.parametrize("name", sorted(readme_tables()))
def test_a_generated_table_of_readme_is_up_to_date(name: str) -> None:
    assert table_in(README, name) == readme_tables()[name], f"run {GENERATE}"


def commands() -> list[str]:
    """Every line of every block of commands, those that go on joined."""
    blocks = [block for title in SECTIONS for block in re.findall(r"```sh\n(.*?)^```", section(title), re.S | re.M)]
    return "".join(blocks).replace("\\\n", " ").splitlines()


def test_every_variable_that_readme_uses_is_an_output() -> None:
    used = set(re.findall(r"\$\{?([A-Z_]+)", "\n".join(commands())))
    assert used
    assert used <= {output.variable for output in OUTPUTS}


def test_every_make_command_is_a_call_of_infra_deploy_that_is_run_on_a_stand_in() -> None:
    """With a good stage, in words that make hands on as they are."""
    story = (REPOSITORY / "tests" / "infra" / "test_deployment.py").read_text()
    verbs = set()
    for command in re.findall(r"\bmake ([^)\n]+)", "\n".join(commands())):
        dry = ["make", "--no-print-directory", "-n", *shlex.split(command)]
        printed = subprocess.run(dry, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
        verb, *arguments = shlex.split(printed.splitlines()[-1].partition("-m infra.deploy ")[2])
        assert checked_stage([each for each in arguments if each != SURE]).name == "dev"
        assert f'account.run("{verb}"' in story
        verbs.add(verb)
    assert verbs == {"plan", "up", "env", "start", "down"}


def test_every_other_command_is_one_of_those_that_are_known() -> None:
    """`lithify` is tested everywhere; `docker build` by make test-images; the others are AWS's own, and Docker's."""
    known = {"eval", "make", "lithify", "docker build", "docker push", "aws ecr", "aws iam", "aws s3", "aws sns"}
    for command in commands():
        program, verb, *_ = command.split()
        assert program in known or f"{program} {verb}" in known, command


def test_every_block_of_commands_is_run_or_says_why_it_needs_an_account() -> None:
    for title in SECTIONS:
        blocks = re.findall(r"([^\n]*)\n```sh\n", section(title))
        assert all(re.match(r"<!-- (tested|needs an account): .+ -->$", before) for before in blocks), blocks


def test_the_idle_cost_adds_up() -> None:
    table = README.partition("| what | arithmetic | USD a month |")[2].partition("\n\n")[0]
    lines = [float(line.split("|")[3]) for line in table.splitlines()[2:] if line.startswith("|")]
    stated = re.search(r"costs about (\d+) US dollars a month", README)
    assert stated is not None
    assert round(sum(lines)) == int(stated[1])
    assert lines[0] == round(2 * (0.5 * 0.04048 + 2 * 0.004445) * 730, 2)
    assert lines[1] == round(2 * 0.005 * 730, 2)
