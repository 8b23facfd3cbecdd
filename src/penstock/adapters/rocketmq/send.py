"""Sends: what is checked, what is stored (sheet 1.6).

The order of checks is RocketMQ's: topic name, forbidden topic, topic (made if allowed), queue id,
permission, sizes. Nothing is stored before the last of them.

A message that is not simply stored in its queue (delayed, transactional, to a retry topic) is
offered to ``broker.specials`` as a ``Draft``; the first that takes it stores and answers it itself.

Not here: waiting and answering (``send_desk.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.rocketmq.naming import RETRY_PREFIX
from penstock.adapters.rocketmq.requests import (
    SEND,
    Answer,
    forbidden,
    no_permission,
    refusal_answer,
    waited_remark,
)
from penstock.adapters.rocketmq.topics import Place
from penstock.engine.connection import Channel
from penstock.engine.ports import Confirmation, Publication, Route
from penstock.engine.topic import DirectRoute
from penstock.flow.fast_fail import Busy
from penstock.model.errors import PenstockError
from penstock.model.record import Record
from penstock.model.refusal import Refusal
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import FLAG_RESPONSE, Command, Malformed
from penstock.wire.rocketmq.frames import REGION, SendFrame, encode, send_answer
from penstock.wire.rocketmq.headers import SendAnswer, SendHeader, fields, parse_send_header
from penstock.wire.rocketmq.message_id import offset_message_id
from penstock.wire.rocketmq.properties import PROPERTIES_BYTES_MAX, span_at
from penstock.wire.rocketmq.stored import BatchItem, split_batch, stored_record

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.connection import RocketmqConnection
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.engine.topic import Topic

_UNIQ: Final = b"UNIQ_KEY\x01"
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class Sender:
    """Turns the sends of one session into publications."""

    def __init__(self, session: RocketmqConnection, desk: SendHandler) -> None:
        broker = session.broker
        self.session = session
        self._broker = broker
        self._desk = desk
        self._topics = broker.topics
        self._body_bytes_max = broker.settings.body_bytes_max
        self._properties_bytes_max = broker.settings.properties_bytes_max
        self._cluster = b"CLUSTER\x01" + broker.cluster.encode() + b"\x02"

    def prepare(self, send: SendFrame) -> Sending | None:
        """The publication of a send; None when somebody else takes care of it."""
        header = send.header
        name = header.topic
        place = self._topics.find(name)
        if place is None:
            place = self._topics.for_send(header)
        # The usual case is decided here, without a call; the odd ones find their words elsewhere.
        number = header.queue_id
        if not (place.is_writable and 0 <= number < place.queues):
            number = self._queue_number(header, place)
        body = send.body
        text = header.properties
        properties = text.encode()
        if len(body) > self._body_bytes_max or len(properties) > self._properties_bytes_max:
            self.check_sizes(len(body), len(properties))
        if send.code == _BATCH or header.batch:
            self._desk.publish()
            send_batch(self, send, place, number)
            return None
        unique_key, properties = self.complete(properties)
        if "DELAY" in text or "DELIVER" in text or "TRAN_MSG" in text or place.is_retry:
            # What came before it must not come behind it.
            self._desk.publish()
            draft = Draft(self.session, send, place, number, properties, unique_key)
            for special in self._broker.specials:
                if special(draft):
                    return None
        record = stored_record(
            name,
            number,
            body,
            properties,
            born_ms=header.born_timestamp,
            born_host=self.session.born_host,
            store_host=self._broker.store_host,
            flag=header.flag,
            sys_flag=header.sys_flag,
            reconsume_times=header.reconsume_times,
        )
        return Sending(
            record,
            route=place.routes[number],
            keys=keys_of(properties, unique_key),
            send=None if send.flag & 2 else send,
            queue_number=number,
            unique_key=unique_key,
        )

    def _queue_number(self, header: SendHeader, place: Place) -> int:
        """The queue it asked for, or any; raises ``Answer``."""
        number = header.queue_id
        if place.is_forbidden:
            raise forbidden(place.name)
        if not place.is_writable:
            raise no_permission(f"the topic[{place.name}] sending message is forbidden")
        if number >= place.queues:
            raise Answer(
                self._broker.settings.invalid_parameter_code,
                f"request queueId[{number}] is illegal, topic[{place.name}] has "
                f"{place.queues} queues, Producer: {self.session.peer}",
            )
        if number < 0:
            return self._broker.random.randrange(max(1, place.config.write_queue_nums))
        return number

    def check_sizes(self, body_bytes: int, properties_bytes: int) -> None:
        """Raise ``Answer`` 13 when a message is too large."""
        if body_bytes > self._body_bytes_max or properties_bytes > self._properties_bytes_max:
            raise Answer(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {self._body_bytes_max}B, msg properties length limit "
                f"{self._properties_bytes_max}B; this one has {body_bytes}B and "
                f"{properties_bytes}B",
            )

    def complete(self, properties: bytes) -> tuple[bytes, bytes]:
        """(unique key, properties with what the broker adds)."""
        at, size = span_at(properties, _UNIQ, properties.rfind(_UNIQ))
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if size:
            unique_key = properties[at : at + size]
            properties += self._cluster
        else:
            unique_key = self._broker.unique_keys.make().encode()
            properties = b"%b%b%b\x02%b" % (properties, _UNIQ, unique_key, self._cluster)
        if len(properties) > PROPERTIES_BYTES_MAX:
            self.check_sizes(0, len(properties))
        return unique_key, properties


def serve_send(session: RocketmqConnection, command: Command) -> None:
    """A send in a frame that ``hot_frames`` does not read."""
    send = SendFrame(
        command.code,
        parse_send_header(command),
        command.opaque,
        command.flag,
        command.version,
        command.body,
        command.serialization,
    )
    session.sends.run(send)


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.SEND_MESSAGE: serve_send,
    RequestCode.SEND_MESSAGE_V2: serve_send,
    RequestCode.SEND_BATCH_MESSAGE: serve_send,
}


# ---- send desk ----------------------------------------------------------------------------------
# The publishing side of one session: sends in lists, answered when they are durable.
#
# All sends of one read are checked and published as one list, if nobody waits in their class and
# the log takes what it gets; else each waits by itself, so that F5's ages, order and fairness hold.
#
# Not here: what is checked and stored (``send.py``), token and confirm (``storing.py``).


class SendHandler:
    """Sends of one session."""

    def __init__(self, session: RocketmqConnection) -> None:
        self._session = session
        self._broker = session.broker
        self._waiting = session.broker.engine.waiting
        self._arrived: list[SendFrame] = []
        # By route: order matters within a queue only, and the engine moves runs of one queue.
        self._checked: dict[Route[object] | None, list[Publication]] = {}
        self._publisher = Publisher(session.channel, self._answer, self._refuse)
        self._sender = Sender(session, self)

    def __len__(self) -> int:
        """Publishes that wait for the disk."""
        return len(self._publisher)

    # For the session.

    def add(self, send: SendFrame) -> None:
        """A send came; ``flush`` follows before the read is over."""
        self._arrived.append(send)

    def flush(self) -> None:
        """Publish what came, or let it wait."""
        if not self._arrived:
            return
        sends, self._arrived = self._arrived, []
        refusal = self._broker.engine.refuse_now()
        if refusal is not None:
            code, remark = refusal_answer(refusal, is_arrival=True)
            self._waiting.turned_away(SEND, refusal, len(sends))
            for send in sends:
                self.end(send, code, remark)
        elif self._waiting.admit(SEND, len(sends)):
            self._run(sends)
        else:
            for send in sends:
                self._waiting.submit(SEND, send.header.topic, _WaitingSend(self, send))

    def confirmed(self, confirmations: list[Confirmation]) -> None:
        self._publisher.confirmed(confirmations)

    def refused(self, refusals: list[tuple[int, Refusal]]) -> None:
        self._publisher.refused(refusals)

    def clear(self) -> None:
        self._publisher.clear()

    # For the families.

    def store(self, storings: list[Storing]) -> None:
        """Publish messages; each calls back when it is durable or refused."""
        self._publisher.put(list(storings))

    def run(self, send: SendFrame) -> None:
        """Check and publish one send that has waited, or came in a general frame."""
        refusal = self._broker.engine.refuse_now()
        if refusal is not None:
            self._refuse(send, refusal)
        elif not self._session.is_closed:
            self._run([send])

    def end(self, send: SendFrame, code: int, remark: str) -> None:
        """Answer a send that is not stored."""
        if not send.is_oneway and not self._session.is_closed:
            command = Command(
                code, {}, b"", send.opaque, FLAG_RESPONSE, remark, serialization=send.serialization
            )
            self._session.write(encode(command))

    def publish(self) -> None:
        """Hand over what is checked so far; ``_run`` calls it at its end."""
        checked = self._checked
        if checked:
            self._checked = {}
            for run in checked.values():
                self._publisher.put(run)

    def _run(self, sends: list[SendFrame]) -> None:
        prepare = self._sender.prepare
        for send in sends:  # the dictionary is another one after each ``publish``
            try:
                sending = prepare(send)
            except Answer as answer:
                self.end(send, answer.code, answer.remark)
            except (Malformed, PenstockError) as problem:
                self.end(send, ResponseCode.SYSTEM_ERROR, str(problem))
            else:
                if sending is not None:
                    run = self._checked.get(sending.route)
                    if run is None:
                        self._checked[sending.route] = [sending]
                    else:
                        run.append(sending)
        self.publish()

    def _answer(self, sendings: list[Sending]) -> None:
        host_hex = self._broker.store_host_hex
        self._session.write(
            *[
                send_answer(
                    each.send,
                    each.record.position,
                    each.first_offset,
                    host_hex=host_hex,
                    queue_id=each.queue_number,
                    unique_key=each.unique_key,
                )
                for each in sendings
                if each.send is not None
            ]
        )

    def _refuse(self, send: SendFrame, refusal: Refusal) -> None:
        code, remark = refusal_answer(refusal)
        self.end(send, code, remark)


class _WaitingSend:
    """A send in the waiting room; satisfies ``engine.waiting.Request``."""

    __slots__ = ("_desk", "_send")

    def __init__(self, desk: SendHandler, send: SendFrame) -> None:
        self._desk = desk
        self._send = send

    def run(self) -> None:
        self._desk.run(self._send)

    def refuse(self, busy: Busy) -> None:
        self._desk.end(self._send, ResponseCode.SYSTEM_BUSY, waited_remark(busy))


# ---- storing ------------------------------------------------------------------------------------
# Publishes that a session waits for: from ``channel.publish`` to stored or refused.
#
# A send is answered when it is durable. The engine gives back the very object it was given, so the
# publication carries what its answer needs; the table of tokens is only there for refusals.
#
# Invariants: each storing ends in exactly one of ``stored`` and ``refused``, unless the peer goes
# first; what waits is bounded by the connection's pending limit (F9), which stops the socket.
#
# Sends to a topic whose publishers may be held for a Spark query (F18) go through a channel of
# their own, so that other topics of the connection do not wait with it. Sends that are in flight at
# the same time have no promised order in RocketMQ.


class Sending(Publication, gc=False):
    """A plain send: answered from a template."""

    send: SendFrame | None = None
    """None: a oneway send, which nobody waits for."""
    queue_number: int = 0
    unique_key: bytes = b""


class Storing(Publication, gc=False):
    """Any other message that a request stores: batches, send-backs, half messages."""

    stored: Callable[[Storing], None] = lambda _storing: None
    """It is durable; position, offset and store_ms are filled in."""
    refused: Callable[[Refusal], None] = lambda _refusal: None
    """It is not stored."""


SIDES_MAX: Final = 64
"""Topics with a channel of their own; those beyond it wait with one another."""

AnswerSends = Callable[[list[Sending]], None]
RefuseSend = Callable[[SendFrame, Refusal], None]


class Publisher:
    """The publishing side of one session."""

    __slots__ = ("_answer", "_channel", "_refuse", "_sides", "_token", "_waiting")

    def __init__(self, channel: Channel, answer: AnswerSends, refuse: RefuseSend) -> None:
        self._channel = channel
        self._answer = answer
        self._refuse = refuse
        self._token = 0
        self._waiting: dict[int, Publication] = {}
        self._sides: dict[Topic, Channel] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, publications: list[Publication]) -> None:
        """Give publishes to the engine; tokens are given here."""
        token = self._token
        waiting = self._waiting
        for publication in publications:
            token += 1
            publication.token = token
            waiting[token] = publication
        self._token = token
        # The engine owns the list from now on.
        self._channel_for(publications).publish(publications)

    def _channel_for(self, publications: list[Publication]) -> Channel:
        route = publications[0].route if publications else None
        topic = route.queue.topic if isinstance(route, DirectRoute) else None
        if topic is None or (topic.limits is None and not self._sides):
            return self._channel
        side = self._sides.get(topic)
        is_braked = topic.limits is not None and topic.limits.spark is not None
        if side is None:
            if not is_braked or len(self._sides) >= SIDES_MAX:
                return self._channel
            side = self._sides[topic] = self._channel.connection.open_channel(str(topic.name))
        elif not is_braked and not side.inbox:
            self._sides.pop(topic).close()
            return self._channel
        return side

    def confirmed(self, confirmations: list[Confirmation]) -> None:
        waiting = self._waiting
        sends: list[Sending] = []
        for each in confirmations:
            waiting.pop(each.token, None)
            if type(each) is Sending:
                if each.send is not None:
                    sends.append(each)
            elif isinstance(each, Storing):
                each.stored(each)
        if sends:
            self._answer(sends)

    def refused(self, refusals: list[tuple[int, Refusal]]) -> None:
        for token, refusal in refusals:
            each = self._waiting.pop(token, None)
            if isinstance(each, Storing):
                each.refused(refusal)
            elif isinstance(each, Sending) and each.send is not None:
                self._refuse(each.send, refusal)

    def clear(self) -> None:
        """The peer is gone: nobody waits any more."""
        self._waiting.clear()


# ---- draft --------------------------------------------------------------------------------------
# A send that passed every check and is not stored yet: what the special ways of storing get.
#
# A ``Special`` (delay, timer, transaction, retry topic) returns False to leave the draft alone, or
# True when it has taken it: then it stores the message with ``session.sends.store`` and answers.


class Draft(msgspec.Struct):
    """One send on its way."""

    session: RocketmqConnection
    send: SendFrame
    place: Place
    """The topic it names."""
    queue_number: int
    properties: bytes
    """With what the broker adds: UNIQ_KEY and CLUSTER."""
    unique_key: bytes

    def record(
        self,
        topic: str,
        queue_number: int,
        properties: bytes,
        *,
        deliver_ms: int = 0,
        sys_flag: int | None = None,
        reconsume_times: int | None = None,
    ) -> Record:
        """The message for another place, or with other properties."""
        header = self.send.header
        return stored_record(
            topic,
            queue_number,
            self.send.body,
            properties,
            born_ms=header.born_timestamp,
            born_host=self.session.born_host,
            store_host=self.session.broker.store_host,
            flag=header.flag,
            sys_flag=header.sys_flag if sys_flag is None else sys_flag,
            reconsume_times=(
                header.reconsume_times if reconsume_times is None else reconsume_times
            ),
            deliver_ms=deliver_ms,
        )

    def answer_stored(self, storing: Storing) -> None:
        """Answer as a plain send is: the place it was stored at."""
        if self.send.is_oneway or self.session.is_closed:
            return
        self.session.write(
            send_answer(
                self.send,
                storing.record.position,
                max(0, storing.offset),
                host_hex=self.session.broker.store_host_hex,
                queue_id=self.queue_number,
                unique_key=self.unique_key,
            )
        )


Special = Callable[[Draft], bool]


# ---- batch send ---------------------------------------------------------------------------------
# A batch: several messages of one topic and queue in one request, stored as separate messages.
#
# They travel as one publish list and are answered once, when the last of them is durable: ``msgId``
# is the list of their ids, ``queueOffset`` the first offset. What is wrong with one of them is
# found before any is stored.
#
# Invariant: one answer per batch, whatever part of it the engine refuses.


def send_batch(sender: Sender, send: SendFrame, place: Place, number: int) -> None:
    """Check all of it, then publish all of it."""
    session, header = sender.session, send.header
    broker = session.broker
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
            store_host=broker.store_host,
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

    def __init__(
        self, session: RocketmqConnection, send: SendFrame, queue_number: int, count: int
    ) -> None:
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
        host = self._session.broker.store_host
        self._ids.append(offset_message_id(host, storing.record.position))
        self._end()

    def refused(self, refusal: Refusal) -> None:
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


# ---- send keys ----------------------------------------------------------------------------------
# Under which keys a message can be looked up (QUERY_MESSAGE).


_KEYS: Final = b"KEYS\x01"
KEYS_MAX: Final = 32
"""Keys of one message that are indexed; the properties string could hold thousands."""


def keys_of(properties: bytes, unique_key: bytes) -> tuple[bytes, ...]:
    """The unique key and each of KEYS."""
    at = properties.rfind(_KEYS)
    if at < 0:
        return (unique_key,)
    at, size = span_at(properties, _KEYS, at)
    return (unique_key, *properties[at : at + size].split(None, KEYS_MAX)[:KEYS_MAX])
