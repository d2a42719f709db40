"""How a table's feed is written: property `changes`, or the arguments of one call."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from compactor.model.document import Document
from compactor.model.errors import Invalid
from compactor.model.wrong_input import json_of, sentences

UPSERTS = ("i", "u", "c", "r", "insert", "update", "create", "read", "load", "upsert", "+i", "+u", "update_postimage")
DELETES = ("d", "delete", "-d")
IMAGES_BEFORE = ("-u", "update_preimage")
"""Words of feeds for what a change does, in small letters: DMS, Debezium, Delta Lake's change data feed, Flink."""


class FeedFormat(StrEnum):
    """`ops`: any data files with a column that says what each row does; `dms`: CSV and Parquet of AWS DMS; `debezium`:
    JSON lines, as envelopes with or without their schema, or flattened; `maxwell`, `canal`: JSON lines of MySQL's
    binlog."""

    OPS = "ops"
    DMS = "dms"
    DEBEZIUM = "debezium"
    MAXWELL = "maxwell"
    CANAL = "canal"


OF_ROWS = (FeedFormat.OPS, FeedFormat.DMS)
"""Formats of flat rows; the others are JSON lines."""


class Feed(Document):
    """The form of a change feed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    format: FeedFormat = Field(description="`ops`, `dms`, `debezium`, `maxwell` or `canal`")
    column: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="of `ops`: the column that says what each row does; by default `op`"
    )
    upserts: tuple[str, ...] = Field(
        default=UPSERTS, description="of `ops`: its values for rows that are there after the change, in any case"
    )
    deletes: tuple[str, ...] = Field(default=DELETES, description="of `ops`: its values for rows that are gone")
    skips: tuple[str, ...] = Field(
        default=IMAGES_BEFORE,
        description="of `ops`: its values for the image before an update, which is left out, but where a row has moved "
        "to another partition: it is deleted where it was",
    )
    order: tuple[str, ...] = Field(
        default=(),
        description="columns by which the changes of one batch are in order, if the table has no sort keys",
    )
    keys_are_global: bool = Field(
        default=False,
        description="a key has one row in all partitions, and its changes do not say where it was: it is looked up",
    )
    columns: dict[str, str] = Field(
        default={}, description="names of columns in the feed, and those that they have in the table"
    )
    without: tuple[str, ...] = Field(
        default=(),
        description="columns of the feed that are left out, such as one that the source has dropped: no update needs "
        "them, and rows have null there",
    )

    @property
    def columns_left_out(self) -> tuple[str, ...]:
        """Their names in the table."""
        return tuple(self.columns.get(name, name) for name in self.without)

    def reason_against_default_partition(self, default_partition: str | None) -> str | None:
        """Why a move out of the default partition could not be seen: in an image before a change null also means *not
        sent*. MySQL's feeds name what has changed, null or not."""
        if default_partition is None or self.keys_are_global or self.format is not FeedFormat.DEBEZIUM:
            return None
        return (
            f"a row of default_partition {default_partition!r} has null in its partition column, and in a "
            f"{self.format.value} feed null before a change also means that the column was not sent, so its row would "
            "stay when it moves: set keys_are_global in the feed, too, or leave default_partition out"
        )

    @model_validator(mode="after")
    def _check_column(self) -> Self:
        if self.format is not FeedFormat.OPS and self.column is not None:
            raise ValueError(
                "column is of a feed of format ops, which names the column that says what each row does: "
                f"a feed of format {self.format.value} says that itself"
            )
        said = ({each.casefold() for each in given} for given in (self.upserts, self.deletes, self.skips))
        words = [word for given in said for word in given]
        unclear = {word for word in words if words.count(word) > 1}
        if unclear:
            raise ValueError(f"upserts, deletes and skips have {', '.join(sorted(unclear))} in common, in any case")
        twice = {name for name in self.columns.values() if [*self.columns.values()].count(name) > 1}
        if twice:
            raise ValueError(f"columns: two columns of the feed would be called {', '.join(sorted(twice))}")
        return self


def feed_in_log_form(value: object) -> object:
    """A feed as users write it: the name of a format, or JSON."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("{"):
        return {"format": value}
    try:
        return json_of(value, "changes")
    except ValueError:
        return value


def parse_feed(given: object) -> Feed:
    """Raises `Invalid`, with every reason."""
    try:
        return Feed.model_validate(feed_in_log_form(given))
    except ValidationError as error:
        raise Invalid(*sentences(error, Feed, "feed")) from error
