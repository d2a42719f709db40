"""The pages on AWS: their tables are the template's, and every block is run or said not to be."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import fields

import pytest

from infra.app import checked_stage
from infra.deploy import SURE
from infra.outputs import OUTPUTS
from infra.stages import Stage
from tests.infra.templates import page_tables
from tests.pages.sources import DOCS, GENERATE, ROOT, generated, section

DEPLOY, UPGRADE, ALARMS = DOCS / "start" / "aws.md", DOCS / "operate" / "upgrade.md", DOCS / "operate" / "alarms.md"
SECTIONS = (
    (DEPLOY, "Deploy"),
    (DEPLOY, "Image and archive"),
    (DEPLOY, "Tear down"),
    (UPGRADE, "A stage on AWS"),
    (ALARMS, "Alarms of your own"),
)


@pytest.mark.parametrize("name", sorted(page_tables()))
def test_a_generated_table_of_the_pages_is_up_to_date(name: str) -> None:
    assert generated(name) == page_tables()[name], f"run {GENERATE}"


def test_every_setting_of_a_stage_is_explained() -> None:
    explained = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in generated("stage")[2:]))
    assert sorted(explained) == sorted(each.name for each in fields(Stage) if each.name != "name")


def commands() -> list[str]:
    """Every line of every block of commands, those that go on joined."""
    blocks = [block for place in SECTIONS for block in re.findall(r"```sh\n(.*?)^```", section(*place), re.S | re.M)]
    return "".join(blocks).replace("\\\n", " ").splitlines()


def test_every_variable_that_the_pages_use_is_an_output() -> None:
    used = set(re.findall(r"\$\{?([A-Z_]+)", "\n".join(commands())))
    assert used
    assert used <= {output.variable for output in OUTPUTS}


def test_every_make_command_is_a_call_of_infra_deploy_that_is_run_on_a_stand_in() -> None:
    """With a good stage, in words that make hands on as they are."""
    story = (ROOT / "tests" / "infra" / "test_deployment.py").read_text()
    verbs = set()
    for command in re.findall(r"\bmake ([^)\n]+)", "\n".join(commands())):
        dry = ["make", "--no-print-directory", "-n", *shlex.split(command)]
        printed = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout
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
    for place in SECTIONS:
        blocks = re.findall(r"([^\n]*)\n```sh\n", section(*place))
        assert all(re.match(r"<!-- (tested|needs an account): .+ -->$", before) for before in blocks), blocks


def test_the_idle_cost_adds_up() -> None:
    page = (DOCS / "operate" / "costs.md").read_text()
    table = page.partition("| what | arithmetic | USD a month |")[2].partition("\n\n")[0]
    lines = [float(line.split("|")[3]) for line in table.splitlines()[2:] if line.startswith("|")]
    stated = re.search(r"costs about (\d+) US dollars a month", page)
    assert stated is not None
    assert round(sum(lines)) == int(stated[1])
    assert lines[0] == round(2 * (0.5 * 0.04048 + 2 * 0.004445) * 730, 2)
    assert lines[1] == round(2 * 0.005 * 730, 2)
    alarms = sum(line.startswith("## ") for line in generated("alarms"))
    assert f" {alarms} alarms x 0.10" in table
