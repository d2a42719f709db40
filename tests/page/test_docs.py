"""The built documentation in Chromium: its diagrams are drawn, and no other host is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

BUILT = Path(__file__).parents[2] / "build" / "docs"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(BUILT))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_diagram_is_drawn_and_no_other_host_is_asked(browser: Browser, site: str, scheme: str) -> None:
    asked, errors, drawn = set[str](), list[str](), 0
    with browser.new_context(color_scheme=scheme) as context:
        page = context.new_page()
        page.on("request", lambda request: asked.add(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        for file in sorted(BUILT.rglob("index.html")):
            diagrams = file.read_text().count('class="mermaid"')
            if diagrams:
                page.goto(f"{site}{file.parent.relative_to(BUILT)}/")
                page.wait_for_function(f"document.querySelectorAll('div.mermaid').length === {diagrams}")
                drawn += diagrams
        page.goto(f"{site}start/install/")
    assert drawn >= 8
    assert errors == []
    assert {url for url in asked if not url.startswith((site, "data:", "blob:"))} == set()


def test_a_table_of_words_is_read_downward_on_a_phone(browser: Browser, site: str) -> None:
    right_edges = "cells => cells.map(each => each.getBoundingClientRect().right)"
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        page = context.new_page()
        for path in ("operate/waits", "guide/keys", "operate/run"):
            page.goto(f"{site}{path}/")
            edges = page.eval_on_selector_all("article table:has(th:nth-child(3):last-child) :is(th, td)", right_edges)
            assert len(edges) > 9, path
            assert max(edges) <= 390, path


def test_a_page_without_a_diagram_loads_no_mermaid(browser: Browser, site: str) -> None:
    asked = set[str]()
    with browser.new_context() as context:
        page = context.new_page()
        page.on("request", lambda request: asked.add(request.url))
        page.goto(f"{site}start/install/", wait_until="networkidle")
    assert any(url.endswith("/vendor/diagrams.js") for url in asked)
    assert not any("mermaid" in url for url in asked)
