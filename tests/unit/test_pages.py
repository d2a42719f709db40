"""What pages and docstrings say of files, options and models is true of the tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.clients import OPTIONS_FROM_ENVIRONMENT
from dispatcher.options.service_options import option_fields
from tests.pages import paper_figures, speed
from tests.pages.reference import GENERATED, verb_options
from tests.pages.sources import DOCS, GENERATE, README, ROOT, generated, generated_names, pages

PACKAGES = ("compactor", "dispatcher", "infra", "launcher", "tests")
BY_HAND = ("ARCHITECTURE.md", "CONTRIBUTING.md", "compactor/catalog/FORMAT.md")
OTHERS_OPTIONS = {
    *("--build-arg", "--file", "--tag", "--username", "--password-stdin", "--region", "--topic-arn", "--protocol"),
    *("--notification-endpoint", "--attributes", "--aws-service-name", "--database-input", "--yes", "--help"),
    *("--platform", "--queue-name", "--name", "--version", "--bucket", "--notification-configuration"),
    *("--document-name", "--family", "--parameters", "--query", "--target", "--tasks"),
}
"""Of Docker and AWS's command line, and of `make`."""
OF_THE_SERVICE = {"task_token", "task_token_file", "execution_arn", "log_format", "log_level"}
"""Variables of a process that are no options."""

_PATH = re.compile(r"`((?:[a-z_]+/)+[A-Za-z_]+(?:\.(?:py|md|json|toml|properties))?|[a-z_]+\.(?:py|md))/?`")


def _exists(path: str, near: Path) -> bool:
    """From the root, from a package's root, or beside whoever names it."""
    places = (ROOT, *(ROOT / package for package in PACKAGES), near, *near.parents)
    return any((place / path).exists() for place in places)


def _paths(text: str) -> list[str]:
    return [path for path in _PATH.findall(text) if path.partition("/")[0] in PACKAGES or path.endswith(".py")]


@pytest.mark.parametrize("page", BY_HAND)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    named = _paths((ROOT / page).read_text())
    assert named, "the page names no path: does the pattern still find them?"
    assert [path for path in named if not _exists(path, (ROOT / page).parent)] == []


def test_every_path_that_the_documentation_names_exists() -> None:
    """But for decisions, which tell what there was on their day."""
    named = [
        (page.relative_to(ROOT), path)
        for page in pages()
        if page.parent.name != "decisions"
        for path in _paths(page.read_text())
    ]
    assert named
    assert [each for each in named if not _exists(each[1], ROOT)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_path_that_a_docstring_names_exists(package: str) -> None:
    missing = []
    for module in sorted((ROOT / package).rglob("*.py")):
        source = module.read_text()
        if not _paths(source):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node) or ""
                missing += [
                    (str(module.relative_to(ROOT)), path)
                    for path in _paths(docstring)
                    if not _exists(path, module.parent)
                ]
    assert missing == []


# ----------------------------------------------------------------------------------------------------------- generated


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_generated_is_up_to_date(name: str) -> None:
    assert generated(name) == list(GENERATED[name]()), f"run {GENERATE}, or python -m tests.pages"


def test_the_picture_of_speed_is_up_to_date() -> None:
    assert speed.PICTURE.read_text() == speed.picture(), f"run {GENERATE}, or python -m tests.pages"


def test_the_pictures_of_the_paper_s_figures_are_up_to_date() -> None:
    drawn = paper_figures.pictures()
    stale = [name for name, text in drawn.items() if (DOCS / "pictures" / name).read_text() != text]
    assert drawn
    assert stale == [], f"run {GENERATE}, or python -m tests.pages"


def test_every_place_has_its_generator() -> None:
    """Those that need the CDK are compared in tests/infra."""
    assert sorted(generated_names()) == sorted([*GENERATED, "alarms", "permissions", "stage", "teardown"])


def test_the_reference_has_nothing_but_what_is_generated() -> None:
    """Each page has one generated place; around it are a few sentences."""
    for page in DOCS.joinpath("reference").glob("*.md"):
        text = page.read_text()
        assert len(re.findall(r"^<!-- generated: ", text, re.M)) == 1, page.name


# --------------------------------------------------------------------------------------------------------------- pages


def _links() -> Iterator[tuple[Path, str]]:
    for page in pages():
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
        for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text):
            yield page, link


def test_every_link_of_a_page_leads_to_a_file() -> None:
    found = list(_links())
    assert found
    assert [(page.relative_to(ROOT), link) for page, link in found if not (page.parent / link).is_file()] == []


def test_every_page_is_found_from_the_navigation() -> None:
    """Decisions by their table."""
    named = {DOCS / page for page in re.findall(r'"([a-z/-]+\.md)"', (ROOT / "zensical.toml").read_text())}
    linked = {(page.parent / link).resolve() for page, link in _links()}
    assert named
    assert [page for page in pages() if page != README and page not in named | linked] == []


def test_every_option_that_a_page_names_is_one() -> None:
    """But for decisions, which tell what there was on their day."""
    known = {*(each.flag for each in option_fields()), *verb_options(), *OTHERS_OPTIONS}
    unknown = {
        (str(page.relative_to(ROOT)), option)
        for page in pages()
        if page.parent.name != "decisions"
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+(?![\w-])", page.read_text())
        if option not in known
    }
    assert unknown == set()


def test_every_variable_that_a_page_names_is_read() -> None:
    named = {name.lower() for page in pages() for name in re.findall(r"LITHIFY_(\w+)", page.read_text())}
    assert named
    assert named <= {*OPTIONS_FROM_ENVIRONMENT, *OF_THE_SERVICE}


def test_readme_is_one_screen_and_shows_python_at_once() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 100
    assert len(text.encode()) <= 8_192
    assert "```python" in text.splitlines()[:25]


def test_the_map_of_the_house_stays_a_map() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


def test_every_target_of_make_is_in_a_group_of_its_help() -> None:
    explained = re.findall(r"^([a-z0-9.-]+):.*## (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert len(explained) > 20
    assert [name for name, text in explained if not text.startswith(("use: ", "develop: ", "release: ", "AWS: "))] == []
