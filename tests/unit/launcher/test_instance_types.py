"""The table of instance types, and the file that replaces it."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from compactor.model.errors import Invalid
from launcher.sizing.instance_types import BUILT_IN, PriceList, parse_price_list

TODAY = date(2026, 11, 22)


def document(**fields: object) -> dict[str, Any]:
    instance = {
        "name": "r9x.xlarge",
        "vcpus": 4,
        "memory_gib": 32,
        "network_gbps": 10,
        "on_demand_usd_hour": 0.3,
        "emr_usd_hour": 0.07,
    }
    return {"region": "eu-west-1", "priced_on": "2026-11-01", "instance_types": [{**instance, **fields}]}


def parsed(value: object) -> PriceList:
    return parse_price_list(json.dumps(value).encode(), "prices.json", TODAY)


def reasons(value: object) -> tuple[str, ...]:
    with pytest.raises(Invalid) as refused:
        parsed(value)
    return refused.value.reasons


def test_every_built_in_type_has_8_gib_a_vcpu_a_price_and_the_day_of_it() -> None:
    assert BUILT_IN.priced_on <= TODAY
    assert len({each.name for each in BUILT_IN.instance_types}) == len(BUILT_IN.instance_types)
    assert parse_price_list(BUILT_IN.model_dump_json().encode(), "the table", TODAY) == BUILT_IN
    for each in BUILT_IN.instance_types:
        assert each.memory_gib >= 8 * each.vcpus
        assert each.on_demand_usd_hour > each.emr_usd_hour > 0


def test_the_paper_s_instance_type_has_the_paper_s_price() -> None:
    r5n = BUILT_IN.instance_type("r5n.8xlarge")
    assert (r5n.vcpus, r5n.memory_gib, r5n.on_demand_usd_hour) == (32, 256, 2.384)


def test_a_user_s_file_replaces_the_table() -> None:
    prices = parsed({**document(), "s3": {"put_usd_1000": 0.01}})
    assert [each.name for each in prices.instance_types] == ["r9x.xlarge"]
    assert (prices.region, prices.priced_on, prices.s3.put_usd_1000) == ("eu-west-1", date(2026, 11, 1), 0.01)


def test_an_unknown_field_a_missing_one_and_a_wrong_type_are_refused_together() -> None:
    wrong = document(colour="blue", vcpus="four")
    del wrong["region"]
    text = " / ".join(reasons(wrong))
    assert len(reasons(wrong)) == 3
    assert "prices.json: instance_types[0].colour: there is no such field: it takes name, vcpus, memory_gib" in text
    assert "prices.json: region is missing" in text
    assert 'instance_types[0].vcpus is "four": it must be a valid' in text


@pytest.mark.parametrize(
    ("field", "value", "known"),
    [("s3", {"colour": 1}, "put_usd_1000, get_usd_1000"), ("colour", 1, "region, priced_on, instance_types")],
)
def test_an_unknown_field_is_refused_with_those_there_are(field: str, value: object, known: str) -> None:
    (reason,) = reasons({**document(), field: value})
    assert f"there is no such field: it takes {known}" in reason


def test_prices_and_sizes_below_zero_are_refused_together() -> None:
    wrong = {**document(on_demand_usd_hour=0, vcpus=0, emr_usd_hour=-1), "volume_usd_gib_month": -1}
    wrong |= {"s3": {"put_usd_1000": -1}, "serverless": {"vcpu_usd_hour": 1, "gib_usd_hour": 1}}
    text = " / ".join(reasons(wrong))
    assert len(reasons(wrong)) == 6
    assert "prices.json: instance_types[0].on_demand_usd_hour is 0: it must be greater than 0" in text
    assert "prices.json: s3.put_usd_1000 is -1: it must be greater than or equal to 0" in text


def test_a_date_in_the_future_and_little_memory_are_refused_together() -> None:
    wrong = {**document(memory_gib=16), "priced_on": "2027-01-01"}
    assert reasons(wrong) == (
        "prices.json: priced_on is 2027-01-01, and today is 2026-11-22: give the day on which the prices held",
        "prices.json: instance type 'r9x.xlarge': 4 GiB a vCPU: it must have 8 at least (memory-optimized families do)",
    )


def test_a_list_without_types_or_with_one_twice_is_refused() -> None:
    assert "instance_types is empty" in reasons({**document(), "instance_types": []})[0]
    twice = document()["instance_types"] * 2
    assert "is given more than once" in reasons({**document(), "instance_types": twice})[0]


def test_a_file_that_is_no_json_is_one_sentence() -> None:
    with pytest.raises(Invalid, match=r"prices.json: it is not JSON"):
        parse_price_list(b"{", "prices.json", TODAY)


def test_unknown_instance_types_are_refused_together_with_those_there_are() -> None:
    assert [each.name for each in BUILT_IN.only(("r5.xlarge",)).instance_types] == ["r5.xlarge"]
    with pytest.raises(Invalid) as refused:
        BUILT_IN.only(("r5.xlarge", "m5.large", "x1.large"))
    assert len(refused.value.reasons) == 2
    assert refused.value.reasons[0].startswith(
        "instance type 'm5.large' is unknown in us-east-1: take one of r5.xlarge"
    )
