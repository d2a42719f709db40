"""What the dispatchers of a run talk to: a queue and a topic behind a proxy, a state and a lake that can be away.

On S3, state and lake lie behind a proxy too. In a folder each is reached by a symbolic link, and is away while that
link leads to itself: every access fails, and nothing looks empty that is not.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import boto3

from compactor.events.relay import Event
from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.object_store import ObjectStore
from compactor.storage.opening import open_store
from dispatcher.demo.stand_ins import queue_server
from tests.proxy import FAIR, Proxy, Weather, proxy_before
from tests.servers import BUCKET, REGION, aws_environment, ministack_server, seaweedfs_server

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

DELIVERIES_MAX = 50
"""Of the queue's redrive policy: what a run does to a good message may take more deliveries than usual."""


class LinkedFolder:
    """A folder that can be away."""

    def __init__(self, folder: Path, name: str) -> None:
        self._real = folder / f"{name}.real"
        self._real.mkdir()
        self._link = folder / name
        self.come_back()

    def go_away(self) -> None:
        self._lead_to(self._link.name)

    def come_back(self) -> None:
        self._lead_to(self._real.name)

    def _lead_to(self, target: str) -> None:
        other = self._link.with_name(f"{self._link.name}.next")
        other.symlink_to(target)
        other.replace(self._link)


@dataclass(frozen=True)
class Locations:
    """Where state and lake lie.

    state, lake       as the dispatchers are told
    own_state, own_lake  the same, as the run itself reaches them, whatever is away
    """

    state: str
    lake: str
    s3_endpoint_url: str | None
    own_state: StoreLocation
    own_lake: StoreLocation

    def open_state(self) -> ObjectStore:
        return open_store(self.own_state)

    def open_lake(self) -> DeltaCatalog:
        return DeltaCatalog(open_store(self.own_lake), SystemClock())


@dataclass
class Mail:
    """The queue, its dead letters and the topic; the run itself reaches them past the proxy."""

    proxy: Proxy
    url: str
    queue_url: str
    dead_letter_queue_url: str
    topic_arn: str
    events_queue_url: str
    events: list[Event] = field(default_factory=list)

    def sqs(self) -> SQSClient:
        return boto3.client("sqs", endpoint_url=self.url, region_name=REGION)

    def send(self, body: str) -> str:
        return self.sqs().send_message(QueueUrl=self.queue_url, MessageBody=body)["MessageId"]

    def waiting(self) -> int:
        """Messages on the queue, visible or not, or to be there soon."""
        kinds = ("", "NotVisible", "Delayed")
        names: Sequence[str] = [f"ApproximateNumberOfMessages{kind}" for kind in kinds]
        found = self.sqs().get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)  # type: ignore[arg-type]
        return sum(int(number) for number in found["Attributes"].values())

    def dead_letters(self) -> list[tuple[str, list[str]]]:
        """Every body on the dead-letter queue with its reasons; it is empty afterwards."""
        return [
            (
                message["Body"],
                json.loads(message.get("MessageAttributes", {}).get("reasons", {}).get("StringValue", "[]")),
            )
            for message in self._taken(self.dead_letter_queue_url)
        ]

    def read_events(self) -> int:
        """Take what subscribers got since the last call; answers how many."""
        found = [Event.model_validate_json(message["Body"]) for message in self._taken(self.events_queue_url)]
        self.events.extend(found)
        return len(found)

    def _taken(self, url: str) -> Iterator[dict]:  # type: ignore[type-arg]
        sqs = self.sqs()
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]).get(
            "Messages", []
        ):
            yield from messages  # type: ignore[misc]
            sqs.delete_message_batch(
                QueueUrl=url,
                Entries=[
                    {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]} for number, each in enumerate(messages)
                ],
            )


@dataclass
class Surroundings:
    folder: Path
    mail: Mail
    place: Locations
    links: dict[str, LinkedFolder]
    s3_proxy: Proxy | None

    @property
    def services(self) -> tuple[str, ...]:
        """What can be away."""
        return ("sqs", "sns", *self.links, *(["s3"] if self.s3_proxy is not None else []))

    def be_away(self, service: str, weather: Weather | None) -> None:
        """A folder has no weather: it is there, or it is not."""
        if weather is None:
            self.links[service].go_away()
        else:
            self._proxy_of(service).set_weather(weather, service)

    def be_back(self, service: str) -> None:
        if service in self.links:
            self.links[service].come_back()
        else:
            self._proxy_of(service).set_weather(FAIR, service)

    def _proxy_of(self, service: str) -> Proxy:
        return self.s3_proxy if service == "s3" and self.s3_proxy is not None else self.mail.proxy


@contextmanager
def surroundings(folder: Path, *, on_s3: bool, on_ministack: bool = False) -> Iterator[Surroundings]:
    """Servers and proxies, until the end of the context. `on_ministack`: queue and topic are not moto's."""
    with ExitStack() as up:
        up.enter_context(aws_environment())
        mail = _open_mail(up.enter_context(ministack_server() if on_ministack else queue_server()), up)
        if on_s3:
            endpoint_url = up.enter_context(seaweedfs_server(folder / "s3"))
            s3_proxy = up.enter_context(proxy_before(endpoint_url))
            yield Surroundings(folder, mail, _place_on_s3(folder.name, endpoint_url, s3_proxy.url), {}, s3_proxy)
        else:
            links = {name: LinkedFolder(folder, name) for name in ("state", "lake")}
            yield Surroundings(folder, mail, _place_in(folder), links, None)


def _place_on_s3(prefix: str, endpoint_url: str, proxy_url: str) -> Locations:
    state, lake = (f"s3://{BUCKET}/{prefix}/{name}" for name in ("state", "lake"))
    own = [parse_location(uri, endpoint_url=endpoint_url, region=REGION) for uri in (state, lake)]
    return Locations(state, lake, proxy_url, *own)


def _place_in(folder: Path) -> Locations:
    own = [parse_location(str(folder / name)) for name in ("state.real", "lake.real")]
    return Locations(str(folder / "state"), str(folder / "lake"), None, *own)


def _open_mail(url: str, up: ExitStack) -> Mail:
    proxy = up.enter_context(proxy_before(url))
    sqs = boto3.client("sqs", endpoint_url=url, region_name=REGION)
    sns = boto3.client("sns", endpoint_url=url, region_name=REGION)

    def arn(queue_url: str) -> str:
        return sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]

    # The stand-in keeps one account for all tests of a process: names of its own for each run.
    run = SystemClock().new_id()[:8]
    dead_letters = sqs.create_queue(QueueName=f"{run}-dead-letters")["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn(dead_letters), "maxReceiveCount": DELIVERIES_MAX})
    queue = sqs.create_queue(QueueName=f"{run}-instructions", Attributes={"RedrivePolicy": policy})["QueueUrl"]
    events = sqs.create_queue(QueueName=f"{run}-events")["QueueUrl"]
    topic = sns.create_topic(Name=f"{run}-events")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn(events), Attributes={"RawMessageDelivery": "true"})
    return Mail(proxy, url, queue, dead_letters, topic, events)


class EventReader:
    """Takes events off their queue while the run goes on: a deep queue is slow on the stand-in."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._read, name="events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        self._thread.join()
        self._mail.read_events()

    def _read(self) -> None:
        while not self._stops.wait(0.5):
            self._mail.read_events()
