"""The endpoint of a service other than AWS's own: an HTTP URL with a host."""

from __future__ import annotations

from urllib.parse import urlsplit

from compactor.model.errors import Invalid


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
