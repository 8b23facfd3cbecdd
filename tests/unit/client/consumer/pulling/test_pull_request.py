"""One pull: what is asked of whom, and what is made of the answer."""

import asyncio

import pytest

from penstock.client.consumer.pulling import PullClient, PullStatus
from penstock.client.consumer.subscription import subscription
from penstock.client.errors import ClientError, NoRoute, Unreachable
from penstock.client.requests import Pulled
from penstock.client.routes import BrokerAddress
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.headers import PullAnswer
from penstock.wire.rocketmq.stored import StoredMessage, encode_stored

QUEUE = QueueRef("t", "b", 2)
ALL = subscription("t", version=7)


class Instance:
    """A broker of one name with a master and a slave, as far as pulls are concerned."""

    def __init__(self, *answers, brokers=("b",)):
        self.requests = self.routes = self
        self.answers = list(answers)
        self.asked = []
        self.looked_up = 0
        self._brokers = brokers

    def readable(self, broker, suggested_id):
        if broker not in self._brokers:
            return None
        return BrokerAddress(f"{broker}-{suggested_id}", suggested_id)

    async def look_up(self, topic):
        self.looked_up += 1

    async def refresh(self, topics):
        self.looked_up += 1

    async def pull(self, address, header, *, timeout_ms, is_lite):
        self.asked.append((address, header, timeout_ms, is_lite))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def answered(*bodies, code=0, suggested=0, next_offset=0, tag=None):
    properties = b"TAGS\x01%b\x02" % tag if tag else b""
    stored = [
        encode_stored(StoredMessage(topic="t", body=body, queue_offset=n, properties=properties))
        for n, body in enumerate(bodies)
    ]
    header = PullAnswer(
        suggest_which_broker_id=suggested,
        next_begin_offset=next_offset,
        min_offset=0,
        max_offset=99,
    )
    return Pulled(code, header, b"".join(stored))


def pulls(instance, *, times=1, wanted=ALL, wait_ms=0, **more):
    requests = PullClient(instance, "g", timeout_ms=10_000, **more)

    async def pull():
        return [
            await requests.pull(QUEUE, 5, wanted, count=8, wait_ms=wait_ms) for _ in range(times)
        ]

    return asyncio.run(pull())


def test_a_pull_carries_its_subscription_and_commits_nothing():
    instance = Instance(answered(b"a", next_offset=6))
    (result,) = pulls(instance)
    ((address, header, timeout_ms, is_lite),) = instance.asked
    assert (address, timeout_ms, is_lite) == ("b-0", 10_000, False)
    assert (header.queue_id, header.queue_offset, header.max_msg_nums) == (2, 5, 8)
    assert (header.sys_flag, header.subscription, header.expression_type) == (4, "*", "TAG")
    assert [message.body for message in result] == [b"a"]
    assert (result.status, result.next_offset, result.max_offset) == (PullStatus.FOUND, 6, 99)


def test_a_pull_that_waits_says_so_and_has_so_much_more_time():
    instance = Instance(answered(code=19))
    pulls(instance, wait_ms=20_000, is_lite=True)
    ((_, header, timeout_ms, is_lite),) = instance.asked
    assert (header.sys_flag, header.suspend_timeout_millis) == (2 | 4 | 16, 20_000)
    assert (timeout_ms, is_lite) == (30_000, True)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, PullStatus.FOUND),
        (19, PullStatus.NO_NEW_MESSAGE),
        (20, PullStatus.NO_MATCHED_MESSAGE),
        (21, PullStatus.OFFSET_MOVED),
    ],
)
def test_codes_that_are_no_errors_are_a_status(code, status):
    (result,) = pulls(Instance(answered(code=code, next_offset=3)))
    assert (result.status, result.next_offset, bool(result)) == (status, 3, False)


def test_the_broker_that_was_suggested_is_asked_next():
    instance = Instance(answered(suggested=1), answered(suggested=0), answered())
    pulls(instance, times=3)
    assert [each[0] for each in instance.asked] == ["b-0", "b-1", "b-0"]


def test_tags_are_compared_by_their_text():
    wanted = subscription("t", tags="A", version=1)
    instance = Instance(answered(b"a", tag=b"A"), answered(b"b", tag=b"B"))
    assert [len(each) for each in pulls(instance, times=2, wanted=wanted)] == [1, 0]


def test_a_broker_that_cannot_be_reached_is_looked_up_for_the_next_time():
    instance = Instance(Unreachable("b-0", "gone"))
    with pytest.raises(Unreachable):
        pulls(instance)
    assert instance.looked_up == 1


def test_a_broker_nobody_knows_has_no_route():
    instance = Instance(brokers=())
    with pytest.raises(NoRoute, match="broker b has no address"):
        pulls(instance)
    assert instance.looked_up == 1


def test_an_answer_that_cannot_be_read_is_an_error_of_the_client():
    broken = answered()
    broken.body = b"\x00\x00\x00\x10nonsense"
    with pytest.raises(ClientError, match="cannot be read"):
        pulls(Instance(broken))
