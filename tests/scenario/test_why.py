"""``penstock why`` asked of a real broker that holds a real publisher."""

import json
import os
import signal
import subprocess
import sys

import pika
import pytest
from click.testing import CliRunner

from kit.amqp.load import AmqpFlood
from kit.flow_answers import finding, flow_answer, limit, stage
from penstock.cli.why import command
from penstock.testing.running import eventually, running_broker

LENGTH_MAX = 3
FULL = f"topic 'orders' holds {LENGTH_MAX} messages, limit {LENGTH_MAX} (length_max)"


@pytest.fixture(scope="module")
def broker():
    """One whose queue ``orders`` is full and holds who publishes to it; nobody consumes."""
    with running_broker() as started:
        host, port = started.address("amqp")
        with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
            limits = {"x-max-length": LENGTH_MAX, "x-overflow": "hold"}
            connection.channel().queue_declare("orders", durable=True, arguments=limits)
            endpoint = started.endpoints["amqp"]
            with AmqpFlood(endpoint, exchange="", key="orders", body=b"x" * 20):
                eventually(lambda: FULL in said(started).splitlines()[0])
                yield started


def said(broker, *arguments):
    result = CliRunner().invoke(command, [*arguments, "--data", str(broker.data)])
    assert result.exit_code == 0, result.exception
    return result.output


def test_a_held_publisher_is_named_with_what_holds_it_and_who_does_not_consume(broker):
    # Who holds somebody is missed when it is behind (flow.behind_ms), a few seconds later.
    eventually(lambda: "but nobody " in said(broker))
    lines = said(broker).splitlines()
    assert lines[0].startswith("connection amqp-")
    assert f"  -> {FULL}" in lines
    assert f"Also: {LENGTH_MAX} messages are ready in subscription orders/amqp, but nobody " in (
        "\n".join(lines)
    )
    (row,) = [line for line in lines if line.startswith("connection  ")]
    assert row.endswith(FULL)
    assert " held " in row


def test_the_queue_that_is_full_is_shown_with_who_waits_for_it(broker):
    page = json.loads(said(broker, "orders", "--json"))
    assert {each["kind"] for each in page["stages"]} == {"queue", "subscription"}
    waiting = [chain[0] for chain in page["chains"] if chain[-1] == FULL]
    assert any(each.startswith("connection amqp-") for each in waiting), page["chains"]


def test_answers_made_by_hand_have_the_fields_of_real_ones(broker):
    page = json.loads(said(broker, "--json"))
    assert page.keys() == flow_answer().keys()
    assert page["stages"][0].keys() == stage("queue", "hot").keys()
    assert page["findings"][0].keys() == finding("queue", "hot", "").keys()
    assert page["limits"][0].keys() == limit("", "", 0, 0).keys()


@pytest.fixture
def ctrl_c():
    """It reaches children: a suite that runs in the background ignores it, and so would they."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_watching_ends_with_ctrl_c_and_code_0(broker):
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "why", "--watch", "--data", str(broker.data)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert (FULL in line, process.returncode) == (True, 0)
