"""Documents that an option gives: JSON as text, or the name of a file that holds it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from compactor.model.errors import Invalid
from dispatcher.scheduling.limits import Limits


def document_body(given: str, what: str) -> tuple[bytes, str]:
    """The document, and its name in reasons: the file's, or `what`. Raises `Invalid` if it cannot be read."""
    if given.lstrip().startswith("{"):
        return given.encode(), what
    try:
        return Path(given).read_bytes(), given
    except OSError as error:
        raise Invalid(f"{what} {given} cannot be read: {error.strerror}".lstrip()) from error


def read_limits(given: str) -> Limits:
    """Raises `Invalid` with every violation and its correction; those of a file begin with its name."""
    body, where = document_body(given, "")
    try:
        return Limits.model_validate_json(body)
    except ValidationError as error:
        prefix = f"{where}: " if where else ""
        raise Invalid(*(f"{prefix}{_sentence(found)}" for found in error.errors(include_url=False))) from error


def _sentence(found: ErrorDetails) -> str:
    path = ".".join(str(part) for part in found["loc"])
    match found["type"]:
        case "extra_forbidden":
            return f"{path}: there is no such field{_suggestion([str(part) for part in found['loc']])}"
        case "json_invalid":
            return f"it is not JSON ({found['msg']})"
        case _:
            return f"{path or 'it'} is {found['input']!r}: it must be {found['msg'].removeprefix('Input should be ')}"


def _suggestion(path: Sequence[str]) -> str:
    if path == ["dispatcher", "sessions"]:
        return ": write --max-sessions"
    shares = Limits.model_fields
    fields = list(shares if len(path) == 1 else getattr(Limits(), path[0]).__class__.model_fields)
    near = difflib.get_close_matches(path[-1], fields, n=1)
    return f"; did you mean {near[0]!r}?" if near else f": it takes {', '.join(fields)}"
