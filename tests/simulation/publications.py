"""The schedule of `years.py` over a table that is published as Delta Lake and as Apache Iceberg.

Publishers lag for days, are cut off at any write, wait before their commit while others publish and collect garbage, or
continue from what they knew weeks before. Whatever is retired and deleted meanwhile: after each garbage collection all
files and metadata are there of the newest published version, and of the one that readers of the folder begin with; who
opened a version reads its rows for the grace period; no stream goes back; in the end both formats have the rows of the
deltas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

from compactor.catalog.keys import TableFolder
from compactor.catalog.stream import PartitionStream
from compactor.engine.protocol import Engine
from compactor.model.errors import Unavailable
from compactor.model.names import OpenFormat
from compactor.publishing.iceberg_log import IcebergLog, IcebergState
from compactor.publishing.keys import DeltaLogCheckpoint, DeltaLogCommit, DeltaLogHint, IcebergMetadata
from compactor.publishing.protocol import Published, TablePublisher
from compactor.publishing.publication import differences, publishers_of
from compactor.storage.keys import encode_partition
from compactor.storage.object_store import ObjectStore
from tests.builders import multiset
from tests.crashes import COLUMNS
from tests.fakes.doomed_store import Doom, DoomedStore
from tests.fakes.faulty_store import Stopped
from tests.simulation.years import DAY_MS, FATES, GRACE_DAYS, ORDERS, WHENS, Years

_STREAM = encode_partition({})
_VERSIONS_AT_ONCE = 6
"""So many that checkpoints of Delta Lake are written."""


def run_publications(seed: int, folder: Path, engine: Engine) -> Counter[str]:
    """How often what happened. Raises AssertionError if an invariant is broken."""
    years = PublishedYears(seed, folder, engine)
    years.run()
    return years.happened


class PublishedYears(Years):
    steps = 40

    def __init__(self, seed: int, folder: Path, engine: Engine) -> None:
        super().__init__(seed, folder, engine)
        self._idle: dict[OpenFormat, TablePublisher] = {}
        self._newest: dict[OpenFormat, tuple[int, int]] = {}
        self.happened: Counter[str] = Counter()

    def run(self) -> int:
        retired = super().run()
        for publisher in self._publishers():
            publisher.publish([self._stream()])
        self._look()
        for format_ in OpenFormat:
            opened = self._opened(format_)
            assert opened is not None, "every schedule compacts the table"
            read, entry = opened
            read()
            assert self._rows_at(entry) == self._rows(self._catalog().table(ORDERS))
        return retired

    def _properties(self) -> dict[str, object]:
        return {**super()._properties(), "publish": ["delta", "iceberg"]}

    def _steps(self) -> list[Callable[[], None]]:
        return [
            *super()._steps(),
            self._publish,
            self._publish,
            self._publish_idle,
            self._publish_slowly,
            self._publish_cut_off,
            self._publish_often,
            self._leave_a_hint_behind,
            self._idle_for_long,
            self._open_published_reader,
            self._open_published_reader,
        ]

    def _dead_row_share(self) -> float:
        return self._chance.choice([0.0, 0.9])

    # ---------------------------------------------------------------------------------------------------- what happens

    def _publish(self) -> None:
        for publisher in self._chance.sample(self._publishers(), self._chance.choice([1, 2])):
            self._with(publisher)

    def _publish_idle(self) -> None:
        """By a dispatcher that may not have published the table for weeks."""
        for publisher in self._publishers():
            self._with(self._idle.setdefault(publisher.format, publisher))

    def _publish_often(self) -> None:
        for _ in range(_VERSIONS_AT_ONCE):
            self._append()
            self._session(ORDERS)
            for publisher in self._publishers():
                self._with(publisher)

    def _publish_slowly(self) -> None:
        """While it waits before its commit, others compact, publish and delete, and days pass."""
        (publisher,) = self._chance.sample(self._publishers(), 1)
        store = DoomedStore(self._store())
        store.just_before(self._commit_key(publisher), self._others_publish)
        self._with(self._publisher(publisher.format, store))

    def _others_publish(self) -> None:
        self._stamp()
        if self._chance.random() < 0.5:
            self._session(ORDERS)
        if self._chance.random() < 0.5:
            self._publish()
        self._clean()
        self._pass(int(self._chance.uniform(0, GRACE_DAYS - 1) * DAY_MS))
        self._clean()

    def _publish_cut_off(self) -> None:
        """What it has left may wait for days."""
        self._append()
        self._session(ORDERS)
        (publisher,) = self._chance.sample(self._publishers(), 1)
        keys = [self._commit_key(publisher), *self._hint_keys(publisher), ""]
        doom = Doom(self._chance.choice(keys), self._chance.choice(WHENS), self._chance.choice(FATES))
        store = DoomedStore(self._store(), doom)
        with suppress(Unavailable, Stopped):
            self._with(self._publisher(publisher.format, store))
        self._count("cut off", store.met)
        self._days_pass()

    def _leave_a_hint_behind(self) -> None:
        """No publisher repairs it for longer than the grace period."""
        self._append()
        self._session(ORDERS)
        doom = Doom(IcebergMetadata(ORDERS, None).key, "before", "the process is killed")
        with suppress(Stopped):
            self._with(self._publisher(OpenFormat.ICEBERG, DoomedStore(self._store(), doom)))
        self._wait_for_garbage()

    def _idle_for_long(self) -> None:
        """A dispatcher publishes again after others have written so many versions that gc deletes the first of them."""
        self._publish_idle()
        self._publish_often()
        self._publish_often()
        self._wait_for_garbage()
        self._append()
        self._session(ORDERS)
        self._publish_idle()
        self._look()

    def _wait_for_garbage(self) -> None:
        for _ in range(3):
            self._pass((GRACE_DAYS + 1) * DAY_MS)
            self._clean()

    def _open_published_reader(self) -> None:
        """It opens a version now, and reads its rows after days."""
        format_ = self._chance.choice(list(OpenFormat))
        opened = self._opened(format_)
        if opened is None:
            return
        self._count(f"readers of {format_}")
        read, _ = opened
        left_ms = self._readable_until_ms(format_) - self._clock.now_ms()
        if left_ms <= 0:  # only while the hint names it
            read()
        else:
            self._readers.append((self._clock.now_ms() + int(self._chance.random() * left_ms), read))

    # --------------------------------------------------------------------------------------------------- what must hold

    def _look(self) -> None:
        """Nothing that a reader of the newest version needs is missing; no stream has gone back."""
        for publisher in self._publishers():
            state = publisher.state()
            newest = (-1 if state.version is None else state.version, state.entries.get(_STREAM, 0))
            before = self._newest.get(publisher.format, (-1, 0))
            assert newest >= before, f"{publisher.format} went back from {before} to {newest}"
            assert newest[1] >= before[1], f"{publisher.format} went back from {before} to {newest}"
            self._newest[publisher.format] = newest
            assert list(differences(publisher, [self._stream()])) == []
            files = state.files.values()
            self._must_be_there([each.path for each in files] + [each.vector for each in files if each.vector])
            self._count("dead rows", any(each.dead_rows for each in files))
        hinted = self._hinted()
        self._must_be_there(self._key(uri) for group in hinted.groups.values() for uri in group.live_files)
        deletes = [each for group in hinted.groups.values() for each in group.live_deletes.values()]
        self._must_be_there(self._key(each.data_file.file_path) for each in deletes)
        self._count("cleans")
        self._count("cleans with a hint that is behind", 0 < hinted.version < self._newest[OpenFormat.ICEBERG][0])

    def _must_be_there(self, keys: Iterable[str]) -> None:
        gone = [key for key in keys if not (self._folder / key).exists()]
        assert gone == [], "garbage collection deleted what the newest published version names"

    def _opened(self, format_: OpenFormat) -> tuple[Callable[[], None], int] | None:
        """A reader of the version that readers of the folder find, and the entry that it publishes; None: there is no
        version."""
        match format_:
            case OpenFormat.DELTA:
                state = self._publisher(format_).state()
                if state.version is None:
                    return None
                delta, entry = DeltaTable(str(self._folder / TableFolder(ORDERS).open_files)), state.entries[_STREAM]
                assert delta.version() == state.version

                def rows() -> pa.Table:
                    return pa.table(QueryBuilder().register("t", delta).execute("select * from t"))

            case OpenFormat.ICEBERG:
                hinted = self._hinted()
                if not hinted.version:
                    return None
                key = IcebergMetadata(ORDERS, hinted.version).key
                iceberg, entry = StaticTable.from_metadata(str(self._folder / key)), hinted.positions[_STREAM]

                def rows() -> pa.Table:
                    return iceberg.scan().to_arrow()

        expected = self._rows_at(entry)

        def read() -> None:
            assert multiset(rows(), COLUMNS) == expected, f"{format_} as of entry {entry}"

        return read, entry

    def _readable_until_ms(self, format_: OpenFormat) -> int:
        """A version stays for the grace period after the next one, also if the hint named it for longer."""
        grace_ms = GRACE_DAYS * DAY_MS
        replaced = self._folder / IcebergMetadata(ORDERS, self._hinted().version + 1).key
        if format_ is OpenFormat.DELTA or not replaced.exists():
            return self._clock.now_ms() + grace_ms
        return round(replaced.stat().st_mtime * 1_000) + grace_ms

    def _rows_at(self, entry: int) -> object:
        compacted = self._stream().load(as_of=entry).state.compacted
        assert compacted is not None
        return self._expected(compacted.processed.position, compacted.processed.file_number)

    # ------------------------------------------------------------------------------------------------------- its tools

    def _with(self, publisher: TablePublisher) -> None:
        outcome = publisher.publish([self._stream()])
        self._stamp()
        self._count(f"versions of {publisher.format}", isinstance(outcome, Published))

    def _publishers(self, store: ObjectStore | None = None) -> tuple[TablePublisher, ...]:
        return publishers_of(store or self._store(), self._catalog().table(ORDERS), self._clock)

    def _publisher(self, format_: OpenFormat, store: ObjectStore | None = None) -> TablePublisher:
        (publisher,) = [each for each in self._publishers(store) if each.format is format_]
        return publisher

    def _stream(self) -> PartitionStream:
        return self._catalog().table(ORDERS).stream({})

    def _commit_key(self, publisher: TablePublisher) -> str:
        version = publisher.state().version
        if publisher.format is OpenFormat.ICEBERG:
            return IcebergMetadata(ORDERS, (version or 0) + 1).key
        return DeltaLogCommit(ORDERS, 0 if version is None else version + 1).key

    def _hint_keys(self, publisher: TablePublisher) -> list[str]:
        if publisher.format is OpenFormat.ICEBERG:
            return [IcebergMetadata(ORDERS, None).key]
        next_version = (publisher.state().version or 0) + 1
        written = [DeltaLogCheckpoint(ORDERS, next_version).key, DeltaLogHint(ORDERS).key]
        return written if next_version % 10 == 0 else []

    def _hinted(self) -> IcebergState:
        log = IcebergLog(self._store(), ORDERS, self._clock)
        version = log.hinted()
        found = log.at(version)
        assert found.version == version, f"garbage collection deleted version {version}, which the hint names"
        return found

    def _key(self, uri: str) -> str:
        return uri.removeprefix(f"{self._store().location.root_uri}/")

    def _count(self, name: str, is_so: bool = True) -> None:
        self.happened[name] += is_so
