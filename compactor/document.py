"""The base of every document that crosses a process: parsed strictly, frozen, rendered the same way every time."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from compactor.errors import Corrupt


class Document(BaseModel):
    """A frozen value with a published JSON form. Unknown fields are refused, numbers are never made from strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def render(self) -> bytes:
        """The document as compact JSON, UTF-8. Equal documents render to equal bytes."""
        return self.model_dump_json().encode()

    @classmethod
    def parse_durable(cls, body: bytes, where: str) -> Self:
        """A document that Lithify itself wrote at `where`. Raises `Corrupt` if it is not what it must be."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise Corrupt(f"{where} does not hold a {cls.__name__}: {error}") from error
