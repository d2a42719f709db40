"""The pages in Debian's Chromium, after a real demo. Pictures of them are left in `artifacts/page/`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.page.conftest import CLAIM_SECONDS, ROOT, STRANGE, Demo, Served, serving

PICTURES = ROOT / "artifacts" / "page"
JOB_RUN, TABLE = "orders", "TPCH.ORDERS.V1"
LOOK_SECONDS = 5.0
"""Between two looks of a page that is open."""

EXPECTED_AWAY = re.compile("Failed to load resource|ERR_CONNECTION_REFUSED")
FOCUSABLE = "a[href], button, summary, input, select, textarea, [tabindex='0']"


def paths(page: Page, url: str) -> dict[str, str]:
    """Every page by the name of its picture: those of the menu, and one of each kind that they link to."""
    page.goto(f"{url}/")
    menu = page.eval_on_selector_all("nav a", "links => links.map(each => new URL(each.href).pathname)")
    found = {path.strip("/").replace("/", "-") or "now": path for path in menu}
    page.goto(f"{url}/tables/{TABLE}")
    log = str(page.locator("main table a[href*='/log?']").first.get_attribute("href"))
    return {
        **found,
        "job-run": f"/job-runs/{JOB_RUN}",
        "job-run-strange": f"/job-runs/{quote(STRANGE, safe='')}",
        "table": f"/tables/{TABLE}",
        "table-log": log,
        "nothing": "/job-runs/none",
    }


@contextmanager
def opened(browser: Browser, url: str, **context: Any) -> Iterator[Page]:  # noqa: ANN401  (of Playwright)
    """A page that asks no other host, and whose console stays empty: refusals of its policy are shown there."""
    complaints: list[str] = []
    host = urlsplit(url).netloc
    with browser.new_context(**context) as around:
        page = around.new_page()
        page.on("console", lambda line: complaints.append(line.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: _ask_only(host, request.url, complaints))
        yield page
    assert [each for each in complaints if not EXPECTED_AWAY.search(each)] == []


def _ask_only(host: str, url: str, complaints: list[str]) -> None:
    if urlsplit(url).netloc not in (host, ""):
        complaints.append(f"it asks {url}")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible_in_either_scheme_and_width(
    browser: Browser, served: Served, scheme: str, width: int
) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    found: dict[str, object] = {}
    size = {"width": width, "height": 844}
    with opened(browser, served.url, color_scheme=scheme, viewport=size) as page:
        for name, path in paths(page, served.url).items():
            page.goto(served.url + path)
            page.screenshot(path=PICTURES / f"{name}-{scheme}-{width}.png", full_page=True)
            violations = Axe().run(page).response["violations"]
            found[name] = [(each["id"], each["nodes"][0]["html"]) for each in violations]
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than the window"
    assert {name: each for name, each in found.items() if each} == {}
    assert len(found) >= 9


def test_the_keyboard_alone_reaches_everything(browser: Browser, served: Served) -> None:
    with opened(browser, served.url) as page:
        for name, path in paths(page, served.url).items():
            page.goto(served.url + path)
            wanted = page.eval_on_selector_all(
                FOCUSABLE,
                "all => all.filter(each => each.checkVisibility())"
                ".map((each, number) => { each.dataset.number = number; return number })",
            )
            reached = set()
            for _ in range(len(wanted) + 1):
                page.keyboard.press("Tab")
                number = page.evaluate("document.activeElement.dataset.number")
                reached.add(None if number is None else int(number))
            assert reached - {None} == set(wanted), name
            assert page.evaluate(_OUTLINE_OF_A_LINK) != "none", "what has the focus must show it"


_OUTLINE_OF_A_LINK = """() => {
    const link = document.querySelector("nav a"); link.focus({focusVisible: true});
    return getComputedStyle(link).outlineStyle; }"""


def test_a_skipped_menu_and_a_link_are_followed_by_enter(browser: Browser, served: Served) -> None:
    with opened(browser, served.url) as page:
        page.goto(f"{served.url}/tables")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        while page.evaluate("document.activeElement.textContent") != TABLE:
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/tables/{TABLE}")
        assert page.locator("h1").inner_text() == TABLE


def test_the_chart_shows_each_session_with_the_seconds_of_its_status(
    browser: Browser, demo: Demo, served: Served
) -> None:
    for job_run_id in ("paper", JOB_RUN):
        sessions = demo.status(job_run_id)["sessions"]
        with opened(browser, served.url) as page:
            page.goto(f"{served.url}/job-runs/{job_run_id}")
            shown = page.locator("svg.gantt text.took").all_text_contents()
            assert shown == [seconds_text(each["seconds"]) for each in sessions]
            rows = page.locator("table:has(caption > span:text-is('Sessions')) tbody th").all_text_contents()
            assert rows == [
                ", ".join(f"{key}={value}" for key, value in each["partition"].items()) for each in sessions
            ]
            bars = page.locator("svg.gantt rect.ended").count()
        assert bars == len(sessions) > 1


def seconds_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def test_a_job_run_named_like_a_script_is_text(browser: Browser, served: Served) -> None:
    with opened(browser, served.url) as page:
        page.on("dialog", lambda dialog: pytest.fail("its name was run as a script"))
        page.goto(f"{served.url}/")
        page.get_by_role("link", name=STRANGE).first.click()
        assert page.locator("h1 bdi").inner_text() == STRANGE
        assert page.locator("h1 .chip").inner_text() == "succeeded"


def test_the_demo_has_the_page_over_itself(browser: Browser, demo: Demo) -> None:
    with opened(browser, demo.page_url) as page:
        page.goto(demo.page_url)
        page.get_by_role("link", name=JOB_RUN, exact=True).first.click()
        assert page.locator("h1 bdi").inner_text() == JOB_RUN


def test_a_page_is_read_without_a_script(browser: Browser, served: Served) -> None:
    with opened(browser, served.url, java_script_enabled=False) as page:
        page.goto(f"{served.url}/")
        assert JOB_RUN in page.locator("main").inner_text()
        assert "UTC" in page.locator("time").first.inner_text()


def test_times_are_in_the_zone_of_the_reader_with_utc_beside(browser: Browser, served: Served) -> None:
    with opened(browser, served.url, timezone_id="Asia/Kolkata", locale="en-GB") as page:
        page.goto(f"{served.url}/job-runs/{JOB_RUN}")
        shown = page.locator("dl time").first
        utc = str(shown.get_attribute("title"))
        assert utc.endswith("UTC")
        hour, minute = (int(each) for each in re.findall(r"(\d\d):(\d\d)", utc)[0])
        local = (hour * 60 + minute + 330) % 1440
        assert f"{local // 60:02}:{local % 60:02}" in shown.inner_text()


def test_a_killed_dispatcher_is_shown_within_its_claim_time(browser: Browser, demo: Demo) -> None:
    with (
        serving(demo) as server,
        demo.dispatcher("--claim-seconds", str(CLAIM_SECONDS)) as dispatcher,
        opened(browser, server.url) as page,
    ):
        page.goto(f"{server.url}/")
        state = page.locator("tr", has_text="dispatcher").locator(".chip")
        state.get_by_text("alive").wait_for(timeout=30_000)
        dispatcher.kill()
        state.get_by_text("silent for").first.wait_for(timeout=(CLAIM_SECONDS + 2 * LOOK_SECONDS) * 1_000)


def test_a_page_says_since_when_the_server_is_away(browser: Browser, demo: Demo) -> None:
    with serving(demo) as server, opened(browser, server.url) as page:
        page.goto(f"{server.url}/")
        server.process.kill()
        page.get_by_text("the server does not answer").wait_for(timeout=3 * LOOK_SECONDS * 1_000)
        assert JOB_RUN in page.locator("main").inner_text()


def test_a_snapshot_is_one_file_that_asks_nothing(browser: Browser, demo: Demo, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    demo.run("serve", "--snapshot", str(file))
    with opened(browser, file.as_uri()) as page:
        page.goto(file.as_uri())
        assert JOB_RUN in page.locator("body").inner_text()
        violations = Axe().run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in violations] == []
