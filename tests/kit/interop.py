"""``penstock interop``: run another project's own test suite against Penstock, and count.

    penstock interop ali-ons DIR        DIR: a checkout of ali-sdk/ali-ons, outside this repository
    penstock interop rocketmq-tests DIR Apache's own integration tests: ``rocketmq/apache_tests.py``
    penstock interop pika|amqplib|rabbitmq-java DIR     over AMQP
    penstock interop pulsar DIR         pulsar-client-python's: ``pulsar_suite.py``

``ali-ons`` starts two joined brokers (a fresh pair for each part of the suite: messages of one part
are still being retried when the next begins), creates the topic and groups which the suite takes
for granted, answers the address look-up that is written into it, and runs its tests with its own
runner. Nothing of the suite is copied or changed; only ``npm install`` is run in it when that was
not done before.

The suite was written for a name server across a network: one of its cases wants no answer within a
millisecond of dialling. So the address it knows is a link of ``ONE_WAY_MS`` to the name server; the
brokers are dialled directly.

It waits for real delays of 10 and 30 seconds: minutes, not part of ``.ci/run``.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import click

from kit.amqp.rabbitmqctl import stand_in
from kit.pulsar_suite import verb as pulsar_verb
from kit.rocketmq.apache_tests import rocketmq_tests
from kit.slow_link import slow_link
from penstock.cli.remoting import RemotingClient
from penstock.model.errors import PenstockError

# ---- private broker -----------------------------------------------------------------------------
# A broker of our own for the time of a command: a process, a directory, its endpoints.
#
# | with private_broker(scratch / "a", ("--amqp", "5672")) as endpoints:
# |     endpoints["amqp"]
#
# Found by its ready file; what it printed is part of the error when it does not start.


START_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.02


class PrivateBroker:
    """A broker process with these flags; it can be started again on the same directory."""

    def __init__(self, data: Path, flags: Sequence[str]) -> None:
        self._data = data
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoints(self) -> dict[str, str]:
        """Where it listens now."""
        from penstock.server.ready_file import find_ready

        return find_ready(self._data).endpoints

    def start(self) -> None:
        """Start it, unless it runs, and return once it is ready."""
        if self._process is not None:
            return
        said = self._data.with_suffix(".output")
        with said.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "up", "--data", str(self._data), *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + START_SECONDS_MAX
        while not (self._data / "ready.json").exists():
            if self._process.poll() is not None or time.monotonic() > until:
                raise PenstockError(f"a broker did not start: {said.read_text()[-500:]}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End it politely, if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def private_broker(data: Path, flags: Sequence[str]) -> Iterator[dict[str, str]]:
    """A broker process with these flags; its endpoints."""
    broker = PrivateBroker(data, flags)
    try:
        broker.start()
        yield broker.endpoints
    finally:
        broker.stop()


# ---- interop amqp -------------------------------------------------------------------------------
# ``penstock interop pika|amqplib|rabbitmq-java``: AMQP clients' own suites against Penstock, and
# counts.
#
# | penstock interop pika DIR           DIR: a checkout of pika/pika, outside this repository
# | penstock interop amqplib DIR        DIR: a checkout of amqp-node/amqplib
# | penstock interop rabbitmq-java DIR  DIR: a checkout of rabbitmq/rabbitmq-java-client
# | ... --running                       against whatever listens on 5672: the reference counts
#
# A fresh broker listens on 5672 of both loopbacks, where the suites look. Nothing of them is copied
# or changed; what they need to run is installed once, into the checkout (``.venv``, node_modules,
# ``target``). Good is a run with no failure that RabbitMQ 3.10 does not have too
# (``Suite.known_failures``), those apart that want what Penstock has not (``Suite.excused``).


PORT: Final = 5672
"""Written into the suites."""
LOOPBACKS: Final = ("127.0.0.1", "::1")
FLAGS: Final = (
    "--amqp", str(PORT), "--http", "0",
    "--pulsar", "off", "--rocketmq", "off", "--rocketmq-broker", "off", "--flight", "off",
)  # fmt: skip
SUITE_SECONDS_MAX: Final = 900.0
TEST_SECONDS_MAX: Final = 60
"""A test that hangs ends as a failure; pika's and amqplib's are done in half a minute."""
REPORT_CHARACTERS_MAX: Final = 8000

_PYTEST_COUNT: Final = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
_PYTEST_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_TAP_COUNT: Final = re.compile(r"^# (pass|fail|cancelled|skipped) (\d+)$", re.MULTILINE)
_TAP_FAILED: Final = re.compile(r"^ *not ok \d+ - (.+)$", re.MULTILINE)
_MAVEN_COUNT: Final = re.compile(
    r"^\[\w+\] Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+)$", re.MULTILINE
)
_MAVEN_FAILED: Final = re.compile(
    r"^\[ERROR\] (?:[\w.]+\.)?(\w+\.\S.*?) -- Time elapsed: .*<<< (?:FAILURE|ERROR)!$",
    re.MULTILINE,
)
_MAVEN_BEGAN: Final = re.compile(r"^\[INFO\] Running (\S+)$", re.MULTILINE)
_MAVEN_ENDED: Final = re.compile(r"^\[\w+\] Tests run: .* -- in (\S+)$", re.MULTILINE)


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
    excused: tuple[tuple[str, str], ...] = ()
    """Those which want what Penstock has not: name and reason."""

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
    excused: Mapping[str, str] = MappingProxyType({})
    """Test, or class of tests: why it cannot pass here."""
    broker: Callable[[], contextlib.AbstractContextManager[Sequence[str]]] | None = None
    """A broker of its own kind; yields more of the command. None = a plain one."""
    seconds_max: float = SUITE_SECONDS_MAX


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


def _install_java(directory: Path) -> None:
    codegen = directory / "deps" / "rabbitmq_codegen"
    if not codegen.exists():
        raise PenstockError(
            f"{codegen} is missing; clone rabbitmq/rabbitmq-codegen there: methods are "
            "generated from it"
        )
    if not (directory / "target" / "test-classes" / "com").exists():
        # One test along with it, so that Maven has what it needs for the runs to come.
        _once([*_MAVEN[:-1], "test-compile", _MAVEN[-1], "-q", "-Dit.test=AddressTest"], directory)


def _run_java(grep: str) -> list[str]:
    tests = grep or ",".join(JAVA_SUITES)
    return [
        *_MAVEN, "-o", f"-Dit.test={tests}",
        f"-Djunit.jupiter.execution.timeout.default={JAVA_TEST_SECONDS_MAX}s",
        "-Djunit.jupiter.execution.timeout.thread.mode.default=SEPARATE_THREAD",
    ]  # fmt: skip


def _read_maven(text: str) -> tuple[int, int, list[str]]:
    found = _MAVEN_COUNT.findall(text)
    if not found:
        return 0, 0, []
    run, failures, errors, skipped = map(int, found[-1])
    ended = frozenset(_MAVEN_ENDED.findall(text))
    # Maven calls it a success when the process with the tests goes away in the middle of them.
    broken = [
        f"{each.rpartition('.')[2]} (did not end)"
        for each in _MAVEN_BEGAN.findall(text)
        if each not in ended
    ]
    return run - failures - errors - skipped, skipped, _MAVEN_FAILED.findall(text) + broken


@contextlib.contextmanager
def _controlled_broker() -> Iterator[Sequence[str]]:
    """A broker that a ``rabbitmqctl`` of ours can restart and put in alarm."""
    _check_port()
    with tempfile.TemporaryDirectory(prefix="penstock-interop-") as scratch:
        broker = PrivateBroker(Path(scratch, "data"), (*FLAGS, "--faults"))
        try:
            broker.start()
            with stand_in(broker, Path(scratch)) as program:
                yield (f"-Drabbitmqctl.bin={program}",)
        finally:
            broker.stop()


_MAVEN: Final = ("mvn", "-B", "-P", "!setup-test-cluster", "failsafe:integration-test")
JAVA_SUITES: Final = ("ClientTestSuite", "FunctionalTestSuite")
JAVA_SECONDS_MAX: Final = 3600.0
"""It takes ten minutes on a quiet machine, most of them waits of its own."""
JAVA_TEST_SECONDS_MAX: Final = 120
"""Its own waits for a recovery are 90 s long."""
RABBITMQCTL: Final = "RABBITMQCTL"
"""Environment: the real one, for a run with ``--running``."""

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
RABBITMQ_JAVA: Final = Suite(
    name="rabbitmq-java", mark="pom.xml", says="<name>RabbitMQ Java Client</name>",
    tools=("java", "mvn"),
    install=_install_java, command=_run_java, read=_read_maven, broker=_controlled_broker,
    seconds_max=JAVA_SECONDS_MAX,
    excused=MappingProxyType({
        "NoAutoRecoveryWhenTcpWindowIsFullTest.failureAndRecovery":
            "wants a client that does not read to be cut off; here it keeps its place, is sent "
            "no more than flow.unsent_messages_max, and nobody waits for it",
    }),
    reference="592 passed, 0 failed, 20 skipped",
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
    with _running(suite) if running else (suite.broker or _broker)() as more:
        began = time.monotonic()
        done = subprocess.run(
            [*suite.command(grep), *more],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=suite.seconds_max,
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
    excused = [(each, reason) for each in failures if (reason := _excuse(suite, each))]
    known = [each for each in failures if each in suite.known_failures]
    told = {*known, *(each for each, _ in excused)}
    new = tuple(each for each in failures if each not in told)
    return Counts(
        suite=suite.name,
        passed=passed,
        failed=len(new),
        failed_too=len(known),
        skipped=skipped,
        seconds=round(seconds, 1),
        failures=new,
        excused=tuple(excused),
    )


def _excuse(suite: Suite, failure: str) -> str:
    """Why this test cannot pass here; empty when it should."""
    by_class = suite.excused.get(failure.partition(".")[0], "")
    return suite.excused.get(failure, by_class) if failure not in suite.known_failures else ""


def _tell(suite: Suite, counts: Counts, *, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(counts._asdict(), indent=2))
        return
    for each in counts.failures:
        click.echo(f"failed, and RabbitMQ passes it: {each}")
    for each, reason in counts.excused:
        click.echo(f"not here: {each}: {reason}")
    apart = f"{len(counts.excused)} not here, " if suite.excused else ""
    click.echo(
        f"{suite.name}: {counts.passed} passed, {counts.failed} failed, {counts.failed_too} failed "
        f"as with RabbitMQ, {apart}{counts.skipped} skipped, {counts.seconds:.0f} s"
    )
    click.echo(f"RabbitMQ 3.10.8: {suite.reference}")


@contextlib.contextmanager
def _running(suite: Suite) -> Iterator[Sequence[str]]:
    if suite.broker is None:
        yield ()
        return
    program = os.environ.get(RABBITMQCTL)
    if not program:
        raise PenstockError(f"{suite.name} controls its broker; name a program in {RABBITMQCTL}")
    yield (f"-Drabbitmqctl.bin={program}",)


def _check_port() -> None:
    for host in LOOPBACKS:
        with contextlib.suppress(OSError), socket.create_connection((host, PORT), timeout=1):
            raise PenstockError(
                f"something listens on {host}:{PORT} already; stop it, or test it with --running"
            )


@contextlib.contextmanager
def _broker() -> Iterator[Sequence[str]]:
    _check_port()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-interop-") as scratch,
        private_broker(Path(scratch, "data"), FLAGS),
    ):
        yield ()


def _once(command: Sequence[str], directory: Path) -> None:
    click.echo(
        f"{' '.join(Path(command[0]).name.split() + list(command[1:]))} (once) ...", err=True
    )
    # A generator in a checkout asks for "python", which may not be installed by that name.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(command, cwd=directory, env={**os.environ, "PATH": path}, check=False)
    if done.returncode:
        raise PenstockError(f"{command[0]} failed in {directory}")


COMMANDS: Final = (_verb(PIKA), _verb(AMQPLIB), _verb(RABBITMQ_JAVA))


# ---- interop ------------------------------------------------------------------------------------


NAME_SERVER: Final = "127.0.0.1:9876"
"""Written into the suite's configuration, as localhost."""
LINK_HOSTS: Final = ("127.0.0.1", "::1")
ONE_WAY_MS: Final = 3
"""From the suite to its name server, and as long back: a server in another part of the country."""
TOPIC: Final = "TP_alions_test_topic"
GROUPS: Final = ("GID_alions", "PID_GXCSOCCER")
LOOKED_UP: Final = "onsaddr-internet.aliyun.com"
ALONE: Final = ("test/index.test.js", "test/index_namesrv.test.js")
"""Parts that want brokers of their own."""

PART_SECONDS_MAX: Final = 1200.0

ACCESS_CONTROL: Final = frozenset(("should invoke ok though channel not ready",))
"""Expects an unsigned request to be refused, as the name server of the vendor's cloud does."""

_FAILED: Final = re.compile(r"^\s+\d+\) (.+)$", re.MULTILINE)
_COUNTS: Final = re.compile(r"^\s*(\d+) (passing|failing|pending)\b", re.MULTILINE)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")

REDIRECT: Final = """
// Requests for one host go to loopback; everything else is left alone.
const http = require('http');
const original = http.request;
http.request = function (options, ...rest) {
  const host = typeof options === 'string' ? '' : options.hostname || options.host;
  if (host === process.env.LOOKED_UP) {
    options = Object.assign({}, options, {
      host: '127.0.0.1', hostname: '127.0.0.1', port: process.env.LOOKUP_PORT,
      lookup: undefined, agent: undefined,
    });
  }
  return original.call(http, options, ...rest);
};
"""


class Part(NamedTuple):
    """How one part of the suite ended."""

    name: str
    passing: int
    failing: int
    excused: int
    """Failed because it wants the vendor's access control."""
    pending: int
    seconds: float

    @property
    def is_good(self) -> bool:
        """Something ran, and nothing failed."""
        return self.passing > 0 and not self.failing


@click.group("interop", short_help="Run another client's own test suite against Penstock.")
def command() -> None:
    """Run another client's own test suite against Penstock."""


for _each in (*COMMANDS, rocketmq_tests, pulsar_verb(private_broker)):
    command.add_command(_each)


@command.command("ali-ons")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default="", help="Only the part with this in its name (rest, index ...).")
@click.option("--grep", default="", help="Only tests whose title matches, as mocha's --grep.")
@click.option("--output", type=click.Path(path_type=Path), help="Write what the suite says here.")
@click.option("--json", "is_json", is_flag=True, help="The counts as JSON.")
def ali_ons(directory: Path, only: str, grep: str, *, output: Path | None, is_json: bool) -> None:
    """Run the tests of the ali-ons checkout DIRECTORY."""
    directory = directory.absolute()
    _check(directory)
    parts = {name: files for name, files in _parts(directory).items() if only in name}
    found = [
        _run_part(directory, name, files, grep=grep, output=output) for name, files in parts.items()
    ]
    if is_json:
        click.echo(json.dumps([each._asdict() for each in found], indent=2))
    else:
        for each in found:
            click.echo(
                f"{each.name:<24}{each.passing:>4} passed {each.failing:>4} failed "
                f"{each.excused:>4} need access control {each.pending:>4} skipped "
                f"{each.seconds:6.0f} s"
            )
        click.echo(f"the name server was {ONE_WAY_MS} ms away (each way), the brokers on loopback")
    sys.exit(0 if found and all(each.is_good for each in found) else 1)


def _check(directory: Path) -> None:
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise PenstockError(f"{tool} is not installed; the suite needs Node.js")
    try:
        name = json.loads((directory / "package.json").read_text()).get("name")
    except (OSError, ValueError):
        name = None
    if name != "ali-ons":
        raise PenstockError(f"{directory} is no checkout of ali-ons: its package.json says {name}")
    if not (directory / "node_modules" / ".bin" / "egg-bin").exists():
        click.echo("npm install (once) ...", err=True)
        done = subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund"], cwd=directory, check=False
        )
        if done.returncode:
            raise PenstockError(f"npm install failed in {directory}")


def _parts(directory: Path) -> dict[str, list[str]]:
    files = sorted(
        str(path.relative_to(directory)) for path in (directory / "test").rglob("*.test.js")
    )
    parts = {"rest": [each for each in files if each not in ALONE]}
    return parts | {Path(each).stem: [each] for each in ALONE if each in files}


def _run_part(
    directory: Path, name: str, files: list[str], *, grep: str, output: Path | None
) -> Part:
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-interop-")))
        _start_brokers(stack, scratch)
        port = stack.enter_context(_lookup_server())
        redirect = scratch / "redirect.js"
        redirect.write_text(REDIRECT)
        environment = {
            **os.environ,
            "HOME": str(scratch),
            "TEST_TIMEOUT": "120000",
            "LOOKED_UP": LOOKED_UP,
            "LOOKUP_PORT": str(port),
            "NODE_OPTIONS": f"--require {redirect}",
        }
        run = ["node_modules/.bin/egg-bin", "test", *files]
        done = subprocess.run(
            run + (["--grep", grep] if grep else []),
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PART_SECONDS_MAX,
            check=False,
        )
    text = _COLOURS.sub("", done.stdout.decode("utf-8", "replace"))
    if output is not None:
        with output.open("a") as file:
            file.write(f"==== {name}\n{text}\n")
    part = _counted(name, text, time.monotonic() - began)
    if not part.is_good:
        click.echo(text[-8000:] if output is None else f"{name}: see {output}", err=True)
    return part


def _counted(name: str, text: str, seconds: float) -> Part:
    """What mocha's report says; the list of failures comes after the summary, in other words."""
    counts = {word: int(number) for number, word in _COUNTS.findall(text)}
    tree = text[: text.rfind(" passing")]
    excused = len(ACCESS_CONTROL.intersection(title.strip() for title in _FAILED.findall(tree)))
    return Part(
        name=name,
        passing=counts.get("passing", 0),
        failing=counts.get("failing", 0) - excused,
        excused=excused,
        pending=counts.get("pending", 0),
        seconds=round(seconds, 1),
    )


def _start_brokers(stack: contextlib.ExitStack, scratch: Path) -> None:
    """Two of them: the first is the name server, too."""
    flags = ("--amqp", "off", "--pulsar", "off", "--flight", "off", "--http", "0",
             "--rocketmq-broker", "0")  # fmt: skip
    first = stack.enter_context(
        private_broker(scratch / "a", (*flags, "--rocketmq", "0", "--broker-name", "broker-a"))
    )
    names = first["rocketmq"]
    joined = ("--rocketmq", "off", "--join", names, "--broker-name", "broker-b")
    second = stack.enter_context(private_broker(scratch / "b", (*flags, *joined)))
    port = int(NAME_SERVER.rpartition(":")[2])
    for host in LINK_HOSTS:
        stack.enter_context(slow_link(host, port, _place(names), one_way_ms=ONE_WAY_MS))
    for each in (first, second):
        client = RemotingClient(*_place(each["rocketmq_broker"]))
        stack.callback(client.close)
        client.create_topic(TOPIC, 4)
        for group in GROUPS:
            client.create_group(group)
    name_server = RemotingClient(*_place(names))
    stack.callback(name_server.close)
    until = time.monotonic() + START_SECONDS_MAX
    while len(brokers := _brokers(name_server)) < 2:
        if time.monotonic() > until:
            raise PenstockError(f"the route of {TOPIC} has brokers {brokers}, not two")
        time.sleep(0.1)


def _place(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def _brokers(name_server: RemotingClient) -> list[str]:
    route = name_server.route(TOPIC)
    return [each.broker_name for each in route.queue_datas] if route is not None else []


@contextlib.contextmanager
def _lookup_server() -> Iterator[int]:
    """Answers every look-up with the name server's address; its port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{NAME_SERVER};".encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
