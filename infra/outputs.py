"""The outputs of a stack that the pages' commands need, and the shell variables that they become."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Output:
    """`variable`: the shell variable in these commands; None: it has none."""

    name: str
    description: str
    variable: str | None = None


OUTPUTS = (
    Output("LakeUri", "the lake of documents that name none", "LITHIFY_LAKE"),
    Output("StateUri", "where job runs are recorded", "LITHIFY_STATE"),
    Output("InstructionQueueUrl", "where instruction documents are sent", "LITHIFY_QUEUE_URL"),
    Output("DeadLetterQueueUrl", "where documents lie that can never work", "LITHIFY_DEAD_LETTER_QUEUE_URL"),
    Output("EventTopicArn", "where events are published", "LITHIFY_TOPIC_ARN"),
    Output("Region", "of all of it", "LITHIFY_REGION"),
    Output("ClusterSettings", "of the clusters that sessions run on", "LITHIFY_CLUSTER_SETTINGS"),
    Output("ArchiveFolder", "where the environment of Spark jobs is uploaded", "ARCHIVE_FOLDER"),
    Output("RepositoryUri", "where the dispatcher's image is pushed", "IMAGE_REPOSITORY"),
    Output("WorkflowArn", "keeps dispatchers running once it is started", "WORKFLOW_ARN"),
    Output("AlarmTopicArn", "where alarms go"),
    Output("DashboardUrl", "what an operator opens"),
    Output("WriterRoleArn", "may create tables and append to them"),
    Output("SenderRoleArn", "may send instructions"),
    Output("OperatorReadRoleArn", "may look at everything but task tokens"),
    Output(
        "OperatorActRoleArn", "may do what alarms name, beside looking: redrive, publish events, cancel, pause, end"
    ),
    Output("TableReaderRoleArn", "may read published tables"),
)
