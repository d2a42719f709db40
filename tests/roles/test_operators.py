"""Operators do what alarms and README tell them, each with their role and nothing more."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from string import Template

import pytest

from compactor.model.clock import SystemClock
from compactor.planning.sizing import Resources
from compactor.sessions.keys import SessionFolder
from compactor.storage.location import StoreLocation
from dispatcher.aws.sqs import SqsQueue
from dispatcher.web.feed import Changed, EventsFeed
from launcher.aws.emr import BotoEmr
from launcher.clusters.emr import EmrCluster
from launcher.emr.settings import EmrSettings, parse_settings
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.spark_job import SparkJob, job_name
from tests.fakes.emr_account import EmrAccount
from tests.fakes.emr_serverless_account import ServerlessAccount
from tests.fakes.emr_steps import ScriptedSteps
from tests.proxy import FAIR, Weather
from tests.roles.policies import REGION
from tests.roles.stage import Answer, DeployedStage, deployed_stage
from tests.servers import SECRET_KEY
from tests.unit.launcher.test_emr_request import ON_DEMAND

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.long]

TABLE = "ACME.ORDERS.V1"
ACTS, READS = "OperatorActRole", "OperatorReadRole"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedStage]:
    """With a table of one delta, and the log groups of its containers."""
    with deployed_stage(tmp_path_factory.mktemp("stage"), is_s3_real=False) as deployed:
        done(deployed.lithify("WriterRole", "table", "create", TABLE))
        done(deployed.append(TABLE, [{"id": 1, "v": "a"}]))
        done(deployed.dispatch())  # from now on there is a state
        for part in ("dispatcher", "keeper", "ingest"):
            group = f"/lithify-dev/{part}"
            if not deployed.client("logs").describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
                deployed.client("logs").create_log_group(logGroupName=group)
        yield deployed


@pytest.fixture(autouse=True)
def nothing_is_denied(stage: DeployedStage) -> Iterator[None]:
    """To operators, in a whole test."""
    stage.gate.denied.clear()
    yield
    denied = [each for each in stage.gate.denied if each.role in (ACTS, READS)]
    assert denied == [], "\n".join(map(str, denied))


def done(answer: Answer) -> Answer:
    assert answer.exit_code == 0, f"{answer.out[-2_000:]}\n{answer.err[-4_000:]}"
    return answer


def act(stage: DeployedStage, *command: str) -> Answer:
    return done(stage.lithify(ACTS, *command))


def submit(stage: DeployedStage, job_run_id: str) -> None:
    document = {"schema_version": "1", "job_run_id": job_run_id, "source_table_id": TABLE, "primary_keys": ["id"]}
    (stage.folder / f"{job_run_id}.json").write_text(json.dumps(document))
    done(stage.lithify("SenderRole", "submit", f"{job_run_id}.json"))


def status(stage: DeployedStage, job_run_id: str) -> str:
    found: str = done(stage.lithify(READS, "status", job_run_id, "--output", "json")).json()["status"]
    return found


def test_a_job_run_is_paused_cancelled_and_run_again(stage: DeployedStage) -> None:
    act(stage, "pause", "--everything")
    submit(stage, "two")
    assert "job run two waits: it is paused" in stage.dispatch().out
    act(stage, "cancel", "two")
    act(stage, "resume", "--everything")
    done(stage.dispatch())
    assert status(stage, "two") == "cancelled"
    act(stage, "retry", "two")
    done(stage.dispatch())
    assert status(stage, "two-retry-1") == "succeeded"


def test_the_page_shows_everything_to_who_reads(stage: DeployedStage) -> None:
    submit(stage, "seen")
    done(stage.dispatch())
    done(stage.lithify(READS, "serve", "--snapshot", "page.html"))
    html = (stage.folder / "page.html").read_text()
    assert "seen" in html
    assert TABLE in html
    assert "cannot be read" not in html


def test_the_page_hears_the_events_of_the_stage_s_queue(stage: DeployedStage, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(stage, "heard")
    done(stage.dispatch())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    queue = SqsQueue.open(stage.queue_url("PageFeed"), endpoint_url=stage.services_url, region=REGION)
    told = list[Changed]()
    feed = EventsFeed(queue, told.append, SystemClock())
    feed.listen()
    assert feed.state.failure is None
    assert Changed("heard", TABLE, has_ended=True) in told


def test_a_dead_letter_is_seen_by_who_acts_and_sent_again(stage: DeployedStage) -> None:
    stage.client("sqs").send_message(QueueUrl=stage.queue_url("Instructions"), MessageBody='{"schema_version": "1"}')
    done(stage.dispatch())
    (seen,) = act(stage, "redrive", "--list", "--output", "json").json()["messages"]
    assert "source_table_id" in str(seen["reasons"])
    assert len(act(stage, "redrive", "--output", "json").json()["messages"]) == 1
    assert act(stage, "redrive", "--list", "--output", "json").json()["messages"] == []


def test_events_that_their_topic_refused_are_published_later(stage: DeployedStage) -> None:
    submit(stage, "three")
    refuses = Weather(harm="error", status=403, code="AuthorizationError")
    stage.services.set_weather(refuses, "sns")
    try:
        dispatched = stage.dispatch()
    finally:
        stage.services.set_weather(FAIR, "sns")
    assert "send them with `lithify events publish`" in dispatched.out
    published = act(stage, "events", "publish", "--output", "json").json()["job_runs"]
    assert {"job_run_id": "three", "told": True, "reason": None} in published
    assert stage.keys("State", "state/untold_job_runs/") == []


def test_a_table_s_properties_are_set_and_a_delta_is_taken_back(stage: DeployedStage) -> None:
    act(stage, "table", "set", TABLE, "retention_seconds=604800")
    done(stage.append(TABLE, [{"id": 7, "v": "wrong"}]))
    entries = done(stage.lithify(READS, "table", "log", TABLE, "--output", "json")).json()["entries"]
    delta_id = next(action["delta_id"] for action in reversed(_actions(entries)) if action["action"] == "delta_added")
    act(stage, "table", "retract", TABLE, "--delta", delta_id)


def _actions(entries: list[dict[str, list[dict[str, str]]]]) -> list[dict[str, str]]:
    return [action for entry in entries for action in entry["actions"]]


def test_each_alarm_s_first_command_is_done_with_the_role_that_it_names(
    stage: DeployedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms = stage.account.alarm_descriptions()
    assert len(alarms) >= 11
    found = {name: re.search(r"`([^`]+)`.* Role: (\w+)\.$", text) for name, text in alarms.items()}
    cluster = ownerless_cluster(stage, monkeypatch)
    (stage.folder / "emr.json").write_text(stage.cluster_settings())
    tried = set()
    for name, words in found.items():
        assert words is not None, f"{name} names no command, or no role: {alarms[name]}"
        if words.groups() not in tried:
            tried.add(words.groups())
            carry_out(stage, words[1], words[2])
    assert {role for _, role in tried} == {ACTS, READS}
    assert stage.emr.emr.clusters[cluster].state.startswith("TERMINAT")


def carry_out(stage: DeployedStage, command: str, role: str) -> None:
    queues = {"ANNOUNCEMENTS": stage.queue_url("Announcements"), "REFUSED_FILES": stage.queue_url("Refused")}
    program, *arguments = shlex.split(Template(command).substitute(queues))
    if program == "aws":  # its own program sends this request
        assert arguments[:2] == ["logs", "tail"], command
        stage.client("logs", role).filter_log_events(logGroupName=arguments[2])
        return
    assert program == "lithify", command
    if arguments[0] == "clusters":
        arguments += ["--cluster-settings", "emr.json", "--seconds-between-looks", "1"]
    done(stage.lithify(role, *arguments))


def ownerless_cluster(stage: DeployedStage, monkeypatch: pytest.MonkeyPatch) -> str:
    """As a dispatcher of this stage launched it, for a job run that is gone."""
    clock = SystemClock()
    steps = ScriptedSteps()
    stage.emr.reset(EmrAccount(clock, steps), ServerlessAccount(clock, steps))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "DispatcherRole")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    settings = parse_settings(stage.cluster_settings().encode(), "the cluster settings")
    assert isinstance(settings, EmrSettings)
    emr = EmrCluster(BotoEmr.open(REGION, stage.emr_url), settings, ClusterRoom(), "owner", clock)
    state = StoreLocation(stage.state, stage.s3_url, REGION)
    name, plan = job_name(state, "gone", "gone.1", 1), SessionFolder("gone", "gone.1").plan(1).key
    emr.launch(SparkJob(name, state, plan, 1, Resources(1 << 30, 1)), ON_DEMAND)
    (cluster_id,) = stage.emr.emr.clusters
    return cluster_id
