"""How the S3 store reads the answers of a service that is in trouble: a scripted server stands in for it."""

from __future__ import annotations

import base64
import re
import ssl
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from compactor.storage.aws.limits import LIMITS
from compactor.storage.aws.native import CHECKSUM, checksum_of
from compactor.storage.aws.s3 import CONFLICTS, S3Clients, S3Store
from compactor.storage.concurrently import AT_ONCE, run_concurrently
from compactor.storage.location import StoreLocation
from dispatcher.demo.stand_ins import free_ports
from tests.fakes.manual_clock import ManualClock
from tests.servers import aws_environment

LOST = "lost"
"""The answer never comes: the connection is closed after the request."""


class ScriptedS3:
    """Answers each request with the next of `script` (status and error code), and with 200 after its end: to GET with
    the next of `bodies`, or with an empty one."""

    def __init__(self) -> None:
        self.script: list[tuple[int, str] | str] = []
        self.not_deleted: list[list[tuple[str, str]]] = []
        """Of the answers to DeleteObjects one after the other: keys and error codes."""
        self.bodies: list[tuple[bytes, dict[str, str]]] = []
        """And headers beside them."""
        self.requests: list[str] = []
        self.signed_with: list[str] = []


def beside(body: bytes) -> dict[str, str]:
    """The header that an object with this body has."""
    return {f"x-amz-meta-{CHECKSUM}": checksum_of(body)}


@pytest.fixture
def s3() -> Iterator[tuple[ScriptedS3, S3Store]]:
    with scripted_server() as (scripted, endpoint_url), aws_environment():
        location = StoreLocation("s3://bucket/some/prefix", endpoint_url)
        yield scripted, S3Store(location, S3Clients.open(endpoint_url, None), ManualClock())


@contextmanager
def scripted_server(tls: ssl.SSLContext | None = None) -> Iterator[tuple[ScriptedS3, str]]:
    """And its URL."""
    scripted = ScriptedS3()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            condition = self.headers.get("If-None-Match")
            scripted.requests.append(f"PUT {self.path}" + (f" if none match {condition}" if condition else ""))
            self._answer()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            scripted.requests.append(f"POST {self.path} {' '.join(re.findall('<Key>(.*?)</Key>', body))}")
            refused = scripted.not_deleted.pop(0) if scripted.not_deleted else []
            errors = (f"<Error><Key>{key}</Key><Code>{code}</Code></Error>" for key, code in refused)
            self._answer(f"<DeleteResult>{''.join(errors)}</DeleteResult>".encode())

        def do_GET(self) -> None:
            scripted.requests.append(f"GET {self.path}")
            body, headers = scripted.bodies.pop(0) if scripted.bodies else (b"", beside(b""))
            self._answer(body, headers)

        def _answer(self, well: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})) -> None:
            signed = self.headers.get("Authorization", "")
            scripted.signed_with.append(signed.partition("Credential=")[2].partition("/")[0])
            answer = scripted.script.pop(0) if scripted.script else (200, "")
            if isinstance(answer, str):
                self.close_connection = True
                return
            status, code = answer
            body = f"<Error><Code>{code}</Code><Message>{code} it is</Message></Error>".encode() if code else well
            self.send_response(status)
            if status == 200:
                for name, value in {"ETag": '"1"', **headers}.items():
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield scripted, f"{'http' if tls is None else 'https'}://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


ALL_REQUESTS = ["PUT /bucket/some/prefix/a if none match *", "GET /bucket/some/prefix/a", "GET /bucket"]


def reads_and_writes(store: S3Store, scripted: ScriptedS3) -> list[str]:
    """The requests for all that obstore does, and for a listing, which boto3 does."""
    scripted.bodies = [(b"", beside(b"")), (b"<ListBucketResult></ListBucketResult>", {})]
    assert store.put_if_absent("a", b"")
    assert store.read("a") == b""
    assert list(store.list("b")) == []
    return [request.partition("?")[0] for request in scripted.requests]


def test_calls_side_by_side_in_calls_side_by_side_keep_their_connections_without_a_warning(
    s3: tuple[ScriptedS3, S3Store], caplog: pytest.LogCaptureFixture
) -> None:
    """urllib3 warns of each connection that it closes because so many are kept."""
    scripted, store = s3
    numbers = range(AT_ONCE)
    scripted.bodies = [(b"<ListBucketResult></ListBucketResult>", {})] * AT_ONCE**2

    def list_often(_: int) -> int:
        return sum(run_concurrently(store.location, lambda _: len(list(store.list("b"))), numbers))

    assert run_concurrently(store.location, list_often, numbers) == [0] * AT_ONCE
    assert len(scripted.requests) == AT_ONCE**2
    assert [each.getMessage() for each in caplog.records] == []


def test_an_endpoint_that_is_given_comes_before_that_of_the_environment(
    s3: tuple[ScriptedS3, S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    scripted, store = s3
    assert reads_and_writes(store, scripted) == ALL_REQUESTS


def test_the_endpoint_of_the_environment_holds_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_server() as (scripted, url), aws_environment():
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        store = S3Store(StoreLocation("s3://bucket/some/prefix"), S3Clients.open(None, None), ManualClock())
        requests = reads_and_writes(store, scripted)
    assert requests == ALL_REQUESTS


@pytest.mark.parametrize(
    ("region", "variables", "host"),
    [
        ("eu-west-1", {}, "data-of-us.s3.eu-west-1.amazonaws.com"),
        ("cn-north-1", {}, "data-of-us.s3.cn-north-1.amazonaws.com.cn"),
        ("us-west-2", {"AWS_USE_FIPS_ENDPOINT": "true"}, "data-of-us.s3-fips.us-west-2.amazonaws.com"),
        ("eu-west-1", {"AWS_USE_DUALSTACK_ENDPOINT": "true"}, "data-of-us.s3.dualstack.eu-west-1.amazonaws.com"),
    ],
)
def test_obstore_asks_where_boto3_does(
    region: str, variables: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with aws_environment():
        config: dict[str, object] = {**S3Clients.open(None, region).bucket("data-of-us").config}
    assert config["endpoint_url_s3"] == f"https://{host}"
    assert config["virtual_hosted_style_request"] == "true"


def test_a_service_with_a_certificate_of_ones_own_is_trusted_by_aws_ca_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, tls = own_authority(tmp_path)
    with scripted_server(tls) as (scripted, url), aws_environment():
        location = StoreLocation("s3://bucket/some/prefix", url)
        impatient = replace(LIMITS, tries_max=1)
        strange = S3Store(location, S3Clients.open(url, None, impatient), ManualClock())
        with pytest.raises(Unavailable, match=r"no connection \(InvalidCertificate\)"):
            strange.read("a")

        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
        store = S3Store(location, S3Clients.open(url, None), ManualClock())
        assert reads_and_writes(store, scripted) == ALL_REQUESTS

        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none"))
        with pytest.raises(Invalid, match="AWS_CA_BUNDLE"):
            S3Clients.open(url, None)


def own_authority(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """The certificate of an authority, and a server at `localhost` that it vouches for."""
    now = datetime.now(UTC)

    def certificate(name: str, issuer: str, signed_by: EllipticCurvePrivateKey, *, is_authority: bool) -> bytes:
        builder = x509.CertificateBuilder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            (signed_by if is_authority else server_key).public_key(),
            x509.random_serial_number(),
            now - timedelta(days=1),
            now + timedelta(days=1),
        )
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(signed_by, SHA256()).public_bytes(Encoding.PEM)

    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority, server = folder / "authority.pem", folder / "server.pem"
    authority.write_bytes(certificate("authority", "authority", authority_key, is_authority=True))
    key = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    server.write_bytes(key + certificate("localhost", "authority", authority_key, is_authority=False))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(server)
    return authority, tls


def test_put_if_absent_is_one_conditional_put_below_the_prefix(s3: tuple[ScriptedS3, S3Store]) -> None:
    scripted, store = s3
    assert store.put_if_absent("log/1.json", b"{}")
    assert scripted.requests == ["PUT /bucket/some/prefix/log/1.json if none match *"]


def test_precondition_failed_means_taken(s3: tuple[ScriptedS3, S3Store]) -> None:
    scripted, store = s3
    scripted.script = [(412, "PreconditionFailed")]
    assert not store.put_if_absent("a", b"")
    assert len(scripted.requests) == 1


def test_a_conditional_conflict_is_asked_again_until_it_is_settled(s3: tuple[ScriptedS3, S3Store]) -> None:
    scripted, store = s3
    scripted.script = [(409, "ConditionalRequestConflict")] * 3
    assert store.put_if_absent("a", b"")
    scripted.script = [(409, "ConditionalRequestConflict"), (412, "PreconditionFailed")]
    assert not store.put_if_absent("a", b"")
    scripted.script = [(409, "ConditionalRequestConflict")] * CONFLICTS.tries_max
    with pytest.raises(Unavailable, match="other writers"):
        store.put_if_absent("a", b"")


def test_the_status_of_an_answer_that_names_no_code_says_what_came_of_a_conditional_put(
    s3: tuple[ScriptedS3, S3Store],
) -> None:
    scripted, store = s3
    scripted.script = [(409, ""), (412, "")]
    assert not store.put_if_absent("a", b"")
    assert len(scripted.requests) == 2


def test_an_answer_that_differs_from_the_checksum_beside_the_object_is_asked_for_again(
    s3: tuple[ScriptedS3, S3Store],
) -> None:
    scripted, store = s3
    scripted.bodies = [(b"wring", beside(b"right")), (b"right", beside(b"right"))]
    assert store.read("a") == b"right"
    assert len(scripted.requests) == 2
    scripted.bodies = [(b"righ", beside(b"right"))] * 100
    with pytest.raises(Unavailable, match=r"s3://bucket/some/prefix/a cannot be read: .*CRC-32"):
        store.read("a")
    assert len(scripted.bodies) == 100 - store.clients.limits.tries_max


def test_an_object_without_a_checksum_beside_it_is_compared_with_that_of_the_service(
    s3: tuple[ScriptedS3, S3Store],
) -> None:
    scripted, store = s3
    of_service = {"x-amz-checksum-crc32": base64.b64encode(zlib.crc32(b"right").to_bytes(4, "big")).decode()}
    scripted.bodies = [(b"wring", of_service)] * 2 + [(b"right", of_service)] * 2
    assert store.read("a") == b"right"
    assert not scripted.bodies


@pytest.mark.parametrize("answer", [(500, "InternalError"), (503, "SlowDown"), LOST])
def test_an_unknown_outcome_of_a_conditional_put_is_never_asked_twice(
    s3: tuple[ScriptedS3, S3Store], answer: tuple[int, str] | str
) -> None:
    scripted, store = s3
    scripted.script = [answer]
    with pytest.raises(Unavailable, match="s3://bucket/some/prefix/a cannot be created"):
        store.put_if_absent("a", b"")
    assert len(scripted.requests) == 1


def test_repeatable_requests_are_repeated(s3: tuple[ScriptedS3, S3Store]) -> None:
    scripted, store = s3
    scripted.script = [(503, "SlowDown"), LOST]
    store.overwrite("a", b"x")
    scripted.script = [(500, "InternalError")]
    assert store.read("a") == b""
    assert len(scripted.requests) == 5


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((404, "NoSuchBucket"), Invalid),
        ((403, "AccessDenied"), Denied),
        ((400, "ExpiredToken"), Denied),
        ((403, "RequestTimeTooSkewed"), Denied),
        ((403, "SignatureDoesNotMatch"), Denied),
    ],
)
def test_refusals_have_reasons_and_bad_credentials_their_own_kind(
    s3: tuple[ScriptedS3, S3Store], answer: tuple[int, str], kind: type[LithifyError]
) -> None:
    scripted, store = s3
    for ask in (lambda: store.put_if_absent("a", b""), lambda: store.read("a"), lambda: list(store.list(""))):
        scripted.script = [answer]
        with pytest.raises(LithifyError, match=answer[1]) as error:
            ask()
        assert type(error.value) is kind


def test_of_objects_deleted_together_busy_ones_are_tried_again_and_refused_ones_named(
    s3: tuple[ScriptedS3, S3Store],
) -> None:
    scripted, store = s3
    scripted.not_deleted = [
        [("some/prefix/a", "SlowDown"), ("some/prefix/b", "AccessDenied"), ("some/prefix/c", "InternalError")],
        [("some/prefix/c", "SlowDown")],
    ]
    assert store.delete_many(["a", "b", "c", "d"]) == {
        "b": "s3://bucket/some/prefix/b cannot be deleted: AccessDenied (AccessDenied)"
    }
    assert [request.partition("?delete ")[2] for request in scripted.requests] == [
        "some/prefix/a some/prefix/b some/prefix/c some/prefix/d",
        "some/prefix/a some/prefix/c",
        "some/prefix/c",
    ]
    scripted.not_deleted = [[("some/prefix/a", "SlowDown")]] * 100
    assert list(store.delete_many(["a"])) == ["a"]
    assert len(scripted.not_deleted) == 100 - store.clients.limits.tries_max


def test_a_key_longer_than_s3_allows_is_refused_without_asking(s3: tuple[ScriptedS3, S3Store]) -> None:
    scripted, store = s3
    longest = 1_024 - len("some/prefix/")
    store.put_if_absent("x" * longest, b"")
    with pytest.raises(Invalid, match="longer than the 1024 bytes"):
        store.put_if_absent("x" * (longest + 1), b"")
    assert len(scripted.requests) == 1


def test_credentials_that_were_replaced_in_their_file_are_taken_up_without_a_new_start(
    s3: tuple[ScriptedS3, S3Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted, store = s3
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = s\n")
    clients, clock = S3Clients.open(store.location.endpoint_url, None), ManualClock()
    store = S3Store(store.location, clients, clock)
    file.write_text("[default]\naws_access_key_id = new\naws_secret_access_key = s\n")
    scripted.script = [(400, "ExpiredToken"), (400, "ExpiredToken")]
    for _ in range(2):
        with pytest.raises(Denied):
            store.read("a")
    store.read("a")
    assert scripted.signed_with == ["old", "new", "new"]


def test_a_process_has_one_set_of_clients_for_a_service(s3: tuple[ScriptedS3, S3Store]) -> None:
    _, store = s3
    here, there = StoreLocation("s3://a", store.location.endpoint_url), StoreLocation("s3://b/c", "http://127.0.0.1:9")
    assert S3Store.open(here).clients is S3Store.open(replace(here, root_uri="s3://b/c")).clients
    assert S3Store.open(here).clients is not S3Store.open(there).clients


def test_a_lost_answer_and_a_closed_port_are_named_in_words(s3: tuple[ScriptedS3, S3Store]) -> None:
    scripted, store = s3
    scripted.script = [LOST]
    with pytest.raises(Unavailable, match=r"a cannot be created: the connection was closed before an answer$"):
        store.put_if_absent("a", b"")
    (port,) = free_ports(1)
    nowhere = f"http://127.0.0.1:{port}"
    closed = S3Clients.open(nowhere, None, replace(LIMITS, tries_max=1))
    with pytest.raises(Unavailable, match=r"a cannot be read: no connection \(Connection refused\)$"):
        S3Store(StoreLocation("s3://bucket", nowhere), closed, ManualClock()).read("a")
