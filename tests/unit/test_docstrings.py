"""Docstrings explain parameters and fields in Google's sections, which editors and documentation tools render."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE_ROW = re.compile(r"^\w+(?:, \w+)* {2,}\S", re.M)


@pytest.mark.parametrize("package", ["lithify", "compactor", "launcher", "dispatcher", "infra"])
def test_no_docstring_of_a_class_or_a_function_explains_names_in_two_columns(package: str) -> None:
    documented = 0
    found = []
    for module in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node) or ""
                documented += bool(docstring)
                found += [f"{module}:{node.lineno}: {row}" for row in TABLE_ROW.findall(docstring)]
    assert found == []
    assert documented or package == "lithify"
