"""The demo of change feeds: a shop's changes land as files, `lithify ingest` takes them in, and the keeper and a
dispatcher compact: two tables of the lake stay equal to those of the shop.

main thread      lets the shop trade, lands its feed, and compares, until the shop has closed and nothing is pending
ingest           a process, as users run it
keeper           a thread with the loop of `lithify keeper`
dispatcher       a thread with the dispatcher of `lithify dispatch`; its workers are processes
"""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table as ScreenTable
from rich.text import Text

from compactor.lake import Table
from compactor.model.clock import Clock
from compactor.model.errors import Unavailable
from compactor.model.names import counted
from compactor.planning.stream_figures import StreamFigures, total
from compactor.planning.table_figures import read_figures
from dispatcher.demo.environment import DemoEnvironment
from dispatcher.demo.keeper_scenario import DRAIN_SECONDS, POLICY, SAMPLE_SECONDS, SHOWN_EVERY, keeper_and_dispatcher
from dispatcher.demo.screen import Screen
from dispatcher.demo.shop import ORDER_COLUMN, TABLES, Row, Shop
from dispatcher.demo.stand_ins import REGION

TRADES_PER_SAMPLE = 50
ANNOUNCED_TIMES = 2
"""S3 announces a file at least once."""

_HEADINGS = ("table", "shop rows", "lake rows", "equal?", "lag", "deltas", "files")
_STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Compared:
    """A table of the shop beside that of the lake. `differing`: keys whose rows differ."""

    name: str
    shop_rows: int
    lake_rows: int
    differing: int
    lag_seconds: float = 0.0
    pending_deltas: int = 0
    files: int = 0

    @property
    def equal(self) -> str:
        return "yes" if not self.differing else f"not {counted(self.differing, 'row')} yet"


@dataclass(frozen=True)
class PlayedFeed:
    """`tables`: as their compacted rows are at the end."""

    seconds: float
    files: int
    changes: int
    tables: tuple[Compared, ...]

    @property
    def holds(self) -> bool:
        return all(each.lake_rows and not each.differing and not each.pending_deltas for each in self.tables)


class ChangesScenario:
    """Runs once. `program`: the name of the `lithify` command in a shell."""

    def __init__(self, environment: DemoEnvironment, program: str, clock: Clock, seconds: float) -> None:
        self._environment = environment
        self._program = program
        self._clock = clock
        self._seconds = seconds
        self._files = self._changes = 0
        self._shown: Sequence[Compared] = ()

    def run(self, screen: Screen, dispatch: Callable[[threading.Event], object], stops: threading.Event) -> PlayedFeed:
        """Raises what the dispatcher raised, and `Unavailable` if ingest has ended."""
        begun = self._clock.monotonic_seconds()
        tables = {name: self._create_table(name) for name in TABLES}
        screen.show_step(f"files that land in {self._environment.landing.location.root_uri} are changes of the shop")
        shop = Shop()
        with self._ingest() as ingest, keeper_and_dispatcher(self._environment, self._clock, dispatch, stops):
            self._watch(shop, tables, (screen, ingest), stops, begun + self._seconds)
        whole = tuple(self._compared(shop, name, table, "compacted") for name, table in tables.items())
        return PlayedFeed(self._clock.monotonic_seconds() - begun, self._files, self._changes, whole)

    def render(self) -> RenderableType:
        """The tables as they were compared last."""
        shown = ScreenTable(box=None, pad_edge=False, header_style="dim")
        for number, heading in enumerate(_HEADINGS):
            shown.add_column(heading, justify="right" if number else "left", min_width=10, no_wrap=True)
        for each in self._shown:
            shown.add_row(*map(Text, _cells(each)))
        return shown

    def _create_table(self, name: str) -> Table:
        properties: dict[str, object] = {
            "landing": self._folder(name),
            "changes": "debezium",
            "compact_when": POLICY,
            "news_hints": True,
        }
        return self._environment.lake.create_table(
            f"SHOP.{name.upper()}.V1",
            [TABLES[name].partition_key],
            primary_keys=[TABLES[name].key],
            sort_keys=[(ORDER_COLUMN, "ascending")],
            properties=properties,
        )

    def _folder(self, name: str) -> str:
        return f"{self._environment.landing.location.root_uri}/{name}/"

    @contextmanager
    def _ingest(self) -> Iterator[subprocess.Popen[bytes]]:
        environment = self._environment
        arguments = [
            *("ingest", "--lake", environment.lake.location.root_uri, "--queue-url", environment.announced.name),
            *("--endpoint-url", environment.endpoint_url, "--region", REGION, "--collect-seconds", "1"),
            *(() if environment.s3 is None else ("--s3-endpoint-url", environment.s3.endpoint_url)),
        ]
        with self._environment.folder.ingest_log.open("wb") as log:
            # In its own process group: Ctrl-C interrupts only this process, which stops it at the end.
            process = subprocess.Popen(
                [*shlex.split(self._program), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(
        self,
        shop: Shop,
        tables: dict[str, Table],
        shown: tuple[Screen, subprocess.Popen[bytes]],
        stops: threading.Event,
        closes_seconds: float,
    ) -> None:
        screen, ingest = shown
        samples, is_open = 0, True
        while not stops.wait(SAMPLE_SECONDS) and self._clock.monotonic_seconds() < closes_seconds + DRAIN_SECONDS:
            if ingest.poll() is not None:
                raise Unavailable(f"ingest has ended: see {self._environment.folder.ingest_log}")
            if is_open:
                shop.trade(TRADES_PER_SAMPLE)
                self._land(shop.take_feed())
                is_open = self._clock.monotonic_seconds() < closes_seconds
                if not is_open:
                    screen.show_step(f"the shop closes: {self._changes:,} changes in {self._files:,} files")
            self._shown = [self._compared(shop, name, table, "merged") for name, table in tables.items()]
            if samples % SHOWN_EVERY == 0:
                for each in self._shown:
                    cells = zip(_HEADINGS[1:], _cells(each)[1:], strict=True)
                    screen.show_step(f"{each.name}: {', '.join(f'{heading} {cell}' for heading, cell in cells)}")
            samples += 1
            if not is_open and not any(each.differing or each.pending_deltas for each in self._shown):
                return

    def _land(self, feed: dict[str, bytes]) -> None:
        for name, lines in feed.items():
            self._files += 1
            self._changes += lines.count(b"\n")
            file = f"{self._files:06}.json"
            self._environment.landing.put_if_absent(f"{name}/{file}", lines)
            for _ in range(ANNOUNCED_TIMES):
                self._environment.announced.send(json.dumps({"register": {"files": [f"{self._folder(name)}{file}"]}}))

    def _compared(self, shop: Shop, name: str, table: Table, view: str) -> Compared:
        ours, theirs = _rows_of(table, TABLES[name].columns, view), shop.rows(name)
        differing = {row[0] for row in {*ours}.symmetric_difference(theirs)}
        now_ms = self._clock.now_ms()
        figures: StreamFigures = total(read_figures(table))
        lag_seconds = figures.lag_seconds(now_ms)
        # A key that is there twice is in no set of rows twice.
        wrong = len(differing) + max(len(ours) - len({*ours}), 0)
        return Compared(name, len(theirs), len(ours), wrong, lag_seconds, figures.pending_deltas, figures.files)


def _rows_of(table: Table, columns: Sequence[str], view: str) -> list[Row]:
    """A table without a delta has no columns yet."""
    if not table.partitions():
        return []
    found = table.scan(columns=columns, view=view).to_table()
    return list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


def _cells(of: Compared) -> tuple[str, ...]:
    return (
        of.name,
        f"{of.shop_rows:,}",
        f"{of.lake_rows:,}",
        of.equal,
        f"{of.lag_seconds:.0f} s",
        f"{of.pending_deltas:,}",
        f"{of.files:,}",
    )
