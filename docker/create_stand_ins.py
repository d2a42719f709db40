"""For docker/compose.yaml: makes the queue, its dead-letter queue, the topic and the bucket on the stand-ins for AWS.

    python create_stand_ins.py URL_OF_SQS_AND_SNS URL_OF_S3 REGION

Nothing happens to those that are there already.
"""

from __future__ import annotations

import json
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

NAME, BUCKET = "lithify", "lithify"
RECEIVED_MAX = 10
PATIENT = Config(retries={"mode": "standard", "total_max_attempts": 10})


def main() -> None:
    endpoint_url, s3_endpoint_url, region = sys.argv[1:]
    sqs = boto3.client("sqs", endpoint_url=endpoint_url, region_name=region, config=PATIENT)
    dead_letters = sqs.create_queue(QueueName=f"{NAME}-dead-letters")["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=dead_letters, AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": found["Attributes"]["QueueArn"], "maxReceiveCount": RECEIVED_MAX}
    queue = sqs.create_queue(QueueName=NAME, Attributes={"RedrivePolicy": json.dumps(policy)})["QueueUrl"]
    sns = boto3.client("sns", endpoint_url=endpoint_url, region_name=region, config=PATIENT)
    topic = sns.create_topic(Name=NAME)["TopicArn"]
    s3 = boto3.client("s3", endpoint_url=s3_endpoint_url, region_name=region, config=PATIENT)
    try:
        s3.create_bucket(Bucket=BUCKET)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"):
            raise
    print(f"LITHIFY_QUEUE_URL={queue}\nLITHIFY_TOPIC_ARN={topic}\nBUCKET={BUCKET}")  # noqa: T201


if __name__ == "__main__":
    main()
