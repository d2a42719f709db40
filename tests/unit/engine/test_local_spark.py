"""Starting and stopping a Spark of one's own, but for Spark."""

from __future__ import annotations

import pytest

from compactor.engine.java_home import utf8_locale


@pytest.mark.parametrize(
    ("environment", "added"),
    [
        ({}, {"LC_ALL": "C.UTF-8"}),
        ({"LC_ALL": "C", "LANG": "en_GB.UTF-8"}, {"LC_ALL": "C.UTF-8"}),
        ({"LC_CTYPE": "de_DE.utf8"}, {}),
        ({"LANG": "en_GB.UTF-8"}, {}),
    ],
    ids=str,
)
def test_java_is_started_in_a_locale_of_utf_8(environment: dict[str, str], added: dict[str, str]) -> None:
    assert utf8_locale(environment) == added
