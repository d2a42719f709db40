"""Fargate, without containers: a real process for each task that a stand-in of ECS says should run."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import boto3

from tests.servers import REGION

Start = Callable[[Mapping[str, str]], subprocess.Popen[bytes]]


class Tasks:
    """Inside the block, tasks run. `start`: a process with these variables; `is_healthy`: asked of each, all the time.

    counts  how many healthy dispatchers there were, sampled every 100 ms
    """

    def __init__(
        self, endpoint_url: str, cluster: str, start: Start, is_healthy: Callable[[Mapping[str, str]], bool], file: Path
    ) -> None:
        self._ecs: Any = boto3.client("ecs", endpoint_url=endpoint_url, region_name=REGION)
        self._cluster, self._start, self._is_healthy, self._file = cluster, start, is_healthy, file
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._variables: dict[str, dict[str, str]] = {}
        self._stops = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._follow, self._sample)]
        self.healthy: dict[str, bool] = {}
        self.started_by: dict[str, str] = {}
        self.counts: list[int] = []

    def __enter__(self) -> Tasks:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()
        for process in self._processes.values():
            process.kill()
            process.wait()

    @property
    def processes(self) -> Mapping[str, subprocess.Popen[bytes]]:
        return dict(self._processes)

    def _follow(self) -> None:
        while not self._stops.wait(0.1):
            wanted = set(self._ecs.list_tasks(cluster=self._cluster, desiredStatus="RUNNING")["taskArns"])
            for task in wanted - self._processes.keys():
                self._begin(task)
            for task, process in list(self._processes.items()):
                if process.poll() is not None:
                    if task in wanted:
                        self._ecs.stop_task(cluster=self._cluster, task=task, reason="its process has ended")
                elif task not in wanted:
                    process.send_signal(signal.SIGTERM)
                    process.send_signal(signal.SIGCONT)

    def _begin(self, task: str) -> None:
        (described,) = self._ecs.describe_tasks(cluster=self._cluster, tasks=[task])["tasks"]
        (override,) = described["overrides"]["containerOverrides"]
        variables = {each["name"]: each["value"] for each in override["environment"]}
        self._variables[task] = variables
        self.started_by[task] = described["startedBy"]
        self._processes[task] = self._start(variables)

    def _sample(self) -> None:
        while not self._stops.wait(0.1):
            self.healthy = {
                task: process.poll() is None and self._is_healthy(self._variables[task])
                for task, process in list(self._processes.items())
            }
            self.counts.append(sum(self.healthy.values()))
            text = {task: "HEALTHY" if well else "UNHEALTHY" for task, well in self.healthy.items()}
            beside = self._file.with_suffix(".new")
            beside.write_text(json.dumps(text))
            beside.replace(self._file)
