"""One run: the dispatchers are started, the schedule is carried out, the air clears, and what is left is judged."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compactor.engine.java_home import find_java_home
from compactor.model.clock import SystemClock
from dispatcher.records.keys import OPEN_JOB_RUNS
from launcher.clusters.drivers import find_spark_home, sweep
from tests.chaos import checks, proof, schedule
from tests.chaos.checks import Sent
from tests.chaos.fleet import Fleet, dispatch_command, environment
from tests.chaos.schedule import DISPATCHERS, Step
from tests.chaos.spark_submit import PROGRAM, REAL_SPARK_HOME
from tests.chaos.surroundings import EventReader, Surroundings, surroundings
from tests.chaos.tables import PROOF_TABLES, REAL_TABLE, SMALL_TABLES, Fed, Table
from tests.fakes.spark_submit import make_spark_home
from tests.servers import REGION

CLAIM_SECONDS = 6.0
PROOF_CLAIM_SECONDS = 10.0
ATTEMPTS_MAX = 10
SETTLE_SECONDS = 600.0
ORPHAN_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Options:
    """
    real_spark    one of the tables is compacted by real Spark sessions, the others by a stand-in
    instructions  so many, by the schedule of `proof.py`, on ministack; None: by that of `schedule.py`, on moto
    """

    seed: int
    seconds: float
    on_s3: bool = False
    real_spark: bool = False
    settle_seconds: float = SETTLE_SECONDS
    instructions: int | None = None

    @property
    def tables(self) -> tuple[Table, ...]:
        if self.instructions is not None:
            return PROOF_TABLES
        return (*SMALL_TABLES, REAL_TABLE) if self.real_spark else SMALL_TABLES

    @property
    def services(self) -> tuple[str, ...]:
        return ("sqs", "sns", "s3") if self.on_s3 else ("sqs", "sns", "state", "lake")

    @property
    def claim_seconds(self) -> float:
        return CLAIM_SECONDS if self.instructions is None else PROOF_CLAIM_SECONDS

    def steps(self) -> list[Step]:
        if self.instructions is not None:
            return proof.schedule(self.seed, self.seconds, self.tables, self.instructions)
        return schedule.schedule(
            schedule.Request(self.seed, self.seconds, self.services, self.tables, claim_seconds=self.claim_seconds)
        )


@dataclass
class Verdict:
    """What every check found, in its order; and figures that are neither right nor wrong."""

    found: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        return not any(self.found.values())


def run(options: Options, folder: Path, say: Callable[[str], None]) -> Verdict:
    """`say` is told what happens, a line each."""
    on_ministack = options.instructions is not None
    with surroundings(folder, on_s3=options.on_s3, on_ministack=on_ministack) as around:
        run = _Run(options, around, say)
        try:
            return run.run()
        finally:
            run.close()


class _Run:
    def __init__(self, options: Options, around: Surroundings, say: Callable[[str], None]) -> None:
        self._options = options
        self._around = around
        self._began = time.monotonic()
        self._say_line = say
        self._fed = Fed(around.place.open_lake())
        self._bodies: dict[str, str] = {}
        self._instructions: dict[str, Table] = {}
        self._refused: list[str] = []
        self._rivals: list[tuple[str, str]] = []
        self._sent = 0
        self._state = around.place.open_state()
        spark_home = make_spark_home(around.folder / "spark_home", PROGRAM)
        real_home = {REAL_SPARK_HOME: str(find_spark_home({}))} if options.real_spark else {}
        java_home = find_java_home(environment(), Path.home() / ".cache" / "lithify")
        homes = {**real_home, "SPARK_HOME": str(spark_home), "JAVA_HOME": str(java_home)}
        self._environment = {**environment(), **homes}
        self._fleet = Fleet(
            around.folder,
            self._command_of,
            self._environment,
            mark=around.place.own_state.root_uri.replace("state.real", "state"),
            tell=self._say,
        )
        self._events = EventReader(around.mail)

    def close(self) -> None:
        self._fleet.close()

    def _say(self, line: str) -> None:
        self._say_line(f"{time.monotonic() - self._began:7.1f} s  {line}")

    def run(self) -> Verdict:
        for table in self._options.tables:
            self._fed.lake.create_table(table.table_id, partition_keys=table.partition_keys)
        for number in range(DISPATCHERS):
            self._fleet.start(number)
        self._say(f"{DISPATCHERS} dispatchers are started")
        self._carry_out(self._options.steps())
        harm_ended_ms = SystemClock().now_ms()
        seconds = self._settle()
        verdict = Verdict()
        verdict.figures["settled"] = f"{seconds:.1f} s after the last harm"
        self._fleet.end()
        self._say("the dispatchers have ended")
        left = self._fleet.await_jobs(ORPHAN_SECONDS_MAX)
        self._events.stop()
        self._judge(verdict, left, harm_ended_ms)
        return verdict

    # -- carrying it out

    def _carry_out(self, steps: Sequence[Step]) -> None:
        began = time.monotonic()
        for step in steps:
            while time.monotonic() - began < step.at_seconds:
                self._fleet.look()
                time.sleep(max(0.0, min(0.1, step.at_seconds - (time.monotonic() - began))))
            done = self._do(step.act)
            self._say(f"{step.act}{'' if done else ': nothing to do it to'}")

    def _do(self, act: schedule.Act) -> bool:  # noqa: C901  (a line for each of twelve acts)
        fleet = self._fleet
        match act:
            case schedule.Instruct():
                self._instruct(act.table, act.job_run_id, act.chance, act.priority)
            case schedule.Duplicate():
                self._duplicate(act)
            case schedule.Rubbish():
                self._send_refused(_rubbish(act))
            case schedule.Kill():
                return fleet.kill(act.dispatcher)
            case schedule.Terminate():
                return fleet.terminate(act.dispatcher, twice=act.twice)
            case schedule.Pause():
                return fleet.pause(act.dispatcher)
            case schedule.Resume():
                return fleet.resume(act.dispatcher)
            case schedule.Start():
                fleet.start(act.dispatcher)
            case schedule.HarmJob():
                return fleet.harm_job(act.pick, stops=act.stops)
            case schedule.ResumeJobs():
                fleet.resume_jobs()
            case schedule.Away():
                self._around.be_away(act.service, act.weather)
            case schedule.Back():
                self._around.be_back(act.service)
        return True

    def _instruct(self, table: Table, job_run_id: str, chance: int, priority: int) -> None:
        self._fed.append(table, chance)
        self._instructions[job_run_id] = table
        self._bodies[job_run_id] = json.dumps(table.document(job_run_id, priority))
        self._send(self._bodies[job_run_id])

    def _duplicate(self, act: schedule.Duplicate) -> None:
        job_run_id = f"run-{act.number}"
        body = self._bodies[job_run_id]
        if act.other_content:
            other = json.dumps({**json.loads(body), "desired_sla": 12_345})
            self._rivals.append((body, other))
            self._send(other)
        else:
            self._send(body)

    def _send(self, body: str) -> None:
        self._sent += 1
        self._around.mail.send(body)

    def _send_refused(self, body: str) -> None:
        self._refused.append(body)
        self._send(body)

    # -- until it is quiet

    def _settle(self) -> float:
        """Everything is up and in order again; wait until nothing is left to do."""
        for service in self._around.services:
            self._around.be_back(service)
        self._fleet.resume_jobs()
        for number in range(DISPATCHERS):
            self._fleet.resume(number)
            if number not in self._fleet.numbers():
                self._fleet.start(number)
        if self._options.instructions is None:  # in a proof each delta has an instruction of its own
            for number, table in enumerate(self._options.tables):
                self._instruct(table, f"last-{number}", number, priority=0)
        began = time.monotonic()
        self._say("no more harm: waiting until nothing is left to do")
        while time.monotonic() - began < self._options.settle_seconds:
            self._fleet.look()
            if self._is_quiet():
                break
            time.sleep(1.0)
        return time.monotonic() - began

    def _is_quiet(self) -> bool:
        waiting = self._around.mail.waiting()
        is_open = [entry.key for entry in self._state.list(OPEN_JOB_RUNS)]
        return not waiting and not is_open

    # -- the verdict

    def _judge(self, verdict: Verdict, left: Sequence[str], harm_ended_ms: int) -> None:
        around, fleet, tables = self._around, self._fleet, self._options.tables
        lake, mail = self._fed.lake, around.mail
        found = checks.read_all(self._state)
        sent = Sent(self._instructions, self._refused, self._rivals)
        dead = mail.dead_letters()
        cases: list[tuple[str, Callable[[], Iterator[str]]]] = [
            (
                "every good instruction has one end",
                lambda: checks.outcomes(found, sent, fleet.killed_jobs, ATTEMPTS_MAX),
            ),
            ("nothing runs that nobody sent", lambda: checks.no_more_than_sent(found, sent)),
            ("what cannot work is a dead letter", lambda: checks.dead_letters(dead, sent, mail.waiting())),
            ("no row is lost, doubled or old", lambda: checks.rows(lake, tables, self._fed)),
            ("every delta came in once", lambda: checks.books(lake, tables, self._fed)),
            ("every file that is named is there", lambda: checks.files(lake, tables, self._fed)),
            ("who was taken over is fenced", lambda: checks.fenced(found)),
            ("no job run is left open", lambda: checks.closed(found)),
            (
                "every entry was told, repeats alike",
                lambda: checks.events(found, mail.events),
            ),
            ("no process and no scratch is left", lambda: iter([*left, *self._scratch()])),
            ("dispatchers end only when they are ended", lambda: iter(fleet.wrong)),
            ("no traceback in any log", self._tracebacks),
            ("after clearing, the rows are the same", lambda: self._cleared(tables)),
        ]
        for name, check in cases:
            verdict.found[name] = list(check())
            wrong = verdict.found[name]
            self._say(f"{'WRONG' if wrong else 'right'}  {name}{f': {len(wrong)}' if wrong else ''}")
        under_harm = checks.ended_before(found, harm_ended_ms)
        verdict.figures["job runs"] = f"{len(found.job_runs)}, {under_harm} of them ended before the last harm did"
        self._fill_figures(verdict, checks.figures(found, mail.events))

    def _cleared(self, tables: Sequence[Table]) -> Iterator[str]:
        checks.clear(self._fed.lake, tables)
        yield from checks.rows(self._fed.lake, tables, self._fed)
        yield from (
            f"{left.name} of the lake was begun and is still there" for left in self._fed.lake.store.unfinished()
        )

    def _scratch(self) -> Iterator[str]:
        for folder in sorted(self._around.folder.glob("work-*/scratch")):
            sweep(folder)  # as the next dispatcher would, before anything else
            left = [path for path in folder.rglob("*") if path.is_file()]
            if left:
                size = sum(path.stat().st_size for path in left)
                yield f"{folder.parent.name}/scratch holds {len(left)} files, {size:,} bytes, such as {left[0].name}"

    def _tracebacks(self) -> Iterator[str]:
        for number in range(DISPATCHERS):
            for line in self._fleet.log_of(number).read_text(errors="replace").splitlines():
                if "Traceback" in line or '"error_kind": "bug"' in line:
                    yield f"dispatcher {number}: {line[-1_500:]}"

    def _count_in_logs(self, event: str) -> int:
        texts = (self._fleet.log_of(number).read_text(errors="replace") for number in range(DISPATCHERS))
        return sum(text.count(f'"event": "{event}"') for text in texts)

    def _fill_figures(self, verdict: Verdict, seen: checks.Figures) -> None:
        fleet, figures = self._fleet, verdict.figures
        figures["harm"] = ", ".join(f"{times} {what}" for what, times in sorted(fleet.done.items()))
        figures["requests harmed"] = str(
            self._around.mail.proxy.harmed.total()
            + (self._around.s3_proxy.harmed.total() if self._around.s3_proxy is not None else 0)
        )
        cannot_work = len(self._refused) + len(self._rivals)
        figures["instructions"] = f"{len(self._instructions)}, and {cannot_work} that cannot work"
        figures["messages"] = str(self._sent)
        rounds = {table.is_real: 0 for table in self._options.tables}
        for table in self._options.tables:
            rounds[table.is_real] += checks.rounds_of(self._fed.lake, table)
        figures["Spark jobs launched"] = str(seen.attempts)
        figures["rounds"] = f"{rounds[False]} by the stand-in, {rounds.get(True, 0)} by real Spark sessions"
        figures["takeovers"] = f"{seen.takeovers}, the longest after {seen.takeover_seconds_max:.1f} s"
        figures["told that they were taken over"] = f"{self._count_in_logs('job_run_lost')} times"
        figures["from acceptance to the first claim"] = f"at most {seen.unclaimed_seconds_max:.1f} s"
        figures["events"] = f"{len(self._around.mail.events)}, {seen.repeated_events} of them repeats"
        figures["writes to the state that were cut off and stay"] = str(len(list(self._state.unfinished())))
        figures["largest dispatcher"] = f"{fleet.memory_mib_max:.0f} MiB"

    def _command_of(self, number: int) -> list[str]:
        mail, place = self._around.mail, self._around.place
        on_s3 = ("--s3-endpoint-url", place.s3_endpoint_url) if place.s3_endpoint_url is not None else ()
        return dispatch_command(
            (
                *("--queue-url", mail.queue_url.replace(mail.url, mail.proxy.url), "--topic-arn", mail.topic_arn),
                *("--endpoint-url", mail.proxy.url, "--region", REGION, "--state", place.state, "--lake", place.lake),
                *on_s3,
                *("--claim-seconds", str(self._options.claim_seconds), "--stall-seconds", "20"),
                *("--max-attempts", str(ATTEMPTS_MAX), "--max-sessions", "2", "--drain-seconds", "3"),
                *("--visibility-seconds", "10"),
                *("--cores", "2", "--memory-gib", "4"),
                *("--work-folder", str(self._around.folder / f"work-{number}")),
            )
        )


def _rubbish(act: schedule.Rubbish) -> str:
    """Different each time, so that each can be found again."""
    number = act.number
    good = SMALL_TABLES[0].document(f"rubbish-{number}", 0)
    bodies: dict[str, object] = {
        "unknown fields": {**good, **{f"unknown_{each}": each for each in range(200)}},
        "no such table": {**good, "source_table_id": "CHAOS.NOTHING.V1"},
        "a list": [number],
        "a key column that is none": {**good, "primary_keys": ["nothing"]},
        "a NUL in the lake's name": {**good, "delta_catalog": f"/tmp/\0{number}"},
        "a long id": {**good, "job_run_id": "\u6f22" * 1_000 + str(number)},
    }
    texts = {
        "not JSON": f"this is no JSON ({number})",
        "half of a document": json.dumps(good)[:-10],
        "an empty document": "{" + " " * number + "}",
    }
    return texts[act.kind] if act.kind in texts else json.dumps(bodies[act.kind])
