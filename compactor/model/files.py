"""Files that a log names: data files with their column bounds, index files, deletion vectors."""

from pydantic import Field

from compactor.model.document import Document
from compactor.model.names import ContentType

Scalar = int | float | str | bool


class ColumnStats(Document):
    """Statistics of one column of one file. Bounds are absent if the type has no JSON form, or no value is present.

    Dates, times and timestamps are ISO 8601 strings, decimals are strings.
    """

    null_count: int | None = None
    min_value: Scalar | None = None
    max_value: Scalar | None = None


class FooterRange(Document):
    """The bytes of a Parquet file's metadata, without the eight that follow them."""

    offset: int = Field(ge=0)
    size_bytes: int = Field(ge=0)


class RowGroupSize(Document):
    """Rows of a row group, of a stripe, or of a piece of text, and its bytes in the file."""

    rows: int = Field(ge=0)
    size_bytes: int = Field(ge=0)


class DataFile(Document):
    """A delta file or a compacted file.

    Attributes:
        path: relative to the lake's root if the catalog wrote it; an absolute URI if it was registered in place
        footer: of Parquet; None: not recorded
        row_groups: of Parquet; of ORC, the stripes, if there are several, with their share of the file's bytes by rows;
            of large plain text, its pieces of whole rows, which follow one another from the first byte (a CSV's header
            is in the first); empty: not recorded, or it is read whole
        schema_fingerprint: files of one content type with equal fingerprints have the same columns; None: not recorded,
            or the file has no types of its own
        crc32: of the file's bytes; None: not recorded, as for files that were registered in an object store
        etag: of a file that was registered in an object store, as the store gives it; None: not recorded
        modified_at_ns: of a file that was registered in a folder: its time of modification, in ns; None: not recorded
    """

    file_number: int = Field(ge=1)
    path: str
    content_type: ContentType
    rows: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    columns: dict[str, ColumnStats] = {}
    footer: FooterRange | None = None
    row_groups: tuple[RowGroupSize, ...] = ()
    schema_fingerprint: str | None = None
    crc32: int | None = Field(default=None, ge=0)
    etag: str | None = None
    modified_at_ns: int | None = None


FILE_NUMBER_BYTES, ROW_INDEX_BYTES = 4, 8
"""Bytes of a pointer that is not packed."""


class PointerWidths(Document):
    """Bytes of the two numbers of each pointer in an index object. Others than the defaults are of packed pointers."""

    file_number_bytes: int = Field(default=FILE_NUMBER_BYTES, ge=1, le=4)
    row_index_bytes: int = Field(default=ROW_INDEX_BYTES, ge=1, le=8)

    @property
    def are_packed(self) -> bool:
        return (self.file_number_bytes, self.row_index_bytes) != (FILE_NUMBER_BYTES, ROW_INDEX_BYTES)


class IndexPointers(PointerWidths):
    """Pointers that replace those in an index file: the rows have moved, the digests are unchanged.

    Attributes:
        crc32: of the object's bytes; None: not recorded"""

    path: str
    size_bytes: int = Field(ge=0)
    crc32: int | None = Field(default=None, ge=0)


class IndexFile(PointerWidths):
    """One file of the primary key index: rows of one hash bucket, sorted by digest.

    Attributes:
        run: the index version that wrote it; a key's entry in a newer run hides its entry in an older one
        part: the file's number among its bucket's files of the run; all digests of part k are below those of part k + 1
        pointers: the current locations of its rows, if they have moved since the file was written
        crc32: of the file's bytes, without those of `pointers`; None: not recorded"""

    hash_bucket: int = Field(ge=0)
    run: int = Field(ge=1)
    part: int = Field(ge=0)
    path: str
    rows: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    pointers: IndexPointers | None = None
    crc32: int | None = Field(default=None, ge=0)

    @property
    def paths(self) -> list[str]:
        """The paths of all objects that are needed to read the file."""
        return [self.path] if self.pointers is None else [self.path, self.pointers.path]

    @property
    def placed(self) -> PointerWidths:
        """What has the pointers that are valid."""
        return self.pointers or self

    @property
    def bytes_at_rest(self) -> int:
        """The size of all these objects."""
        return self.size_bytes + (0 if self.pointers is None else self.pointers.size_bytes)


class DeletionVector(Document):
    """Which rows of a live compacted file are dead: an Arrow IPC file of their row indices, ascending.

    Attributes:
        rows: how many rows of the file are dead
        crc32: of the vector's bytes; None: not recorded"""

    file_number: int = Field(ge=1)
    path: str
    rows: int = Field(ge=1)
    size_bytes: int = Field(ge=0)
    crc32: int | None = Field(default=None, ge=0)
