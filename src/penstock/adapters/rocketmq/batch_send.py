"""A batch: several messages of one topic and queue in one request, stored as separate messages.

They travel as one publish list and are answered once, when the last of them is durable: ``msgId``
is the list of their ids, ``queueOffset`` the first offset. What is wrong with one of them is found
before any is stored.

Invariant: one answer per batch, whatever part of it the engine refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.adapters.rocketmq.busy import refusal_answer
from penstock.adapters.rocketmq.naming import RETRY_PREFIX
from penstock.adapters.rocketmq.replies import Answer
from penstock.adapters.rocketmq.send_keys import keys_of
from penstock.adapters.rocketmq.storing import Storing
from penstock.model.refusal import Refusal
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import FLAG_RESPONSE, Command, Malformed
from penstock.wire.rocketmq.frames import REGION, SendFrame, encode
from penstock.wire.rocketmq.headers import SendAnswer, fields
from penstock.wire.rocketmq.message_id import offset_message_id
from penstock.wire.rocketmq.stored import BatchItem, split_batch, stored_record

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.send import Sender
    from penstock.adapters.rocketmq.session import Session
    from penstock.adapters.rocketmq.topics import Place


def send_batch(sender: Sender, send: SendFrame, place: Place, number: int) -> None:
    """Check all of it, then publish all of it."""
    session, header = sender.session, send.header
    house = session.house
    items = _items(send, place)
    tally = _Tally(session, send, number, len(items))
    storings: list[Storing] = []
    for item in items:
        sender.check_sizes(len(item.body), len(item.properties))
        unique_key, properties = sender.complete(item.properties)
        tally.unique_key = tally.unique_key or unique_key
        record = stored_record(
            place.name,
            number,
            item.body,
            properties,
            born_ms=header.born_timestamp,
            born_host=session.born_host,
            store_host=house.store_host,
            flag=item.flag,
            sys_flag=header.sys_flag,
            reconsume_times=header.reconsume_times,
        )
        storings.append(
            Storing(
                record,
                route=place.routes[number],
                keys=keys_of(properties, unique_key),
                stored=tally.stored,
                refused=tally.refused,
            )
        )
    session.sends.store(storings)


def _items(send: SendFrame, place: Place) -> list[BatchItem]:
    """The messages; raises ``Answer`` 13 for what no batch may be."""
    if place.name.startswith(RETRY_PREFIX):
        raise _illegal(f"batch request does not support retry group {place.name}")
    try:
        items = split_batch(send.body)
    except Malformed as problem:
        raise _illegal(str(problem)) from None
    if not items:
        raise _illegal("a batch of no messages; send at least one")
    if any(b"DELAY" in item.properties or b"DELIVER" in item.properties for item in items):
        raise _illegal("messages of a batch cannot be delayed; send them one by one")
    return items


def _illegal(text: str) -> Answer:
    return Answer(ResponseCode.MESSAGE_ILLEGAL, text)


class _Tally:
    """What became of the messages of one batch."""

    __slots__ = (
        "_count", "_ended", "_first_offset", "_ids", "_queue_number", "_refusal", "_send",
        "_session", "unique_key",
    )  # fmt: skip

    def __init__(self, session: Session, send: SendFrame, queue_number: int, count: int) -> None:
        self._session = session
        self._send = send
        self._queue_number = queue_number
        self._count = count
        self._ended = 0
        self._ids: list[str] = []
        self._first_offset = 0
        self._refusal: Refusal | None = None
        self.unique_key = b""

    def stored(self, storing: Storing) -> None:
        """One more is durable; they come in order."""
        if not self._ids:
            self._first_offset = storing.offset
        host = self._session.house.store_host
        self._ids.append(offset_message_id(host, storing.record.position))
        self._end()

    def refused(self, refusal: Refusal) -> None:
        """One more is not stored."""
        self._refusal = refusal
        self._end()

    def _end(self) -> None:
        self._ended += 1
        send = self._send
        if self._ended < self._count or send.is_oneway or self._session.is_closed:
            return
        if self._refusal is not None:
            code, remark = refusal_answer(self._refusal)
            if self._ids:
                remark += f"; {len(self._ids)} of {self._count} messages of the batch were stored"
            self._session.sends.end(send, code, remark)
            return
        answer = SendAnswer(
            msg_id=",".join(self._ids),
            queue_id=self._queue_number,
            queue_offset=self._first_offset,
            transaction_id=self.unique_key.decode("utf-8", "replace"),
            msg_region=REGION.decode(),
            trace_on=True,
        )
        command = Command(
            0, fields(answer), b"", send.opaque, FLAG_RESPONSE, serialization=send.serialization
        )
        self._session.write(encode(command))
