"""Pops as a client makes them: receipts are built from the lists of the answer.

    popper = Popper(bench, "orders", "g")
    (message,) = popper.pop().messages
    popper.ack(message)

Requests that wait are written with ``start_pop`` and looked for with ``heard``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import msgspec

from penstock.testing.rocketmq_bench import BenchClient, RocketmqBench
from penstock.wire.rocketmq.bodies import encode_body
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.pop_handle import (
    PopHandle,
    RetryFlag,
    parse_offsets,
    parse_order_counts,
    parse_start_offsets,
)
from penstock.wire.rocketmq.stored import StoredMessage, decode_stored

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
