"""Reads instruction documents of a user: from a file, or from standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from compactor.model.errors import Invalid
from dispatcher.intake.instruction import InstructionDocument, Violations, parse_instruction


def read_document(file: str) -> str:
    """The text of a file, or of standard input for `-`. Raises `Invalid` if it cannot be read."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise Invalid(f"there is no file {file}") from error
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{file} is not UTF-8: {error}") from error


def valid_instruction(body: str) -> InstructionDocument:
    """Raises `Invalid` with every reason."""
    document = parse_instruction(body)
    if isinstance(document, Violations):
        raise Invalid(*document.reasons)
    return document
