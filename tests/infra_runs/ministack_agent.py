"""Runs ministack, whose tasks have no containers here, with what an agent of ECS would report of them, and with
executions that end when they are stopped: its own go on with their next task.

TASK_HEALTH names a file: JSON, a health by task ARN. Runs in ministack's own environment.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path


def report(file: Path) -> None:
    from ministack.services import ecs

    while True:
        try:
            health = json.loads(file.read_text())
        except (OSError, ValueError):  # not there yet, or half written
            health = {}
        for _, task in ecs._tasks.all_items():
            task["healthStatus"] = health.get(task["taskArn"], task["healthStatus"])
        time.sleep(0.05)


def end_stopped_executions() -> None:
    from ministack.services import stepfunctions

    execute = stepfunctions._execute_task

    def execute_while_running(state: object, given: object, execution: dict[str, object], context: object) -> object:
        if execution["status"] != "RUNNING":
            raise SystemExit  # of this branch's thread
        return execute(state, given, execution, context)

    stepfunctions._execute_task = execute_while_running


if __name__ == "__main__":
    from ministack.app import main

    end_stopped_executions()
    threading.Thread(target=report, args=(Path(os.environ["TASK_HEALTH"]),), daemon=True).start()
    main()
