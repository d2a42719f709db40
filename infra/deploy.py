"""Deploys a stage: one command each to plan, to change, to start, and to tear down.

    python -m infra.deploy plan  STAGE [name=value ...]          what would change
    python -m infra.deploy up    STAGE [name=value ...] [--yes]  change it, and say where everything is
    python -m infra.deploy env   STAGE [name=value ...]          the same once more, as variables of a shell
    python -m infra.deploy start STAGE [name=value ...]          start dispatchers, in place of those that run
    python -m infra.deploy down  STAGE [name=value ...] [--yes]  tear it down; without --yes: what would be kept

Exit codes are those of `lithify`: 0 done, 1 failed, 2 bad input.
"""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from compactor.model.clock import Clock, SystemClock
from compactor.model.errors import EXIT_FAILED, EXIT_INVALID, Invalid, LithifyError
from infra.app import checked_stage, synthesise
from infra.aws.deployment import ChangePlan, StackInAccount, clients
from infra.outputs import OUTPUTS
from infra.stack import stack_name
from infra.stages import ANY_ACCOUNT, Stage

SURE = "--yes"
KEPT = (
    ("lakes and state", "the buckets, with everything in them"),
    ("dead letters and refused files", "their queues"),
    ("key", "of these"),
)
DESTROYED = (
    ("instructions and announced files that are not taken yet", "and their queues; the files themselves are kept"),
    ("events", "the topics and their subscriptions"),
    ("dispatchers", "after their drain; job runs go on with the next ones on this state"),
    ("images, log lines, alarms, dashboard, roles, network", "all of it"),
)
"""What a deletion keeps and destroys."""


Say = Callable[[str], object]


class Deployment:
    """One stage in the account of the credentials."""

    def __init__(self, stage: Stage, stack: StackInAccount, say: Say) -> None:
        self._stage = stage
        self._stack = stack
        self._say = say

    def check_account(self) -> None:
        """Raises `Invalid` if the credentials are of another account."""
        if self._stage.account != ANY_ACCOUNT:
            found = self._stack.account()
            if found != self._stage.account:
                raise Invalid(f"stage {self._stage.name} is for account {self._stage.account}, not for {found}")

    def plan(self, template: str) -> ChangePlan:
        plan = self._stack.plan(template)
        for change in plan.changes:
            self._say(str(change))
        if not plan.changes:
            self._say("Nothing changes.")
        return plan

    def up(self, template: str, *, is_sure: bool) -> None:
        """Makes the changes. Raises `Invalid` for a change that destroys something, unless it is confirmed."""
        plan = self.plan(template)
        destroyed = [change.logical_id for change in plan.changes if change.destroys]
        if destroyed and not is_sure:
            raise Invalid(f"this destroys {', '.join(destroyed)}: if that is meant, add {SURE}")
        for line in exports(self._stack.execute(plan)):
            self._say(line)

    def env(self) -> None:
        for line in exports(self._stack.outputs()):
            self._say(line)

    def start(self) -> None:
        self._say(self._stack.start_workflow(self._stack.outputs()["WorkflowArn"]))

    def down(self, *, is_sure: bool) -> None:
        for title, lines in (("kept", KEPT), ("destroyed", DESTROYED)):
            for name, reason in lines:
                self._say(f"{title:10} {name}: {reason}")
        outputs = self._stack.outputs()
        if not is_sure:
            raise Invalid(f"nothing was deleted: to delete stack {self._stack.name}, add {SURE}")
        stopped = self._stack.stop_everything(outputs["WorkflowArn"], f"lithify-{self._stage.name}")
        self._say(f"{stopped} tasks stopped.")
        self._stack.delete()
        self._say(f"Stack {self._stack.name} is deleted. What is kept: {outputs['LakeUri']} {outputs['StateUri']}")


def exports(outputs: Mapping[str, str]) -> Iterator[str]:
    """The outputs as lines of a shell script. Outputs without a variable become comments."""
    for each in OUTPUTS:
        value = outputs.get(each.name, "")
        yield f"export {each.variable}={shlex.quote(value)}" if each.variable else f"# {each.name}: {value}"


def run(verb: str, arguments: Sequence[str], stack_of: Callable[[Stage], StackInAccount], say: Say) -> None:
    """Runs one command. Raises its error."""
    is_sure = SURE in arguments
    stage = checked_stage([each for each in arguments if each != SURE])
    deployment = Deployment(stage, stack_of(stage), say)
    deployment.check_account()
    match verb:
        case "plan":
            deployment.plan(_template(stage))
        case "up":
            deployment.up(_template(stage), is_sure=is_sure)
        case "env":
            deployment.env()
        case "start":
            deployment.start()
        case "down":
            deployment.down(is_sure=is_sure)
        case _:
            raise Invalid(f"{verb!r} is none of plan, up, env, start, down")


def _template(stage: Stage) -> str:
    with TemporaryDirectory() as folder:
        return synthesise(stage, Path(folder)).read_text()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def stack_in_account(stage: Stage, clock: Clock) -> StackInAccount:
    return StackInAccount(stack_name(stage), clients(stage.region or "", stage.endpoint_url or None), clock)


def main(arguments: Sequence[str]) -> int:
    verb, *others = arguments or ("",)
    try:
        run(verb, others, lambda stage: stack_in_account(stage, SystemClock()), _say)
    except Invalid as error:
        for reason in error.reasons:
            sys.stderr.write(f"{reason}\n")
        return EXIT_INVALID
    except LithifyError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
