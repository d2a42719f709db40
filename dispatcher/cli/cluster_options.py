"""The options by which a cluster is chosen for each session: instance types, their prices, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PriceFileOption = Annotated[
    Path | None, typer.Option(help="JSON: instance types and their prices, in place of the built-in list.")
]
InstanceTypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--instance-type",
        help="An instance type that clusters may have; once for each. Default: every type of the list.",
    ),
]
MinNodesOption = Annotated[int, typer.Option(help="Least number of worker nodes of a session's cluster.")]
MaxNodesOption = Annotated[int, typer.Option(help="Largest number of worker nodes of a session's cluster.")]
MaxVcpusOption = Annotated[int | None, typer.Option(help="Largest number of vCPUs of a session's worker nodes.")]
MaxUsdOption = Annotated[float | None, typer.Option(help="Most US dollars that a session may be expected to cost.")]
SpotShareOption = Annotated[
    float, typer.Option(help="Share of the worker nodes on Spot, 0 to 1; at least one node is not.")
]
ClusterStartOption = Annotated[
    float, typer.Option(help="Expected time from the request for a cluster to its first task.")
]
