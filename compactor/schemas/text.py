"""Schemas as text in the log."""

from __future__ import annotations

import base64
import hashlib

import pyarrow as pa

from compactor.schemas.unify import plain_schema

FINGERPRINT_CHARACTERS = 32
"""128 bits: no two schemas of one lake share them by chance."""


def render_schema(schema: pa.Schema) -> str:
    """An Arrow schema as text for the log."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def parse_schema(text: str) -> pa.Schema:
    """Parses a schema; views become plain types."""
    return plain_schema(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))))


def fingerprint_schema(schema: pa.Schema) -> str:
    """Equal for equal columns: names, types, nullability and fields' metadata. The schema's own metadata do not count,
    since writers put the number of rows there."""
    return hashlib.sha256(plain_schema(schema).remove_metadata().serialize()).hexdigest()[:FINGERPRINT_CHARACTERS]
