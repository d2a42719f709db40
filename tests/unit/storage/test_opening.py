"""Where a store lies, as processes elsewhere are told."""

from __future__ import annotations

import pytest

from compactor.storage.aws import s3
from compactor.storage.location import StoreLocation
from compactor.storage.opening import with_region


def test_a_location_on_s3_is_told_with_the_region_that_this_process_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    s3._clients_of_process.cache_clear()
    assert with_region(StoreLocation("s3://bucket/lake")) == StoreLocation("s3://bucket/lake", None, "eu-west-3")
    s3._clients_of_process.cache_clear()


def test_a_location_that_names_its_region_or_has_none_stays_as_it_is() -> None:
    for location in (StoreLocation("s3://bucket/lake", None, "eu-north-1"), StoreLocation("file:///lake")):
        assert with_region(location) == location
