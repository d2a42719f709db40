"""Permissions of the ingest: takes announced files, and appends them to the tables that they land for."""

from dataclasses import replace

from infra.access.places import (
    Places,
    list_lakes,
    quarantine_changes,
    read_lakes,
    read_landing,
    use_key,
    write_deltas,
)
from infra.permissions import Part, Permission, actions


def ingest_part(places: Places) -> Part:
    """It appends to the tables of the first lake, and neither makes nor changes a table. In the state it has a sign of
    life; instructions are not its business."""
    own = replace(places, lakes=places.lakes[:1])
    return Part(
        "ingest",
        "IngestRole",
        ("ecs-tasks",),
        (
            Permission(
                "TakeAnnouncements",
                "of files that have landed; and announce those whose notification was lost",
                actions("sqs", "DeleteMessage GetQueueAttributes GetQueueUrl ReceiveMessage SendMessage"),
                (own.announcements,),
            ),
            Permission(
                "RefuseFiles",
                "that cannot be taken in",
                actions("sqs", "GetQueueAttributes GetQueueUrl SendMessage"),
                (own.refused,),
            ),
            *read_landing(own),
            *list_lakes(own),
            *read_lakes(own),
            write_deltas(own),
            Permission(
                "WriteStreams",
                "entries that add deltas, and their hints",
                ("s3:PutObject",),
                own.lake_objects("tables/*/streams/*/log/*", "tables/*/news/*", "tables/*/dropped/*"),
            ),
            quarantine_changes(own),
            Permission(
                "SignalLife",
                "for `lithify serve`, in an object that goes when it ends",
                actions("s3", "DeleteObject PutObject"),
                own.state_objects("live_ingests/*"),
            ),
            use_key(own, writes=True),
        ),
    )
