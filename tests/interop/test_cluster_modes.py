"""``penstock groups mode`` tells every broker of the cluster, whichever of them is asked."""

import json
import socket
import time

import pytest
from click.testing import CliRunner

from penstock.cli.groups import command as groups
from penstock.cli.remoting import RemotingClient
from penstock.model.errors import NotFound, PenstockError
from penstock.testing.running import running_broker
from penstock.wire.rocketmq.bodies import Cluster, decode_body
from penstock.wire.rocketmq.codes import RequestCode

SECONDS_MAX = 15
TOPIC, GROUP = "wide", "wide-readers"


def listed(names):
    answer = names.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    return set(decode_body(answer.body, Cluster).broker_addr_table)


def wait_listed(names, *brokers):
    until = time.monotonic() + SECONDS_MAX
    while listed(names) != set(brokers):
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def first():
    with running_broker("--broker-name", "a") as broker:
        yield broker


@pytest.fixture(scope="module")
def names(first):
    with RemotingClient(*first.address("rocketmq")) as client:
        yield client


@pytest.fixture(scope="module")
def pair(first, names):
    join = ("--rocketmq", "off", "--join", first.endpoints["rocketmq"])
    with running_broker(*join, "--broker-name", "b") as second:
        for broker in (first, second):
            with RemotingClient(*broker.address("rocketmq_broker")) as client:
                client.create_topic(TOPIC, 1)
                client.create_group(GROUP)
                place = {"topic": TOPIC, "consumerGroup": GROUP, "queueId": "0"}
                client.request(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": "0"})
        wait_listed(names, "a", "b")
        yield first, second


def run(broker, *arguments):
    return CliRunner().invoke(groups, [*arguments, "--endpoint", broker.endpoints["http"]])


def switch(broker, *arguments, topic=TOPIC):
    return run(broker, "mode", GROUP, "--topic", topic, *arguments)


def modes(*brokers):
    shown = [json.loads(run(each, "show", GROUP, "--json").stdout) for each in brokers]
    return [(each["topics"][0]["mode"], each["topics"][0]["share"]) for each in shown]


@pytest.mark.parametrize("asked", [0, 1], ids=["name-server", "joined"])
def test_both_brokers_are_set_whichever_is_asked(pair, asked):
    result = switch(pair[asked], "pop", "--share", "3")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"broker {name} at {each.endpoints['rocketmq_broker']}: group '{GROUP}' reads 'wide' by pop"
        for name, each in zip("ab", pair, strict=True)
    ]
    assert modes(*pair) == [("pop", 3), ("pop", 3)]
    told = json.loads(switch(pair[asked], "pull", "--json").stdout)
    assert [(each["broker"], each["error"]) for each in told["brokers"]] == [("a", ""), ("b", "")]
    assert [mode for mode, _ in modes(*pair)] == ["pull", "pull"]


def test_a_broker_that_does_not_answer_is_named_and_the_others_are_set(pair, names):
    with socket.socket() as nobody, RemotingClient(*pair[0].address("rocketmq")) as lost:
        # Bound and not listening: every dial is refused, and nobody else gets the port.
        nobody.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{nobody.getsockname()[1]}"
        header = {"brokerName": "aa", "brokerAddr": place, "clusterName": "DefaultCluster"}
        assert lost.request(RequestCode.REGISTER_BROKER, {**header, "brokerId": "0"}).is_ok
        wait_listed(names, "a", "aa", "b")
        result = switch(pair[1], "pop", "--share", "2", "--json")
        assert isinstance(result.exception, PenstockError)
        assert f"not set on broker aa at {place}: it does not answer" in str(result.exception)
        told = {each["broker"]: each["error"] for each in json.loads(result.stdout)["brokers"]}
        assert (told["a"], bool(told["aa"]), told["b"]) == ("", True, "")
        assert modes(*pair) == [("pop", 2), ("pop", 2)]
    wait_listed(names, "a", "b")


def test_a_topic_that_no_broker_has_is_told_before_anything_is_set(pair):
    result = switch(pair[1], "pop", topic="wyde")
    assert isinstance(result.exception, NotFound)
    assert "no topic 'wyde'" in str(result.exception)


def test_a_refusal_is_told_in_the_words_of_each_broker(pair):
    with RemotingClient(*pair[0].address("rocketmq_broker")) as client:
        client.create_topic("%RETRY%wide", 1)
    result = switch(pair[0], "pop", topic="%RETRY%wide")
    assert str(result.exception).count("retry topic is not allowed to set mode") == 2


def test_without_its_name_server_a_joined_broker_sets_nothing():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{nobody.getsockname()[1]}"
        with running_broker("--rocketmq", "off", "--join", place) as alone:
            result = switch(alone, "pop")
            assert f"name server {place} does not answer" in str(result.exception)
