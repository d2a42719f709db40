"""A stage works for simulated weeks, each part with its role and nothing more."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from deltalake import DeltaTable

from tests.roles.stage import Answer, DeployedStage, deployed_stage
from tests.servers import REGION, SECRET_KEY

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1_800)]

ORDERS, DAYS, DROPPED = "ACME.ORDERS.V1", "ACME.DAYS.V1", "ACME.DROPPED.V1"
WEEKS = 4
WEEK_DAYS = 7.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedStage]:
    with deployed_stage(tmp_path_factory.mktemp("stage"), is_s3_real=True) as deployed:
        yield deployed


def done(answer: Answer) -> Answer:
    assert answer.exit_code == 0, f"{answer.out[-2_000:]}\n{answer.err[-4_000:]}"
    return answer


def submit(stage: DeployedStage, job_run_id: str, table_id: str) -> None:
    keys = {"schema_version": "1", "job_run_id": job_run_id, "source_table_id": table_id, "primary_keys": ["id"]}
    (stage.folder / f"{job_run_id}.json").write_text(json.dumps(keys))
    done(stage.lithify("SenderRole", "submit", f"{job_run_id}.json"))


def attempts(stage: DeployedStage, job_run_id: str, days: float) -> list[int]:
    """Of each session of a job run that has succeeded."""
    found = done(stage.lithify("OperatorReadRole", "status", job_run_id, "--output", "json", days=days)).json()
    assert found["status"] == "succeeded", found
    return [session["attempt"] for session in found["sessions"]]


def published_rows(stage: DeployedStage, table_id: str) -> list[dict[str, object]]:
    """As an engine reads them that has the role of readers."""
    options = {
        "AWS_ACCESS_KEY_ID": "TableReaderRole",
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": stage.s3_url,
        "AWS_ALLOW_HTTP": "true",
    }
    table = DeltaTable(f"{stage.lake}/tables/{table_id}/compacted", storage_options=options)
    return sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: str(row["id"]))


def week_of_work(stage: DeployedStage, week: int, days: float) -> None:
    """Writer, sender, dispatcher and its clusters, and at its end the keeper."""
    done(stage.append(ORDERS, [{"id": week % 3, "week": week}], days=days))
    for day in ("1", "2"):
        done(stage.append(DAYS, [{"id": week, "week": week}], f"day={day}", days=days))
    for table_id in (ORDERS, DAYS):
        submit(stage, f"{table_id}-{week}", table_id)
    done(stage.dispatch_on_emr(days, is_spark_real=week == 0, small_in_workers=week % 2 == 1))
    assert attempts(stage, f"{ORDERS}-{week}", days) == [1]
    assert attempts(stage, f"{DAYS}-{week}", days) == [1, 1]
    assert stage.keys("Lakes", f"lake/tables/{DAYS}/news/") == []
    assert json.loads(done(stage.keep(days + 1)).out.splitlines()[-1])["decided"] == 0


def test_a_stage_works_for_weeks_and_nothing_that_a_part_needs_is_denied(stage: DeployedStage) -> None:
    create = ("table", "create")
    done(stage.lithify("WriterRole", *create, ORDERS, "--property", "publish=delta"))
    done(stage.lithify("WriterRole", *create, DAYS, "--partition-key", "day", "--property", "news_hints=true"))
    deltas: list[int] = []
    for week in range(WEEKS):
        week_of_work(stage, week, week * WEEK_DAYS)
        deltas.append(len(stage.keys("Lakes", f"lake/tables/{ORDERS}/data/_/delta/")))
    assert max(deltas) < WEEKS, f"the keeper has deleted no delta: {deltas}"
    last = {row % 3: row for row in range(WEEKS)}
    assert published_rows(stage, ORDERS) == [{"id": key, "week": last[key]} for key in sorted(last)]
    now = (WEEKS + 1) * WEEK_DAYS  # beyond the retention of the state
    done(stage.keep(now))
    assert stage.keys("State", "state/history/cleaned/"), "plans and heartbeats of the first week are still there"

    reading = (
        ("status",),
        ("report", "tables"),
        ("history",),
        ("table", "list"),
        ("table", "show", ORDERS),
        ("table", "scan", DAYS),
        ("table", "verify", ORDERS, "--published"),
        ("gc",),
        ("privacy", "prove", ORDERS, "--key", "id=1"),
    )
    for command in reading:
        answer = stage.lithify("OperatorReadRole", *command, days=now)
        assert answer.exit_code in ((0, 1) if command[0] == "privacy" else (0,)), (command, answer)
        assert "AccessDenied" not in answer.out + answer.err, (command, answer)
    # Who may only send documents learns from the dispatcher whether an id was used.
    others = [each for each in stage.gate.denied if each.role != "SenderRole"]
    assert others == [], "\n".join(map(str, others))


def data_of(stage: DeployedStage, table_id: str, partition: str = "") -> list[str]:
    return [key for key in stage.keys("Lakes", f"lake/tables/{table_id}/") if "/data/" in key and partition in key]


def test_what_an_operator_drops_is_hidden_and_the_keeper_deletes_its_files_but_no_log(stage: DeployedStage) -> None:
    stage.gate.denied.clear()
    began = (WEEKS + 1) * WEEK_DAYS
    done(stage.lithify("WriterRole", "table", "create", DROPPED, "--partition-key", "day", days=began))
    for day in ("1", "2"):
        done(stage.append(DROPPED, [{"id": 1, "v": day}], f"day={day}", days=began))
    submit(stage, "before the drop", DROPPED)
    done(stage.dispatch(began))

    def drop(days: float, *more: str) -> Answer:
        return stage.lithify("OperatorActRole", "table", "drop", DROPPED, *more, "--delete", days=days)

    done(drop(began, "-p", "day=1"))
    rows = done(stage.lithify("OperatorReadRole", "table", "scan", DROPPED, "--output", "json", days=began))
    assert [row["v"] for row in rows.json()["rows"]] == ["2"]
    assert data_of(stage, DROPPED, "day=1")
    done(stage.keep(began + 2 * WEEK_DAYS))
    assert not data_of(stage, DROPPED, "day=1")
    assert data_of(stage, DROPPED, "day=2")

    done(drop(began + 2 * WEEK_DAYS))
    tables = done(stage.lithify("OperatorReadRole", "table", "list", days=began + 2 * WEEK_DAYS)).out
    assert DROPPED not in tables
    done(stage.keep(began + 4 * WEEK_DAYS))
    assert not data_of(stage, DROPPED)
    assert [each for each in stage.gate.denied if each.role != "SenderRole"] == []

    log = [key for key in stage.keys("Lakes", f"lake/tables/{DROPPED}/") if "/log/" in key]
    refused = drop(began + 4 * WEEK_DAYS, "--purge", "--nothing-runs")
    assert refused.exit_code != 0
    assert "cannot be purged, and nothing was deleted: you need the right to delete all" in refused.out + refused.err
    assert log
    assert log == [key for key in stage.keys("Lakes", f"lake/tables/{DROPPED}/") if "/log/" in key]
