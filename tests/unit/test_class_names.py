"""A name means one thing: no two public classes of the product share one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("lithify", "compactor", "launcher", "dispatcher", "infra")


def public_classes() -> Iterator[tuple[str, str, bool]]:
    """Of each its name, its module, and whether it extends a class of the same name: `lake.Table` is a table, with
    the reading of rows."""
    for package in PACKAGES:
        for file in sorted((REPOSITORY / package).rglob("*.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    bases = {base.attr for base in node.bases if isinstance(base, ast.Attribute)}
                    yield node.name, str(file.relative_to(REPOSITORY)), node.name in bases


def test_no_two_public_classes_share_a_name() -> None:
    modules = defaultdict(list)
    for name, module, extends_it in public_classes():
        if not extends_it:
            modules[name].append(module)
    assert len(modules) > 500
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}
