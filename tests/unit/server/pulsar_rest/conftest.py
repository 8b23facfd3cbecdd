"""A broker in the test's hands, somebody who asks it by REST, and a client of its topics."""

import pytest

from kit.pulsar.bench import PulsarBench, message_tail
from kit.pulsar.rest_tool import RestTool
from penstock.adapters.pulsar.naming import parse_name
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

TOPIC = "persistent://public/default/orders"


class Shop:
    """A client with one producer and any number of consumers on the topic ``orders``."""

    def __init__(self, bench, topic=TOPIC):
        self.bench = bench
        self.topic = topic
        self.client = bench.client()
        answer = self.client.call(
            "PRODUCER", topic=topic, producer_id=1, request_id=1, producer_name="till"
        )
        assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
        self._sent = 0
        self._consumers = 0

    def send(self, *bodies, tail=b""):
        """One entry, a batch of several; its first offset."""
        now_ms = self.bench.clock.wall_ms()
        tail = tail or message_tail(self._sent, *bodies, publish_time=now_ms)
        self.client.publish(1, self._sent, tail=tail, num_messages=max(1, len(bodies)))
        self._sent += 1
        answer = self.client.next()
        assert answer.type == BaseCommand.SEND_RECEIPT, answer
        return answer.send_receipt.message_id.entryId

    def subscribe(self, name="s", kind="Exclusive", *, permits=0, topic="", **fields):
        """A consumer; its id."""
        self._consumers += 1
        number = self._consumers
        answer = self.client.call(
            "SUBSCRIBE",
            topic=topic or self.topic,
            subscription=name,
            subType=kind,
            consumer_id=number,
            request_id=100 + number,
            initialPosition="Earliest",
            **fields,
        )
        assert answer.type == BaseCommand.SUCCESS, answer
        if permits:
            self.client.say("FLOW", consumer_id=number, messagePermits=permits)
        return number

    def ack(self, consumer_id, *entries):
        ledger = self.bench.broker.topics.find(parse_name(self.topic)).queue.incarnation
        ids = [{"ledgerId": ledger, "entryId": each} for each in entries]
        self.client.say("ACK", consumer_id=consumer_id, ack_type="Individual", message_id=ids)
        self.bench.settle()

    def delivered(self):
        """Entries that came since it was last asked."""
        return [
            each.message.message_id.entryId
            for each in self.client.commands()
            if each.type == BaseCommand.MESSAGE
        ]

    def kinds(self):
        return [BaseCommand.Type.Name(each.type) for each in self.client.commands()]


@pytest.fixture
def bench():
    return PulsarBench()


@pytest.fixture
def rest(bench):
    return RestTool(bench)


@pytest.fixture
def shop(bench):
    return Shop(bench)


@pytest.fixture
def shop_of(bench):
    """Shops of other topics."""
    return lambda topic: Shop(bench, topic)
