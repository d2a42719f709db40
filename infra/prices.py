"""The prices by which a stage's dispatchers and keeper choose clusters: those of its region, or there is no stage.

A file that `lithify prices` has written is read at synthesis, and its content becomes a variable of the containers.
"""

from collections.abc import Iterator

from compactor.model.clock import SystemClock, date_of
from compactor.model.errors import Invalid
from dispatcher.options.documents import document_body
from infra.stages import Stage
from launcher.sizing.instance_types import BUILT_IN, PriceList, parse_price_list

DOCUMENT_BYTES_MAX = 32_000
"""Bytes of the document, at most: ECS takes 64 KiB for a task definition, of which it is in each container."""


def price_document(stage: Stage) -> str:
    """JSON; empty: the built-in list. Raises `Invalid` if the file cannot be read or is wrong."""
    prices = _given(stage)
    return "" if prices is None else prices.model_dump_json(exclude_none=True)


def wrong_prices(stage: Stage) -> Iterator[str]:
    """Every error in a readable price file, or in its absence, of a stage in a region that there is."""
    if stage.spark == "local":
        if stage.price_file:
            yield "price_file is given, and spark is local: no cluster is launched, leave it out"
        return
    try:
        prices = _given(stage)
    except Invalid:
        return  # the check of the dispatcher's environment reads the file too, and says why not
    of = (BUILT_IN if prices is None else prices).region
    if of != stage.region:
        which = "the built-in prices" if prices is None else f"the prices in {stage.price_file}"
        yield (
            f"{which} are those of {of}, and the stage is in {stage.region}: write its own with `lithify prices "
            f"--region {stage.region}`, and give price_file=prices-{stage.region}.json"
        )
        return
    size = len(price_document(stage))
    if size > DOCUMENT_BYTES_MAX:
        yield (
            f"the prices in {stage.price_file} are {size:,} bytes of JSON, and a task definition has room for "
            f"{DOCUMENT_BYTES_MAX:,}: leave out the instance types that the stage does not need"
        )


def _given(stage: Stage) -> PriceList | None:
    """None: no file is given."""
    today = date_of(SystemClock().now_ms())
    return parse_price_list(*document_body(stage.price_file, "the price file"), today) if stage.price_file else None
