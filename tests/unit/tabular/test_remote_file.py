"""A remote file that is closed leaves nothing behind."""

from __future__ import annotations

import threading

from compactor.storage.ranges import REQUEST_BYTES_MAX, RangeReader, Span
from compactor.tabular.remote_file import BLOCKS_AHEAD, RemoteFile
from tests.fakes.memory_ranges import MemoryRanges

URI = "s3://lake/rows.csv"
ROOM_BYTES = BLOCKS_AHEAD * REQUEST_BYTES_MAX


def test_a_file_that_is_closed_while_a_thread_reads_on_keeps_no_room_for_its_next_blocks() -> None:
    objects = MemoryRanges({URI: bytes(ROOM_BYTES + 2 * REQUEST_BYTES_MAX)})
    reader = RangeReader(objects)
    reader.give_room(ROOM_BYTES)
    file = RemoteFile(reader, URI)
    file.read(REQUEST_BYTES_MAX)
    asked, answers = threading.Event(), threading.Event()

    def stall(_: str) -> None:
        asked.set()
        assert answers.wait(60)

    objects.fail = stall
    reading_on = threading.Thread(target=file.read, args=(REQUEST_BYTES_MAX,))
    reading_on.start()
    assert asked.wait(60)
    file.close()
    answers.set()
    reading_on.join()
    assert reader.begin("s3://lake/other", [Span(0, ROOM_BYTES)])
