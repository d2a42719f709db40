"""Sentences about wrong input: a name that there is not, and what pydantic finds in a document."""

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import get_args

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails, from_json

from compactor.model.errors import Invalid

SHOWN_CHARACTERS_MAX = 80


def meant(name: str, known: Iterable[str], otherwise: str) -> str:
    """`; did you mean 'x'?`, or `otherwise` where no known name is similar."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else otherwise


def shown(value: object) -> str:
    """A value as JSON; a long one is cut."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[: SHOWN_CHARACTERS_MAX - 3]}..."


def sentences(
    error: ValidationError, model: type[BaseModel], whole: str = "it", show: Callable[[object], str] = shown
) -> list[str]:
    """A sentence for each finding in a document of this model, with what to write. `whole`: the document's name."""
    found = error.errors(include_url=False, include_context=False)
    return list(dict.fromkeys(_sentence(each, model, whole, show) for each in found))


def without_repeats(pairs: list[tuple[str, JsonValue]], repeated: dict[str, None]) -> dict[str, JsonValue]:
    """For `json.loads`: an object, whose fields that stand more than once are added to `repeated`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(name for name, _ in pairs)
        repeated.update((name, None) for name in found if times[name] > 1)
    return found


def json_of(text: str | bytes, name: str) -> JsonValue:
    """Raises `ValueError` for what is no JSON, or is nested more deeply than documents may be, and `Invalid` if a field
    stands more than once. `name`: of the text."""
    from_json(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
    repeated: dict[str, None] = {}
    found: JsonValue = json.loads(text, object_pairs_hook=lambda pairs: without_repeats(pairs, repeated))
    if repeated:
        raise Invalid(*(f"{name}: field {shown(field)} stands more than once".removeprefix(": ") for field in repeated))
    return found


def _sentence(found: ErrorDetails, model: type[BaseModel], whole: str, show: Callable[[object], str]) -> str:
    steps = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in found["loc"])
    where = steps.removeprefix(".") or whole
    match found["type"]:
        case "extra_forbidden":
            *outer, name = found["loc"]
            fields = _model_at(model, outer).model_fields
            return f"{where}: there is no such field{meant(str(name), fields, ': it takes ' + ', '.join(fields))}"
        case "missing":
            return f"{where} is missing"
        case "json_invalid":
            return f"{where} is not JSON ({found['msg']})"
        case "value_error":
            return f"{where}: {found['msg'].removeprefix('Value error, ')}"
        case _:
            wanted = found["msg"].removeprefix("Input should be ").replace("a valid array", "a list")
            wanted = re.sub(r"a valid dictionary( or instance of \w+)?", "a JSON object", wanted)
            return f"{where} is {show(found['input'])}: it must be {wanted}"


def _model_at(model: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    for part in path:
        field = model.model_fields.get(str(part))
        if field is not None:
            model = next(_models_in(field.annotation), model)
    return model


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)
