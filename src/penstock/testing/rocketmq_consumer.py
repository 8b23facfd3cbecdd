"""A RocketMQ consumer on a ``RocketmqBench``: heartbeats, pulls, offsets and locks by one word.

bench = RocketmqBench()
consumer = BenchConsumer.on(bench, "c1")
consumer.heartbeat("readers", orders="TagA || TagB")
opaque = consumer.start_pull("orders", suspend_ms=15_000)     # held
bench.advance(15_000)
answer = consumer.answer_to(opaque)
"""

from __future__ import annotations

from typing import Any

from penstock.testing.rocketmq_bench import BenchClient, RocketmqBench
from penstock.wire.rocketmq.bodies import LockBatchBody, MessageQueue, encode_body
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.stored import StoredMessage, decode_all

GROUP = "readers"


class BenchConsumer(BenchClient):
    """One consumer."""

    client_id: str = ""

    @classmethod
    def on(cls, bench: RocketmqBench, client_id: str = "c1") -> BenchConsumer:
        """A new connection of a consumer."""
        consumer = cls(bench, bench.client().session.connection_id + 1000)
        consumer.client_id = client_id
        return consumer

    def heartbeat(
        self,
        group: str = GROUP,
        *,
        model: object = "CLUSTERING",
        version: int = 1,
        language: str = "TAG",
        **wanted: str,
    ) -> Command:
        """HEART_BEAT of one consumer group that wants these topics."""
        subscriptions = [
            {
                "topic": topic,
                "subString": expression,
                "subVersion": version,
                "expressionType": language,
            }
            for topic, expression in wanted.items()
        ]
        body = {
            "clientID": self.client_id,
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": model,
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": subscriptions,
                }
            ],
        }
        return self.ask(RequestCode.HEART_BEAT, body=encode_body(body))

    def start_pull(
        self,
        topic: str,
        offset: int = 0,
        *,
        group: str = GROUP,
        queue: int = 0,
        suspend_ms: int = 0,
        commit: int | None = None,
        subscription: str | None = "*",
        **others: Any,
    ) -> int:
        """PULL_MESSAGE; its opaque."""
        flag = 4 * (subscription is not None) + 2 * (suspend_ms > 0) + (commit is not None)
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(flag),
            "commitOffset": str(commit or 0),
            "suspendTimeoutMillis": str(suspend_ms),
            "subVersion": "0",
            **{name: str(value) for name, value in others.items()},
        }
        if subscription is not None:
            ext["subscription"] = subscription
        opaque = self.write(RequestCode.PULL_MESSAGE, ext)
        self._bench.settle()
        return opaque

    def pull(self, topic: str, offset: int = 0, **others: Any) -> Command:
        """A pull that is answered at once."""
        answer = self.answer_to(self.start_pull(topic, offset, **others))
        assert answer is not None, "the pull is held"
        return answer

    def answer_to(self, opaque: int) -> Command | None:
        """The answer to a request, if it has come."""
        found = [each for each in self._hear() if each.is_response and each.opaque == opaque]
        assert len(found) < 2, "answered twice"
        return found[0] if found else None

    def query(self, topic: str, queue: int = 0, *, group: str = GROUP, **others: str) -> Command:
        """QUERY_CONSUMER_OFFSET."""
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue), **others}
        return self.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)

    def commit(self, topic: str, offset: int, queue: int = 0, *, group: str = GROUP) -> Command:
        """UPDATE_CONSUMER_OFFSET."""
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
        return self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": str(offset)})

    def lock_body(self, topic: str, *numbers: int, group: str = GROUP) -> bytes:
        """The body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""
        name = self._bench.house.broker_name
        queues = [MessageQueue(topic=topic, broker_name=name, queue_id=each) for each in numbers]
        body = LockBatchBody(consumer_group=group, client_id=self.client_id, mq_set=queues)
        return encode_body(body)

    def told_codes(self) -> list[int]:
        """Codes of what the broker said by itself."""
        return [each.code for each in self.told]


def messages(answer: Command) -> list[StoredMessage]:
    """The messages in the body of an answer."""
    return decode_all(answer.body)


def bodies(answer: Command) -> list[bytes]:
    """Their bodies."""
    return [each.body for each in messages(answer)]
