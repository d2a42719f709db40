"""An object that is written piece by piece, and can be discarded before it is finished: one PUT, or a multipart upload.

PyArrow's output stream cannot do this: closing it, also by its destructor, completes the upload, so a discarded file
would become an object (apache/arrow issue 40502). Here nothing is visible before `finish`, and `discard` aborts the
upload. Nothing is ever deleted by name: an existing object of this name belongs to another writer.

The upload of a killed process stays unfinished: no reader sees it, but it is stored and billed until `lithify gc` or
the bucket's lifecycle rule for incomplete multipart uploads (see infra/storage.py) aborts it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from botocore.exceptions import ClientError

from compactor.model.clock import SystemClock
from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from compactor.storage.aws.failures import translated
from compactor.storage.aws.s3 import S3Clients, shared_clients
from compactor.storage.location import StoreLocation, bucket_and_key

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

AnswerT = TypeVar("AnswerT")

PART_BYTES = 8 * 1024 * 1024
PARTS_OF_ONE_SIZE = 1_000
"""Number of parts after which parts are twice as large: S3 allows 10,000 parts of an object of up to 5 TiB."""

CONCURRENT_PARTS_MAX = 2
"""Parts that are sent at the same time. They and the part that is being filled bound the memory."""


class S3Upload:
    """Used by one thread at a time. `size_bytes`: written so far.

    Every method may raise `Unavailable`, `Denied` or `Invalid`; once a part has failed, `finish` does, too.
    """

    def __init__(self, clients: S3Clients, uri: str) -> None:
        self.size_bytes = 0
        self._clients = clients
        self._uri = uri
        self._bucket, self._key = bucket_and_key(uri)
        self._filling = bytearray()
        self._discarded = False
        self._upload_id: str | None = None
        self._parts: list[CompletedPartTypeDef] = []
        self._in_flight: deque[Future[CompletedPartTypeDef]] = deque()
        self._parts_sent = 0
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def open(cls, location: StoreLocation, uri: str) -> S3Upload:
        """Sends no request yet. Clients are shared within a process."""
        return cls(shared_clients(location.endpoint_url, location.region), uri)

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        if self._discarded:
            return size
        while rest:
            # A part is sent only when more bytes follow: a file of one part needs no multipart upload.
            if len(self._filling) == self._part_bytes:
                self._send_part()
            taken = rest[: self._part_bytes - len(self._filling)]
            self._filling += taken
            rest = rest[len(taken) :]
        self.size_bytes += size
        return size

    def finish(self) -> int:
        """Returns the size in bytes once the object is whole, durable and visible."""
        with self._writing():
            if self._upload_id is None:
                body = cast("bytes", self._filling)
                self._clients.until_answered(partial(self._clients.put, self._bucket, self._key, body), SystemClock())
                return self.size_bytes
            self._send_part()
            while self._in_flight:
                self._await_part()
            self._stop_threads()
            self._complete(self._upload_id)
            return self.size_bytes

    def discard(self) -> None:
        """Discards the object; later writes are ignored. Best effort: a failure is not reported."""
        self._discarded = True
        self._filling = bytearray()
        self._stop_threads()
        if self._upload_id is None:
            return
        try:
            with translated(f"{self._uri} cannot be discarded"):
                # Sent once: a caller often discards because the service does not answer.
                upload_id = self._upload_id
                self._clients.once(
                    lambda client: client.abort_multipart_upload(Bucket=self._bucket, Key=self._key, UploadId=upload_id)
                )
        except LithifyError:
            return

    @property
    def _part_bytes(self) -> int:
        return PART_BYTES << (self._parts_sent // PARTS_OF_ONE_SIZE)

    def _send_part(self) -> None:
        """Hands the full part to a thread; waits for the oldest if too many are being sent."""
        if self._upload_id is None:
            with self._writing():
                # The service then asks for each part's checksum when the upload is completed.
                answer = self._ask(
                    lambda client: client.create_multipart_upload(
                        Bucket=self._bucket, Key=self._key, ChecksumAlgorithm="CRC32"
                    )
                )
            self._upload_id = answer["UploadId"]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(CONCURRENT_PARTS_MAX, thread_name_prefix="upload")
        if len(self._in_flight) == CONCURRENT_PARTS_MAX:
            self._await_part()
        body, self._filling = self._filling, bytearray()
        self._parts_sent += 1
        self._in_flight.append(self._threads.submit(self._upload_part, self._upload_id, self._parts_sent, body))

    def _upload_part(self, upload_id: str, number: int, body: bytearray) -> CompletedPartTypeDef:
        with self._writing():
            whole, size_bytes = cast("bytes", body), len(body)
            answer = self._ask(
                lambda client: client.upload_part(
                    Bucket=self._bucket, Key=self._key, UploadId=upload_id, PartNumber=number, Body=whole
                ),
                size_bytes,
            )
        part: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
        if "ChecksumCRC32" in answer:
            part["ChecksumCRC32"] = answer["ChecksumCRC32"]
        return part

    def _await_part(self) -> None:
        self._parts.append(self._in_flight.popleft().result())

    def _complete(self, upload_id: str) -> None:
        """Safe to repeat: after a lost answer a second request fails, since the upload has ended; see `_is_there`."""
        try:
            self._ask(
                lambda client: client.complete_multipart_upload(
                    Bucket=self._bucket, Key=self._key, UploadId=upload_id, MultipartUpload={"Parts": self._parts}
                )
            )
        except ClientError as error:
            if not _is_no_such_upload(error) or not self._is_there():
                raise

    def _is_there(self) -> bool:
        """The name is fresh for every attempt, so an object with it, of this size, is ours."""

        def size(client: S3Client) -> int | None:
            try:
                return client.head_object(Bucket=self._bucket, Key=self._key)["ContentLength"]
            except ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
                    return None
                raise

        return self._ask(size) == self.size_bytes

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with translated(f"{self._uri} cannot be written"):
                yield
        except Denied:
            self._clients.renew(SystemClock().monotonic_seconds())
            raise
        except Invalid as error:
            if isinstance(error.__cause__, ClientError) and _is_no_such_upload(error.__cause__):
                raise Unavailable(f"{self._uri} cannot be written: somebody has aborted its upload") from error
            raise

    def _ask(self, ask: Callable[[S3Client], AnswerT], size_bytes: int = 0) -> AnswerT:
        return self._clients.repeated(ask, SystemClock(), size_bytes)

    def _stop_threads(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)


def _is_no_such_upload(error: ClientError) -> bool:
    return error.response.get("Error", {}).get("Code") == "NoSuchUpload"
