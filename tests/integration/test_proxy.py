"""The proxy between Lithify and the stand-ins for AWS: it must harm exactly what it was told to, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

from dispatcher.demo.stand_ins import queue_server
from tests.proxy import Proxy, ProxyProcess, Weather, proxy_before, proxy_process_before
from tests.servers import REGION, aws_environment

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    with aws_environment(), queue_server() as url:
        yield url


@pytest.fixture
def proxy(server_url: str) -> Iterator[Proxy]:
    with proxy_before(server_url) as made:
        yield made


def client(kind: str, proxy: Proxy | ProxyProcess, read_seconds: float = 10) -> Any:  # noqa: ANN401  (of any service)
    config = Config(
        retries={"total_max_attempts": 1},
        read_timeout=read_seconds,
        connect_timeout=2,
        s3={"addressing_style": "path"},
    )
    return boto3.client(kind, endpoint_url=proxy.url, region_name=REGION, config=config)  # type: ignore[call-overload]


def code_of(error: ClientError) -> tuple[int, str]:
    return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]


def test_in_fair_weather_requests_and_answers_of_any_size_pass_unchanged_and_are_counted(proxy: Proxy) -> None:
    s3 = client("s3", proxy)
    s3.create_bucket(Bucket="fair")
    body = bytes(range(256)) * 4_000
    s3.put_object(Bucket="fair", Key="a/b", Body=body)
    s3.put_object(Bucket="fair", Key="a/c", Body=b"", IfNoneMatch="*")

    assert s3.get_object(Bucket="fair", Key="a/b")["Body"].read() == body
    assert s3.get_object(Bucket="fair", Key="a/b", Range="bytes=10-19")["Body"].read() == body[10:20]
    assert s3.head_object(Bucket="fair", Key="a/b")["ContentLength"] == len(body)
    assert [each["Key"] for each in s3.list_objects_v2(Bucket="fair")["Contents"]] == ["a/b", "a/c"]
    counted = {name: traffic.requests for (_, name), traffic in proxy.counted().items()}
    assert counted == {"PUT": 2, "PUT if absent": 1, "GET": 1, "GET range": 1, "HEAD": 1, "LIST": 1}
    assert proxy.counted()["s3", "GET"].bytes_down >= len(body)
    assert proxy.counted()["s3", "PUT"].bytes_up >= len(body)


def test_services_and_operations_behind_one_port_are_told_apart(proxy: Proxy) -> None:
    queue = client("sqs", proxy).create_queue(QueueName="apart")["QueueUrl"]
    topic = client("sns", proxy).create_topic(Name="apart")["TopicArn"]
    proxy.count_anew()

    proxy.set_weather(Weather("error", status=403, code="AccessDenied"), "sns")

    client("sqs", proxy).send_message(QueueUrl=queue, MessageBody="a")
    with pytest.raises(ClientError) as refused:
        client("sns", proxy).publish(TopicArn=topic, Message="a")
    assert code_of(refused.value) == (403, "AccessDenied")
    assert list(proxy.counted()) == [("sqs", "SendMessage")]
    assert dict(proxy.harmed) == {("sns", "Publish"): 1}


@pytest.mark.parametrize("kind", ["s3", "sqs", "sns"])
@pytest.mark.parametrize(("status", "code"), [(403, "ExpiredToken"), (503, "SlowDown")])
def test_errors_are_answered_in_each_service_s_own_words(proxy: Proxy, kind: str, status: int, code: str) -> None:
    proxy.set_weather(Weather("error", status=status, code=code))
    ask = {"s3": "list_buckets", "sqs": "list_queues", "sns": "list_topics"}[kind]

    with pytest.raises(ClientError) as refused:
        getattr(client(kind, proxy), ask)()

    assert code_of(refused.value) == (status, code)


def test_a_request_that_is_cut_is_not_done_and_one_whose_answer_is_cut_is(proxy: Proxy) -> None:
    s3 = client("s3", proxy)
    s3.create_bucket(Bucket="cut")

    for harm, key in (("request cut", "never"), ("answer cut", "done")):
        proxy.set_weather(Weather(harm), "s3")  # type: ignore[arg-type]
        with pytest.raises(BotoCoreError):
            s3.put_object(Bucket="cut", Key=key, Body=b"x")
    proxy.set_weather(Weather(), "s3")

    assert [each["Key"] for each in s3.list_objects_v2(Bucket="cut")["Contents"]] == ["done"]


@pytest.mark.parametrize("harm", ["body cut", "reset"])
def test_of_an_answer_that_is_cut_half_way_a_part_of_its_body_arrives(proxy: Proxy, harm: str) -> None:
    s3 = client("s3", proxy)
    s3.create_bucket(Bucket="half")
    s3.put_object(Bucket="half", Key="a", Body=b"x" * 300_000)
    proxy.set_weather(Weather(harm), "s3")  # type: ignore[arg-type]

    answer = s3.get_object(Bucket="half", Key="a")

    assert answer["ContentLength"] == 300_000
    with pytest.raises(BotoCoreError):
        answer["Body"].read()


def test_errors_come_in_bursts(proxy: Proxy) -> None:
    s3 = client("s3", proxy)
    proxy.set_weather(Weather("error", every=4, burst=2, code="SlowDown"), "s3")
    outcomes = []
    for _ in range(12):
        try:
            s3.list_buckets()
            outcomes.append("ok")
        except ClientError:
            outcomes.append("SlowDown")
    assert "".join(outcome[0] for outcome in outcomes) == "oooSSooSSooS"


def test_a_proxy_in_a_process_of_its_own_counts_and_delays_alike(server_url: str) -> None:
    with proxy_process_before(server_url) as proxy:
        s3 = client("s3", proxy)
        s3.create_bucket(Bucket="apart")
        s3.put_object(Bucket="apart", Key="a", Body=b"x" * 1_000)
        proxy.count_anew()
        proxy.set_weather(Weather(delay_seconds=0.05))
        begun = time.monotonic()
        s3.get_object(Bucket="apart", Key="a", Range="bytes=10-19")["Body"].read()

        assert time.monotonic() - begun >= 0.05
        (traffic,) = proxy.counted().values()
        assert (traffic.requests, traffic.bytes_down) == (1, 10)
        assert [(seen.request.operation, seen.requested_range) for seen in proxy.seen()] == [
            ("GET range", "bytes=10-19")
        ]


def test_of_a_harm_to_every_third_request_two_thirds_pass(proxy: Proxy) -> None:
    sqs = client("sqs", proxy)
    proxy.set_weather(Weather("request cut", every=3))
    passed = 0
    for _ in range(9):
        try:
            sqs.list_queues()
            passed += 1
        except BotoCoreError:
            continue
    assert passed == 6


def list_queues(sqs: Any, met: list[BaseException]) -> None:  # noqa: ANN401  (as `client` makes it)
    """In a thread: its error goes to `met`."""
    try:
        sqs.list_queues()
    except BotoCoreError as error:
        met.append(error)


def test_silence_lasts_until_the_weather_changes(proxy: Proxy) -> None:
    sqs = client("sqs", proxy, read_seconds=60)
    proxy.set_weather(Weather("silence"))
    met: list[BaseException] = []

    asking = threading.Thread(target=list_queues, args=(sqs, met))
    asking.start()
    while not proxy.harmed:
        assert asking.is_alive()
    assert not met
    proxy.set_weather(Weather())
    asking.join()
    assert len(met) == 1
    sqs.list_queues()


def test_who_waits_in_silence_is_let_go_when_the_proxy_ends(server_url: str) -> None:
    met: list[BaseException] = []

    with proxy_before(server_url) as proxy:
        sqs = client("sqs", proxy, read_seconds=60)
        proxy.set_weather(Weather("silence"))
        asking = threading.Thread(target=list_queues, args=(sqs, met))
        asking.start()
        while not proxy.harmed:
            assert asking.is_alive()
    asking.join()
    assert len(met) == 1


def test_a_proxy_that_refused_listens_again_at_the_same_port(proxy: Proxy) -> None:
    sqs = client("sqs", proxy)
    sqs.list_queues()
    url = proxy.url
    proxy.refuse()
    with pytest.raises(EndpointConnectionError):
        client("sqs", proxy).list_queues()
    proxy.listen()
    assert proxy.url == url
    sqs.list_queues()


def test_a_delay_is_per_request_and_bandwidth_is_of_a_connection(proxy: Proxy) -> None:
    s3 = client("s3", proxy)
    s3.create_bucket(Bucket="slow")
    proxy.set_weather(Weather(delay_seconds=0.05, bytes_per_second=1_000_000), "s3")
    begun = time.monotonic()
    s3.put_object(Bucket="slow", Key="a", Body=b"x" * 100_000)
    assert s3.get_object(Bucket="slow", Key="a")["Body"].read() == b"x" * 100_000
    assert time.monotonic() - begun >= 0.05 * 2 + 0.1 * 2


class _KeepAlive(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connections = 0

    def setup(self) -> None:
        type(self).connections += 1
        super().setup()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"3\r\nabc\r\n0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        return


def test_a_connection_that_is_kept_serves_many_requests_and_chunked_answers_pass() -> None:
    import http.client

    server = ThreadingHTTPServer(("127.0.0.1", 0), _KeepAlive)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with proxy_before(f"http://127.0.0.1:{server.server_port}") as proxy:
            connection = http.client.HTTPConnection("127.0.0.1", proxy.own_port, timeout=10)
            for _ in range(3):
                connection.request("GET", "/")
                assert connection.getresponse().read() == b"abc"
            connection.close()
    finally:
        server.shutdown()
        server.server_close()
    assert _KeepAlive.connections == 1
