"""The guarantees of the durable log, on every kind of store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import pyarrow as pa
import pytest
from pydantic import Field, TypeAdapter
from structlog.testing import capture_logs

from compactor.log.checkpoints import CHECKPOINT_ENTRIES, LogState, WholeCheckpoint
from compactor.log.durable_log import DurableLog, LogFormat
from compactor.model.clock import Clock, SystemClock
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Denied, Invalid, Outdated, Unavailable
from compactor.storage.create_once import create_once
from compactor.storage.object_store import ObjectStore
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock


class WordsAdded(Document):
    action: Literal["said"] = "said"
    word: str


class Unsaid(Document):
    action: Literal["unsaid"] = "unsaid"


Action = Annotated[WordsAdded | Unsaid, Field(discriminator="action")]
Words = tuple[str, ...]
Log = DurableLog[Words, Action]


def _apply(words: Words, action: Action) -> Words:
    if isinstance(action, WordsAdded):
        return (*words, action.word)
    if not words:
        raise Corrupt("there is nothing to unsay")
    return words[:-1]


def _from_table(table: pa.Table) -> Words:
    return tuple(table.column("word").to_pylist())


WORDS: LogFormat[Words, Action] = LogFormat(
    name="words",
    action_type=TypeAdapter(Action),
    initial=(),
    apply=_apply,
    checkpoint=WholeCheckpoint(lambda words: pa.table({"word": pa.array(words, pa.string())}), _from_table),
    keeps_entries=False,
    refuses_gaps=True,
)


def log_over(store: ObjectStore, clock: Clock | None = None) -> Log:
    return DurableLog(store, "some/log", WORDS, clock or SystemClock())


def add_words(*words: str) -> Callable[[LogState[Words]], Sequence[Action]]:
    return lambda _: [WordsAdded(word=word) for word in words]


def test_an_empty_log_folds_to_its_initial_state(store: ObjectStore) -> None:
    assert log_over(store).load() == LogState(0, (), 0)
    assert list(log_over(store).entries()) == []


def test_every_reader_folds_appended_entries_in_order(store: ObjectStore) -> None:
    writer = log_over(store)
    assert writer.append(add_words("a", "b")).after.state == ("a", "b")
    assert writer.append(lambda _: [Unsaid()]).after.state == ("a",)
    after = writer.append(add_words("c")).after
    assert after.state == ("a", "c")
    assert writer.load() == log_over(store).load() == after
    assert [entry.number for entry in log_over(store).entries(after=1)] == [2, 3]


def test_any_entry_can_be_read_as_of(store: ObjectStore) -> None:
    writer = log_over(store)
    for word in "abc":
        writer.append(add_words(word))
    for log in (writer, log_over(store)):
        assert [log.load(as_of=number).state for number in range(4)] == [(), ("a",), ("a", "b"), ("a", "b", "c")]
        with pytest.raises(Invalid, match=r"no entry 4 .* ends at entry 3"):
            log.load(as_of=4)
        with pytest.raises(Invalid, match="no entry -1"):
            log.load(as_of=-1)


def test_deciding_on_nothing_writes_nothing(store: ObjectStore) -> None:
    appended = log_over(store).append(lambda _: [])
    assert appended.entry is None
    assert log_over(store).load().entry_number == 0


def test_errors_of_decide_are_raised_and_nothing_is_written(store: ObjectStore) -> None:
    def refuse(_: LogState[Words]) -> Sequence[Action]:
        raise Invalid("not today")

    with pytest.raises(Invalid, match="not today"):
        log_over(store).append(refuse)
    assert log_over(store).load().entry_number == 0


def test_an_action_that_cannot_follow_never_becomes_durable(store: ObjectStore) -> None:
    with pytest.raises(Corrupt, match=r"entry 1 .* nothing to unsay"):
        log_over(store).append(lambda _: [Unsaid()])
    assert log_over(store).load().entry_number == 0


def test_the_loser_of_a_race_decides_again_on_what_the_winner_wrote(store: ObjectStore) -> None:
    seen: list[Words] = []

    def decide(log_state: LogState[Words]) -> Sequence[Action]:
        if not seen:
            log_over(store).append(add_words("rival"))
        seen.append(log_state.state)
        return [WordsAdded(word=f"after {log_state.entry_number}")]

    appended = log_over(store).append(decide)
    assert seen == [(), ("rival",)]
    assert appended.after.state == ("rival", "after 1")


def test_all_of_many_racing_writers_succeed_and_none_is_lost(
    store: ObjectStore, request: pytest.FixtureRequest
) -> None:
    if "moto" in request.node.name:
        pytest.skip("moto does not hold a key between its check and its put")
    writers, words_each = 8, 6

    def write(writer: int) -> None:
        log = log_over(store)
        for number in range(words_each):
            log.append(add_words(f"{writer}.{number}"))

    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(write, range(writers)))
    words = log_over(store).load().state
    assert sorted(words) == sorted(f"{writer}.{number}" for writer in range(writers) for number in range(words_each))
    for writer in range(writers):
        own = [word for word in words if word.startswith(f"{writer}.")]
        assert own == [f"{writer}.{number}" for number in range(words_each)]


def test_the_time_of_entries_never_goes_back(store: ObjectStore) -> None:
    clock = ManualClock(now_ms=5_000)
    log = log_over(store, clock)
    log.append(add_words("a"))
    clock.set_ms(3_000)
    log_over(store, clock).append(add_words("b"))
    clock.set_ms(9_000)
    log.append(add_words("c"))
    assert [entry.at_ms for entry in log.entries()] == [5_000, 5_000, 9_000]


def test_the_entry_at_a_time_is_the_last_one_written_until_then(store: ObjectStore) -> None:
    clock = ManualClock()
    log = log_over(store, clock)
    assert log.entry_number_at(10**15) == 0
    for at_ms in (1_000, 2_000, 2_000, 5_000):
        clock.set_ms(at_ms)
        log.append(add_words("x"))
    assert [log.entry_number_at(at_ms) for at_ms in (999, 1_000, 1_999, 2_000, 4_999, 5_000, 10**15)] == [
        0, 1, 1, 3, 3, 4, 4,
    ]  # fmt: skip


# -- a service that fails


def test_a_put_whose_answer_was_lost_is_recognised_as_our_own(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.fail("put_if_absent", when="after")
    appended = log_over(faulty, ManualClock()).append(add_words("once"))
    assert appended.after.state == ("once",)
    assert log_over(store).load().state == ("once",)


def test_a_put_that_never_arrived_is_put_again(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.fail("put_if_absent", when="before", times=3)
    assert log_over(faulty, ManualClock()).append(add_words("once")).after.state == ("once",)


def test_a_lost_answer_is_settled_though_reading_it_back_fails_for_a_while(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.fail("put_if_absent", when="after")

    def decide(log_state: LogState[Words]) -> Sequence[Action]:
        faulty.fail("read", times=2)
        return [WordsAdded(word=f"after {log_state.entry_number}")]

    assert log_over(faulty, ManualClock()).append(decide).after.state == ("after 0",)
    assert log_over(store).load().state == ("after 0",)


def test_a_put_that_lost_to_a_rival_while_its_answer_was_lost_decides_again(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.fail("put_if_absent", when="before")
    first = True

    def decide(log_state: LogState[Words]) -> Sequence[Action]:
        nonlocal first
        if first:
            first = False
            log_over(store).append(add_words("rival"))
        return [WordsAdded(word=f"after {log_state.entry_number}")]

    assert log_over(faulty, ManualClock()).append(decide).after.state == ("rival", "after 1")


def test_a_store_that_refuses_each_try_says_that_nothing_was_written(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.fail("put_if_absent", times=None, error=Denied)
    with pytest.raises(Denied, match="was not written: the store failed before"):
        log_over(faulty, ManualClock()).append(add_words("a"))
    assert log_over(store).load().entry_number == 0


def test_a_store_that_refuses_after_a_lost_answer_leaves_the_outcome_unknown(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.fail("put_if_absent", when="after")
    faulty.fail("read", times=None, error=Denied)
    with pytest.raises(Unavailable, match="it is not known whether key was written") as unknown:
        create_once(faulty, "key", b"ours", lambda found: found == b"ours", ManualClock())
    assert not isinstance(unknown.value, Denied)
    faulty.heal()
    assert create_once(faulty, "key", b"ours", lambda found: found == b"ours", ManualClock())


def test_a_store_that_stays_away_leaves_the_outcome_unknown_and_says_so(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.fail("put_if_absent", times=None)
    with pytest.raises(Unavailable, match="it is not known whether"):
        log_over(faulty, ManualClock()).append(add_words("a"))
    assert ("delete", "") not in [(verb, "") for verb, _ in faulty.requests]
    faulty.heal()
    assert log_over(faulty).append(add_words("b")).after.state == ("b",)


def test_a_writer_that_stops_leaves_a_whole_entry_or_none(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    for point, expected in ((0, ()), (1, ("a",))):
        faulty.stop_at(point)
        with pytest.raises(Stopped):
            log_over(faulty).append(add_words("a"))
        faulty.heal()
        assert log_over(store).load().state == expected


# -- checkpoints


def fill(store: ObjectStore, entries: int) -> Words:
    log = log_over(store)
    for number in range(entries):
        log.append(add_words(f"w{number}"))
    return log.load().state


def entries_read(store: ObjectStore, as_of: int | None = None) -> tuple[Words, int]:
    """The state a new reader gets, and how many entries it read for it."""
    counted = FaultyStore(store)
    state = log_over(counted).load(as_of).state
    return state, sum(verb == "read" and key.endswith(".json") for verb, key in counted.requests)


HINT = "some/log/_last_checkpoint"


@pytest.mark.parametrize("known", [0, 1, 3])
@pytest.mark.parametrize("new", [0, 1, 2, 5])
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_entries_that_are_requested_ahead_of_the_end_change_no_fold(
    store: ObjectStore, known: int, new: int, ahead: int
) -> None:
    writer, reader, past = log_over(store), log_over(store), log_over(store)
    for number in range(known):
        writer.append(add_words(f"old {number}"))
    reader.load()
    past.load()
    for number in range(new):
        writer.append(add_words(f"new {number}"))
    assert reader.load(ahead=ahead) == writer.newest
    assert past.load_past(known + new) == writer.newest
    with pytest.raises(Invalid, match=f"there is no entry {known + new + 1} "):
        past.load_past(known + new + 1)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_log_is_read_until_its_last_entry_and_no_further(store: ObjectStore, last: int) -> None:
    writer = log_over(store)
    for number in range(1, 4):
        writer.append(add_words(f"word {number}"))
    found = log_over(store).load_until(lambda words: len(words) == last)
    assert found == log_over(store).load(as_of=last)


def checkpoint_key(number: int) -> str:
    return f"some/log/{number:020d}.checkpoint.parquet"


def past_the_end(store: ObjectStore) -> int:
    """Number of reads of missing entries: 0 on a remote store, where a listing finds the end."""
    return 0 if store.location.is_remote else 2


def test_a_reader_starts_from_the_last_checkpoint(store: ObjectStore) -> None:
    words = fill(store, CHECKPOINT_ENTRIES + 3)
    assert entries_read(store) == (words, 3 + past_the_end(store))


def test_a_reader_as_of_an_entry_starts_from_the_checkpoint_before_it(store: ObjectStore) -> None:
    words = fill(store, 2 * CHECKPOINT_ENTRIES + 3)
    assert entries_read(store, CHECKPOINT_ENTRIES + 2) == (words[: CHECKPOINT_ENTRIES + 2], 2)
    assert entries_read(store, CHECKPOINT_ENTRIES) == (words[:CHECKPOINT_ENTRIES], 0)


def test_a_missing_or_broken_hint_costs_time_and_no_answer(store: ObjectStore) -> None:
    words = fill(store, CHECKPOINT_ENTRIES + 3)
    store.delete(HINT)
    with capture_logs() as logged:
        assert log_over(store).load().state == words
    assert logged == []
    for hint in (b"", b"{", b'{"format":1,"entry_number":0}', b'{"format":1,"entry_number":999}'):
        store.overwrite(HINT, hint)
        with capture_logs() as logged:
            assert log_over(store).load().state == words
        assert {event["log_level"] for event in logged} == {"warning"}


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(store: ObjectStore) -> None:
    words = fill(store, 2 * CHECKPOINT_ENTRIES + 1)
    key = checkpoint_key(2 * CHECKPOINT_ENTRIES)
    whole, earlier = store.read(key), store.read(checkpoint_key(CHECKPOINT_ENTRIES))
    assert whole is not None
    assert earlier is not None
    damages = {
        "missing": None,
        "empty": b"",
        "garbage": b"PAR1" + b"x" * 200,
        "cut": whole[:-20],
        "flipped": whole[:40] + bytes([whole[40] ^ 0xFF]) + whole[41:],
        "another's": earlier,
    }
    for damage, body in damages.items():
        if body is None:
            store.delete(key)
        else:
            store.overwrite(key, body)
        with capture_logs() as logged:
            assert entries_read(store) == (words, CHECKPOINT_ENTRIES + 1 + past_the_end(store)), damage
        assert [event["event"] for event in logged] == [
            "checkpoint_missing" if damage == "missing" else "checkpoint_unreadable"
        ]


def test_a_stale_hint_only_lengthens_the_replay(store: ObjectStore) -> None:
    words = fill(store, 2 * CHECKPOINT_ENTRIES)
    store.overwrite(HINT, b'{"format":1,"entry_number":%d}' % CHECKPOINT_ENTRIES)
    assert entries_read(store) == (words, CHECKPOINT_ENTRIES + past_the_end(store))


def test_an_append_succeeds_though_its_checkpoint_cannot_be_written(store: ObjectStore) -> None:
    fill(store, CHECKPOINT_ENTRIES - 1)
    faulty = FaultyStore(store)
    faulty.fail("overwrite", times=None)
    with capture_logs() as logged:
        assert log_over(faulty).append(add_words("last")).after.entry_number == CHECKPOINT_ENTRIES
    assert [event["event"] for event in logged] == ["checkpoint_not_written"]
    assert log_over(store).load().state[-1] == "last"


# -- invalid entries


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_log_that_lacks_an_entry_is_neither_read_nor_written(store: ObjectStore, number: int) -> None:
    for word in "abcd":
        log_over(store).append(add_words(word))
    store.delete(f"some/log/{number:020}.json")
    with pytest.raises(Corrupt, match=f"entry {number} of log some/log is missing, though later ones exist"):
        log_over(store).load()
    with pytest.raises(Corrupt, match=f"entry {number} "):
        log_over(store).append(add_words("e"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "does not hold"),
        (b'{"format":1,"entry_number":2,"entry_id":"x","at_ms":1,"actions":[]}', "holds entry 2"),
        (b'{"format":1,"entry_number":1,"entry_id":"x","at_ms":1,"actions":[{"action":"said"}]}', "words log"),
        (b'{"format":1,"entry_number":1,"entry_id":"x","actions":[],"more":1}', "does not hold"),
    ],
)
def test_an_entry_that_is_not_ours_is_corrupt_and_named(store: ObjectStore, body: bytes, reason: str) -> None:
    store.put_if_absent("some/log/00000000000000000001.json", body)
    with pytest.raises(Corrupt, match=f"00000000000000000001.json.*{reason}"):
        log_over(store).load()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"format":2,"entry_number":1,"entry_id":"x","at_ms":1,"actions":[]}', "it has format 2"),
        (b'{"format":1,"entry_number":1,"entry_id":"x","at_ms":1,"actions":[],"more":1}', "more: Extra inputs"),
        (b'{"format":1,"entry_number":1,"entry_id":"x","at_ms":1,"actions":[{"action":"sung"}]}', "'sung'"),
    ],
    ids=["format", "field", "action"],
)
def test_an_entry_of_a_newer_release_is_told_as_such_and_lost_races_to_it_too(
    store: ObjectStore, body: bytes, reason: str
) -> None:
    def overtaken(_: LogState[Words]) -> Sequence[Action]:
        store.put_if_absent("some/log/00000000000000000001.json", body)
        return [WordsAdded(word="late")]

    message = rf"0001\.json was written by a newer release of Lithify, upgrade this one to read it \(.*{reason}.*\)"
    with pytest.raises(Outdated, match=message):
        log_over(store).append(overtaken)
    with pytest.raises(Outdated, match=message):
        log_over(store).load()
