"""Every broker of a cluster divides a topic alike, whether it is the name server or joined."""

import contextlib
import json
import time

import pytest

from penstock.cli.remoting import RemotingClient
from penstock.model.assignment import STRATEGIES
from penstock.testing.running import running_broker
from penstock.wire.rocketmq.bodies import encode_body
from penstock.wire.rocketmq.codes import RequestCode

SECONDS_MAX = 15
TOPIC, GROUP = "spread-wide", "spread-readers"
MEMBERS = ("c0", "c1", "c2")
QUEUES = {(broker, queue) for broker in "abc" for queue in range(2)}
BY_CONFIGURATION = ("CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY-AVG")
"""What they divide by is known to clients only; RocketMQ's brokers cannot divide so either."""


@pytest.fixture(scope="module")
def cluster():
    """One client of the broker port of a (name server), b and c (joined)."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(running_broker("--broker-name", "a"))
        join = ("--rocketmq", "off", "--join", first.endpoints["rocketmq"])
        others = [
            stack.enter_context(running_broker(*join, "--broker-name", name)) for name in "bc"
        ]
        names = stack.enter_context(RemotingClient(*first.address("rocketmq")))
        clients = {}
        for name, broker in zip("abc", (first, *others), strict=True):
            place = broker.address("rocketmq_broker")
            clients[name] = stack.enter_context(RemotingClient(*place))
            assert clients[name].create_topic(TOPIC, 2).is_ok
            for member in MEMBERS:
                heartbeat(stack.enter_context(RemotingClient(*place)), member)
        wait_until(lambda: len(names.route(TOPIC).queue_datas) == 3)
        for client in clients.values():
            # On a busy machine the first question may not be answered in time: keep, ask again.
            wait_until(lambda client=client: assigned(client, "c0") is not None)
        yield clients


def wait_until(condition):
    until = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def heartbeat(client, member):
    subscription = {"topic": TOPIC, "subString": "*", "subVersion": 1}
    data = {
        "groupName": GROUP,
        "consumeType": "CONSUME_POP",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription],
    }
    body = encode_body({"clientID": member, "consumerDataSet": [data]})
    assert client.request(RequestCode.HEART_BEAT, body=body).is_ok


def set_mode(cluster, mode, share):
    body = {"topic": TOPIC, "consumerGroup": GROUP, "mode": mode, "popShareQueueNum": share}
    for client in cluster.values():
        answer = client.request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_body(body))
        assert answer.is_ok


def assigned(client, member, *, topic=TOPIC, strategy="AVG"):
    """(broker, queue) of a member, in order; None = keep."""
    body = {
        "topic": topic,
        "consumerGroup": GROUP,
        "clientId": member,
        "strategyName": strategy,
        "messageModel": "CLUSTERING",
    }
    answer = client.request(RequestCode.QUERY_ASSIGNMENT, body=encode_body(body))
    assert answer.is_ok
    found = json.loads(answer.body)["messageQueueAssignments"]
    if found is None:
        return None
    queues = [each["messageQueue"] for each in found]
    return [(each["brokerName"], each["queueId"]) for each in queues]


def agreed(cluster, member, **more):
    """What every broker says alike."""
    said = [assigned(client, member, **more) for client in cluster.values()]
    assert said[1:] == said[:-1]
    return said[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_gives_every_queue_of_the_cluster_to_one_member(cluster, strategy):
    set_mode(cluster, "PULL", -1)
    found = [agreed(cluster, member, strategy=strategy) for member in MEMBERS]
    given = [queue for queues in found for queue in queues]
    assert len(given) == len(QUEUES)
    assert set(given) == QUEUES


@pytest.mark.parametrize("strategy", BY_CONFIGURATION)
def test_a_strategy_that_needs_a_configuration_means_keep(cluster, strategy):
    assert agreed(cluster, "c0", strategy=strategy) is None


def test_pop_without_a_share_is_every_broker_whole(cluster):
    set_mode(cluster, "POP", -1)
    assert agreed(cluster, "c1") == [("a", -1), ("b", -1), ("c", -1)]


def test_pop_with_a_share_is_the_own_part_and_the_next_members(cluster):
    set_mode(cluster, "POP", 1)
    assert agreed(cluster, "c0") == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert agreed(cluster, "c2") == [("c", 0), ("c", 1), ("a", 0), ("a", 1)]


def test_nothing_for_a_stranger_and_keep_for_an_unknown_topic(cluster):
    set_mode(cluster, "PULL", -1)
    assert agreed(cluster, "stranger") == []
    assert agreed(cluster, "c0", topic="nowhere") is None
