"""`compact()` with a topic tells what its sessions did, as the dispatcher would."""

from __future__ import annotations

import json

import boto3
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.model.errors import Invalid
from dispatcher.demo.stand_ins import queue_server
from tests.builders import TABLE_ID
from tests.servers import aws_environment

pytestmark = [pytest.mark.spark, pytest.mark.servers]


def test_a_topic_is_told_of_rounds_and_of_the_end(
    lake: DeltaCatalog, orders: Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.append({}, pa.table({"id": [1, 2], "value": ["a", "b"]}))
    orders.append({}, pa.table({"id": [2, 3], "value": ["B", "c"]}))
    with aws_environment(), queue_server() as endpoint_url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint_url)
        sqs, sns = boto3.client("sqs"), boto3.client("sns")
        topic = sns.create_topic(Name="compact-events")["TopicArn"]
        queue = sqs.create_queue(QueueName="compact-events")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
        compact(
            TABLE_ID,
            {"id"},
            delta_catalog_client=lake,
            hash_bucket_count=2,
            max_rows_per_round=2,
            sns_event_topic_arn=topic,
            spark=spark,
        )
        messages = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
    events = sorted((json.loads(message["Body"]) for message in messages), key=lambda event: str(event["sequence"]))
    # A prediction that the pace has proved wrong is told too; whether it was is the machine's affair.
    types = [event["type"] for event in events if "expected_sla_changed" not in event["type"]]
    assert types == [
        "lithify.session.started.v1",
        "lithify.session.round_completed.v1",
        "lithify.session.round_completed.v1",
        "lithify.session.succeeded.v1",
    ]
    assert events[-1]["data"]["rows_out"] == 3


def test_a_topic_that_cannot_be_reached_makes_no_failure_of_what_is_committed(
    lake: DeltaCatalog, orders: Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.append({}, pa.table({"id": [1], "value": ["a"]}))
    topic = "arn:aws:sns:us-east-1:123456789012:CompactionJobRunEvents"
    with aws_environment():
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        result = compact(TABLE_ID, {"id"}, delta_catalog_client=lake, sns_event_topic_arn=topic, spark=spark)
    assert result.sessions[0].rows_out == 1


def test_a_topic_that_is_no_topic_is_refused_before_anything_runs(
    lake: DeltaCatalog, orders: Table, spark: SparkSession
) -> None:
    orders.append({}, pa.table({"id": [1], "value": ["a"]}))
    with pytest.raises(Invalid, match="topic"):
        compact(TABLE_ID, {"id"}, delta_catalog_client=lake, sns_event_topic_arn="events", spark=spark)
    assert orders.stream({}).load().state.compacted is None
