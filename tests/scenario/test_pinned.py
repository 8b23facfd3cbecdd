"""What the broker does, byte for byte, as ``tests/pinned/record.py`` wrote it down.

A change that is to leave behaviour alone leaves these alone. With PIN_RECORD=1 the views of
this file are written and not compared; ``record.py`` uses that.
"""

import json
import logging
import os
import tarfile
from base64 import b64encode
from concurrent.futures import ProcessPoolExecutor
from http.client import HTTPConnection
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pika
import pytest
from click.testing import CliRunner

from kit.amqp.management_tool import ManagementTool
from kit.pin_bench import LATER_MS, SMALL, PinBench, state
from kit.simulation.steps import FAMILIES
from kit.simulator import STEPS_DEFAULT, simulate
from penstock.cli.main import penstock
from penstock.cli.remoting import RemotingClient
from penstock.testing.clock import START_WALL_MS
from penstock.testing.running import running_broker
from penstock.wire.rocketmq.bodies import ConsumerData, SubscriptionData

PINNED = Path(__file__).parents[1] / "pinned"
IS_RECORDING = os.environ.get("PIN_RECORD") == "1"
SEEDS = 40
CHUNK = 100
WORKERS = 2
PAGES = (
    "/readyz", "/nowhere", "/api/flow", "/api/flow/credit", "/api/faults", "/api/places",
    "/api/queries", "/api/topics", "/api/topics/pinned", "/api/topics/q", "/api/groups",
    "/api/groups/readers", "/api/overview", "/api/whoami", "/api/cluster-name", "/api/nodes",
    "/api/vhosts", "/api/vhosts/%2F", "/api/users", "/api/users/guest", "/api/permissions",
    "/api/queues", "/api/queues/%2F/q", "/api/queues/%2F/q/bindings", "/api/exchanges",
    "/api/exchanges/%2F/x", "/api/exchanges/%2F/x/bindings/source", "/api/bindings",
    "/api/bindings/%2F/e/x/q/q", "/api/definitions", "/api/definitions/%2F", "/api/connections",
    "/api/channels", "/api/consumers", "/api/consumers/%2F", "/api/policies", "/api/parameters",
    "/api/aliveness-test/%2F", "/api/health/checks/alarms", "/api/health/checks/port-listener/1",
    "/api/queues/%2F/nobody",
)  # fmt: skip


def check(name, found):
    """``found`` is what the file says: lines of text, or what JSON can hold."""
    path = PINNED / name
    is_text = isinstance(found, list)
    if IS_RECORDING:
        text = "\n".join(found) if is_text else json.dumps(found, indent=1, sort_keys=True)
        path.write_text(text + "\n")
        return
    expected = path.read_text()
    if is_text:
        assert found == expected.removesuffix("\n").split("\n")
    else:
        assert json.loads(json.dumps(found)) == json.loads(expected)


def tape_lines(path):
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


# The simulator.


def pytest_generate_tests(metafunc):
    if "seeds" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("--long")
        runs = []
        for family in [each for each in FAMILIES if each.pinned]:
            total = len((PINNED / family.pinned).read_text().split()) if is_long else SEEDS
            step = min(total, CHUNK)
            for first in range(0, total, step):
                name = f"{family.name}-{first}-{first + step}"
                runs.append(pytest.param(family, range(first, first + step), id=name))
        metafunc.parametrize(("family", "seeds"), runs)


@pytest.mark.timeout(600)
def test_every_seed_leaves_the_trace_it_left(family, seeds):
    expected = (PINNED / family.pinned).read_text().split()
    with ProcessPoolExecutor(
        WORKERS,
        mp_context=get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    ) as pool:
        each_steps, each_family = repeat(STEPS_DEFAULT), repeat(family)
        outcomes = list(pool.map(simulate, seeds, each_steps, each_family, chunksize=5))
    assert [each.seed for each in outcomes if each.digest != expected[each.seed]] == []


# The wire.


@pytest.mark.parametrize(
    "path", sorted((PINNED / "tapes").glob("*.tape")), ids=lambda path: path.stem
)
def test_clients_are_answered_with_the_same_bytes(path):
    lines = tape_lines(path)
    assert PinBench().replay(lines) == lines


# The disk.


@pytest.fixture(params=["killed", "stopped"])
def archive(request):
    with TemporaryDirectory() as folder:
        with tarfile.open(PINNED / f"{request.param}.tar.xz") as packed:
            packed.extractall(folder, filter="data")
        yield request.param, Path(folder)


def test_a_directory_is_read_as_it_was(archive):
    name, folder = archive
    now_ms = START_WALL_MS + LATER_MS
    bench = PinBench(folder, SMALL, wall_ms=now_ms)
    check(f"{name}.state.json", state(bench))
    definitions = ManagementTool(bench).get("/api/definitions")
    for user in definitions["users"]:
        if user["name"] == "guest":
            # Salted anew at each start.
            del user["password_hash"]
    check(f"{name}.definitions.json", definitions)
    lines = tape_lines(PINNED / f"{name}.tape")
    assert bench.replay(lines) == lines
    now_ms = bench.clock.wall_ms()
    bench.close()
    bench = PinBench(folder, SMALL, wall_ms=now_ms)
    check(f"{name}.state-after.json", state(bench))
    bench.close()


def test_a_log_is_shown_as_it_was(archive):
    name, folder = archive
    shown = [run("log", "check", str(folder)), run("log", "dump", "--body", str(folder))]
    shown.append(run("log", "dump", "--json", "--limit", "20", str(folder)))
    check(f"{name}.log.txt", "\n".join(shown).splitlines())


# The command line.


def run(*arguments):
    clean = {name: None for name in os.environ if name.startswith("PENSTOCK_")}
    result = CliRunner(env={**clean, "COLUMNS": "100"}).invoke(
        penstock, arguments, prog_name="penstock"
    )
    assert result.exit_code == 0, result.output
    return result.output


def commands(command, words=()):
    """The words of a command and of all below it."""
    # click keeps it from the first call, which in this process may have been without the group.
    command._help_option = None
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*words, name))


def test_every_command_explains_itself_in_the_same_words():
    texts = [f"$ {' '.join(words)}\n{run(*words, '--help')}" for words in commands(penstock)]
    check("commands.txt", "\n".join(texts).splitlines())


@pytest.mark.parametrize("form", ["toml", "json", "markdown"])
def test_the_settings_are_the_same(form):
    flags = () if form == "toml" else (f"--{form}",)
    check(f"settings.{form}.txt", run("settings", *flags).splitlines())


# HTTP.


@pytest.fixture(scope="module")
def busy():
    """Asks a broker that has clients of both protocols."""
    # There must be a finding whose shape is pinned, and nobody wants to wait five seconds for it.
    at_once = ("--set", "flow.behind_ms=0")
    with running_broker("--faults", *at_once) as broker, TrafficOf(broker) as traffic:
        yield traffic


class TrafficOf:
    """Clients of one broker, open until the end."""

    def __init__(self, broker):
        host, port = broker.address("amqp")
        self.amqp = pika.BlockingConnection(pika.ConnectionParameters(host, port))
        self.rocketmq = RemotingClient(*broker.address("rocketmq_broker"))
        self.http = HTTPConnection(*broker.address("http"), timeout=20)

    def __enter__(self):
        channel = self.amqp.channel()
        channel.exchange_declare("x", "topic", durable=True)
        channel.queue_declare("q", durable=True, arguments={"x-max-priority": 3})
        channel.queue_bind("q", "x", "a.#")
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("x", "a.b", b"body", pika.BasicProperties(delivery_mode=2))
        channel.basic_qos(prefetch_count=1)
        got = []
        channel.basic_consume("q", lambda *delivery: got.append(delivery), consumer_tag="c")
        while not got:
            self.amqp.process_data_events(1)
        self.rocketmq.create_topic("pinned", 2)
        self.rocketmq.create_group("readers")
        self.rocketmq.send("pinned", b"body", keys="k", tags="t")
        wanted = SubscriptionData(topic="pinned", sub_string="*")
        consumer = ConsumerData(group_name="readers", subscription_data_set=[wanted])
        self.rocketmq.heartbeat(consumer, producers=("senders",))
        self.rocketmq.pull("pinned", consumer_group="readers")
        return self

    def __exit__(self, *_):
        self.http.close()
        self.rocketmq.close()
        self.amqp.close()

    def get(self, path):
        login = b64encode(b"guest:guest").decode()
        self.http.request("GET", path, headers={"Authorization": f"Basic {login}"})
        response = self.http.getresponse()
        return response.status, response.read().decode()


def shape(value):
    """Names and types; a list is the shapes that are in it."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        found = {json.dumps(shape(each), sort_keys=True) for each in value}
        return [json.loads(each) for each in sorted(found)]
    return "number" if type(value) in (int, float) else type(value).__name__


def test_pages_have_the_same_shape(busy):
    found = {}
    for path in PAGES:
        status, text = busy.get(path)
        found[path] = [status, shape(json.loads(text))]
    check("pages.json", found)


def label_names(line):
    """The name of a metric and those of its labels, without values."""
    name, _, labels = line.rpartition(" ")[0].partition("{")
    return f"{name} {' '.join(sorted(each.partition('=')[0] for each in labels.split(',')))}"


@pytest.mark.parametrize("query", ["", "?compat=rabbitmq"])
def test_metrics_have_the_same_names_types_and_texts(busy, query):
    status, text = busy.get(f"/metrics{query}")
    assert status == 200
    lines = text.splitlines()
    samples = {label_names(line) for line in lines if not line.startswith("#")}
    comments = [line for line in lines if line.startswith("#")]
    check(f"metrics{query.replace('?compat=', '-')}.txt", [*comments, *sorted(samples)])
