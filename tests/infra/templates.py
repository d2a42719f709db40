"""Examples of stages, their templates, and what is generated from them: golden files, and tables of the pages.

`make generate` writes both: `git diff` then shows what changes.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from infra.alarms import alarms
from infra.app import build, checked_stage
from infra.deploy import DESTROYED, KEPT
from infra.permissions import Part
from infra.queues import QueueNames
from infra.stages import STAGES, Stage
from tests.pages.sources import write as write_place
from tests.roles.policies import GOLDEN, Template

GIVEN: Mapping[str, tuple[str, ...]] = {
    "dev": ("dev",),
    "prod": (
        "prod",
        "account=123456789012",
        "region=eu-west-1",
        "alarm_addresses=oncall@example.com",
        "lakes=lake,finance/eu,s3://older-lakes/lake",
        "allow_files=s3://landing/orders",
        "landing=s3://landing/feed,s3://partners/in",
        "ingests=2",
        "serve=true",
        "glue_databases=lakehouse,finance",
        "price_file=tests/infra/prices-eu-west-1.json",
    ),
    "serverless": (
        "prod",
        "account=123456789012",
        "region=us-east-1",
        "alarm_addresses=oncall@example.com",
        "spark=emr_serverless",
        "workers=0",
        "allow_files=s3://landing/orders",
        "key_arn=arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555",
    ),
}
"""What is given on the command line, for each example."""


@cache
def _built(example: str) -> tuple[Template, tuple[Part, ...]]:
    with TemporaryDirectory() as folder:
        app, stack = build(checked_stage(GIVEN[example]), Path(folder))
        template: Template = app.synth().get_stack_by_name(stack.stack_name).template
        return template, tuple(stack.parts)


def synthesised(example: str) -> Template:
    return _built(example)[0]


def parts_of(example: str) -> tuple[Part, ...]:
    return _built(example)[1]


def golden_file(example: str) -> Path:
    return GOLDEN / f"{example}.template.json"


def rendered(template: Template) -> str:
    return json.dumps(template, indent=1, sort_keys=True) + "\n"


def differences(expected: Template, found: Template) -> Iterator[str]:
    """A line for each property of each resource, output and parameter that differs."""
    for room in sorted(expected.keys() | found.keys()):
        before, after = expected.get(room, {}), found.get(room, {})
        if not isinstance(before, dict) or not isinstance(after, dict):
            if before != after:
                yield f"{room}: {before!r} -> {after!r}"
            continue
        for name in sorted(before.keys() | after.keys()):
            where = f"{room} {name}{_type_of(before.get(name) or after.get(name))}"
            if name not in before:
                yield f"+ {where}"
            elif name not in after:
                yield f"- {where}"
            else:
                yield from (f"  {where}{path}: {change}" for path, change in _changes(before[name], after[name], ""))


def _type_of(entry: object) -> str:
    return f" ({entry['Type']})" if isinstance(entry, dict) and "Type" in entry else ""


def _changes(before: object, after: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from _changes(before.get(name), after.get(name), f"{path}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after)):
            yield from _changes(one, other, f"{path}[{number}]")
    elif before != after:
        yield path, f"{json.dumps(before)} -> {json.dumps(after)}"


def page_tables() -> Mapping[str, list[str]]:
    """By the name of their place."""
    return {
        "alarms": [*alarm_sections(checked_stage(GIVEN["dev"]))],
        "permissions": [*permission_table(parts_of("dev"), synthesised("dev"))],
        "stage": [*stage_table()],
        "teardown": [*teardown_table()],
    }


def alarm_sections(stage: Stage) -> Iterator[str]:
    """A section for each."""
    for each in alarms(stage, QueueNames("instructions", "dead-letters", "announcements", "refused")):
        side = "below" if each.is_raised_below else "from"
        yield from ("", f"## {each.name}", "", f"{each.why}.", "")
        yield f"Role: `{each.role}`. Raised: {each.statistic} of `{each.metric}` {side} {each.threshold:,g}."


def stage_table() -> Iterator[str]:
    """The fields of a stage, as its docstring explains them, and what each stage has."""
    yield f"| setting | meaning | {' | '.join(f'in `{name}`' for name in STAGES)} |"
    yield "|---|---" + "|---" * len(STAGES) + "|"
    for names, meaning in _explained(inspect.getdoc(Stage) or ""):
        values = [", ".join(_written(getattr(stage, name)) for name in names) for stage in STAGES.values()]
        yield f"| {', '.join(f'`{name}`' for name in names)} | {meaning} | {' | '.join(values)} |"


def _explained(docstring: str) -> Iterator[tuple[list[str], str]]:
    """Names, and what they mean, which may go on in lines that are indented further."""
    entry = r"^ {4}(\w+(?:, \w+)*): (\S.*(?:\n {8}\S.*)*)"
    for found in re.finditer(entry, docstring, re.M):
        yield found[1].split(", "), " ".join(found[2].split())


def _written(default: object) -> str:
    if isinstance(default, Mapping):
        return ", ".join(f"`{name}={value}`" for name, value in default.items())
    if default is None:
        return "**required**"
    if default in ("", ()):
        return "none"
    text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    text = text.lower() if isinstance(default, bool) else text
    return f"`{text}`"


def permission_table(parts: Sequence[Part], template: Template) -> Iterator[str]:
    """Markdown lines. Raises `KeyError` for a statement of the template whose reason no part has."""
    yield from ("| part | may | why |", "|---|---|---|")
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


def teardown_table() -> Iterator[str]:
    """The pages' table of what a deletion keeps and destroys, as Markdown lines."""
    yield "| kept | destroyed |"
    yield "|---|---|"
    for kept, destroyed in zip_longest(KEPT, DESTROYED):
        cells = (f" {each[0]}: {each[1]} " if each is not None else " " for each in (kept, destroyed))
        yield f"|{'|'.join(cells)}|"


def write() -> None:
    for example in GIVEN:
        golden_file(example).write_text(rendered(synthesised(example)))
    for name, lines in page_tables().items():
        write_place(name, lines)


if __name__ == "__main__":
    write()
