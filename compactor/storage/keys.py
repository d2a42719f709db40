"""Keys of objects: how a text is encoded in one, and templates that render a key and parse it.

Each owner of objects lists its keys in a `keys.py` of its own, one class each:

    class TaskToken(Key, template="task_tokens/{job_run_id}/{message_id}"):
        job_run_id: str
        message_id: str

    TaskToken("orders", "m1").key == "task_tokens/orders/m1"
    TaskToken.parse("task_tokens/orders/m1") == TaskToken("orders", "m1")
    TaskToken.prefix("orders") == "task_tokens/orders/"

In a template, `{field}` is a field, `{field.name}` a field of a field, `{number:020}` a number with 20 digits, and
`[-{field}]` is left out where the field is None. Only what a template renders can be parsed, and parsing returns the
same value: `007` is no number, and a name that encoding does not return is none.

Ids and partition values are data. They are percent-encoded as UTF-8, except `A-Z a-z 0-9 _ - .`; a leading `.` is
encoded. So none can be `..` or contain a `/`, and most are readable. The empty text is `%`. An encoded text that is
longer than a file name may be has its other dots encoded too, and continues in the next path part: every part but the
last ends with `~`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import quote, unquote

from compactor.model.errors import Invalid

PART_BYTES_MAX = 200
"""The longest path part of an encoded text; common file systems allow 255 bytes."""

NAMES_KEPT = 4_096
"""Encoded names that a process keeps: the keys of one session have its table's and its partition's again and again."""

_PLAIN_TEXT = "[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_PLAIN = re.compile(_PLAIN_TEXT)
_PLAIN_PAIRS = re.compile(f"{_PLAIN_TEXT}={_PLAIN_TEXT}(?:,{_PLAIN_TEXT}={_PLAIN_TEXT})*")
"""Texts that are their own names, as most are, are told faster than they are quoted."""

_CONTINUES = "~"
_EMPTY = "%"
_UNPARTITIONED = "_"
_NAME = rf"(?:[^/]*{_CONTINUES}/)*[^/]*[^/{_CONTINUES}]"

ValueT = TypeVar("ValueT")
KeyT = TypeVar("KeyT", bound="Key")


def encode(text: str) -> str:
    """A text as path parts without special meaning for a store. Raises `Invalid` if it is not Unicode."""
    return split_name(quote_text(text))


def decode(encoded: str) -> str:
    """The inverse of `encode`. Raises `Invalid` for anything that `encode` does not return."""
    text = unquote_text(join_name(encoded))
    if encode(text) != encoded:
        raise Invalid(f"{encoded!r} is not an encoded name")
    return text


def encode_partition(partition: Mapping[str, str]) -> str:
    """`key=value` pairs in the table's key order, joined with `,`; `_` for a table without partition keys."""
    pairs = (f"{quote_text(key)}={quote_text(value)}" for key, value in partition.items())
    return split_name(",".join(pairs) or _UNPARTITIONED)


def decode_partition(encoded: str) -> dict[str, str]:
    """The inverse of `encode_partition`. Raises `Invalid` for anything else."""
    if len(encoded) <= PART_BYTES_MAX and _PLAIN_PAIRS.fullmatch(encoded):
        pairs = encoded.split(",")
        plain = dict(pair.split("=") for pair in pairs)
        if len(plain) == len(pairs):
            return plain
    joined = join_name(encoded)
    partition: dict[str, str] = {}
    if joined != _UNPARTITIONED:
        for pair in joined.split(","):
            key, _, value = pair.partition("=")
            partition[unquote_text(key)] = unquote_text(value)
    if encode_partition(partition) != encoded:
        raise Invalid(f"{encoded!r} is not an encoded partition")
    return partition


def continues(part: str) -> bool:
    """Whether the encoded text continues in the next path part."""
    return part.endswith(_CONTINUES)


@lru_cache(maxsize=NAMES_KEPT)
def quote_text(text: str) -> str:
    """A text in one part, of any length, without `,` and `=`. Raises `Invalid` if it is not Unicode."""
    if _PLAIN.fullmatch(text):
        return text
    try:
        # quote() keeps `~`, which has a special meaning here.
        encoded = quote(text, safe="").replace("~", "%7E") or _EMPTY
        return "%2E" + encoded[1:] if encoded.startswith(".") else encoded
    except UnicodeEncodeError as error:
        raise Invalid(f"{text!r} is not Unicode text, so it cannot name anything") from error


def unquote_text(quoted: str) -> str:
    """The inverse of `quote_text`. Raises `Invalid` for bytes that are not UTF-8."""
    if "%" not in quoted:
        return quoted
    if quoted == _EMPTY:
        return ""
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError as error:
        raise Invalid(f"{quoted!r} is not UTF-8 behind its percent signs") from error


def split_name(quoted: str) -> str:
    """What is quoted, as path parts that are no longer than a file name may be."""
    if len(quoted) <= PART_BYTES_MAX:
        return quoted
    # No later part may begin with a dot either.
    quoted = quoted.replace(".", "%2E")
    starts = range(0, len(quoted), PART_BYTES_MAX)
    return f"{_CONTINUES}/".join(quoted[start : start + PART_BYTES_MAX] for start in starts)


def join_name(parts: str) -> str:
    """The inverse of `split_name`."""
    return parts.replace(f"{_CONTINUES}/", "")


@dataclass(frozen=True)
class Spelling(Generic[ValueT]):
    """How the values of a field are written in a key. `pattern` fits each of them whole; `parse` may raise `Invalid`.
    It annotates the field's type: `Annotated[str, spelled("[0-9a-f]+")]`."""

    pattern: str
    render: Callable[[ValueT], str]
    parse: Callable[[str], ValueT]


def spelled(pattern: str) -> Spelling[str]:
    """Texts that are in the key as they are."""
    return Spelling(pattern, str, str)


Hex = Annotated[str, spelled("[0-9a-f]+")]
"""Hexadecimal digits, such as a fresh id has."""


@lru_cache(maxsize=NAMES_KEPT)
def _encode_items(items: tuple[tuple[str, str], ...]) -> str:
    return encode_partition(dict(items))


PartitionItems = Annotated[
    tuple[tuple[str, str], ...],
    Spelling[tuple[tuple[str, str], ...]](_NAME, _encode_items, lambda text: tuple(decode_partition(text).items())),
]
"""A partition's values by key, in the order of the table's partition keys."""


@dataclass_transform(frozen_default=True)
class Key:
    """The key of an object, or a part of one. A subclass is a frozen dataclass whose fields are those of its
    template: numbers, texts, partitions, and values with a `Spelling`."""

    template: ClassVar[Template[Any]]

    def __init_subclass__(cls, *, template: str) -> None:
        dataclass(frozen=True)(cls)
        cls.template = Template(template, cls)

    @property
    def key(self) -> str:
        return self.template.render(self)

    @classmethod
    def parse(cls, key: str) -> Self:
        """Raises `Invalid` for a key that the template does not render."""
        parsed: Self = cls.template.parse(key)
        return parsed

    @classmethod
    def parse_or_none(cls, key: str) -> Self | None:
        """None: the template does not render it."""
        try:
            return cls.parse(key)
        except Invalid:
            return None

    @classmethod
    def prefix(cls, *first: str) -> str:
        """What all keys begin with whose first fields have these values."""
        return cls.template.prefix(first)


def parse_any(key: str, kinds: Sequence[type[KeyT]]) -> KeyT | None:
    """The key as one of these kinds; None: it is of none of them."""
    return next((found for kind in kinds if (found := kind.parse_or_none(key)) is not None), None)


@dataclass(frozen=True)
class _Field:
    """`before` and `after`: what is left out with a field that is None; empty where a field always has a value."""

    name: str
    spelling: Spelling[Any]
    is_optional: bool
    before: str
    after: str

    def render(self, value: object) -> str:
        return "" if value is None and self.is_optional else f"{self.before}{self.spelling.render(value)}{self.after}"

    @property
    def pattern(self) -> str:
        whole = f"{re.escape(self.before)}({self.spelling.pattern}){re.escape(self.after)}"
        return f"(?:{whole})?" if self.is_optional else whole


_PIECE = re.compile(
    r"\{(?P<name>[a-z_.]+)(?::0(?P<width>\d+))?\}"
    r"|\[(?P<before>[^\[\]{}]*)\{(?P<optional>[a-z_.]+)\}(?P<after>[^\[\]{}]*)\]"
    r"|[^\[\]{}]+"
)


@dataclass(frozen=True)
class Template(Generic[KeyT]):
    """A template's text, for a class whose fields it has. The types of the fields are looked up when it is first used,
    since the class may be above those it names."""

    text: str
    of: type[KeyT]

    def __str__(self) -> str:
        return self._for_people

    @cached_property
    def _for_people(self) -> str:
        """`tables/<table id>/log`."""
        return re.sub(r"\{(?:\w+\.)?(\w+)(?::\d+)?\}", lambda field: f"<{field[1].replace('_', ' ')}>", self.text)

    def render(self, value: Key) -> str:
        return "".join([piece if isinstance(piece, str) else piece.render(get(value)) for piece, get in self._pieces])

    def prefix(self, first: Sequence[str]) -> str:
        rest, found = iter(first), ""
        for piece, _ in self._pieces:
            if isinstance(piece, str):
                found += piece
            else:
                value = next(rest, None)
                if value is None:
                    break
                found += piece.render(value)
        return found

    def parse(self, key: str) -> KeyT:
        match = self._pattern.fullmatch(key)
        if match is None:
            raise Invalid(f"{key!r} is not a key like {self}")
        values: dict[str, Any] = {}
        for field, text in zip(self._fields, match.groups(), strict=True):
            outer, _, inner = field.name.partition(".")
            value = None if text is None else field.spelling.parse(text)
            if inner:
                values.setdefault(outer, {})[inner] = value
            else:
                values[outer] = value
        parsed = self.of(
            **{name: self._types[name](**value) if isinstance(value, dict) else value for name, value in values.items()}
        )
        # A number has one spelling: `007` fits the pattern, but no key has it.
        if self.render(parsed) != key:
            raise Invalid(f"{key!r} is not a key like {self}")
        return parsed

    @cached_property
    def _types(self) -> Mapping[str, Any]:
        return get_type_hints(self.of, include_extras=True)

    @cached_property
    def _pieces(self) -> tuple[tuple[str | _Field, Callable[[Any], Any]], ...]:
        return tuple(self._read())

    @cached_property
    def _fields(self) -> tuple[_Field, ...]:
        return tuple(piece for piece, _ in self._pieces if not isinstance(piece, str))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pieces = (re.escape(piece) if isinstance(piece, str) else piece.pattern for piece, _ in self._pieces)
        return re.compile("".join(pieces))

    def _read(self) -> Iterator[tuple[str | _Field, Callable[[Any], Any]]]:
        for found in _PIECE.finditer(self.text):
            name = found["name"] or found["optional"]
            if name is None:
                yield found[0], lambda value: value
            else:
                spelling = _spelling_of(self.of, name, found["width"])
                is_optional = found["optional"] is not None
                field = _Field(name, spelling, is_optional, found["before"] or "", found["after"] or "")
                yield field, attrgetter(name)


def _spelling_of(owner: type, name: str, width: str | None) -> Spelling[Any]:
    outer, _, inner = name.partition(".")
    hint = get_type_hints(owner, include_extras=True)[outer]
    if inner:
        return _spelling_of(hint, inner, width)
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if hint is str:
        return Spelling(_NAME, encode, decode)
    if hint is int:
        return Spelling("[0-9]+", str, int) if width is None else _padded(int(width))
    spelling: Spelling[Any] = hint.__metadata__[0]
    return spelling


def _padded(width: int) -> Spelling[int]:
    return Spelling(f"[0-9]{{{width}}}", lambda number: f"{number:0{width}d}", int)
