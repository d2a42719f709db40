"""A dispatcher, a cluster of the fake EMR, and a real Spark: from the queue to a compacted table on S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark.killed_dispatchers import KilledRound, Moment, Town, town

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with town(tmp_path_factory.mktemp("town")) as found:
        yield found


@pytest.mark.spark
@pytest.mark.release
def test_a_session_on_a_real_spark_outlives_its_dispatcher_and_is_attached_by_the_next(here: Town) -> None:
    found = KilledRound(here, 0, Moment.AFTER_FIRST_COMMIT, is_real=True, deltas=3).run()
    assert found["wrong"] == [], found
    assert found["exit_code"] == 0
    assert found["committed_at_kill"] in (1, 2, 3)


def test_a_dispatcher_that_is_killed_before_its_launch_is_answered_leaves_one_cluster_to_the_next(here: Town) -> None:
    found = KilledRound(here, 1, Moment.LAUNCH_UNANSWERED, is_real=False, deltas=2).run()
    assert found["wrong"] == [], found
    assert (found["clusters"], found["attempts"], found["exit_code"]) == (1, 1, 0)
