"""A slice of the simulated keepers; `make sim` has all of it. And keepers that look at the same moment."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from compactor.catalog.stream import PartitionStream
from compactor.storage.object_store import ObjectEntry, ObjectStore
from dispatcher.keeper.decision_log import DecisionMade
from dispatcher.keeper.keeper import Keeper
from launcher.sizing.cluster_choice import ClusterRoom
from tests.keeper_world import KeeperWorld
from tests.simulation.keepers import Break
from tests.simulation.seeds import run_seeds
from tests.simulation.virtual_threads import Process, Scheduler

SEED = 19
"""Of those with the lowest numbers, the first that sees each of `Break`."""

DAYS = 3.5


@pytest.mark.slow
def test_keepers_have_every_delta_compacted_once_in_time_within_its_money_and_no_needed_file_deleted() -> None:
    (result,) = run_seeds(SEED, SEED, of="keepers", days=DAYS)
    assert result.wrong is None


@pytest.mark.release
@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        (Break.FORGET_WORK, "two decisions are open on"),
        (Break.FORGET_SPENT, "has spent"),
        (Break.NO_GRACE, "misses"),
        (Break.LEAVE_SMALL_FILES, "small files"),
    ],
)
def test_the_simulation_sees_what_is_broken_on_purpose(broken: Break, violation: str) -> None:
    (result,) = run_seeds(SEED, SEED, asks=[broken], of="keepers", days=DAYS)
    assert result.wrong is not None
    assert violation in result.wrong


# ------------------------------------------------------------------------------------ two keepers, request by request

POLICIES: tuple[object, ...] = (
    {"pending_rows": 15},
    {"lag_seconds": 1_200, "not_before_seconds": 600},
    {"pending_rows": 1, "usd_per_day": 1.0},
    {"pending_deltas": 2, "max_usd": 0.2, "match": "any", "lag_seconds": 3_600},
)
ROUNDS = 30
WRITTEN = 6
"""Rounds before which writers append."""

LEFT = "ACME.LEFT.V1"


class LeavesOneTable(KeeperWorld):
    """Whose job runs have nothing to do on one table, whatever its figures say."""

    def compact(self, stream: PartitionStream, until: int | None = None, path: str | None = None) -> bool:
        return stream.table_id != LEFT and super().compact(stream, until, path)


class TurnsStore:
    """A store before each of whose requests another process may go on."""

    def __init__(self, store: ObjectStore, scheduler: Scheduler, chance: random.Random) -> None:
        self._store = store
        self._scheduler = scheduler
        self._chance = chance
        self.location = store.location

    def put_if_absent(self, key: str, body: bytes) -> bool:
        self._turn()
        return self._store.put_if_absent(key, body)

    def overwrite(self, key: str, body: bytes) -> None:
        self._turn()
        self._store.overwrite(key, body)

    def read(self, key: str) -> bytes | None:
        self._turn()
        return self._store.read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        self._turn()
        return self._store.read_range(key, start, length)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        self._turn()
        return self._store.list(prefix, start_after)

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        self._turn()
        return self._store.list_folders(prefix, even_empty=even_empty)

    def _turn(self) -> None:
        self._scheduler.sleep(self._chance.random())

    def __getattr__(self, name: str) -> object:
        raise TypeError(f"a keeper's look calls {name}")


def decided(keepers: int, seed: int, *, once: bool = False) -> list[list[str]]:
    """What is decided after the writers' end, by table, in the order of each log. Nothing is in the last third.

    Args:
        seed: of whose request is next
        once: each look is that of another keeper, as on a schedule"""
    chance, scheduler, world = random.Random(seed), Scheduler(), LeavesOneTable(remote=False)
    tables = {f"ACME.T{number}.V1": policy for number, policy in enumerate(POLICIES)} | {LEFT: POLICIES[0]}
    for number, (table_id, policy) in enumerate(tables.items()):
        world.table(policy, table_id, ("day",), news_hints=number % 2 == 0)

    def keeper() -> Keeper:
        return world.keeper(
            state=TurnsStore(world.state, scheduler, chance),  # type: ignore[arg-type]
            lake=TurnsStore(world.lake_store, scheduler, chance),  # type: ignore[arg-type]
            room=ClusterRoom(),
        )

    stay = [keeper() for _ in range(keepers)]
    made: list[list[list[str]]] = []
    for number in range(ROUNDS):
        for day in range(3 if number < WRITTEN else 0):
            for table_id in tables if (number + day) % 2 == 0 else []:
                world.append(table_id, {"day": str(day)}, rows=10 * (day + 1))
        for each in stay:
            look = (keeper() if once else each).look
            scheduler.spawn(Process("keeper"), lambda look=look: look() and None)  # type: ignore[misc]
        scheduler.run(float("inf"), lambda: False, every=1e9)
        world.dispatch(fails=number == 0, seconds=0.0)
        world.clock.sleep(600.0)
        made.append([[each.job_run_id for each in world.decisions(table_id, DecisionMade)] for table_id in tables])
    scheduler.end()
    assert set(world.commits.values()) == {1}
    assert not any(world.open_decisions(table_id) for table_id in tables)
    assert made[ROUNDS * 2 // 3] == made[-1]
    done = Counter(table_id for table_id, _, _ in world.commits)
    assert [done[table_id] for table_id in list(tables)[1:]] == [3 * WRITTEN // 2] * (len(POLICIES) - 1) + [0]
    return made[-1]


def test_two_keepers_decide_the_same_in_any_order_of_their_requests_as_one() -> None:
    alone = decided(1, 0)
    assert all(alone)
    for seed in range(1, 5):
        assert decided(2, seed, once=seed % 2 == 0) == alone
