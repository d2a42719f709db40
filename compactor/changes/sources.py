"""The sources of a feed, and what a table takes from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from compactor.catalog.delta_files import (
    THE_DELTA,
    DeltaSource,
    absolute_uri,
    content_type_of,
    open_source,
    read_rows,
)
from compactor.catalog.feed import OF_ROWS, Feed, FeedFormat
from compactor.catalog.partition_split import Partitioning
from compactor.changes.binlog import changes_of_canal, changes_of_maxwell
from compactor.changes.change_batch import ChangeBatch, FeedColumns
from compactor.changes.conversion import refuse_wrong_text
from compactor.changes.debezium import changes_of_debezium
from compactor.changes.dms_csv import DmsTexts, read_dms_csv
from compactor.changes.ops import changes_of_dms, changes_of_rows
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation
from compactor.tabular import read_bytes


@dataclass(frozen=True)
class FeedSource:
    """What one file holds, or Arrow data: rows, of which some may have values of other types, or text that the feed
    parses."""

    source_name: str
    content: pa.Table | DmsTexts | bytes

    def rows_or_text(self) -> pa.Table | bytes:
        """Raises `ChangesRefused` with the rows of values that are not of their column's type."""
        return self.content.converted(self.source_name) if isinstance(self.content, DmsTexts) else self.content


def open_feed(
    location: StoreLocation,
    source: DeltaSource,
    feed: Feed,
    schema: pa.Schema | None,
    fallback: ContentType | None = None,
) -> list[FeedSource]:
    """In the order of their changes. `schema`: types for the columns of text files; `fallback`: the format of files
    whose names do not say it."""
    opened = open_source(source)
    if not isinstance(opened, list):
        if feed.format not in OF_ROWS:
            raise Invalid(f"a feed of format {feed.format.value} is JSON lines: give files")
        return [FeedSource(THE_DELTA, read_rows(location, opened))]
    return [_open_file(location, absolute_uri(each), feed, schema, fallback) for each in opened]


def _open_file(
    location: StoreLocation, uri: str, feed: Feed, schema: pa.Schema | None, fallback: ContentType | None
) -> FeedSource:
    if feed.format not in OF_ROWS:
        content_type = content_type_of(uri, ContentType.JSON)
        if content_type is not ContentType.JSON:
            raise Invalid(
                f"{uri} is {content_type.value}, and a feed of format {feed.format.value} is JSON lines: write its "
                "changes so, or, if a column of flat rows says what each does, append it as a feed of format ops"
            )
        return FeedSource(uri, read_bytes(location, uri))
    if feed.format is FeedFormat.DMS and content_type_of(uri, fallback) is ContentType.CSV:
        return FeedSource(uri, read_dms_csv(read_bytes(location, uri), schema, uri, feed.without))
    return FeedSource(uri, read_rows(location, [uri], schema, fallback))


@dataclass(frozen=True)
class ChangeReader:
    """What a table takes from a feed.

    Attributes:
        schema: the table's, if it has one
        sort_keys: what orders the changes of a key in a batch"""

    feed: Feed
    schema: pa.Schema | None
    partitioning: Partitioning
    primary_keys: Sequence[str]
    sort_keys: Sequence[SortKey]

    @property
    def sort_columns(self) -> list[str]:
        return [each.column for each in self.sort_keys]

    @property
    def finds_keys(self) -> bool:
        """Whether old partitions of keys are looked up."""
        return self.feed.keys_are_global and bool(self.partitioning.keys)

    @property
    def feed_schema(self) -> pa.Schema | None:
        """The table's schema with the names that the columns have in the feed."""
        if self.schema is None or not self.feed.columns:
            return self.schema
        return pa.schema([field.with_name(self._in_feed(field.name)) for field in self.schema])

    def changes(self, source: FeedSource) -> ChangeBatch:
        """Raises `Invalid`, with the rows, for changes that cannot be applied whole."""
        found = self._changes_in_feed(source)
        renamed = [self.feed.columns.get(name, name) for name in found.rows.column_names]
        twice = {name for name in renamed if renamed.count(name) > 1}
        if twice:
            raise Invalid(
                f"{source.source_name} has two columns for {', '.join(sorted(twice))}: one of its own, and one that "
                "the feed's columns call so"
            )
        return replace(found, rows=found.rows.rename_columns(renamed))

    def _changes_in_feed(self, source: FeedSource) -> ChangeBatch:
        name, content = source.source_name, source.rows_or_text()
        nullable = () if self.partitioning.default_partition is None else self.partitioning.columns
        needed = (*self.primary_keys, *self.partitioning.columns)
        columns = FeedColumns(
            self.feed_schema,
            [self._in_feed(each) for each in self.sort_columns],
            {self._in_feed(each): each in nullable for each in needed},
            self.feed.without,
            [self._in_feed(each) for each in self.partitioning.columns],
        )
        if isinstance(content, pa.Table):
            refuse_wrong_text(columns.left(content), name)
            is_of_dms = self.feed.format is FeedFormat.DMS
            found = changes_of_dms(content, name) if is_of_dms else changes_of_rows(content, self.feed, name, columns)
            return replace(found, rows=columns.left(found.rows))
        readers = {FeedFormat.DEBEZIUM: changes_of_debezium, FeedFormat.MAXWELL: changes_of_maxwell}
        return readers.get(self.feed.format, changes_of_canal)(content, columns, name)

    def _in_feed(self, name: str) -> str:
        names: Mapping[str, str] = {of_table: of_feed for of_feed, of_table in self.feed.columns.items()}
        return names.get(name, name)
