"""Bounds in a log, compared with the key of a proof."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from compactor.maintenance.searched_key import SearchedKey, searched_key
from compactor.model.files import Scalar

DAY = datetime.fromisoformat("2026-01-01")


def key_of(kind: pa.DataType, value: object) -> SearchedKey:
    return searched_key(pa.schema([("key", kind)]), {"key": value}, is_known=True)


@pytest.mark.parametrize(
    ("kind", "value", "same", "other"),
    [
        (pa.timestamp("s"), DAY, "2026-01-01T00:00:00.000", "2026-01-01T00:00:00.001"),
        (pa.timestamp("us"), DAY + timedelta(milliseconds=500), "2026-01-01T00:00:00.5", "2026-01-01T00:00:05"),
        (pa.timestamp("ns"), pa.scalar(1, pa.timestamp("ns")), "1970-01-01T00:00:00.000000001", "1970-01-01T00:00:00"),
        (pa.time64("us"), time(10), "10:00:00.000", "01:00:00"),
        (pa.date64(), date(2026, 1, 10), "2026-01-10", "2026-01-01"),
        (pa.decimal128(9, 3), Decimal(10), "10", "1"),
        (pa.int64(), 1, 1, 10),
        (pa.float64(), 0.0, -0.0, 0.5),
        (pa.string(), "1.50", "1.50", "1.5"),
    ],
)
def test_equal_values_are_equal_bounds_however_they_are_written(
    kind: pa.DataType, value: object, same: Scalar, other: Scalar
) -> None:
    key = key_of(kind, value)
    assert (key.has("key", same), key.has("key", other)) == (True, False)
    assert key_of(kind, None).has("key", same) is False, "null is no bound"


@pytest.mark.parametrize(
    ("kind", "value", "bound"),
    [
        (pa.timestamp("us"), DAY, "2026-01-01T01:00:00+01:00"),
        (pa.timestamp("us"), DAY, "2026-01-01"),
        (pa.date32(), date(2026, 1, 1), 20_454),
        (pa.decimal128(9, 2), Decimal("1.50"), "one and a half"),
        (pa.decimal128(9, 2), Decimal("1.50"), "sNaN"),
        (pa.int64(), 1, "1"),
        (pa.string(), "1", 1),
        (pa.binary(), b"ann", "ann"),
        (pa.duration("s"), 60, 60),
    ],
)
def test_of_a_bound_that_is_none_of_the_columns_type_nobody_knows_whether_it_is_the_key(
    kind: pa.DataType, value: object, bound: Scalar
) -> None:
    assert key_of(kind, value).has("key", bound) is None
