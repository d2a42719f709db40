"""Price lists from what AWS publishes, in the shape of its answers."""

from __future__ import annotations

import json
from datetime import date

import boto3
import pytest
from botocore.stub import Stubber

from compactor.model.errors import Denied, Invalid
from compactor.planning.sizing import SessionSize
from launcher.aws.pricing import BotoPrices
from launcher.sizing.cluster_choice import ClusterRoom, choose_cluster
from launcher.sizing.instance_types import BUILT_IN, parse_price_list
from launcher.sizing.published_prices import PriceRequest, Product, published_prices
from tests.fakes.published_prices import PUBLISHED, REGION, PublishedPrices

TODAY = date(2026, 11, 22)


def without(field: str, value: str) -> PublishedPrices:
    def has(product: Product) -> bool:
        attributes = {**product["product"]["attributes"], "productFamily": product["product"]["productFamily"]}
        return value in str(attributes.get(field, ""))

    return PublishedPrices([each for each in PUBLISHED if not has(each)])


def test_the_published_prices_of_a_region_are_a_valid_price_file() -> None:
    prices = published_prices(PublishedPrices(), REGION, TODAY)
    assert parse_price_list(prices.model_dump_json(exclude_none=True).encode(), "prices", TODAY) == prices
    assert (prices.region, prices.priced_on) == (REGION, TODAY)
    r6i = prices.instance_type("r6i.8xlarge")
    assert (r6i.vcpus, r6i.memory_gib, r6i.on_demand_usd_hour, r6i.emr_usd_hour) == (32, 256, 2.256, 0.27)
    assert (r6i.network_gbps, r6i.local_disk_gib, r6i.spot_usd_hour) == (12.5, 0, None)
    assert (prices.s3.put_usd_1000, prices.s3.get_usd_1000) == pytest.approx((0.005, 0.0004))
    assert (prices.s3.storage_usd_gib_month, prices.volume_usd_gib_month) == (0.023, 0.088)
    assert prices.serverless is not None
    assert prices.serverless.model_dump() == {
        "vcpu_usd_hour": 0.052624,
        "gib_usd_hour": 0.0057785,
        "disk_gib_usd_hour": 0.000122,
    }


def test_a_network_that_is_only_a_burst_counts_as_its_share_of_the_next_larger_one() -> None:
    prices = published_prices(PublishedPrices(), REGION, TODAY)
    assert prices.instance_type("r6i.xlarge").network_gbps == 12.5 * 4 / 32
    assert prices.instance_type("r5d.xlarge").network_gbps == pytest.approx(25 * 4 / 96)


def test_disks_are_gib_of_all_of_them() -> None:
    prices = published_prices(PublishedPrices(), REGION, TODAY)
    assert prices.instance_type("r5d.xlarge").local_disk_gib == 139
    assert prices.instance_type("r5d.24xlarge").local_disk_gib == 3_352


def test_types_that_emr_lacks_that_have_no_price_or_no_known_network_are_left_out() -> None:
    names = {each.name for each in published_prices(PublishedPrices(), REGION, TODAY).instance_types}
    assert names == {"r6i.xlarge", "r6i.8xlarge", "r6i.16xlarge", "r5d.xlarge", "r5d.24xlarge"}


@pytest.mark.parametrize(
    ("field", "value", "lacking"),
    [
        ("softwareType", "EMR", "instances of the r series with EMR"),
        ("volumeApiName", "gp3", "gp3 volumes"),
        ("group", "S3-API-Tier1", "PUT requests of S3"),
        ("group", "S3-API-Tier2", "GET requests of S3"),
        ("usagetype", "TimedStorage", "standard storage of S3"),
    ],
)
def test_a_region_without_a_price_is_refused_with_what_is_lacking(field: str, value: str, lacking: str) -> None:
    with pytest.raises(Invalid, match=f"no price in {REGION} in US dollars of {lacking}: is it"):
        published_prices(without(field, value), REGION, TODAY)
    with pytest.raises(Invalid, match="instances of the r series with EMR, gp3 volumes, PUT requests of S3, GET"):
        published_prices(PublishedPrices(), "eu-nowhere-9", TODAY)


def test_a_region_without_emr_serverless_has_no_prices_of_it_and_no_session_is_planned_on_it() -> None:
    prices = published_prices(without("usagetype", "SERVERLESS"), REGION, TODAY)
    assert prices.serverless is None
    with pytest.raises(Invalid, match=f"prices of {REGION} have none of EMR Serverless: add serverless to the price"):
        choose_cluster(SessionSize(0, 1, 1, 0, None), ClusterRoom(prices=prices, serverless=True), None)


def test_prices_of_another_region_and_old_ones_are_warned_of_in_the_arithmetic_of_a_plan() -> None:
    assert BUILT_IN.warnings("us-east-1", date(2025, 11, 30)) == ()
    assert BUILT_IN.warnings(None, date(2025, 11, 30)) == ()
    (other,) = BUILT_IN.warnings("eu-west-1", date(2025, 11, 30))
    assert other.startswith("prices are those of us-east-1, and clusters run in eu-west-1")
    (old,) = BUILT_IN.warnings("us-east-1", date(2025, 12, 3))
    assert old.startswith("prices are of 2024-12-01, more than a year old: write new ones with `lithify prices`")
    room = ClusterRoom(warnings=(other, old))
    assert choose_cluster(SessionSize(0, 1, 1, 0, None), room, None).arithmetic[-2:] == (other, old)


def test_all_pages_are_read_with_exact_filters() -> None:
    client = boto3.session.Session().client(
        "pricing", region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"
    )
    first, second = PUBLISHED[:2]
    asked = {
        "ServiceCode": "AmazonEC2",
        "FormatVersion": "aws_v1",
        "Filters": [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": REGION}],
    }
    with Stubber(client) as stub:
        stub.add_response(
            "get_products", {"FormatVersion": "aws_v1", "PriceList": [json.dumps(first)], "NextToken": "x"}, asked
        )
        stub.add_response(
            "get_products",
            {"FormatVersion": "aws_v1", "PriceList": [json.dumps(second)]},
            {**asked, "NextToken": "x"},
        )
        assert list(BotoPrices(client).products(PriceRequest("AmazonEC2", {"regionCode": REGION}))) == [first, second]
        stub.add_client_error("get_products", "AccessDeniedException", "not authorized: pricing:GetProducts", 400)
        with pytest.raises(Denied, match="the prices of AmazonEC2 cannot be read"):
            list(BotoPrices(client).products(PriceRequest("AmazonEC2", {"regionCode": REGION})))
