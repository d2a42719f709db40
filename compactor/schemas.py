"""How schemas grow, and how a table is brought to a schema that grew."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from compactor.errors import Invalid


def unify_schemas(named: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """One schema that holds the rows of all; `named` pairs a file's name (for the error) with its schema."""
    try:
        return pa.unify_schemas([schema for _, schema in named], promote_options="permissive")
    except pa.ArrowException as error:
        raise Invalid(f"the schemas of {', '.join(name for name, _ in named)} cannot be reconciled: {error}") from error


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of `schema`: missing ones null, others widened."""
    if table.schema.equals(schema):
        return table.replace_schema_metadata(schema.metadata)
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
