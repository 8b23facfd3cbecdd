"""``penstock interop rocketmq-tests``: Apache RocketMQ's integration tests against three brokers.

    penstock interop rocketmq-tests DIR     DIR: a checkout of apache/rocketmq, outside this one

Its module ``test`` is compiled as it is against the released artifacts of the checkout's version,
in a temporary directory; only ``BaseConf`` and ``IntegrationTestBase``, which start Apache's name
server and brokers inside the test, are ours (``java/``) and look for them at an address. One Java
process per class, with a time limit: a class that hangs costs itself, and what it finished before
is counted.

What needs Apache's own broker in the process of the test is left out by name (``WITHOUT``), what
differs for a reason is set apart by name (``DIFFERENT``); both are printed with the reason.
Minutes, not part of ``.ci/run``.
"""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import click

from penstock.cli.remoting import RemotingClient
from penstock.model.errors import PenstockError
from penstock.testing.running import eventually, running_broker

TOOLS: Final = ("mvn", "javac", "java")
MODULE: Final = "test"
PACKAGE: Final = "org.apache.rocketmq.test"
OURS: Final = Path(__file__).parent / "java"
BROKERS: Final = ("broker-a", "broker-b", "broker-c")
CLUSTER: Final = "DefaultCluster"
AS_THERE: Final = (
    "--set", "rocketmq.pull_messages_max=1024", "--set", "rocketmq.pull_disk_messages_max=1024",
)  # fmt: skip
"""Settings of Apache's embedded brokers that are not its defaults, and count in a test."""
CLASS_SECONDS_MAX: Final = 420.0
"""The longest, with every wait of its own used up to the end, takes some five minutes."""
HEAP: Final = "-Xmx512m"

ARTIFACTS: Final = (
    "org.apache.rocketmq:rocketmq-broker", "org.apache.rocketmq:rocketmq-namesrv",
    "org.apache.rocketmq:rocketmq-client", "org.apache.rocketmq:rocketmq-tools",
    "com.google.truth:truth", "junit:junit", "org.awaitility:awaitility",
    "org.reflections:reflections", "io.github.aliyunmq:rocketmq-slf4j-api",
    "io.github.aliyunmq:rocketmq-logback-classic", "org.mockito:mockito-core",
    "org.assertj:assertj-core",
)  # fmt: skip
"""What the tests are compiled against, in the versions which Apache's own release names."""

NOT_COMPILED: Final = {
    "autoswitchrole": "masters and replicas of Apache's broker, embedded",
    "container": "Apache's broker container, embedded",
    "dledger": "Apache's DLedger replication, embedded",
    "grpc": "Apache's gRPC proxy, embedded",
    "schema": "compares Apache's classes with themselves, no broker",
    "statictopic": "static topics (logical queues over several brokers) are not served",
    "tls": "no TLS yet",
}
"""Packages left out, and why."""

WITHOUT: Final = {
    "lmq.TestBenchLmqStore": "tests a benchmark of Apache's against mocks, no broker",
    "offset.OffsetNotFoundIT": "hooks into the request handling of an embedded broker",
    "offset.LagCalculationIT.testEstimateLag": "asks the embedded store for an estimate",
    "offset.OffsetResetForPopIT.testResetOffsetThenAckOldForPopOrderly": "asks the embedded "
    "broker's table of ordered pops",
    "offset.OffsetResetForPopIT.testRestOffsetToSkipMsgForPopOrderly": "asks the embedded "
    "broker's table of ordered pops",
    "route.CreateAndUpdateTopicIT.testCreateOrUpdateTopic_EnableSplitRegistration": "puts topics "
    "into the tables of embedded brokers",
    "route.CreateAndUpdateTopicIT.testStaticTopicNotAffected": "static topics are not served",
    "smoke.NormalMessageSendAndRecvIT"
    ".testSynSendMessageWhenEnableBuildConsumeQueueConcurrently": "restarts embedded brokers with "
    "another setting of their store",
}
"""Classes and methods left out, and why."""

DIFFERENT: Final = {
    "client.producer.batch.BatchSendIT.testBatchSend_SysInnerBatch": "the queue type BatchCQ is "
    "kept with the topic and changes nothing: a batch is stored as its messages, each with an id",
}
"""Tests that run and fail, and why that stays."""

_LINE: Final = re.compile(r"^penstock (passed|failed|skipped) (\S+) (\d+) ?(.*)$", re.MULTILINE)
_VERSION: Final = re.compile(
    r"<artifactId>rocketmq-all</artifactId>.*?<version>(.+?)</version>", re.S
)


class Case(NamedTuple):
    """How one test ended."""

    name: str
    """Class, below the package of the suite, and method."""
    how: str
    """``passed``, ``failed`` or ``skipped``."""
    seconds: float
    why: str

    @property
    def reason(self) -> str:
        """Why a failure of it is expected; empty when it is not."""
        return DIFFERENT.get(self.name.partition("[")[0], "") if self.how == "failed" else ""


@click.command("rocketmq-tests", short_help="Apache RocketMQ's integration tests.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default="", help="Only classes with this in their name.")
@click.option("--jobs", default=2, show_default=True, help="Classes that run at a time.")
@click.option("--output", type=click.Path(path_type=Path), help="Write what the classes say here.")
@click.option("--json", "is_json", is_flag=True, help="Every test as JSON.")
def rocketmq_tests(
    directory: Path, *, only: str, jobs: int, output: Path | None, is_json: bool
) -> None:
    """Run the integration tests of the apache/rocketmq checkout DIRECTORY."""
    version = checked(directory := directory.absolute())
    with tempfile.TemporaryDirectory(prefix="penstock-interop-") as scratch:
        classpath = compiled(directory, version, Path(scratch))
        with cluster() as names, ThreadPoolExecutor(jobs) as pool:
            run = [*_java(classpath, Path(scratch)), f"-Dpenstock.names={names}"]
            found = [
                case
                for cases in pool.map(
                    lambda each: _run_class(run, each, output), classes(directory, only)
                )
                for case in cases
            ]
    if is_json:
        click.echo(json.dumps([{**each._asdict(), "reason": each.reason} for each in found]))
    else:
        tell(found)
    sys.exit(0 if is_good(found) else 1)


def checked(directory: Path) -> str:
    """The version of the checkout; raises when a tool is missing or it is none."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise PenstockError(f"{tool} is not installed; the suite needs Maven and a JDK")
    pom = directory / MODULE / "pom.xml"
    text = pom.read_text() if pom.exists() else ""
    version = _VERSION.search(text)
    if "<artifactId>rocketmq-test</artifactId>" not in text or version is None:
        raise PenstockError(
            f"{directory} is no checkout of apache/rocketmq: see its {MODULE}/pom.xml"
        )
    return version[1]


def classes(directory: Path, only: str = "") -> list[str]:
    """The classes of tests that are run, by their names below the package of the suite."""
    root = directory / MODULE / "src" / "test" / "java" / Path(*PACKAGE.split("."))
    found = [
        ".".join(path.relative_to(root).with_suffix("").parts) for path in root.rglob("*IT.java")
    ]
    return sorted(
        each
        for each in found
        if each.partition(".")[0] not in NOT_COMPILED and each not in WITHOUT and only in each
    )


def pom(version: str) -> str:
    """A project of nothing but dependencies; which versions belong together, Apache's pom says."""
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId></dependency>"
        for group, name in (each.split(":") for each in ARTIFACTS)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>penstock</groupId><artifactId>rocketmq-tests</artifactId><version>1</version>"
        "<packaging>pom</packaging><dependencyManagement><dependencies><dependency>"
        "<groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-all</artifactId>"
        f"<version>{version}</version><type>pom</type><scope>import</scope>"
        "</dependency></dependencies></dependencyManagement>"
        f"<dependencies>{wanted}</dependencies></project>\n"
    )


def compiled(directory: Path, version: str, scratch: Path) -> str:
    """The class path: the suite with our two classes, and what Maven found for it."""
    (scratch / "pom.xml").write_text(pom(version))
    found = scratch / "classpath"
    _once(["mvn", "-B", "-q", "dependency:build-classpath", f"-Dmdep.outputFile={found}"], scratch)
    source = directory / MODULE / "src"
    left_out = {*NOT_COMPILED, "base"}
    below = len(Path(source, "test", "java", *PACKAGE.split(".")).parts)
    files = [
        path
        for half in ("main", "test")
        for path in sorted((source / half / "java").rglob("*.java"))
        if path.parts[below] not in left_out
    ]
    listed = scratch / "sources"
    listed.write_text("\n".join(map(str, [*files, *sorted(OURS.glob("*.java"))])))
    target = scratch / "classes"
    options = ["-nowarn", "-proc:none", "-encoding", "UTF-8", "-Xlint:none"]
    classpath = found.read_text().strip()
    _once(["javac", *options, "-d", str(target), "-cp", classpath, f"@{listed}"], scratch)
    return f"{target}:{classpath}"


def _once(command: Sequence[str], directory: Path) -> None:
    click.echo(f"{command[0]} ...", err=True)
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise PenstockError(f"{command[0]} failed: {done.stdout.decode(errors='replace')[-2000:]}")


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """Three brokers that know each other; the address of their name server, the first of them."""
    flags = ("--amqp", "off", "--pulsar", "off", "--http", "0", *AS_THERE)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(running_broker(*flags, "--broker-name", BROKERS[0]))
        joined = ("--rocketmq", "off", "--join", first.name_server)
        for name in BROKERS[1:]:
            stack.enter_context(running_broker(*flags, *joined, "--broker-name", name))
        names = RemotingClient(*first.address("rocketmq"))
        stack.callback(names.close)
        eventually(lambda: _routed(names) == set(BROKERS), what="three brokers in one cluster")
        yield first.name_server


def _routed(names: RemotingClient) -> set[str]:
    """The brokers in the route of the topic that is named after the cluster."""
    route = names.route(CLUSTER)
    return {each.broker_name for each in route.queue_datas} if route is not None else set()


def _java(classpath: str, scratch: Path) -> list[str]:
    return [
        "java", HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        # The byte code maker of Apache's Mockito was released before Java 17.
        "-Dnet.bytebuddy.experimental=true",
        f"-Duser.home={scratch}", f"-Djava.io.tmpdir={scratch}", "-cp", classpath,
    ]  # fmt: skip


def _run_class(java: Sequence[str], name: str, output: Path | None) -> list[Case]:
    began = time.monotonic()
    methods = [each.rpartition(".")[2] for each in WITHOUT if each.startswith(f"{name}.")]
    process = subprocess.Popen(
        [*java, "penstock.RunClass", f"{PACKAGE}.{name}", *methods],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said, _ = process.communicate(timeout=CLASS_SECONDS_MAX)
        ended = ""
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        ended = f"not done after {CLASS_SECONDS_MAX:.0f} s"
    text = said.decode("utf-8", "replace")
    if output is not None:
        with output.open("a") as file:
            file.write(f"==== {name}\n{text}\n")
    cases = read(name, text, ended)
    bad = [each for each in cases if each.how == "failed"]
    click.echo(
        f"{name}: {len(cases)} tests, {len(bad)} failed, {time.monotonic() - began:.0f} s", err=True
    )
    return cases


def read(name: str, text: str, ended: str = "") -> list[Case]:
    """What a class said of its tests; one that ended early or said nothing failed as a whole."""
    cases = [
        Case(f"{name}.{test}", how, int(millis) / 1000, why.strip())
        for how, test, millis, why in _LINE.findall(text)
    ]
    if ended or not cases:
        cases.append(Case(name, "failed", 0.0, ended or f"nothing ran: {text[-300:].strip()}"))
    return cases


def is_good(cases: Sequence[Case]) -> bool:
    """Something ran, and whatever failed has its reason."""
    failed = [each for each in cases if each.how == "failed"]
    return any(each.how == "passed" for each in cases) and all(each.reason for each in failed)


def tell(cases: Sequence[Case]) -> None:
    """What was left out, what differs and what failed by name; the counts."""
    for package, why in NOT_COMPILED.items():
        click.echo(f"left out: {package}.*: {why}")
    for name, why in WITHOUT.items():
        click.echo(f"left out: {name}: {why}")
    failed = [each for each in cases if each.how == "failed"]
    for each in failed:
        click.echo(
            f"differs: {each.name}: {each.reason}"
            if each.reason
            else f"failed: {each.name}: {each.why}"
        )
    differ = sum(bool(each.reason) for each in failed)
    counts = {how: sum(each.how == how for each in cases) for how in ("passed", "skipped")}
    click.echo(
        f"rocketmq-tests: {counts['passed']} passed, {len(failed) - differ} failed, "
        f"{differ} differ for a reason, {counts['skipped']} skipped by the suite"
    )
