"""Tables of README whose values are pydantic models: fields of an instruction, properties of a table.

python -m tests.model_tables     writes them into README
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from compactor.catalog.properties import TableProperties
from dispatcher.intake.instruction import InstructionDocument
from tests.readme_tables import README, with_table

TABLES: Mapping[str, tuple[str, type[BaseModel]]] = {
    "instruction": ("field", InstructionDocument),
    "properties": ("property", TableProperties),
}


def model_table(name: str) -> Iterator[str]:
    """Markdown lines: a row a field, in the model's order."""
    what, model = TABLES[name]
    yield f"| {what} | meaning |"
    yield "|---|---|"
    for field, info in model.model_fields.items():
        required = "required: " if info.is_required() else ""
        yield f"| `{field}` | {required}{info.description} |"


def write() -> None:
    page = README.read_text()
    for name in TABLES:
        page = with_table(page, name, model_table(name))
    README.write_text(page)


if __name__ == "__main__":
    write()
