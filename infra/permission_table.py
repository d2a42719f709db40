"""The table of permissions: part, what, why. Actions are read from the template, reasons from the parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.permissions import Part

HEAD = ("| part | may | why |", "|---|---|---|")


def permission_table(parts: Sequence[Part], template: Mapping[str, Any]) -> Iterator[str]:
    """Markdown lines. Raises `KeyError` for a statement of the template whose reason no part has."""
    yield from HEAD
    for part in parts:
        reasons = {each.sid: each.why for each in part.permissions}
        for number, statement in enumerate(_statements(template, part.role)):
            actions = statement["Action"]
            listed = actions if isinstance(actions, list) else [actions]
            service = listed[0].partition(":")[0]
            names = " ".join(each.partition(":")[2] for each in listed)
            yield f"| {part.name if number == 0 else ''} | {service}: {names} | {reasons[statement['Sid']]} |"


def _statements(template: Mapping[str, Any], role: str) -> Iterator[Mapping[str, Any]]:
    for name, resource in template["Resources"].items():
        if resource["Type"] == "AWS::IAM::Role" and role in name:
            for policy in resource["Properties"]["Policies"]:
                yield from policy["PolicyDocument"]["Statement"]
