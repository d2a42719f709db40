"""Files of large records: what a task appends, others map; what a round leaves, the next one writes over."""

from __future__ import annotations

import mmap
import pickle
from pathlib import Path

import pytest

from compactor.engine import record_files as module
from compactor.engine.record_files import RecordFiles, mapped, record_files
from compactor.model.errors import Unavailable


def of_a_task(files: RecordFiles) -> RecordFiles:
    """What a task gets: a copy of its own."""
    copy: RecordFiles = pickle.loads(pickle.dumps(files))
    return copy


def spare_files(scratch: Path) -> list[Path]:
    return sorted((scratch / "spare-records").iterdir())


def test_a_record_of_a_task_is_read_at_the_location_that_append_returned(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        task = of_a_task(files)
        locations = [task.append([b"first", b"", b" record"]), task.append([b"x" * 10_000]), task.append([b"last"])]
        assert [bytes(mapped(location)) for location in locations] == [b"first record", b"x" * 10_000, b"last"]
        assert len({location.path for location in locations}) == 1
        assert all(location.start % mmap.ALLOCATIONGRANULARITY == 0 for location in locations)


def test_writes_to_a_mapped_record_go_to_a_copy(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        location = files.append([b"as it was"])
        mapped(location)[:] = 0
        assert bytes(mapped(location)) == b"as it was"


def test_every_task_writes_to_a_file_of_its_own(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        first, second = (of_a_task(files).append([text]) for text in (b"one", b"two"))
        assert first.path != second.path
        assert bytes(mapped(first)) == b"one"


def test_a_next_round_writes_over_what_one_left_and_reads_its_own(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        of_a_task(files).append([b"a" * 9_000])
    (left,) = spare_files(tmp_path)
    pages = left.stat().st_ino
    with record_files(tmp_path) as files:
        location = of_a_task(files).append([b"b" * 5])
        assert location.path.stat().st_ino == pages
        assert bytes(mapped(location)) == b"b" * 5
        assert spare_files(tmp_path) == []
        new = of_a_task(files).append([b"c"])
        assert new.path.stat().st_ino != pages
    assert len(spare_files(tmp_path)) == 2


def test_rounds_side_by_side_share_no_file(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        of_a_task(files).append([b"left"])
    with record_files(tmp_path) as one, record_files(tmp_path) as other:
        mine, theirs = of_a_task(one).append([b"mine"]), of_a_task(other).append([b"theirs"])
        assert bytes(mapped(mine)) == b"mine"
        assert bytes(mapped(theirs)) == b"theirs"


def test_a_spare_file_that_another_takes_first_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with record_files(tmp_path) as files:
        of_a_task(files).append([b"left"])
    with record_files(tmp_path) as files:
        seen = list(spare_files(tmp_path))
        spare_files(tmp_path)[0].unlink()
        monkeypatch.setattr(Path, "iterdir", lambda _: iter(seen))
        location = of_a_task(files).append([b"new"])
        monkeypatch.undo()
        assert bytes(mapped(location)) == b"new"


def test_a_round_that_fails_leaves_no_file_that_one_of_its_tasks_might_still_write_to(tmp_path: Path) -> None:
    def fail() -> None:
        with record_files(tmp_path) as files:
            of_a_task(files).append([b"half"])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["spare-records"]
    assert spare_files(tmp_path) == []


def test_a_task_whose_round_has_ended_writes_nowhere(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        task = of_a_task(files)
        task.append([b"in time"])
    with pytest.raises(Unavailable, match="No such file"):
        task.append([b"late"])
    (left,) = spare_files(tmp_path)
    assert left.read_bytes() == b"in time"


def test_a_full_scratch_disk_is_named(tmp_path: Path) -> None:
    with record_files(tmp_path) as files:
        task = of_a_task(files)
        task._path = Path("/dev/full")
        with pytest.raises(Unavailable, match=r"spark.local.dir.*records-.*No space left on device"):
            task.append([b"x" * 100_000])


def test_a_scratch_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"), record_files(tmp_path / "gone"):
        pass


def test_no_more_is_put_by_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPARE_BYTES_MAX", 1_500)
    for _ in range(2):
        with record_files(tmp_path) as files:
            for _ in range(3):
                of_a_task(files).append([bytes(700)])
        assert [file.stat().st_size for file in spare_files(tmp_path)] == [700, 700]
