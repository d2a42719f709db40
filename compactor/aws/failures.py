"""Translates what boto3 raises into Lithify's own kinds of error, once, for the services that carry messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)

from compactor.errors import Invalid, Unavailable

_TRY_LATER = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "KMSThrottled",
        "OverLimit",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "Throttled",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""Codes that come with a status below 500 and still mean: not now."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Inside, an error of boto3 becomes `Invalid` (wrong name, no permission) or `Unavailable` (no answer, not now).

    what  begins the sentence: "queue https://... cannot be read"
    """
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        message = error.response.get("Error", {}).get("Message", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        kind = Unavailable if status >= 500 or code.rsplit(".", 1)[-1] in _TRY_LATER else Invalid
        raise kind(f"{what}: {message or code} ({code})") from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise Invalid(f"{what}: {error}; set AWS credentials for this process") from error
    except ParamValidationError as error:
        raise Invalid(f"{what}: {error}") from error
    except BotoCoreError as error:
        raise Unavailable(f"{what}: {error}") from error
