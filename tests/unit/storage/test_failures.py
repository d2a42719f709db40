"""What an answer of AWS means: mend the credentials, mend the request, or wait."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    UnauthorizedSSOTokenError,
)

from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from compactor.storage.aws.failures import translated


def refused(code: str, status: int) -> type[LithifyError]:
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return kind_of(ClientError(answer, "ReceiveMessage"))  # type: ignore[arg-type]


def kind_of(error: Exception) -> type[LithifyError]:
    with (
        pytest.raises(LithifyError, match=r"^queue q is closed: ") as caught,
        translated("queue q is closed"),
    ):
        raise error
    return type(caught.value)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ExpiredToken", 403),
        ("ExpiredToken", 400),
        ("ExpiredTokenException", 400),
        ("AccessDenied", 403),
        ("AccessDeniedException", 400),
        ("AuthorizationError", 403),
        ("InvalidClientTokenId", 403),
        ("KMS.AccessDeniedException", 400),
        ("RequestExpired", 400),
        ("RequestTimeTooSkewed", 403),
        ("SignatureDoesNotMatch", 403),
        ("UnrecognizedClientException", 400),
        ("SomethingNewAboutRights", 403),
    ],
)
def test_refused_credentials_clocks_and_rights_are_denied(code: str, status: int) -> None:
    assert refused(code, status) is Denied


@pytest.mark.parametrize(
    "error",
    [
        NoCredentialsError(),
        CredentialRetrievalError(provider="assume-role", error_msg="no answer"),
        UnauthorizedSSOTokenError(),
    ],
    ids=repr,
)
def test_credentials_that_cannot_be_had_are_denied(error: BotoCoreError) -> None:
    assert kind_of(error) is Denied


def test_denied_requests_are_retried_like_unavailable_ones() -> None:
    assert issubclass(Denied, Unavailable)


def test_no_answer_and_too_many_requests_are_unavailable() -> None:
    assert refused("InternalError", 500) is Unavailable
    assert refused("ThrottlingException", 400) is Unavailable
    assert kind_of(EndpointConnectionError(endpoint_url="http://nowhere")) is Unavailable


def test_missing_or_meaningless_input_is_invalid() -> None:
    assert refused("AWS.SimpleQueueService.NonExistentQueue", 400) is Invalid
    assert refused("NotFound", 404) is Invalid
    assert kind_of(NoRegionError()) is Invalid
