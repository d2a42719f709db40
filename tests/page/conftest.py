"""A real demo, `lithify serve` over it, and Debian's Chromium, in an environment of their own: it has no Lithify.

The demo's stand-ins stay up, so a dispatcher can be started over its state, and killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[2]
LITHIFY = ROOT / ".venv" / "bin" / "lithify"
CHROMIUMS = ("chromium-headless-shell", "chromium")
CLAIM_SECONDS = 10.0
STRANGE = "<script>alert(1)</script>" + "\u05d0\u05d1" * 19
"""An id of a job run: a tag, and as many right-to-left characters as an id may have in 300 bytes."""


def chromium() -> str:
    """`make test-page` says the same before it starts."""
    found = next((path for name in CHROMIUMS if (path := shutil.which(name)) is not None), None)
    assert found is not None, "Chromium is missing: apt install chromium-headless-shell (Debian)"
    return found


@dataclass(frozen=True)
class Demo:
    """A demo that has ended; `variables`: of its queue, state and lake. `page_url`: of its own page."""

    folder: Path
    variables: Mapping[str, str]
    page_url: str = ""

    def start(self, *arguments: str, **streams: int) -> subprocess.Popen[str]:
        environment = {**os.environ, **self.variables}
        return subprocess.Popen([LITHIFY, *arguments], env=environment, cwd=self.folder, text=True, **streams)  # type: ignore[call-overload,no-any-return]

    def run(self, *arguments: str) -> str:
        with self.start(*arguments, stdout=subprocess.PIPE) as command:
            out, _ = command.communicate(timeout=60)
        assert command.returncode == 0, arguments
        return out

    def status(self, job_run_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.run("status", job_run_id, "--output", "json"))
        return answer

    def submit(self, job_run_id: str) -> None:
        """The demo's next instruction, under another id."""
        document = json.loads((self.folder / "instructions" / "next.json").read_text())
        file = self.folder / "submitted.json"
        file.write_text(json.dumps({**document, "job_run_id": job_run_id}))
        self.run("submit", str(file))

    @contextmanager
    def dispatcher(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        with (self.folder / "own-dispatcher.log").open("a") as log:
            command = (
                "dispatch",
                "--work-folder",
                str(self.folder / "spark"),
                "--lake",
                self.variables["LITHIFY_LAKE"],
            )
            with ended(self.start(*command, *options, stdout=log.fileno(), stderr=log.fileno())) as process:
                yield process


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """With the block's end the process ends, too."""
    with process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo")
    bare = Demo(folder, {})
    command = ("demo", "--folder", str(folder), "--scale-factor", "0.01", "--serve", "--output", "json")
    said = tmp_path_factory.mktemp("said") / "demo.log"
    with said.open("w") as log, ended(bare.start(*command, stdout=subprocess.PIPE, stderr=log.fileno())) as process:
        assert process.stdout is not None
        report = _first_document(process.stdout)
        assert all(check["holds"] for check in report["checks"])
        page_url = said.read_text().partition("The page is at ")[2].split()[0]
        ran = Demo(folder, report["follow_up"]["environment"], page_url)
        ran.submit(STRANGE)
        with ran.dispatcher("--until-idle") as dispatcher:
            assert dispatcher.wait(60) == 0
        yield ran


def _first_document(lines: IO[str]) -> dict[str, Any]:
    """Of indented JSON that its program writes before it goes on."""
    read = ""
    for line in lines:
        read += line
        if line.startswith("}"):
            document: dict[str, Any] = json.loads(read)
            return document
    raise AssertionError(f"the demo has ended: {read}")


@dataclass(frozen=True)
class Served:
    url: str
    process: subprocess.Popen[str]


@contextmanager
def serving(demo: Demo, *options: str) -> Iterator[Served]:
    with ended(demo.start("serve", "--port", "0", *options, stderr=subprocess.PIPE)) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "/" in said, said
        yield Served(said.rpartition(" ")[2].strip().rstrip("/"), process)


@pytest.fixture(scope="session")
def served(demo: Demo) -> Iterator[Served]:
    with serving(demo) as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium())
        yield browser
        browser.close()
