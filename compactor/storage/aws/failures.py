"""Translates botocore's errors into Lithify's kinds of error, for all AWS services."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    InvalidRegionError,
    NoAuthTokenError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from urllib3.exceptions import HTTPError

from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable

_TRY_LATER = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalServiceException",
        "KMSThrottled",
        "KmsThrottlingException",
        "OperationTimeoutException",
        "OverLimit",
        "RequestThrottled",
        "RequestTimeout",
        "ResourceNotReadyException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttled",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""Codes with a status below 500 that still mean: try later."""

_CUT_OFF = "404"
"""What botocore gives as the code of a "not found" answer that ended before it named the object or its bucket. (Answers
to HEAD have no body either: who sends one judges it by its status.)"""

_DENIED_STATUSES = (401, 403)
_DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "AuthorizationError",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignatureException",
        "InvalidToken",
        "KMSAccessDenied",
        "KMSAccessDeniedException",
        "KmsAccessDeniedException",
        "KmsInvalidStateException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "NotAuthorized",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "UnrecognizedClientException",
    }
)
"""Codes about credentials, clocks and rights; S3 and the JSON protocols send some of them with status 400."""

_NO_CREDENTIALS = (
    CredentialRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
_NEVER_WORKS = (InvalidRegionError, NoRegionError, ParamValidationError)


@contextmanager
def translated(failure: str) -> Iterator[None]:
    """While the context is open, an error of botocore becomes `Denied` (credentials, clock, rights), `Invalid` (no such
    resource, or a malformed request) or `Unavailable` (no answer, overloaded).

    Args:
        failure: begins the sentence: "queue https://... cannot be read"
    """
    try:
        yield
    except ClientError as error:
        code, message = code_of(error), error.response.get("Error", {}).get("Message", "")
        raise _kind_of_answer(error)(f"{failure}: {message or code} ({code})") from error
    except _NO_CREDENTIALS as error:
        raise Denied(f"{failure}: {error}; set AWS credentials for this process") from error
    except _NEVER_WORKS as error:
        raise Invalid(f"{failure}: {error}") from error
    except (BotoCoreError, HTTPError) as error:
        # Botocore lets through what urllib3 raises while the body of an error is read.
        raise Unavailable(f"{failure}: {error}") from error


def is_temporary(error: BaseException) -> bool:
    """Whether the same request may get an answer later."""
    if isinstance(error, ClientError):
        return _kind_of_answer(error) is Unavailable
    return isinstance(error, BotoCoreError | HTTPError) and not isinstance(error, (*_NO_CREDENTIALS, *_NEVER_WORKS))


def _kind_of_answer(error: ClientError) -> type[LithifyError]:
    if code_of(error) == _CUT_OFF:
        return Unavailable
    return kind_of(code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def kind_of(code: str, status: int) -> type[LithifyError]:
    """The kind of error of a service's answer, by its code (without a prefix) and HTTP status."""
    name = code.rsplit(".", 1)[-1]
    if status >= 500 or name in _TRY_LATER:
        return Unavailable
    return Denied if status in _DENIED_STATUSES or name in _DENIED else Invalid
