"""The location of a lake or a dispatcher's state, as a plain value, and its text form."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from compactor.model.errors import Invalid

_S3, _FILE = "s3://", "file://"


def is_remote(uri: str) -> bool:
    """Whether a folder or a file is on S3, so that each request for it takes a round trip."""
    return uri.startswith(_S3)


def bucket_and_key(uri: str) -> tuple[str, str]:
    """The bucket of a URI on S3, and the key or the prefix in it, which may be empty."""
    bucket, _, key = uri.removeprefix(_S3).partition("/")
    return bucket, key


@dataclass(frozen=True)
class StoreLocation:
    """The location of a lake, or of a dispatcher's state."""

    root_uri: str
    """`s3://bucket/prefix` or `file:///absolute/path`, without a trailing slash."""

    endpoint_url: str | None = None
    """The S3 service's address; None: AWS's own."""

    region: str | None = None
    """The S3 region; None: that of the environment."""

    @property
    def is_remote(self) -> bool:
        """Whether each request takes a round trip."""
        return is_remote(self.root_uri)

    @property
    def is_missing_folder(self) -> bool:
        """Whether it is a local folder that is away, as of a disk that is not mounted: it reads as an empty one."""
        return self.root_uri.startswith(_FILE) and not Path(self.root_uri.removeprefix(_FILE)).is_dir()

    def key_of(self, uri: str) -> str:
        """The key of an object below the root; any other URI unchanged."""
        return uri.removeprefix(f"{self.root_uri}/")


def lies_below(uri: str, folders: Iterable[str]) -> bool:
    """Whether an object is in one of these folders, or below one, by its name; `s3://` is every bucket."""
    if any(part in (".", "..") for part in uri.split("/")):
        return False
    return any(f"{uri}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)


def key_bytes_max(location: StoreLocation) -> int:
    """The longest key that fits below this root: S3 takes 1,024 bytes with the prefix, Linux 4,095 with the folder."""
    if location.is_remote:
        _, prefix = bucket_and_key(location.root_uri)
        return 1_024 - len(f"{prefix}/".encode())
    return 4_095 - len(location.root_uri.removeprefix(_FILE).encode()) - 1


def parse_location(uri_or_path: str, *, endpoint_url: str | None = None, region: str | None = None) -> StoreLocation:
    """A location from what a person types: `s3://bucket/prefix`, `file:///data/lake`, or a local path.

    Raises `Invalid` for any other scheme, an S3 URI without a bucket, or a malformed endpoint.
    """
    if is_remote(uri_or_path):
        bucket, _ = bucket_and_key(uri_or_path)
        if not bucket:
            raise Invalid(f"{uri_or_path!r} names no bucket: write s3://bucket/prefix")
        return StoreLocation(uri_or_path.rstrip("/"), checked_endpoint(endpoint_url), region)
    if uri_or_path.startswith(_FILE):
        path = uri_or_path.removeprefix(_FILE)
        if not path.startswith("/"):
            raise Invalid(f"{uri_or_path!r} is not absolute: write file:///path/to/lake")
        return StoreLocation(_FILE + (path.rstrip("/") or "/"))
    if "://" in uri_or_path or not uri_or_path:
        raise Invalid(f"{uri_or_path!r} is not a location: use s3://bucket/prefix, file:///path or a local path")
    return StoreLocation(_FILE + str(Path(uri_or_path).absolute()))


def checked_endpoint(url: str | None) -> str | None:
    """The URL, or None for AWS's own endpoint. Raises `Invalid` if no request could be sent to it."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        reachable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # half an IPv6 address; a port that is no number
        reachable = False
    if not reachable or any(character.isspace() for character in url):
        raise Invalid(f"{url!r} is not an endpoint: write http://host:port or https://host")
    return url
