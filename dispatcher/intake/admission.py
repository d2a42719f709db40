"""Checks the lakes, tables, topics and files that a document names against the settings: it runs with our rights.

Often more people may write to a queue than read the lake. Without these bounds, a sender could have any file that the
dispatcher can read compacted into a table that the sender can read.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from compactor.model.errors import Invalid, reasons_of, refuse_if
from compactor.model.names import render_partition
from compactor.planning.session_planner import PinnedSession
from compactor.storage.location import StoreLocation, lies_below
from dispatcher.intake.instruction import InstructionDocument, parse_topic


@dataclass(frozen=True)
class Admission:
    """
    Attributes:
        own_lake: for documents that name none; always allowed
        own_topic: for job runs that name none; always allowed
        lakes: others that documents may name: a lake's URI, or a folder above it
        tables: sources and destinations: an id, or what ids begin with and a `*`
        topics: others that documents may name: an ARN, or what ARNs begin with and a `*`
        files: folders of files that a lake on S3 names by an absolute URI, in addition to the lake itself
        sns_regions: the regions of each partition of AWS that have SNS; empty: unknown"""

    own_lake: StoreLocation | None = None
    own_topic: str | None = None
    lakes: tuple[str, ...] = ()
    tables: tuple[str, ...] = ("*",)
    topics: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    sns_regions: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))

    def check(self) -> None:
        """Raises `Invalid`, with every reason, for settings with which no document can work."""
        reasons: list[str] = []
        if self.own_lake is None and not self.lakes:
            reasons.append(
                "there is no lake to work on: give --lake, or --allow-lake with those that documents may name"
            )
        if self.own_topic is not None:
            reasons += reasons_of(parse_topic, self.own_topic)  # its service checks whether it exists
        for topic in self.topics:
            if not topic.endswith("*"):
                reasons += reasons_of(self.check_topic, topic)
        refuse_if(reasons)

    def refusals(self, document: InstructionDocument, lake: StoreLocation) -> Iterator[str]:
        """Reasons why this document is not allowed, a sentence each. `lake`: that it names, or the own one."""
        is_own = self.own_lake is not None and lake.root_uri == self.own_lake.root_uri
        if not is_own and not lies_below(lake.root_uri, self.lakes):
            yield (
                f"delta_catalog {lake.root_uri} is not allowed here: leave it out, or start the dispatcher with "
                f"--allow-lake {lake.root_uri}"
            )
        tables = (document.source_table_id, document.destination_compacted_table_id)
        for table_id in dict.fromkeys(each for each in tables if each is not None):
            if not _matches(table_id, self.tables):
                yield f"table {table_id} is not allowed here: start the dispatcher with --allow-table {table_id}"
        if document.sns_event_topic_arn is not None and document.sns_event_topic_arn != self.own_topic:
            yield from self._topic_refusals(document.sns_event_topic_arn)

    def _topic_refusals(self, arn: str) -> Iterator[str]:
        if not _matches(arn, self.topics):
            yield (
                f"sns_event_topic_arn {arn} is not allowed here: leave it out, or start the dispatcher with "
                f"--allow-topic {arn}"
            )
        yield from reasons_of(self.check_topic, arn)

    def check_topic(self, arn: str) -> None:
        """Raises `Invalid` for a topic that no client can reach."""
        name = parse_topic(arn)
        if self.sns_regions and name.region not in self.sns_regions.get(name.aws_partition, ()):
            raise Invalid(
                f"{arn} is in no region that has SNS: AWS partition {name.aws_partition} has no {name.region}"
            )

    def may_read(self, lake: StoreLocation, uri: str) -> bool:
        """Whether a file that a lake's log names may be read. Relative names are in the lake."""
        if not lake.is_remote or "://" not in uri:
            return True
        return lies_below(uri, (lake.root_uri, *self.files))

    def file_refusals(self, lake: StoreLocation, sessions: Iterable[PinnedSession]) -> Iterator[str]:
        """Delta files that must not be read, a sentence each."""
        for session in sessions:
            where = f"{session.spec.job_run.source_table_id} {render_partition(session.spec.partition)}"
            for uri in session.uris_outside_lake:
                if not self.may_read(lake, uri):
                    yield (
                        f"{uri}, a delta file of {where}, lies outside of the lake {lake.root_uri}: start the "
                        f"dispatcher with --allow-files {uri.rpartition('/')[0]}, or take the delta back (lithify "
                        "table retract) and append the file with --copy"
                    )


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern for pattern in patterns)
