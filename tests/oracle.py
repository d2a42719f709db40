"""Which rows survive, by the rules and nothing else: plain dicts, every key's whole history at once, no cleverness.

A row is a dict. A delta is (stream position, operation, files), a file a list of rows; that some column is missing from
a file shows as a key missing from its rows. Nothing here comes from the compactor but the names of things.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import cmp_to_key, partial

from compactor.model.names import PARTITION_STREAM_POSITION, Operation

Row = Mapping[str, object]
OracleDelta = tuple[int, Operation, Sequence[Sequence[Row]]]
OracleSortKeys = Sequence[tuple[str, str]]
_Met = tuple[Operation, Row, bool]
"""A row that a key met, and whether it is a delete without sort values: that one clears all before it."""


def surviving_rows(
    deltas: Sequence[OracleDelta],
    primary_keys: Sequence[str],
    sort_keys: OracleSortKeys,
    tombstone_retention: int | None = None,
) -> list[Row]:
    """The rows of a table after all of these deltas.

    tombstone_retention  a delete that won more stream positions ago than this is forgotten; None: none is
    """
    histories: dict[Hashable, list[_Met]] = defaultdict(list)
    for position, operation, files in sorted(deltas, key=lambda delta: delta[0]):
        for row in (row for rows in files for row in rows):
            row = {**row, PARTITION_STREAM_POSITION: position}
            key = tuple(_equal_form(row[column]) for column in sorted(primary_keys))
            clears = operation is Operation.DELETE and any(column not in row for column, _ in sort_keys)
            histories[key].append((operation, row, clears))
    survivors: list[Row] = []
    for history in histories.values():
        clearing = [place for place, (_, _, clears) in enumerate(history) if clears]
        rivals = history[clearing[-1] + 1 :] if clearing else history
        last = _last(rivals, sort_keys, tombstone_retention)
        if last is not None and last[0] is Operation.UPSERT:
            survivors.append({name: value for name, value in last[1].items() if name != PARTITION_STREAM_POSITION})
    return survivors


def _last(rivals: Sequence[_Met], sort_keys: OracleSortKeys, tombstone_retention: int | None) -> _Met | None:
    if tombstone_retention is None:
        # max() takes the first of equals, so that the later of equals has to be met first.
        return max(reversed(rivals), key=cmp_to_key(partial(_order, sort_keys)), default=None)
    winner: _Met | None = None
    for met in rivals:
        if winner is not None and winner[0] is Operation.DELETE:
            age = _position(met) - _position(winner)
            winner = winner if age <= tombstone_retention else None
        if winner is None or _order(sort_keys, met, winner) >= 0:
            winner = met
    return winner


def _position(met: _Met) -> int:
    position = met[1][PARTITION_STREAM_POSITION]
    assert isinstance(position, int)
    return position


def _order(sort_keys: OracleSortKeys, one: _Met, other: _Met) -> int:
    for column, order in sort_keys:
        left, right = one[1].get(column), other[1].get(column)
        if _is_nothing(left) or _is_nothing(right):
            sign = int(_is_nothing(right)) - int(_is_nothing(left))
        else:
            sign = (int(left > right) - int(left < right)) * (-1 if order == "descending" else 1)  # type: ignore[operator]
        if sign:
            return sign
    return 0


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _equal_form(value: object) -> Hashable:
    """NaN equals NaN and null equals null; everything else as Python has it (-0.0 == 0.0, 1.50 == 1.500)."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
