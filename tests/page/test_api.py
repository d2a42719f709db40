"""The API answers as its description has it, whatever it is asked; every answer has headers that keep it safe."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from email.message import Message
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import given, settings

from tests.page.conftest import STRANGE, Demo, Served, serving

RIGHT_TO_LEFT = "\u05d0\u05d1" * 100


def test_the_api_answers_as_it_is_described(demo: Demo) -> None:
    """Without schemathesis's own plugin of pytest, which knows no pytest 9."""
    with serving(demo) as server:
        api = schemathesis.openapi.from_url(f"{server.url}/api/openapi.json")
        operations = [each.ok() for each in api.get_all_operations()]
        assert len(operations) >= 5
        for operation in operations:

            @settings(max_examples=30)
            @given(case=operation.as_strategy())
            def answers_as_described(case: Any) -> None:  # noqa: ANN401  (a case of schemathesis)
                case.call_and_validate()

            answers_as_described()


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, Message, str]:
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


@pytest.mark.parametrize(
    "path",
    ["/", "/static/page.js", "/static/none", "/none", "/api/v1/now", "/iceberg/v1/config", "/job-runs/none"],
)
def test_every_answer_has_a_policy_without_unsafe(served: Served, path: str) -> None:
    for headers in (ask(served.url + path)[1], ask(served.url + path, Host="elsewhere.example")[1]):
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Set-Cookie"] is None


@pytest.mark.parametrize(
    "strange",
    [
        STRANGE,
        RIGHT_TO_LEFT,
        "\u202e" * 200,
        "\u05d0" * 3_000,
        "x" * 100_000,
        "%2e%2e/%2e%2e/etc",
        "a\x00b",
        "<b onclick=x>",
    ],
    ids=lambda strange: f"{len(strange)} of {strange[:3]!a}",
)
@pytest.mark.parametrize("place", ["job-runs", "tables"])
def test_a_strange_id_is_answered_and_never_a_tag(served: Served, demo: Demo, place: str, strange: str) -> None:
    there = place == "job-runs" and strange == STRANGE
    for path in (f"/{place}/", f"/api/v1/{place.replace('-', '_')}/"):
        status, headers, body = ask(served.url + path + quote(strange, safe=""))
        assert status == (200 if there else 404), body
        assert there or str(demo.folder) not in body
        assert ("json" in headers["Content-Type"]) == path.startswith("/api")
        if not path.startswith("/api"):
            assert "<script>alert" not in body
            assert "<b onclick" not in body
            assert "\u202e" not in body


def test_a_server_with_a_token_tells_nothing_without_it(demo: Demo) -> None:
    file = demo.folder / "token"
    file.write_text("t0ken-of-a-test\n")
    with serving(demo, "--token-file", str(file)) as server:
        for path in ("/", "/api/v1/now", "/static/page.css", "/live"):
            status, headers, body = ask(server.url + path)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert "t0ken" not in body
        status, _, body = ask(f"{server.url}/api/v1/now", Authorization="Bearer t0ken-of-a-test")
        assert status == 200
        assert "t0ken" not in body


def test_a_page_that_is_not_there_is_told_on_a_page(served: Served) -> None:
    status, headers, body = ask(f"{served.url}/none/<b>")
    assert (status, headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "There is no page /none/&lt;b&gt;" in body
    assert json.loads(ask(f"{served.url}/api/v1/none")[2])["reason"].startswith("there is no page /api/v1/none")
