"""Names without end: a client that makes the broker remember something for each of them."""

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
