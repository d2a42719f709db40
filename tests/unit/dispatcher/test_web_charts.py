"""The pages of money and predictions: what the history says, drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.operations.status import view_ended
from dispatcher.records.history import EndedJobRun, day_of
from dispatcher.scheduling.limits import Limits, SharedLimits
from dispatcher.web.charts import dots_of, misses_of, on_axis
from dispatcher.web.money import OTHERS, TABLES_SHOWN, day_of_money, money_chart
from dispatcher.web.readings import Readings
from tests.fakes.served_page import Served

DAY_MS = 86_400_000
NOW_MS = 1_760_000_000_000


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    page = Served(tmp_path)
    yield page
    page.desk.close()


def ended(number: int, ended_at_ms: int, *, table: str = "ACME.ORDERS.V1", **figures: float) -> EndedJobRun:
    return EndedJobRun.model_validate(
        {
            "job_run_id": f"run-{number}",
            "status": "succeeded",
            "table": table,
            "destination": None,
            "accepted_at_ms": ended_at_ms - 1_000,
            "ended_at_ms": ended_at_ms,
            "seconds": 1.0,
            **figures,
        }
    )


def test_dollars_are_summed_by_day_and_table_and_a_day_that_is_over_is_read_once(served: Served) -> None:
    history = served.desk.records.history
    runs = [
        ended(day * 10 + number, NOW_MS - day * DAY_MS, table=f"ACME.T{number}.V1", usd=1.0 + number, expected_usd=3.0)
        for day in (0, 1, 2, 40)
        for number in range(2)
    ]
    history.record(runs)
    for day in (1, 2, 40):
        history.close(day_of(NOW_MS - day * DAY_MS))
    answer = served.client.get("/api/v1/money").json()
    assert [(each["day"], each["usd"], sum(each["expected_usd"].values())) for each in answer["days"]] == [
        (day_of(NOW_MS - day * DAY_MS), {"ACME.T0.V1": 1.0, "ACME.T1.V1": 2.0}, 6.0) for day in range(3)
    ]
    html = served.page("/money")
    assert html.count('<rect class="outline"') == 3
    assert html.count('<rect class="c0"') == html.count('<rect class="c1"') == 3
    read = len(served.state.requests)
    served.clock.sleep(3_600.0)
    served.page("/money")
    again = [key for _, key in served.state.requests[read:]]
    assert again
    assert not any("job_runs.parquet" in key for key in again)


def test_the_bars_of_a_day_are_as_high_as_its_dollars_and_a_cap_is_a_line_on_their_scale() -> None:
    tables = [f"ACME.T{number}.V1" for number in range(TABLES_SHOWN + 2)]
    day = day_of_money(
        "2026-01-01", [ended(n, NOW_MS, table=each, usd=10.0, expected_usd=5.0) for n, each in enumerate(tables)]
    )
    chart = money_chart([day], {"all tables": 140.0, "a table": 10_000.0})
    assert chart is not None
    assert chart.legend == (*tables[:TABLES_SHOWN], OTHERS)
    (column,) = chart.columns
    scale = sum(bar.height for bar in column.bars) / 70.0
    assert [round(bar.height / scale) for bar in column.bars] == [10] * TABLES_SHOWN + [20]
    assert column.expected.height / scale == pytest.approx(35.0, abs=0.1)
    ((cap_y, words),) = chart.caps
    base = column.expected.y + column.expected.height
    assert (base - cap_y) / scale == pytest.approx(140.0, abs=0.1)
    assert words == "all tables: $140.00"
    assert money_chart([day_of_money("2026-01-01", [])], {}) is None
    alone = money_chart([day_of_money("2026-01-01", [ended(0, NOW_MS, usd=1.0)])], {})
    assert alone is not None
    assert alone.legend == ("ACME.ORDERS.V1",), "there are no others"


def test_the_limits_of_the_dispatchers_stand_on_the_page(served: Served) -> None:
    limits = Limits(all=SharedLimits(usd_per_day=500.0))
    readings = Readings(served.state, served.desk.lake, served.clock, limits=limits)
    assert readings.caps == {"all tables": 500.0}


def test_a_miss_is_what_took_longer_than_its_expected_sla_and_above_the_line() -> None:
    runs = [
        ended(0, NOW_MS, seconds=109.0, expected_sla=110.0),
        ended(1, NOW_MS, seconds=111.0, expected_sla=110.0),
        ended(2, NOW_MS, seconds=220.0, expected_sla=110.0),
        ended(3, NOW_MS, seconds=150.0, expected_sla=150.0, paused_seconds=40.0),
        ended(4, NOW_MS, seconds=5.0),
    ]
    dots = dots_of([view_ended(each) for each in runs])
    assert [dot.is_missed for dot in dots] == [False, True, True, False]
    assert [dot.x for dot in dots] == [on_axis(110.0)] * 4
    assert [dot.is_missed for dot in dots] == [dot.y > dot.x for dot in dots]
    assert [dot.view.job_run_id for dot in misses_of(dots, 10)] == ["run-2", "run-1"]


def test_misses_are_red_and_in_a_table_that_can_be_read_aloud(served: Served) -> None:
    served.desk.records.history.record(
        [ended(number, NOW_MS - number, seconds=float(number + 1), expected_sla=3.0) for number in range(6)]
    )
    html = served.page("/prediction")
    assert html.count('<circle class="missed"') == 3
    assert html.count('<circle class="kept"') == 3
    rows = re.findall(r'<a href="/job-runs/(run-[0-9])">', html)
    assert rows == ["run-5", "run-4", "run-3"]
    assert "3 of 6 job runs that succeeded took longer" in html
