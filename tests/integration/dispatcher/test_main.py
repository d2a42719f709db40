"""`lithify` itself: its release, its help, and one sentence for every mistake that is made before a verb begins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from importlib import metadata
from pathlib import Path

import pytest

from dispatcher.main import INTERRUPTED, run
from tests.conftest import Command

REPOSITORY = Path(__file__).parents[3]
QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/instructions"


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_it_says_which_release_it_is(command: Command, option: str) -> None:
    result = command(option)
    assert (result.exit_code, result.out, result.err) == (0, f"lithify {metadata.version('lithify')}\n", "")


@pytest.mark.parametrize(
    "arguments", [("-h",), ("--help",), ("status", "-h"), ("table", "-h"), ("table", "scan", "-h")]
)
def test_every_verb_has_help_by_either_name(command: Command, arguments: tuple[str, ...]) -> None:
    result = command(*arguments)
    assert result.exit_code == 0
    assert " ".join(["Usage: lithify", *arguments[:-1], ""]) in result.out


@pytest.mark.parametrize("arguments", [(), ("table",)])
def test_without_a_verb_there_is_help_and_exit_code_2(command: Command, arguments: tuple[str, ...]) -> None:
    result = command(*arguments)
    assert result.exit_code == 2
    assert "Usage: lithify" in result.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("stat",), "No such command 'stat'. Did you mean 'status'? For help: lithify --help"),
        (
            ("status",),
            "Missing option '--state'. Give it, or set LITHIFY_STATE. For help: lithify status --help",
        ),
        (
            ("status", "--state", "s", "-o", "yaml"),
            (
                "Invalid value for '--output' / '-o': 'yaml' is not one of 'text', 'json', 'jsonl'. "
                "For help: lithify status --help"
            ),
        ),
        (
            ("status", "--state", "s3://b/p", "--s3-endpoint-url", "here"),
            "'here' is not an endpoint: write http://host:port",
        ),
    ],
)
def test_a_mistake_in_options_is_one_sentence(command: Command, arguments: tuple[str, ...], sentence: str) -> None:
    result = command(*arguments)
    assert (result.exit_code, result.out) == (2, "")
    assert result.err.startswith(f"lithify: {sentence}")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(("name", "value"), [("LITHIFY_LOG_LEVEL", "loud"), ("LITHIFY_LOG_FORMAT", "xml")])
def test_a_wrong_variable_is_one_sentence(capsys: pytest.CaptureFixture[str], name: str, value: str) -> None:
    assert run(["schema", "event"], {name: value}) == 2
    assert capsys.readouterr().err.startswith(f"lithify: {name} is {value!r}: write one of ")


def test_the_command_refuses_options_that_are_gone_and_limits_that_contradict_each_other_together(
    tmp_path: Path, command: Command
) -> None:
    result = command(
        "dispatch", "--queue-url", "https://sqs.us-east-1.amazonaws.com/123456789012/q", "--state", str(tmp_path),
        "--work-folder", str(tmp_path / "work"), "--max-sessions", "many", "--max-usd-per-run", "0", "--region=r",
        "--limits", '{"table": {"sessions": 6}, "all": {"sessions": 4, "clusters": 2}}', "--poll-seconds=1",
    )  # fmt: skip
    assert (result.exit_code, result.out) == (2, "")
    assert [reason for reason in REFUSED if reason not in result.err] == []
    assert list(tmp_path.glob("**/*.json")) == []


REFUSED = (
    "--max-sessions: 'many' is not a whole number, at least 1",
    '--max-usd-per-run is gone: write {"job_run": {"usd": N}} in --limits',
    "--poll-seconds is gone: leave it out, it cannot be set any more",
    "--limits: table.sessions 6 is above all.sessions 4: lower the one, or raise the other",
    "--limits (all.clusters): no cluster is launched for a session without --cluster-settings",
)


@pytest.mark.parametrize(
    ("memory_gib", "reason"), [("1000000", "1e+06: this machine has "), ("1e300", "1e+300: no machine has so much")]
)
def test_more_memory_than_the_machine_has_is_refused(
    tmp_path: Path, command: Command, memory_gib: str, reason: str
) -> None:
    result = command(
        "dispatch", "--queue-url", "https://sqs.us-east-1.amazonaws.com/123456789012/q", "--region", "us-east-1",
        "--state", str(tmp_path / "state"), "--lake", str(tmp_path / "lake"), "--work-folder", str(tmp_path / "work"),
        "--memory-gib", memory_gib, "--workers", "1000",
    )  # fmt: skip
    assert (result.exit_code, result.out) == (2, "")
    assert f"--memory-gib {reason}" in result.err


@pytest.mark.parametrize("verb", [("gc",), ("keeper", "--once", "--state", "state", "--queue-url", "queue")])
def test_a_grace_of_more_than_a_thousand_years_is_refused(
    tmp_path: Path, command: Command, verb: tuple[str, ...]
) -> None:
    result = command(*verb, "--lake", str(tmp_path), "--grace-hours", "inf")
    assert result.exit_code == 2
    assert "'--grace-hours': Input should be less than or equal to 8760000" in result.err


def test_a_limit_that_was_an_option_of_plan_is_refused_with_what_to_write(command: Command) -> None:
    result = command("plan", "instruction.json", "--max-nodes", "20")
    assert result.exit_code == 2
    assert '--max-nodes is gone: write {"session": {"nodes": N}} in --limits' in result.err


def test_an_error_orders_nothing_from_the_terminal(command: Command) -> None:
    result = command("table", "show", "\x1b[2J\nX", "--lake", "lake")
    assert result.exit_code == 2
    assert "\x1b" not in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.slow
def test_a_standard_output_that_takes_no_more_is_one_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = lithify(tmp_path, full.fileno(), "schema", "event")
    assert done.returncode == 1
    assert done.stderr == "lithify: the answer cannot be written to standard output: No space left on device\n"


@pytest.mark.slow
def test_a_reader_that_has_read_enough_is_no_error(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    done = lithify(tmp_path, writes, "schema", "event")
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
def test_a_standard_output_that_is_closed_is_no_error(tmp_path: Path) -> None:
    closed = 'exec "$0" -m dispatcher.start schema event >&-'
    done = subprocess.run(
        ["sh", "-c", closed, sys.executable],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def lithify(folder: Path, out: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dispatcher.start", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=out, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip


def test_ctrl_c_is_one_sentence_even_while_everything_is_still_being_imported() -> None:
    program = """
        import signal, sys
        class Interrupted:
            def find_spec(self, name, *_):
                if name == "dispatcher.main":
                    signal.raise_signal(signal.SIGINT)
        sys.meta_path.insert(0, Interrupted())
        from dispatcher.start import main
        main()
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "lithify: interrupted\n")


def test_a_dispatcher_that_is_asked_to_end_while_everything_is_still_being_imported_ends_in_order(
    tmp_path: Path,
) -> None:
    """No queue listens at its address: it would wait for one."""
    result = asked_to_end_while_it_starts(
        tmp_path,
        *("dispatch", "--queue-url", QUEUE, "--endpoint-url", "http://127.0.0.1:9"),
        *("--state", str(tmp_path / "state"), "--lake", str(tmp_path / "lake")),
    )
    assert result.returncode == 0, result.stderr
    assert "The dispatcher has stopped; nothing is left in flight." in result.stdout


def test_every_other_verb_ends_at_once_when_it_is_asked_to(tmp_path: Path) -> None:
    assert asked_to_end_while_it_starts(tmp_path, "schema", "event").returncode == -signal.SIGTERM


def asked_to_end_while_it_starts(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`lithify`, with a SIGTERM before the first of its larger imports."""
    program = """
        import signal, sys
        class AskedToEnd:
            def find_spec(self, name, *_):
                if name == "dispatcher.main":
                    signal.raise_signal(signal.SIGTERM)
        sys.meta_path.insert(0, AskedToEnd())
        from dispatcher.start import main
        main()
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_ctrl_c_during_a_verb_is_one_sentence_and_exit_code_130(tmp_path: Path, command: Command) -> None:
    """The document is a pipe that nobody writes to: the verb waits for it."""
    pipe = tmp_path / "document"
    os.mkfifo(pipe)
    main_thread = threading.get_ident()

    def interrupt_who_reads() -> None:
        with pipe.open("w"):  # returns when the verb has opened it, too
            signal.pthread_kill(main_thread, signal.SIGINT)

    # As in a process of its own: another test may have left a handler that only notes the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Thread(target=interrupt_who_reads)
    interrupt.start()
    try:
        result = command("submit", str(pipe), "--queue-url", QUEUE)
    finally:
        interrupt.join()
        signal.signal(signal.SIGINT, before)
    assert (result.exit_code, result.out) == (130, "")
    assert result.err.strip() == f"lithify: {INTERRUPTED}"


def started_with(verb: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """`lithify` in a process of its own, with `verb` for its verbs. `before`: what its caller has set."""
    program = f"""
import signal, sys, time, types
{before}
def verb(*_):
{textwrap.indent(textwrap.dedent(verb), "    ")}
sys.modules["dispatcher.main"] = types.SimpleNamespace(main=verb)
from dispatcher.start import main
main()
"""
    return subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_ctrl_c_in_a_constructor_says_nothing_of_the_half_made_object() -> None:
    result = started_with("""
        class HalfMade:
            def __init__(self):
                signal.raise_signal(signal.SIGINT)
                self.handle = 1
            def __del__(self):
                del self.handle
        HalfMade()
    """)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "lithify: interrupted\n")


def test_ctrl_c_in_a_destructor_is_not_lost() -> None:
    result = started_with("""
        class Ends:
            def __del__(self):
                signal.raise_signal(signal.SIGINT)
        Ends()
        time.sleep(60)
    """)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "lithify: interrupted\n")


def test_ctrl_c_that_the_caller_ignores_stays_ignored() -> None:
    result = started_with(
        'signal.raise_signal(signal.SIGINT); print("done")', before="signal.signal(signal.SIGINT, signal.SIG_IGN)"
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")
