"""Names without end: a client that makes the broker remember something for each of them."""

import pika
import pytest

from penstock.cli.remoting import RemotingClient
from penstock.wire.rocketmq.codes import RequestCode

NAMES = 10_500
"""More than there may be groups."""
FLIGHT = 500


def test_commits_for_groups_that_nobody_joined_leave_nothing(attack):
    with attack() as victim, RemotingClient(*victim.broker.address("rocketmq_broker")) as client:
        client.create_topic("named", 1)
        place = {"topic": "named", "queueId": "0", "commitOffset": "0"}
        for first in range(0, NAMES, FLIGHT):
            asked = [
                client.start(
                    RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "consumerGroup": f"g{n}"}
                )
                for n in range(first, first + FLIGHT)
            ]
            assert not any(client.wait(opaque).is_ok for opaque in asked)
        assert "not exist" not in client.pull("named", consumer_group="honest").remark
        assert "g7" not in victim.page("/api/groups")


def test_pulls_for_groups_without_end_leave_room_for_the_first_group_of_another(attack):
    with attack() as victim:
        at = victim.broker.address("rocketmq_broker")
        with RemotingClient(*at) as client:
            client.create_topic("named", 1)
            refused = 0
            for first in range(0, NAMES, FLIGHT):
                asked = [
                    client.start_pull("named", consumer_group=f"g{number}")
                    for number in range(first, first + FLIGHT)
                ]
                refused += sum(["made fewer than" in client.wait(each).remark for each in asked])
            assert refused
        # Not before: a connection that says nothing is closed after a while.
        with RemotingClient(*at) as honest:
            assert "exist" not in honest.pull("named", consumer_group="honest").remark
            assert "honest" in victim.page("/api/groups")


def test_queues_without_end_leave_room_for_the_first_queue_of_another(attack):
    with attack("--set", "topics.queues_max=500") as victim:
        url = pika.URLParameters(victim.broker.amqp_url)
        with pika.BlockingConnection(url) as hostile:
            channel = hostile.channel()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="made fewer than"):
                _declare(channel, 501)
            with pika.BlockingConnection(url) as honest:
                honest.channel().queue_declare("first")
            with RemotingClient(*victim.broker.address("rocketmq_broker")) as client:
                client.create_topic("mine", 1)


def _declare(channel, count):
    for number in range(count):
        channel.queue_declare(f"q{number}")
