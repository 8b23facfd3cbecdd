"""Queues shared by the broker's word."""

import asyncio

from penstock.client.consumer.pop_sharing import BrokerSharing
from penstock.client.consumer.sharing import Share
from penstock.client.errors import BrokerRefused, TimedOut
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import MessageQueue, QueueAssignment, RequestMode

QUEUES = [QueueRef("t", "b", number) for number in range(4)]
DIVIDED = Share(QUEUES, QUEUES[:1])


class Divided:
    async def share(self, topic):
        return DIVIDED


class Places:
    def __init__(self):
        self.now = None
        self.mode = None

    def retain(self, topic, places):
        self.now = set(places)
        return True

    async def mode_seen(self, topic, mode):
        self.mode = mode


def shared(answer, places=None):
    """(what rebalancing gets, the places to pop from, how often the broker was asked)."""
    places = places or Places()
    asked = []

    async def ask(topic):
        asked.append(topic)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def twice():
        sharing = BrokerSharing(ask, places, lambda _: QUEUES, Divided())
        await sharing.share("t")
        return await sharing.share("t")

    return asyncio.run(twice()), places.now, len(asked)


def told(*queues, mode):
    return [
        QueueAssignment(
            message_queue=MessageQueue(topic="t", broker_name="b", queue_id=queue), mode=mode
        )
        for queue in queues
    ]


def test_queues_to_pull_are_the_share_and_places_to_pop_go_to_pop_mode():
    answer = [*told(2, mode=RequestMode.PULL), *told(-1, mode=RequestMode.POP)]
    assert shared(answer) == (Share(QUEUES, [QUEUES[2]]), {QueueRef("t", "b", -1)}, 2)


def test_pop_mode_hears_how_a_topic_is_read():
    places = Places()
    shared(told(1, 2, mode=RequestMode.PULL), places)
    assert places.mode is RequestMode.PULL


def test_an_empty_answer_leaves_everything_and_none_keeps_it():
    assert shared([]) == (Share(QUEUES, []), set(), 2)
    assert shared(None) == (None, None, 2)


def test_a_broker_that_cannot_be_asked_keeps_everything():
    assert shared(TimedOut("b", 3000)) == (None, None, 2)
    assert shared(BrokerRefused(1, "no", "b")) == (None, None, 2)


def test_where_brokers_do_not_assign_the_members_divide():
    assert shared(BrokerRefused(3, "not supported", "b")) == (DIVIDED, None, 1)
