"""Tables of tens of thousands of columns: what is done for each column does not visit all of them again."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TypeGuard

import compactor

_LOOPS = (ast.For, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def test_no_loop_searches_the_list_of_column_names() -> None:
    """`name in schema.names` builds the list of all names each time: a loop over columns takes the square of them.
    `names = set(schema.names)` before the loop, or `schema.get_field_index(name)`, does not."""
    package = Path(compactor.__file__).parent
    found = [
        f"{path.relative_to(package.parent)}:{line}"
        for path in sorted(package.rglob("*.py"))
        for line in _searches_in_loops(ast.parse(path.read_text()))
    ]
    assert found == []


def _searches_in_loops(module: ast.Module) -> list[int]:
    loops = [node for node in ast.walk(module) if isinstance(node, _LOOPS)]
    return sorted(
        {each.lineno for loop in loops for part in _repeated(loop) for each in ast.walk(part) if _searches(each)}
    )


def _repeated(loop: ast.AST) -> list[ast.AST]:
    """The parts of a loop that run once for each element, so not what it iterates over."""
    if isinstance(loop, ast.For):
        return list(loop.body)
    first, *others = loop.generators  # type: ignore[attr-defined]
    elements = [loop.key, loop.value] if isinstance(loop, ast.DictComp) else [loop.elt]  # type: ignore[attr-defined]
    return [*elements, *first.ifs, *others]


def _searches(node: ast.AST) -> TypeGuard[ast.Call | ast.Compare]:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "count" and _are_names(node.func.value)
    return isinstance(node, ast.Compare) and any(
        isinstance(operator, ast.In | ast.NotIn) and _are_names(listed)
        for operator, listed in zip(node.ops, node.comparators, strict=True)
    )


def _are_names(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "names"
