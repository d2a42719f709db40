"""The outputs of a stack that the pages' commands need, and the shell variables that they become."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StackOutput:
    """`variable`: the shell variable in these commands; None: it has none."""

    name: str
    description: str
    variable: str | None = None


OUTPUTS = (
    StackOutput("LakeUri", "the lake of documents that name none", "LITHIFY_LAKE"),
    StackOutput("StateUri", "where job runs are recorded", "LITHIFY_STATE"),
    StackOutput("InstructionQueueUrl", "where instruction documents are sent", "LITHIFY_QUEUE_URL"),
    StackOutput("DeadLetterQueueUrl", "where documents lie that can never work", "LITHIFY_DEAD_LETTER_QUEUE_URL"),
    StackOutput("AnnouncementQueueUrl", "where files are announced", "ANNOUNCEMENTS"),
    StackOutput("RefusedFilesQueueUrl", "where announcements lie that cannot be taken in", "REFUSED_FILES"),
    StackOutput("EventTopicArn", "where events are published", "LITHIFY_TOPIC_ARN"),
    StackOutput("PageFeedUrl", "of which the page learns where to look again", "LITHIFY_EVENTS_QUEUE_URL"),
    StackOutput("Region", "of all of it", "LITHIFY_REGION"),
    StackOutput("Cluster", "where sessions run", "LITHIFY_CLUSTER"),
    StackOutput("Workers", "of a dispatcher, for small sessions", "LITHIFY_WORKERS"),
    StackOutput("DefaultPolicy", "of tables without compact_when", "LITHIFY_DEFAULT_POLICY"),
    StackOutput("ClusterSettings", "of the clusters that sessions run on", "LITHIFY_CLUSTER_SETTINGS"),
    StackOutput("ArchiveFolder", "where the environment of Spark jobs is uploaded", "ARCHIVE_FOLDER"),
    StackOutput("RepositoryUri", "where the dispatcher's image is pushed", "IMAGE_REPOSITORY"),
    StackOutput("WorkflowArn", "keeps dispatchers running once it is started", "WORKFLOW_ARN"),
    StackOutput("AlarmTopicArn", "where alarms go"),
    StackOutput("DashboardUrl", "what an operator opens"),
    StackOutput("WriterRoleArn", "may create tables and append to them"),
    StackOutput("SenderRoleArn", "may send instructions"),
    StackOutput("OperatorReadRoleArn", "may look at everything but task tokens"),
    StackOutput(
        "OperatorActRoleArn", "may do what alarms name, beside looking: redrive, publish events, cancel, pause, end"
    ),
    StackOutput("TableReaderRoleArn", "may read published tables"),
)
