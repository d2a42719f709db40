"""The pages in Debian's Chromium, after a real demo. Pictures of them are left in `artifacts/page/`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route

from tests.page.conftest import CLAIM_SECONDS, LITHIFY, ROOT, STRANGE, Demo, Served, serving

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


def test_no_two_words_of_the_plot_lie_on_each_other_on_a_phone(browser: Browser, served: Served) -> None:
    boxes = "all => all.map(each => each.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom])"
    with opened(browser, served.url, viewport={"width": 390, "height": 844}) as page:
        page.goto(f"{served.url}/prediction")
        words = page.eval_on_selector_all("svg.plot text", boxes)
        assert len(words) >= 14
        for one, other in combinations(words, 2):
            apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            assert apart, (one, other)


def test_the_keyboard_alone_reaches_everything(browser: Browser, served: Served) -> None:
    with opened(browser, served.url) as page:
        for name, path in paths(page, served.url).items():
            page.goto(served.url + path)
            wanted = page.eval_on_selector_all(
                FOCUSABLE, "all => (window.wanted = all.filter(each => each.checkVisibility())).length"
            )
            reached = set()
            for _ in range(wanted + 1):
                page.keyboard.press("Tab")
                reached.add(page.evaluate("window.wanted.indexOf(document.activeElement)"))
            assert reached - {-1} == set(range(wanted)), name
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
        page.evaluate(_A_SENTENCE)
        sentence = page.locator("#sentence time")
        assert (sentence.inner_text(), sentence.get_attribute("title")) == (
            "09/10/2025, 15:30:00 (10:00 UTC)",
            "2025-10-09 10:00:00 UTC",
        )


_A_SENTENCE = """() => {
    document.body.insertAdjacentHTML("beforeend", '<p id="sentence">At most 12 min, in the hour from ' +
        '<time datetime="2025-10-09T10:00:00Z">2025-10-09 10:00:00 UTC</time> on.</p>'); localTimes(); }"""


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
        away = page.get_by_text("the server does not answer")
        away.wait_for(timeout=3 * LOOK_SECONDS * 1_000)
        assert re.search(r"from before .*UTC\)?: the server", away.inner_text())
        assert JOB_RUN in page.locator("main").inner_text()


def test_a_server_that_hangs_is_told_like_one_that_is_away(browser: Browser, demo: Demo) -> None:
    with serving(demo) as server, opened(browser, server.url) as page:
        page.goto(f"{server.url}/")
        server.process.send_signal(signal.SIGSTOP)
        try:
            page.get_by_text("the server does not answer").wait_for(timeout=6 * LOOK_SECONDS * 1_000)
        finally:
            server.process.send_signal(signal.SIGCONT)
        page.get_by_text("the server does not answer").wait_for(state="hidden", timeout=4 * LOOK_SECONDS * 1_000)


def test_a_page_with_the_focus_in_it_is_kept_up_to_date(browser: Browser, demo: Demo) -> None:
    """As of who scrolls in it; what is marked to be copied stays marked."""
    with serving(demo) as server, opened(browser, server.url) as page:
        page.goto(f"{server.url}/")
        page.get_by_role("region", name="Signs of life").focus()
        page.evaluate("getSelection().selectAllChildren(document.querySelector('main h1'))")
        alive = page.locator("tr", has_text="dispatcher").locator(".chip").get_by_text("alive")
        assert alive.count() == 0
        with demo.dispatcher("--claim-seconds", str(CLAIM_SECONDS)):
            alive.wait_for(timeout=30_000)
            assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Signs of life"
            assert page.evaluate("String(getSelection())") == "Now"


def test_a_look_leaves_what_the_server_sent_whatever_was_shown_before(browser: Browser, served: Served) -> None:
    shown = """() => document.getElementById('main').textContent.replace(/Read at.*/, '').replace(/\\s+/g, ' ')"""
    names = ("history", "job-run", "table-log", "prediction", "dead-letters", "money")
    with opened(browser, served.url) as page:
        found = paths(page, served.url)
        fresh = {}
        for name in names:
            page.goto(served.url + found[name])
            fresh[name] = page.evaluate(shown)
        for name in [*names, *reversed(names), *names[::2], *names[1::2]]:
            look = "async path => show(new DOMParser().parseFromString(await (await fetch(path)).text(), 'text/html'))"
            page.evaluate(look, found[name])
            assert page.evaluate(shown) == fresh[name], name


def test_a_page_that_stays_open_does_not_grow(browser: Browser, served: Served) -> None:
    """A table with a plot, whose points are others at each look: what each left would be there 25 times. Up to two
    plots (9 listeners and 46 nodes each) wait for their collection whenever the browser is asked; the least of five
    answers counts."""
    looks = 0

    def with_a_plot(route: Route) -> None:
        nonlocal looks
        looks += 1
        points = [[1e9, 1e9 + 3600], [looks, 2], [None, None], [None, None]]
        plot = f"<div id='lag' data-points='{json.dumps(points)}'><svg viewBox='0 0 9 9'></svg></div>"
        body = route.fetch().text().replace("<h2>Policy</h2>", f"{plot}<h2>Policy</h2>", 1)
        route.fulfill(body=body, headers={"Content-Type": "text/html", "ETag": f'"{looks}"'})

    with opened(browser, served.url) as page:
        page.clock.install()
        page.route(f"{served.url}/tables/{TABLE}", with_a_plot)
        page.goto(f"{served.url}/tables/{TABLE}")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        sizes = []
        for number in range(50):
            seen = looks
            with page.expect_response(f"{served.url}/tables/{TABLE}"):
                page.clock.run_for(LOOK_SECONDS * 1_000)
            assert looks == seen + 1
            page.wait_for_function(f"document.getElementById('lag').dataset.points.includes('[{looks}, 2]')")
            if number % 5 == 4:
                session.send("HeapProfiler.collectGarbage")
                metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
                sizes.append((metrics["Nodes"], metrics["JSEventListeners"]))
        assert page.locator("#lag .uplot").count() == 1
        for of_kind, more in zip(zip(*sizes, strict=True), (100, 20), strict=True):
            assert min(of_kind[5:]) <= min(of_kind[:5]) + more, sizes


def test_a_feed_that_is_gone_is_told_and_the_page_is_right_without_it(browser: Browser, demo: Demo) -> None:
    feed = ask_queues(demo, "create_queue(QueueName='page-feed')['QueueUrl']")
    with serving(demo, "--events-queue-url", feed) as server, opened(browser, server.url) as page:
        page.goto(f"{server.url}/")
        assert page.get_by_text("No event is heard since").count() == 0
        ask_queues(demo, f"delete_queue(QueueUrl={feed!r})")
        page.get_by_text("No event is heard since").wait_for(timeout=6 * LOOK_SECONDS * 1_000)
        demo.submit("without-a-feed")
        with demo.dispatcher("--until-idle") as dispatcher:
            assert dispatcher.wait(60) == 0
        page.get_by_role("link", name="without-a-feed", exact=True).wait_for(timeout=30_000)


def ask_queues(demo: Demo, call: str) -> str:
    """By Lithify's environment, which has boto3."""
    client = f"boto3.client('sqs', endpoint_url={demo.variables['LITHIFY_ENDPOINT_URL']!r})"
    command = [str(LITHIFY.with_name("python")), "-c", f"import boto3; print({client}.{call})"]
    return subprocess.check_output(command, env={**os.environ, **demo.variables}, text=True).strip()


def test_a_page_of_what_is_not_there_stays_as_it_is(browser: Browser, served: Served) -> None:
    with opened(browser, served.url) as page:
        page.goto(f"{served.url}/job-runs/none")
        page.wait_for_event("requestfinished", timeout=3 * LOOK_SECONDS * 1_000)
        page.wait_for_timeout(500)
        assert not page.locator("#away").is_visible()
        assert "there is no job run" in page.locator("main").inner_text().lower()


def test_a_snapshot_is_one_file_that_asks_nothing(browser: Browser, demo: Demo, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    demo.run("serve", "--snapshot", str(file))
    with opened(browser, file.as_uri()) as page:
        page.goto(file.as_uri())
        assert JOB_RUN in page.locator("body").inner_text()
        violations = Axe().run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in violations] == []
