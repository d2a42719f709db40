"""Documents that an option gives: JSON as text, or the name of a file that holds it."""

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from compactor.model.errors import Invalid
from compactor.model.wrong_input import json_of, sentences
from dispatcher.scheduling.limits import Limits

_OF_SESSIONS = "dispatcher.sessions: "
"""A limit that there is not in the document: an option has it."""


def document_body(given: str, what: str) -> tuple[bytes, str]:
    """The document, and its name in reasons: the file's, or `what`. Raises `Invalid` if it cannot be read, or has a
    field more than once."""
    if given.lstrip().startswith("{"):
        body, where = given.encode(errors="surrogatepass"), what
    else:
        try:
            body, where = Path(given).read_bytes(), given
        except OSError as error:
            raise Invalid(f"{what} {given} cannot be read: {error.strerror}".lstrip()) from error
    with suppress(ValueError):  # whoever parses it says what is wrong
        json_of(body, where)
    return body, where


def secret_in(file: Path, option: str) -> str:
    """Raises `Invalid` for a file that cannot be read, or that holds none."""
    try:
        secret = file.read_text().strip()
    except OSError as error:
        raise Invalid(f"{option} {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise Invalid(f"{option} {file} cannot be read: it is no text") from None
    if not secret:
        raise Invalid(f"{option} {file} is empty")
    return secret


def read_limits(given: str, option: str = "") -> Limits:
    """Raises `Invalid` with every violation and its correction, after the name of the file, or of the option."""
    body, where = document_body(given, option)
    try:
        return Limits.model_validate_json(body)
    except ValidationError as error:
        prefix = f"{where}: " if where else ""
        raise Invalid(*(f"{prefix}{reason}{_instead(reason)}" for reason in sentences(error, Limits))) from error


def _instead(reason: str) -> str:
    return "; write --max-sessions" if reason.startswith(_OF_SESSIONS) else ""
