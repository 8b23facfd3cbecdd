"""``penstock interop pika|amqplib``: two AMQP clients' own suites against Penstock, and counts.

    penstock interop pika DIR           DIR: a checkout of pika/pika, outside this repository
    penstock interop amqplib DIR        DIR: a checkout of amqp-node/amqplib
    ... --running                       against whatever listens on 5672: the reference counts

A fresh broker listens on 5672 of both loopbacks, where the suites look. Nothing of them is copied
or changed; what they need to run is installed once, into the checkout (``.venv``, node_modules).
Good is a run with no failure that RabbitMQ 3.10 does not have too (``Suite.known_failures``).
"""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from penstock.cli.private_broker import private_broker
from penstock.model.errors import PenstockError

PORT: Final = 5672
"""Written into both suites."""
LOOPBACKS: Final = ("127.0.0.1", "::1")
FLAGS: Final = (
    "--amqp", str(PORT), "--http", "0",
    "--pulsar", "off", "--rocketmq", "off", "--rocketmq-broker", "off", "--flight", "off",
)  # fmt: skip
SUITE_SECONDS_MAX: Final = 900.0
TEST_SECONDS_MAX: Final = 60
"""A test that hangs ends as a failure; both suites are done in half a minute."""
REPORT_CHARACTERS_MAX: Final = 8000

_PYTEST_COUNT: Final = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
_PYTEST_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_TAP_COUNT: Final = re.compile(r"^# (pass|fail|cancelled|skipped) (\d+)$", re.MULTILINE)
_TAP_FAILED: Final = re.compile(r"^ *not ok \d+ - (.+)$", re.MULTILINE)


class Counts(NamedTuple):
    """How a suite ended."""

    suite: str
    passed: int
    failed: int
    """Those which RabbitMQ passes."""
    failed_too: int
    """Those which RabbitMQ 3.10 fails as well."""
    skipped: int
    seconds: float
    failures: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Something ran, and nothing failed that RabbitMQ passes."""
        return self.passed > 0 and not self.failed


class Suite(NamedTuple):
    """Another project's tests: what to install, how to run and how to read them."""

    name: str
    mark: str
    """A file of the checkout by which it is known, and what that says."""
    says: str
    tools: tuple[str, ...]
    install: Callable[[Path], None]
    command: Callable[[str], list[str]]
    read: Callable[[str], tuple[int, int, list[str]]]
    """Passed, skipped, the names of those that failed."""
    reference: str
    known_failures: frozenset[str] = frozenset()


def _install_pika(directory: Path) -> None:
    python = directory / ".venv" / "bin" / "python"
    if not python.exists():
        _once([sys.executable, "-m", "venv", ".venv"], directory)
        wanted = ("pytest", "pytest-timeout", "gevent", "tornado", "twisted")
        _once([str(python), "-m", "pip", "install", "-q", *wanted], directory)


def _run_pika(grep: str) -> list[str]:
    run = [
        ".venv/bin/python", "-m", "pytest", "tests/acceptance", "-q", "-rfE",
        "-p", "no:cacheprovider", "--timeout", str(TEST_SECONDS_MAX),
    ]  # fmt: skip
    return [*run, "-k", grep] if grep else run


def _read_pytest(text: str) -> tuple[int, int, list[str]]:
    last = text.rstrip().rpartition("\n")[2]
    counts = {word: int(number) for number, word in _PYTEST_COUNT.findall(last)}
    return counts.get("passed", 0), counts.get("skipped", 0), _PYTEST_FAILED.findall(text)


def _install_amqplib(directory: Path) -> None:
    if not (directory / "node_modules" / "claire").exists():
        _once(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], directory)


def _run_amqplib(grep: str) -> list[str]:
    run = ["node", "--test", "--test-reporter=tap", f"--test-timeout={TEST_SECONDS_MAX * 1000}"]
    return [*run, *([f"--test-name-pattern={grep}"] if grep else []), "test"]


def _read_tap(text: str) -> tuple[int, int, list[str]]:
    counts = {word: int(number) for word, number in _TAP_COUNT.findall(text)}
    return counts.get("pass", 0), counts.get("skipped", 0), _TAP_FAILED.findall(text)


PIKA: Final = Suite(
    name="pika", mark="pyproject.toml", says='name = "pika"', tools=(),
    install=_install_pika, command=_run_pika, read=_read_pytest,
    reference="560 passed, 1 failed, 40 skipped",
    known_failures=frozenset((
        # Wants what 4.x does, a channel closed with 406; 3.10 closes the connection.
        "tests/acceptance/blocking_adapter_test.py"
        "::TestInvalidExchangeTypeRaisesConnectionClosed::test",
    )),
)  # fmt: skip
AMQPLIB: Final = Suite(
    name="amqplib", mark="package.json", says='"name": "amqplib"', tools=("node", "npm"),
    install=_install_amqplib, command=_run_amqplib, read=_read_tap,
    reference="319 passed, 0 failed",
)  # fmt: skip


def _verb(suite: Suite) -> click.Command:
    @click.command(suite.name, short_help=f"{suite.name}'s own tests over AMQP 0-9-1.")
    @click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
    @click.option("--grep", default="", help="Only tests whose name matches.")
    @click.option("--running", is_flag=True, help="Use the broker that listens on 5672 already.")
    @click.option("--output", type=click.Path(path_type=Path), help="Write the report here.")
    @click.option("--json", "is_json", is_flag=True, help="The counts as JSON.")
    def verb(directory: Path, **options: Any) -> None:
        found = run_suite(suite, directory.absolute(), **options)
        sys.exit(0 if found.is_good else 1)

    verb.help = f"Run the tests of the {suite.name} checkout DIRECTORY over AMQP 0-9-1."
    return verb


def run_suite(
    suite: Suite, directory: Path, *, grep: str, running: bool, output: Path | None, is_json: bool
) -> Counts:
    """Run it, tell its counts."""
    check(suite, directory)
    suite.install(directory)
    with contextlib.nullcontext() if running else _broker():
        began = time.monotonic()
        done = subprocess.run(
            suite.command(grep),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SUITE_SECONDS_MAX,
            check=False,
        )
        seconds = time.monotonic() - began
    text = done.stdout.decode("utf-8", "replace")
    counts = counted(suite, text, seconds)
    if output is not None:
        output.write_text(text)
    elif not counts.is_good:
        click.echo(text[-REPORT_CHARACTERS_MAX:], err=True)
    _tell(suite, counts, is_json=is_json)
    return counts


def check(suite: Suite, directory: Path) -> None:
    """Raise when the tools or the checkout are missing."""
    for tool in suite.tools:
        if shutil.which(tool) is None:
            raise PenstockError(f"{tool} is not installed; the suite needs it")
    mark = directory / suite.mark
    if not mark.exists() or suite.says not in mark.read_text():
        raise PenstockError(f"{directory} is no checkout of {suite.name}: see its {suite.mark}")


def counted(suite: Suite, text: str, seconds: float) -> Counts:
    """What the suite's report says, with RabbitMQ's own failures set apart."""
    passed, skipped, failures = suite.read(text)
    new = tuple(each for each in failures if each not in suite.known_failures)
    return Counts(
        suite=suite.name,
        passed=passed,
        failed=len(new),
        failed_too=len(failures) - len(new),
        skipped=skipped,
        seconds=round(seconds, 1),
        failures=new,
    )


def _tell(suite: Suite, counts: Counts, *, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(counts._asdict(), indent=2))
        return
    for each in counts.failures:
        click.echo(f"failed, and RabbitMQ passes it: {each}")
    click.echo(
        f"{suite.name}: {counts.passed} passed, {counts.failed} failed, {counts.failed_too} failed "
        f"as with RabbitMQ, {counts.skipped} skipped, {counts.seconds:.0f} s"
    )
    click.echo(f"RabbitMQ 3.10.8: {suite.reference}")


@contextlib.contextmanager
def _broker() -> Iterator[None]:
    for host in LOOPBACKS:
        with contextlib.suppress(OSError), socket.create_connection((host, PORT), timeout=1):
            raise PenstockError(
                f"something listens on {host}:{PORT} already; stop it, or test it with --running"
            )
    with (
        tempfile.TemporaryDirectory(prefix="penstock-interop-") as scratch,
        private_broker(Path(scratch, "data"), FLAGS),
    ):
        yield


def _once(command: Sequence[str], directory: Path) -> None:
    click.echo(
        f"{' '.join(Path(command[0]).name.split() + list(command[1:]))} (once) ...", err=True
    )
    if subprocess.run(command, cwd=directory, check=False).returncode:
        raise PenstockError(f"{command[0]} failed in {directory}")


COMMANDS: Final = (_verb(PIKA), _verb(AMQPLIB))
