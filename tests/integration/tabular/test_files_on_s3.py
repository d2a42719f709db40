"""Data files on S3, and on an S3 that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from compactor.model.errors import Corrupt, Denied, Invalid, Unavailable
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation
from compactor.tabular import TabularFile, TabularWriter, measure, read_batches, read_table

pytestmark = pytest.mark.servers

WRITTEN = [ContentType.PARQUET, ContentType.FEATHER, ContentType.ORC, ContentType.CSV, ContentType.TSV]
ORDERS = pa.table({"id": [3, 1, 2], "status": ["new", None, ""], "amount": [1.5, None, 2.5]})


def _write_and_fail(writer: TabularWriter) -> None:
    writer.write(ORDERS)
    raise ZeroDivisionError


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_location(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> StoreLocation:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    fs.S3FileSystem(
        endpoint_override=s3_endpoint.removeprefix("http://"), scheme="http", allow_bucket_creation=True, region="x"
    ).create_dir("lake")
    return StoreLocation("s3://lake/root", s3_endpoint)


@pytest.mark.parametrize("content_type", WRITTEN)
def test_files_on_s3_are_written_measured_and_read(s3_location: StoreLocation, content_type: ContentType) -> None:
    file = TabularFile(f"s3://lake/root/a b/%2F/x.{content_type.file_suffix}", content_type)
    with TabularWriter.open(s3_location, file.uri, content_type, ORDERS.schema) as writer:
        writer.write(ORDERS)
        written = writer.close()
    found = measure(s3_location, file)
    assert (found.rows, found.size_bytes) == (written.rows, written.size_bytes)
    assert read_table(s3_location, file) == ORDERS
    assert pa.Table.from_batches(read_batches(s3_location, file, ["id"])) == ORDERS.select(["id"])


def test_a_failed_write_leaves_no_object(s3_location: StoreLocation) -> None:
    file = TabularFile("s3://lake/root/failed.parquet", ContentType.PARQUET)
    with (
        pytest.raises(ZeroDivisionError),
        TabularWriter.open(s3_location, file.uri, ContentType.PARQUET, ORDERS.schema) as writer,
    ):
        _write_and_fail(writer)
    with pytest.raises(Corrupt, match=r"s3://lake/root/failed\.parquet does not exist"):
        read_table(s3_location, file)


@pytest.mark.parametrize("content_type", list(ContentType))
def test_a_missing_object_or_bucket_is_corruption_and_named(
    s3_location: StoreLocation, content_type: ContentType
) -> None:
    for uri in ("s3://lake/gone", "s3://no-such-bucket/gone"):
        with pytest.raises(Corrupt, match=f"{uri} does not exist"):
            read_table(s3_location, TabularFile(uri, content_type))


def test_writing_into_a_bucket_that_is_not_there_is_refused(s3_location: StoreLocation) -> None:
    with pytest.raises(Invalid, match=r"s3://no-such-bucket/x cannot be written: .*NoSuchBucket"):
        _write_to(s3_location, "s3://no-such-bucket/x")


@pytest.fixture
def answering() -> Iterator[Callable[..., StoreLocation]]:
    """A place whose S3 answers everything with one HTTP status and error code."""
    servers = []

    def start(status: int, code: str = "") -> StoreLocation:
        error_body = f"<Error><Code>{code}</Code><Message>{code} it is</Message></Error>".encode() if code else b""

        class Answer(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                body = b"" if self.command == "HEAD" else error_body
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.send_header("content-type", "application/xml")
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return StoreLocation("s3://lake/root", f"http://127.0.0.1:{server.server_port}")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.long
def test_an_s3_that_fails_is_unavailable(s3_location: StoreLocation, answering: Callable[..., StoreLocation]) -> None:
    with pytest.raises(Unavailable, match="s3://lake/x cannot be reached now"):
        read_table(answering(503), TabularFile("s3://lake/x", ContentType.PARQUET))
    with pytest.raises(Unavailable, match=r"s3://lake/y cannot be written: .*\(500\)"):
        _write_to(answering(500), "s3://lake/y")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "ExpiredToken"),
        (403, "AccessDenied"),
        (403, "InvalidAccessKeyId"),
        (403, "RequestTimeTooSkewed"),
        (403, "SignatureDoesNotMatch"),
        (403, ""),
    ],
)
def test_an_s3_that_does_not_let_us_in_is_denied_and_no_fault_of_the_file(
    s3_location: StoreLocation, answering: Callable[..., StoreLocation], status: int, code: str
) -> None:
    location = answering(status, code)
    with pytest.raises(Denied, match=r"s3://lake/x .* credentials"):
        read_table(location, TabularFile("s3://lake/x", ContentType.PARQUET))
    with pytest.raises(Denied, match=rf"s3://lake/y cannot be written: .*\({code or status}\)"):
        _write_to(location, "s3://lake/y")


@pytest.mark.parametrize(("status", "code"), [(400, "InvalidArgument"), (400, "EntityTooLarge")])
def test_an_s3_that_refuses_a_file_is_not_asked_again(
    s3_location: StoreLocation, answering: Callable[..., StoreLocation], status: int, code: str
) -> None:
    with pytest.raises(Invalid, match=rf"s3://lake/y cannot be written: .*\({code}\)"):
        _write_to(answering(status, code), "s3://lake/y")


@pytest.mark.slow
def test_an_s3_that_is_not_there_is_unavailable(s3_location: StoreLocation) -> None:
    nowhere = StoreLocation("s3://lake/root", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="s3://lake/x cannot be reached now"):
        read_table(nowhere, TabularFile("s3://lake/x", ContentType.PARQUET))


def _write_to(location: StoreLocation, uri: str) -> None:
    with TabularWriter.open(location, uri, ContentType.PARQUET, ORDERS.schema) as writer:
        writer.write(ORDERS)
