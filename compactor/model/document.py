"""The base of every document that processes exchange: parsed strictly, frozen, always rendered the same way."""

from typing import Self

from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from compactor.model.errors import Corrupt, Outdated

_OF_NEWER_RELEASES = frozenset({"enum", "extra_forbidden", "literal_error", "union_tag_invalid"})
"""Pydantic's error types for a field, an action or an enum value that a newer release has added."""

_ABSENT = object()


class Document(BaseModel):
    """A frozen value with a published JSON form. Unknown fields are refused, strings are never converted to numbers.

    Floats are finite: JSON has no others, so a document with NaN could be written but not read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def render(self) -> bytes:
        """The document as compact JSON, UTF-8. Equal documents render to equal bytes."""
        return self.model_dump_json().encode()

    @classmethod
    def from_facts(cls, *facts: object, **own: object) -> Self:
        """A projection of facts, such as a log's action: each field that is not given is that of the first fact that
        has one of its name."""
        for name in cls.model_fields.keys() - own.keys():
            for fact in facts:
                if (value := getattr(fact, name, _ABSENT)) is not _ABSENT:
                    own[name] = value
                    break
        return cls.model_validate(own)

    @classmethod
    def parse_durable(cls, body: bytes, where: str) -> Self:
        """A document that Lithify itself wrote at `where`. Raises `Outdated` if a newer release did, `Corrupt` if it is
        not what it must be."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise not_understood(error, where, "what Lithify writes there") from error


class SparseDocument(Document):
    """A document whose JSON leaves out fields at their default: who does not know a field can read all without it."""

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        rendered: dict[str, JsonValue] = handler(self)
        fields = type(self).model_fields
        return {name: value for name, value in rendered.items() if getattr(self, name) != fields[name].default}


def not_understood(error: ValidationError, where: str, expected: str) -> Corrupt | Outdated:
    """The error for an object at `where`, written by Lithify, that cannot be read as `expected`."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    damages = [each for each in found if each["type"] not in _OF_NEWER_RELEASES]
    first = damages[0] if damages else found[0]
    place = ".".join(map(str, first["loc"]))
    reason = f"{place}: {first['msg']}" if place else first["msg"]
    return Corrupt(f"{where} does not hold {expected}: {reason}") if damages else written_by_newer(where, reason)


def written_by_newer(where: str, reason: str) -> Outdated:
    return Outdated(f"{where} was written by a newer release of Lithify, upgrade this one to read it ({reason})")
