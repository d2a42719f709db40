"""Checks limits against one another: each is valid by itself (service_options.py), but another one may make
it useless.
"""

from __future__ import annotations

from dataclasses import fields

from compactor.model.errors import Invalid
from dispatcher.options.service_options import ServiceOptions
from dispatcher.scheduling.lease_log import FlowLimits

OPTIONS_OF_CLUSTERS = (
    *(each.name for each in fields(FlowLimits) if not each.name.startswith("max_sessions")),
    *("price_file", "instance_type", "min_nodes", "max_nodes", "max_vcpus", "max_usd", "spot_share"),
    *("cluster_start_seconds", "cluster_sweep_seconds"),
)

LIMITS_WITHIN = (
    ("max_sessions", "max_sessions_in_all"),
    ("max_sessions_per_table", "max_sessions_in_all"),
    ("max_clusters_per_dispatcher", "max_clusters_in_all"),
    ("max_clusters_per_table", "max_clusters_in_all"),
    ("max_vcpus_per_dispatcher", "max_vcpus_in_all"),
    ("max_vcpus_per_table", "max_vcpus_in_all"),
    ("max_usd", "max_usd_per_run"),
    ("max_usd_per_day_per_dispatcher", "max_usd_per_day_in_all"),
    ("max_usd_per_day_per_table", "max_usd_per_day_in_all"),
)
"""Pairs of limits: the first can never be reached if it is above the second."""


def check_limits(options: ServiceOptions) -> None:
    """Raises `Invalid`, with every reason, if one limit makes another useless, or if no cluster fits within
    them."""
    reasons = []
    for narrow, wide in LIMITS_WITHIN:
        least, most = getattr(options, narrow), getattr(options, wide)
        if least is not None and most is not None and least > most:
            reasons.append(
                f"{_flag(narrow)} {least:g} is above {_flag(wide)} {most:g}: lower the one, or raise the other"
            )
    if options.cluster_settings is None:
        defaults = ServiceOptions()
        given = [_flag(name) for name in OPTIONS_OF_CLUSTERS if getattr(options, name) != getattr(defaults, name)]
        if given:
            reasons.append(f"{', '.join(given)}: no cluster is launched for a session without --cluster-settings")
    if reasons:
        raise Invalid(*reasons)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
