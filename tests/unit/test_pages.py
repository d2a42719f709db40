"""What pages and docstrings say of files is true of the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "DECISIONS.md", "compactor/catalog/FORMAT.md")
PACKAGES = ("compactor", "dispatcher", "infra", "launcher", "tests")
ARCHITECTURE_LINES_MAX = 150

_PATH = re.compile(r"`((?:[a-z_]+/)+[A-Za-z_]+(?:\.(?:py|md|json|toml|properties))?|[a-z_]+\.(?:py|md))/?`")


def _exists(path: str, near: Path) -> bool:
    """From the root, from a package's root, or beside whoever names it."""
    places = (ROOT, *(ROOT / package for package in PACKAGES), near, *near.parents)
    return any((place / path).exists() for place in places)


def _paths(text: str) -> list[str]:
    return [path for path in _PATH.findall(text) if path.partition("/")[0] in PACKAGES or path.endswith(".py")]


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    named = _paths((ROOT / page).read_text())
    assert named, "the page names no path: does the pattern still find them?"
    assert [path for path in named if not _exists(path, (ROOT / page).parent)] == []


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


def test_the_map_of_the_house_stays_a_map() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= ARCHITECTURE_LINES_MAX


def test_every_target_of_make_is_in_a_group_of_its_help() -> None:
    explained = re.findall(r"^([a-z0-9.-]+):.*## (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert len(explained) > 20
    assert [name for name, text in explained if not text.startswith(("use: ", "develop: ", "release: ", "AWS: "))] == []
