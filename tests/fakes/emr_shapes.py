"""Requests and answers of the fake EMR, by botocore's own model of the service: what boto3 sends.

botocore validates types, required members and lower bounds. Enums, upper bounds and patterns, which only the service
itself checks, are read from the same model here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator

Json: TypeAlias = Any
"""What a JSON document holds; the model says what it must be."""


class Refused(Exception):
    """The service refuses a request: with this error code, message and HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


def service_model(name: str) -> ServiceModel:
    model: ServiceModel = botocore.session.get_session().get_service_model(name)
    return model


def check_request(operation: OperationModel, request: Mapping[str, Any]) -> None:
    """Raises `Refused` with every violation of the model."""
    shape = operation.input_shape
    assert shape is not None
    report = ParamValidator().validate(dict(request), shape)
    found = [report.generate_report()] if report.has_errors() else list(_beyond_types(shape, request, "request"))
    if found:
        raise Refused("ValidationException", "; ".join(found))


def check_answer(operation: OperationModel, answer: Mapping[str, Any]) -> None:
    """Checks the fake's own answers by the same model: a field that the service lacks is an error of the fake."""
    shape = operation.output_shape
    if shape is None:
        assert not answer
        return
    report = ParamValidator().validate(dict(answer), shape)
    found = [report.generate_report()] if report.has_errors() else list(_beyond_types(shape, answer, "answer"))
    assert not found, found


def rendered(value: Json) -> Json:
    """As JSON: times are seconds since the epoch."""
    match value:
        case dict():
            return {name: rendered(each) for name, each in value.items()}
        case list() | tuple():
            return [rendered(each) for each in value]
        case datetime():
            return value.timestamp()
        case _:
            return value


def time_of(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _beyond_types(shape: Shape, value: Json, path: str) -> Iterator[str]:
    match shape.type_name:
        case "structure":
            for name, each in value.items():
                yield from _beyond_types(shape.members[name], each, f"{path}.{name}")  # type: ignore[attr-defined]
        case "list":
            yield from _too_long(shape, value, path)
            for number, each in enumerate(value):
                yield from _beyond_types(shape.member, each, f"{path}[{number}]")  # type: ignore[attr-defined]
        case "map":
            yield from _too_long(shape, value, path)
            for name, each in value.items():
                yield from _beyond_types(shape.value, each, f"{path}.{name}")  # type: ignore[attr-defined]
        case "string":
            yield from _too_long(shape, value, path)
            yield from _not_one_of(shape, value, path)
            yield from _no_match(shape, value, path)
        case "integer" | "long":
            maximum = shape.metadata.get("max")
            if maximum is not None and value > maximum:
                yield f"{path} is {value}: at most {maximum}"
        case _:
            pass


def _too_long(shape: Shape, value: Json, path: str) -> Iterator[str]:
    maximum = shape.metadata.get("max")
    if maximum is not None and len(value) > maximum:
        yield f"{path} has a length of {len(value)}: at most {maximum}"


def _not_one_of(shape: Shape, value: str, path: str) -> Iterator[str]:
    allowed = shape.metadata.get("enum")
    if allowed and value not in allowed:
        yield f"{path} is {value!r}: one of {', '.join(allowed)}"


def _no_match(shape: Shape, value: str, path: str) -> Iterator[str]:
    pattern = shape.metadata.get("pattern")
    # Patterns with surrogates mean something else in Java's regular expressions than in Python's.
    if pattern and "uD800" not in pattern and not re.fullmatch(pattern, value, re.DOTALL):
        yield f"{path} is {value!r}: it must match {pattern}"
