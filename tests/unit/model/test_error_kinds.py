"""The kinds of error in logs and events: values with a spelling that stays."""

from __future__ import annotations

import json
import pickle

import pytest

from compactor.model import errors
from compactor.model.errors import AnotherTry, ErrorKind, LithifyError, kind_of
from compactor.sessions.session_log import SessionFailed
from launcher.outcomes import Failed

OF_LOGS = [
    "Invalid",
    "Corrupt",
    "Conflict",
    "Unavailable",
    "Denied",
    "Outdated",
    "Fenced",
    "OutOfMemory",
    "crashed",
    "stalled",
    "bug",
]
CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, LithifyError)]


def test_the_kinds_are_spelled_as_logs_have_always_spelled_them() -> None:
    assert [str(kind) for kind in ErrorKind] == OF_LOGS


@pytest.mark.parametrize("of", [each for each in CLASSES if each is not LithifyError])
def test_every_class_of_error_has_the_kind_of_its_name(of: type[LithifyError]) -> None:
    assert of.kind == of.__name__
    assert kind_of(of("why")) is of.kind


@pytest.mark.parametrize("of", CLASSES)
def test_every_error_has_its_reasons_one_by_one_also_in_another_process(of: type[LithifyError]) -> None:
    error = pickle.loads(pickle.dumps(of("no key", "no file")))
    assert error.reasons == ("no key", "no file")
    assert str(error) == "no key; no file"


def test_an_error_of_unknown_kind_is_a_bug() -> None:
    assert kind_of(ZeroDivisionError()) is ErrorKind.BUG


@pytest.mark.parametrize("spelling", OF_LOGS)
def test_a_kind_that_is_read_is_the_kind_that_was_written(spelling: str) -> None:
    written = Failed(attempt=1, error_kind=ErrorKind(spelling), reasons=())
    assert json.loads(written.render())["error_kind"] == spelling
    assert Failed.parse_durable(written.render(), "log").error_kind is ErrorKind(spelling)
    assert pickle.loads(pickle.dumps(ErrorKind(spelling))) is ErrorKind(spelling)


def test_a_kind_of_another_release_is_read_keeps_its_spelling_and_is_tried_a_few_times() -> None:
    body = b'{"action":"session_failed","attempt":1,"error_kind":"TooHot","reasons":[]}'
    failed = SessionFailed.parse_durable(body, "log")
    assert (failed.error_kind, failed.error_kind.another_try) == ("TooHot", AnotherTry.A_FEW_TIMES)
    assert failed == SessionFailed.parse_durable(failed.render(), "log")
    assert failed.render() == body
    assert pickle.loads(pickle.dumps(failed)) == failed
    assert "TooHot" not in list(ErrorKind)
