"""The options by which a cluster is chosen for each session: instance types, their prices, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PriceFileOption = Annotated[
    Path | None, typer.Option(help="JSON: instance types and their prices, in place of the built-in list.")
]
InstanceTypeOption = Annotated[
    list[str] | None, typer.Option("--instance-type", help="One that clusters may have; left out: any of the list.")
]
MinNodesOption = Annotated[int, typer.Option(help="Worker nodes of a session's cluster, at least.")]
MaxNodesOption = Annotated[int, typer.Option(help="Worker nodes of a session's cluster, at most.")]
MaxVcpusOption = Annotated[int | None, typer.Option(help="vCPUs of a session's worker nodes, at most.")]
MaxUsdOption = Annotated[float | None, typer.Option(help="US dollars that a session may be expected to cost.")]
SpotShareOption = Annotated[float, typer.Option(help="Of the worker nodes, on Spot: 0 to 1; one at least is not.")]
ClusterStartOption = Annotated[float, typer.Option(help="From the request for a cluster to its first task.")]
