"""Pulsar's Java and Go clients and pulsar-flex on Node.js: one program each, one run of it.

The programs are ours (``clients/``); each step of one has a topic of its own and ends with a line
of JSON, what it saw. The libraries are fetched by Maven, Go and npm with their own settings, and
kept in the user's cache. npm's is small; the other two are fetched with ``--long`` (a minute, and
some for Go's compiler), and run from then on in every run.
"""

import fcntl
import json
import os
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from penstock.adapters.pulsar.naming import PATTERN_LENGTH_MAX

PROGRAMS = Path(__file__).parent / "clients"
CACHE = Path.home() / ".cache" / "penstock"
FLEX = "pulsar-flex@1.1.1"
JAVA_VERSION = "4.0.8"
SECONDS_MAX = 180
"""Patience for a machine that is very busy: a program takes 5 to 10 s on one that is not."""
FETCH_SECONDS_MAX = {"mvn": 300, "go": 900, "npm": 60}
SAID_MAX = 400
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")
"""It starts in half the time; nothing runs long enough to be compiled well."""

POM = f"""<project><modelVersion>4.0.0</modelVersion>
<groupId>penstock</groupId><artifactId>testing</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.pulsar</groupId>
<artifactId>pulsar-client</artifactId><version>{JAVA_VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId>
<artifactId>slf4j-nop</artifactId><version>2.0.17</version></dependency>
</dependencies></project>
"""

TWENTY = [str(number) for number in range(20)]
TEN = TWENTY[:10]
SIXTY_BY_KEY = {f"key-{key}": [str(key + 12 * at) for at in range(5)] for key in range(12)}


# ---- what is needed, and where it is


def need(*tools):
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def fetch(name, config, prepare, *, only_long):
    """The directory of a library in the cache, filled on first use; without one: skipped."""
    place = CACHE / name
    place.mkdir(parents=True, exist_ok=True)
    # Test processes start at once; one of them fetches.
    with (place / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            if only_long and not config.getoption("--long"):
                pytest.skip(f"{name} is not in the cache: --long fetches it")
            for command in prepare(place):
                step(command, place, name)
            (place / "complete").touch()
    return place


def step(command, place, name):
    try:
        done = subprocess.run(
            command,
            cwd=place,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX[command[0]],
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        pytest.skip(f"{command[0]} did not bring {name} within {late.timeout:.0f} s")
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        pytest.skip(f"{command[0]} has no {name}: {said[-SAID_MAX:]}")


def java_jars(place):
    (place / "pom.xml").write_text(POM)
    return [
        ("mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime",
         f"-DoutputDirectory={place}"),
    ]  # fmt: skip


def go_modules(place):
    for each in (PROGRAMS / "go").iterdir():
        shutil.copy(each, place)
    return [("go", "mod", "tidy"), ("go", "build", "-o", os.devnull, ".")]


def compiled(place, source, compile_into):
    """The directory of a program of ours, compiled when it has changed."""
    text = source.read_bytes()
    target = place / f"program-{zlib.crc32(text):08x}"
    with (place / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            for stale in place.glob("program-*"):
                shutil.rmtree(stale)
            target.mkdir()
            shutil.copy(source, place)
            subprocess.run(compile_into(target), cwd=place, check=True)
            (target / "complete").touch()
    return target


def java(config):
    need("java", "javac", "mvn")
    jars = fetch(f"pulsar-client-{JAVA_VERSION}", config, java_jars, only_long=True)
    program = compiled(
        jars,
        PROGRAMS / "JavaPeer.java",
        lambda target: ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", target, "JavaPeer.java"],
    )
    return ["java", *JVM, "-cp", f"{jars}/*{os.pathsep}{program}", "JavaPeer"], {}


def go(config):
    need("go")
    version = (PROGRAMS / "go" / "go.mod").read_text().split()[-1]
    place = fetch(f"pulsar-client-go-{version}", config, go_modules, only_long=True)
    program = compiled(
        place,
        PROGRAMS / "go" / "main.go",
        lambda target: ["go", "build", "-o", str(target / "peer"), "."],
    )
    return [str(program / "peer")], {}


def flex(config):
    need("node", "npm")

    def install(place):
        return [("npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), FLEX)]

    place = fetch(FLEX.replace("@", "-"), config, install, only_long=False)
    return ["node", str(PROGRAMS / "flex_peer.js")], {"NODE_PATH": str(place / "node_modules")}


@pytest.fixture
def converse(pulsar, request):
    """Run a client's program; step -> what it saw."""

    def run(client):
        command, environment = client(request.config)
        local = f"public/default/{pulsar.name(client.__name__)}"
        # A longer pattern is not watched, here or at Pulsar: Java's client asks once a minute.
        assert len(f"{local}-pattern-.*") <= PATTERN_LENGTH_MAX
        prefix = f"persistent://{local}"
        path = pulsar.path(f"{prefix}-partitions")
        pulsar.rest.done("PUT", f"{path}/partitions", 3)
        done = subprocess.run(
            [*command, pulsar.url, prefix, pulsar.rest.url],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return {each.pop("step"): each for each in map(json.loads, done.stdout.splitlines())}

    return run


# ---- what they must see


@pytest.mark.timeout(SECONDS_MAX + sum(FETCH_SECONDS_MAX.values()))
@pytest.mark.parametrize("client", [java, go], ids=["java", "go"])
def test_the_java_and_the_go_client_see_what_they_see_at_pulsar(converse, client):
    seen = converse(client)
    assert seen["produce"] == {
        "bodies": TWENTY, "key": "key-19", "property": "19", "event_time": 1_700_000_000_019,
        "same_ids": True, "left": [],
    }  # fmt: skip
    assert seen["batches"] == {"bodies": TEN * 3, "entries": 3, "left": ["8", "9"] * 3}
    assert seen["chunks"] == {"size": 300_000, "same": True}
    assert seen["exclusive"] == {"refused": "ConsumerBusy"}
    shared = seen["shared"]
    assert sorted(shared["first"] + shared["second"], key=int) == TWENTY
    assert shared["again"] == sorted(shared["second"])
    assert shared["counts"] == [1]
    assert seen["retry"].pop("is_from").endswith("-retry")
    assert seen["retry"] == {"tries": ["0", "1", "2"], "letter": "unwanted", "left": []}
    assert seen["key_shared"]["first"] | seen["key_shared"]["second"] == SIXTY_BY_KEY
    assert seen["key_shared"]["left"] == 0
    assert not seen["key_shared"]["first"].keys() & seen["key_shared"]["second"].keys()
    assert seen["seek"] == {
        "by_id": ["8", "9"], "by_time": TEN[5:], "earliest": TEN, "latest": ["10"],
    }  # fmt: skip
    assert seen["reader"] == {
        "all": TEN, "behind": TEN[6:], "from": TEN[5:], "none": [], "last_is_last": True,
    }  # fmt: skip
    assert seen["partitions"]["count"] == 3
    lanes = seen["partitions"]["by_partition"]
    assert sorted(lanes) == ["0", "1", "2"]
    assert all(lane == sorted(lane, key=int) for lane in lanes.values())
    assert sum(map(len, lanes.values())) == 60
    assert seen["schema"] == {
        "item": "pen", "pieces": 3, "version": ["0"] * 8, "refused": "IncompatibleSchema",
    }  # fmt: skip
    # Only Java's watches for new topics, has priorities on failover, and is asked for a compacted
    # topic.
    if client is java:
        assert seen["compacted"] == {
            "newest": ["key-0=16", "key-2=18", "key-3=19", "key-1=21", "key-2=22"],
            "tail": ["23"], "all": [str(number) for number in range(24)],
        }  # fmt: skip
        assert seen["pattern"] == {"bodies": ["pattern-a", "pattern-b", "pattern-c"]}
        assert seen["failover"] == {"first": TEN, "second_meanwhile": [], "second": TEN[4:]}
    else:
        assert seen["pattern"] == {"bodies": ["pattern-a", "pattern-b"]}
        assert seen["failover"] == {"first": TEN[:5], "second": TEN[2:5]}


@pytest.mark.timeout(SECONDS_MAX + FETCH_SECONDS_MAX["npm"])
def test_pulsar_flex_sees_what_it_sees_at_pulsar(converse):
    seen = converse(flex)
    thirty = [str(number) for number in range(30)]
    assert seen["produce"] == {"bodies": TWENTY, "property": "19"}
    assert seen["batches"] == {"bodies": thirty, "properties": thirty, "entries": 3}
    assert seen["exclusive"] == {"refused": "PulsarFlexSubscribeError"}
    first, second = seen["shared"]["first"], seen["shared"]["second"]
    settled = [each["body"] for each in second] + [each["body"] for each in first if each["count"]]
    assert sorted(settled, key=int) == TWENTY
    sent_back = {each["body"] for each in first if not each["count"]}
    assert sent_back == {each["body"] for each in first + second if each["count"] == 1}
    assert seen["failover"] == {"first": TEN, "second": TEN[4:]}
    halves = seen["key_shared"]["first"], seen["key_shared"]["second"]
    assert sorted(halves[0] + halves[1], key=int) == [str(number) for number in range(40)]
    assert all(half == sorted(half, key=int) for half in halves)
