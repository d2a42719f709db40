"""Java decodes file names, arguments and variables by the locale's encoding: in `C`, an umlaut becomes `?`."""

from __future__ import annotations

from collections.abc import Mapping


def utf8_locale(environment: Mapping[str, str]) -> dict[str, str]:
    """Additional variables for a process that starts Java; empty if its encoding is UTF-8 already."""
    named = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or "C"
    return {} if "utf" in named.lower() else {"LC_ALL": "C.UTF-8"}
