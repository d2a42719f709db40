"""The CDK app: `make synth` writes a stage's CloudFormation template without any credentials.

    python -m infra.app dev region=eu-west-1

Exit code 2: the stage is wrong; every reason is on stderr, and nothing was written.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from aws_cdk import App

from compactor.model.errors import EXIT_INVALID, Invalid, reasons_of, refuse_if
from infra.dispatcher_environment import check_environment
from infra.stack import LithifyStack, stack_name
from infra.stage_checks import check_stage
from infra.stages import Stage, read_stage

CDK_OUT = Path("cdk.out")


def checked_stage(arguments: Sequence[str]) -> Stage:
    """The checked stage. Raises `Invalid` with every error."""
    name, *given = arguments or ("",)
    stage = read_stage(name, given)
    refuse_if([*reasons_of(check_stage, stage), *reasons_of(check_environment, stage)])
    return stage


def build(stage: Stage, out: Path | None = None) -> tuple[App, LithifyStack]:
    # No analytics, no metadata: the template is the same on every machine.
    app = App(
        analytics_reporting=False,
        context={"aws:cdk:disable-path-metadata": True},
        outdir=None if out is None else str(out),
    )
    return app, LithifyStack(app, stack_name(stage), stage)


def synthesise(stage: Stage, out: Path = CDK_OUT) -> Path:
    """The path of the template, written without whitespace, which would make it too large for CloudFormation."""
    app, stack = build(stage, out)
    template = app.synth().get_stack_by_name(stack.stack_name).template
    target = out / f"{stack.stack_name}.template.json"
    target.write_text(json.dumps(template, separators=(",", ":")))
    return target


def main(arguments: Sequence[str]) -> int:
    try:
        target = synthesise(checked_stage(arguments))
    except Invalid as error:
        for reason in error.reasons:
            sys.stderr.write(f"{reason}\n")
        return EXIT_INVALID
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
