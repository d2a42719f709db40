"""A Step Functions workflow that compacts a table, and waits for the result.

    python workflow.py QUEUE_URL ROLE_ARN TABLE

The workflow sends the instruction with its task token; the dispatcher answers when the job run has ended. `ROLE_ARN` is
a role of the workflow that may send to the queue. Run it where boto3 finds credentials and a region.
"""

from __future__ import annotations

import json
import sys
import time
import uuid

import boto3


def definition(queue_url: str, table: str) -> dict[str, object]:
    return {
        "StartAt": "Compact",
        "States": {
            "Compact": {
                "Type": "Task",
                "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
                "HeartbeatSeconds": 1800,
                "Parameters": {
                    "QueueUrl": queue_url,
                    "MessageBody": {
                        "schema_version": "1",
                        "job_run_id.$": "$$.Execution.Name",
                        "source_table_id": table,
                        "task_token.$": "$$.Task.Token",
                        "task_heartbeat_seconds": 1800,
                    },
                },
                "Retry": [{"ErrorEquals": ["States.HeartbeatTimeout", "States.Timeout"], "MaxAttempts": 3}],
                "End": True,
            }
        },
    }


def main(queue_url: str, role_arn: str, table: str) -> dict[str, object]:
    """The result document of the job run."""
    states = boto3.client("stepfunctions")
    text = json.dumps(definition(queue_url, table))
    machine = states.create_state_machine(name=f"compact-{uuid.uuid4()}", definition=text, roleArn=role_arn)
    execution = states.start_execution(stateMachineArn=machine["stateMachineArn"], name=f"{uuid.uuid4()}", input="{}")
    while (ended := states.describe_execution(executionArn=execution["executionArn"]))["status"] == "RUNNING":
        time.sleep(1)
    if ended["status"] != "SUCCEEDED":
        raise SystemExit(f"{ended['status']}: {ended.get('error')} {ended.get('cause')}")
    result: dict[str, object] = json.loads(ended["output"])
    return result


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    print(json.dumps(main(*sys.argv[1:4]), indent=2))
