"""RocketMQ's broker on a workbench: sessions fed with bytes, time by hand, plugs to pull.

    bench = RocketmqBench()
    client = bench.client()
    answer = client.send("orders", b"body", KEYS="k1")
    bench.advance(10_000)               # engine and broker alike
    bench.kill()                        # clients are gone, the log is not

What a client is told without asking (checks, notices) is in ``client.told``.

Not here: sockets (``tests/interop``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from kit.workbench import TURNS_MAX, Workbench
from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.broker import RocketmqBroker
from penstock.adapters.rocketmq.connection import RocketmqConnection
from penstock.adapters.rocketmq.factory import HANDLERS, open_broker
from penstock.model.errors import InvariantBroken
from penstock.model.ids import ConnectionId
from penstock.wire.rocketmq.bodies import (
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    ProducerData,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command
from penstock.wire.rocketmq.frames import RemotingFrames, decode, encode
from penstock.wire.rocketmq.message_id import parse_offset_message_id
from penstock.wire.rocketmq.pop_handle import (
    PopHandle,
    RetryFlag,
    parse_offsets,
    parse_order_counts,
    parse_start_offsets,
)
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import StoredMessage, decode_all, decode_stored

BROKER_PORT = 10911


class RocketmqBench(Workbench):
    """A workbench with a RocketMQ broker on it."""

    broker: RocketmqBroker

    def _open(self) -> None:
        super()._open()
        self.broker = open_broker(self.engine, self.clock, self.settings, broker_port=BROKER_PORT)

    def client(self) -> BenchClient:
        """A new connection."""
        self._connections += 1
        return BenchClient(self, self._connections)

    def stored(self, topic: str, queue: int = 0) -> list[StoredMessage]:
        """The messages that a queue of a topic shows, as they lie in the log."""
        place = self.broker.topics.find(topic)
        if place is None:
            return []
        return [decode_stored(each.origin)[0] for each in self.records(place.topic, queue)]

    def advance(self, ms: int) -> None:
        """Let time pass; whatever falls due on the way is done and made durable."""
        self.settle()
        end_ms = self.clock.monotonic_ms() + ms
        for _ in range(TURNS_MAX):
            times = (self.engine.next_deadline_ms(), self.broker.timers.next_deadline_ms())
            due_ms = min([each for each in times if each is not None], default=end_ms)
            now_ms = self.clock.monotonic_ms()
            self.clock.advance(max(0, min(due_ms, end_ms) - now_ms))
            now_ms = self.clock.monotonic_ms()
            self.broker.timers.due(now_ms)
            self.engine.turn()
            self.settle()
            if due_ms >= end_ms:
                return
        raise InvariantBroken(f"more than {TURNS_MAX} deadlines within {ms} ms")


class BenchClient:
    """A client that speaks through memory."""

    def __init__(self, bench: RocketmqBench, number: int) -> None:
        self._bench = bench
        self._frames = RemotingFrames()
        self._opaque = 0
        self._heard: list[Command] = []
        peer = Peer("127.0.0.1", 50_000 + number, "127.0.0.1", BROKER_PORT)
        self.session = RocketmqConnection(
            ConnectionId(number), peer, bench.broker, HANDLERS, lambda: None
        )

    def write(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        is_oneway: bool = False,
        version: int = 479,
    ) -> int:
        """Send a request and do not wait; its opaque."""
        self._opaque += 1
        flag = FLAG_ONEWAY if is_oneway else 0
        command = Command(int(code), ext or {}, body, self._opaque, flag, version=version)
        self.session.receive(encode(command))
        return self._opaque

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, version: int = 479
    ) -> Command:
        """Send a request and let the broker come to rest; its answer."""
        opaque = self.write(code, ext, body, version=version)
        self._bench.settle()
        found = [each for each in self._hear() if each.is_response and each.opaque == opaque]
        if len(found) != 1:
            raise InvariantBroken(f"request {code} has {len(found)} answers")
        self._heard.remove(found[0])
        return found[0]

    def send(
        self,
        topic: str,
        body: bytes = b"body",
        *,
        queue: int = 0,
        group: str = "producers",
        header: dict[str, str] | None = None,
        version: int = 479,
        **properties: str,
    ) -> Command:
        """SEND_MESSAGE; the answer."""
        ext = {
            "producerGroup": group,
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": str(queue),
            "bornTimestamp": str(self._bench.clock.wall_ms()),
            "properties": format_properties(properties).decode(),
            **(header or {}),
        }
        return self.ask(RequestCode.SEND_MESSAGE, ext, body, version=version)

    def join_producers(self, group: str = "producers") -> None:
        """Become, or stay, a member of a producer group: a heartbeat."""
        data = HeartbeatData(
            client_id=f"client-{self.session.connection_id}",
            producer_data_set=[ProducerData(group_name=group)],
        )
        self.ask(RequestCode.HEART_BEAT, body=encode_body(data))

    def close(self) -> None:
        """Go."""
        self.session.closed("test")

    @property
    def told(self) -> list[Command]:
        """What the broker asked or said by itself so far."""
        return [each for each in self._hear() if not each.is_response]

    def _hear(self) -> list[Command]:
        for data in self.session.outgoing():
            self._frames.feed(data)
        self._heard += [decode(frame) for frame in self._frames.frames()]
        return self._heard


# ---- rocketmq consumer --------------------------------------------------------------------------
# A RocketMQ consumer on a ``RocketmqBench``: heartbeats, pulls, offsets and locks by one word.
#
# | bench = RocketmqBench()
# | consumer = BenchConsumer.on(bench, "c1")
# | consumer.heartbeat("readers", orders="TagA || TagB")
# | opaque = consumer.start_pull("orders", suspend_ms=15_000)     # held
# | bench.advance(15_000)
# | answer = consumer.answer_to(opaque)


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
        name = self._bench.broker.broker_name
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


# ---- rocketmq pop -------------------------------------------------------------------------------
# Pops as a client makes them: receipts are built from the lists of the answer.
#
# | popper = Popper(bench, "orders", "g")
# | (message,) = popper.pop().messages
# | popper.ack(message)
#
# Requests that wait are written with ``start_pop`` and looked for with ``heard``.


BROKER = "penstock"

FIRST_NUMBER = 1_000
"""Connection ids of poppers, away from those of other clients."""


def is_void(answer: Command) -> bool:
    """Whether an acknowledgement came under a receipt that does not count any more."""
    return answer.code == 0 and "is void" in (answer.remark or "")


@dataclass
class Popped:
    """One message and its receipt."""

    message: StoredMessage
    handle: PopHandle
    count: int = 0
    """What an orderly answer says of earlier deliveries."""

    @property
    def body(self) -> bytes:
        """The payload."""
        return self.message.body

    @property
    def place(self) -> tuple[int, int, int]:
        """(retry flag, queue, offset): which message this is."""
        return self.handle.retry_flag, self.handle.queue_id, self.handle.offset


@dataclass
class PopAnswered:
    """The answer to a pop."""

    code: int
    messages: list[Popped] = field(default_factory=list)
    rest: int = 0
    ext: dict[str, str] = field(default_factory=dict)
    remark: str | None = None

    @property
    def bodies(self) -> list[bytes]:
        """The payloads, in order."""
        return [each.body for each in self.messages]


class Popper(BenchClient):
    """A member of a group that pops."""

    _numbers = count(FIRST_NUMBER)

    def __init__(self, bench: RocketmqBench, topic: str = "orders", group: str = "g") -> None:
        super().__init__(bench, next(self._numbers))
        self.topic = topic
        self.group = group

    def pop(self, queue: int = -1, messages: int = 32, **more: object) -> PopAnswered:
        """POP_MESSAGE that does not wait."""
        return self.answered(self.ask(RequestCode.POP_MESSAGE, self._pop(queue, messages, more)))

    def start_pop(self, queue: int = -1, messages: int = 32, **more: object) -> int:
        """POP_MESSAGE that may wait; its opaque."""
        more = {"poll_time": 15_000, **more}
        return self.write(RequestCode.POP_MESSAGE, self._pop(queue, messages, more))

    def heard(self, opaque: int) -> PopAnswered | None:
        """The answer to a pop that waited, if there is one by now."""
        for answer in self._hear():
            if answer.is_response and answer.opaque == opaque:
                self._heard.remove(answer)
                return self.answered(answer)
        return None

    def ack(self, popped: Popped) -> Command:
        """ACK_MESSAGE."""
        return self.ask(RequestCode.ACK_MESSAGE, self._receipt(popped))

    def start_ack(self, popped: Popped) -> int:
        """ACK_MESSAGE whose answer nobody waits for; its opaque."""
        return self.write(RequestCode.ACK_MESSAGE, self._receipt(popped))

    def ack_all(self, popped: list[Popped]) -> Command:
        """BATCH_ACK_MESSAGE."""
        batches: dict[tuple[int, int, int, int], list[Popped]] = {}
        for each in popped:
            handle = each.handle
            key = (handle.retry_flag, handle.queue_id, handle.start_offset, handle.pop_time)
            batches.setdefault(key, []).append(each)
        acks = []
        for (flag, queue, start, pop_time), members in batches.items():
            bits = sum(1 << (each.handle.offset - start) for each in members)
            acks.append(
                {
                    "c": self.group,
                    "t": self.topic,
                    "r": str(flag),
                    "so": start,
                    "q": queue,
                    "rq": members[0].handle.revive_qid,
                    "pt": pop_time,
                    "it": members[0].handle.invisible_time,
                    "b": bits.to_bytes((bits.bit_length() + 7) // 8, "little"),
                }
            )
        body = encode_body({"brokerName": BROKER, "acks": acks})
        return self.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)

    def change(self, popped: Popped, invisible_ms: int) -> Popped | Command:
        """CHANGE_MESSAGE_INVISIBLETIME: the message with its new receipt, or the refusal."""
        ext = {**self._receipt(popped), "invisibleTime": str(invisible_ms)}
        answer = self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        if answer.code:
            return answer
        handle = msgspec.structs.replace(
            popped.handle,
            pop_time=int(answer.ext["popTime"]),
            invisible_time=int(answer.ext["invisibleTime"]),
            revive_qid=int(answer.ext["reviveQid"]),
        )
        return Popped(popped.message, handle)

    def answered(self, answer: Command) -> PopAnswered:
        """An answer with its receipts."""
        ext = answer.ext
        if answer.code:
            return PopAnswered(answer.code, ext=ext, remark=answer.remark)
        starts = parse_start_offsets(ext["startOffsetInfo"])
        listed = parse_offsets(ext["msgOffsetInfo"])
        counts = parse_order_counts(ext.get("orderCountInfo", ""))
        found: list[Popped] = []
        at = 0
        while at < len(answer.body):
            message, at = decode_stored(answer.body, at)
            flag = int(message.topic.startswith("%RETRY%"))
            place = (flag, message.queue_id)
            assert message.queue_offset in listed[place], "a message that the lists do not name"
            handle = PopHandle(
                starts[place],
                int(ext["popTime"]),
                int(ext["invisibleTime"]),
                int(ext["reviveQid"]),
                flag,
                BROKER,
                message.queue_id,
                message.queue_offset,
            )
            found.append(Popped(message, handle, counts.get((*place, message.queue_offset), 0)))
        assert len(found) == sum(map(len, listed.values())), "the lists name what was not sent"
        return PopAnswered(0, found, int(ext["restNum"]), ext)

    def _receipt(self, popped: Popped) -> dict[str, str]:
        handle = popped.handle
        topic = self.topic
        if handle.retry_flag == RetryFlag.RETRY_V1:
            topic = f"%RETRY%{self.group}_{self.topic}"
        return {
            "consumerGroup": self.group,
            "topic": topic,
            "queueId": str(handle.queue_id),
            "extraInfo": str(handle),
            "offset": str(handle.offset),
        }

    def _pop(self, queue: int, messages: int, more: dict[str, object]) -> dict[str, str]:
        ext = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": str(queue),
            "maxMsgNums": str(messages),
            "invisibleTime": "60000",
            "pollTime": "0",
            "bornTime": str(self._bench.clock.wall_ms()),
            "initMode": "0",
        }
        for name, value in more.items():
            first, *rest = name.split("_")
            text = str(value).lower() if isinstance(value, bool) else str(value)
            ext[first + "".join(part.title() for part in rest)] = text
        return ext


# ---- rocketmq producer --------------------------------------------------------------------------
# A transactional RocketMQ producer on a ``RocketmqBench``: half messages, decisions, questions.
#
# | producer = BenchProducer.on(bench)
# | answer = producer.send_half(b"body")
# | producer.end(answer, COMMIT)


PRODUCER_GROUP = "producers"
COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"


class BenchProducer(BenchClient):
    """One producer, and a member of its group."""

    @classmethod
    def on(cls, bench: RocketmqBench, group: str = PRODUCER_GROUP) -> BenchProducer:
        """A new connection that has sent its first heartbeat."""
        producer = cls(bench, int(bench.client().session.connection_id) + 1000)
        producer.join_producers(group)
        return producer

    def send_half(self, body: bytes = b"half", **properties: Any) -> Command:
        """A half message for ``orders``."""
        answer = self.send("orders", body, TRAN_MSG="true", PGROUP=PRODUCER_GROUP, **properties)
        assert answer.code == 0, answer.remark
        return answer

    def ending(self, answer: Command, decision: str, **changes: str) -> dict[str, str]:
        """What ends the transaction of this send."""
        return {
            "producerGroup": PRODUCER_GROUP,
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": str(position_of(answer)),
            "commitOrRollback": decision,
            "fromTransactionCheck": "false",
            "msgId": answer.ext["transactionId"],
            **changes,
        }

    def end(self, answer: Command, decision: str, **changes: str) -> Command:
        """END_TRANSACTION."""
        return self.ask(RequestCode.END_TRANSACTION, self.ending(answer, decision, **changes))

    @property
    def checks(self) -> list[Command]:
        """The questions so far."""
        return [each for each in self.told if each.code == RequestCode.CHECK_TRANSACTION_STATE]

    def live(self, ms: int, heartbeat_ms: int = 30_000) -> None:
        """Let time pass while it says every 30 s that it lives."""
        while ms > 0:
            self.join_producers()
            self._bench.advance(min(ms, heartbeat_ms))
            ms -= heartbeat_ms


def position_of(answer: Command) -> int:
    """The commitLogOffset in the id that a send was answered with."""
    return parse_offset_message_id(answer.ext["msgId"])[1]
