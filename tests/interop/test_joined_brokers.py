"""Two brokers, one name server: a topic spread over both, and a broker that leaves (D20)."""

import time

import pytest

from penstock.cli.remoting import RemotingClient
from penstock.testing.running import running_broker

SECONDS_MAX = 15


def brokers(names, topic):
    route = names.route(topic)
    return {each.broker_name for each in route.queue_datas} if route else set()


def wait_until(condition):
    until = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def pair():
    with running_broker("--broker-name", "a") as first:
        host, port = first.address("rocketmq")
        with running_broker(
            "--rocketmq", "off", "--join", f"{host}:{port}", "--broker-name", "b"
        ) as second:
            yield first, second


def test_a_topic_on_two_brokers_has_both_in_its_route_until_one_leaves(pair):
    first, second = pair
    names = RemotingClient(*first.address("rocketmq"))
    ids = set()
    for broker in pair:
        client = RemotingClient(*broker.address("rocketmq_broker"))
        client.create_topic("spread", 2)
        ids.add(client.send("spread", b"x").ext["msgId"])
        client.close()
    assert len(ids) == 2
    wait_until(lambda: brokers(names, "spread") == {"a", "b"})
    addresses = {
        each.broker_name: each.broker_addrs["0"] for each in names.route("spread").broker_datas
    }
    assert addresses["b"] == second.endpoints["rocketmq_broker"]
    second.stop()
    wait_until(lambda: brokers(names, "spread") == {"a"})
    names.close()
