"""SEND_MESSAGE, from the frames of one read to the responses (sheet 1.6).

    add, flush      all sends of one read go on together, or wait one by one in their class (F5)
    _run, _check    RocketMQ's checks in its order: topic name, forbidden topic, topic (made if
                    allowed), queue id, permission, sizes; nothing is stored before the last
    _publish        to the engine, a list per queue
    confirmed       durable: the response says where the message is
    refused         not stored: the response says why

Messages that are not simply stored in their queue leave this way after the checks: batches, sends
to a retry topic, half messages, delayed ones. Each is a ``CallbackPublication`` and answered by its
callbacks.

Invariants: each publication ends in exactly one of stored and refused, unless the peer goes first;
what waits is bounded by the connection's pending limit (F9), which stops the socket.
Not here: cutting and parsing frames (``connection.py``, ``wire/rocketmq/frames.py``), send-backs of
consumers (``retry.py``), what becomes of half messages (``transactions.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.adapters.rocketmq import transactions
from penstock.adapters.rocketmq.broker import RemotingPeer
from penstock.adapters.rocketmq.delay import (
    DELAY_NAMES,
    DelayRefused,
    plan_delay,
    recall_handle,
)
from penstock.adapters.rocketmq.filters import RETRY_TOPIC
from penstock.adapters.rocketmq.group_registry import GroupRegistry
from penstock.adapters.rocketmq.naming import RETRY_PREFIX, dlq_topic, neutral_name
from penstock.adapters.rocketmq.requests import (
    SEND,
    ErrorResponse,
    busy_remark,
    forbidden,
    no_permission,
    refusal_response,
)
from penstock.adapters.rocketmq.topics import RocketmqTopic
from penstock.engine.broker import Engine
from penstock.engine.connection import Channel
from penstock.engine.ports import Confirmation, Publication, Route
from penstock.engine.topic import DirectRoute, Queue, Topic
from penstock.flow.fast_fail import Busy
from penstock.flow.reason import Culprit
from penstock.model.errors import PenstockError
from penstock.model.record import Record, RecordFlag
from penstock.model.refusal import Refusal
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, Malformed
from penstock.wire.rocketmq.frames import REGION, SendFrame, encode, send_answer
from penstock.wire.rocketmq.headers import SendAnswer, SendHeader, fields
from penstock.wire.rocketmq.message_id import offset_message_id
from penstock.wire.rocketmq.properties import (
    POP_CK,
    PROPERTIES_BYTES_MAX,
    span_at,
    value_of,
    without_properties,
)
from penstock.wire.rocketmq.stored import BatchItem, RocketmqFacts, split_batch, stored_record

KEYS_MAX: Final = 32
"""Keys of one message that are indexed; the properties string could hold thousands."""

SIDE_CHANNELS_MAX: Final = 64
"""Topics with a channel of their own; those beyond it wait with one another."""

RECONSUME_MAX_VERSION: Final = 121
"""V3_4_9: from here on the client's ``maxReconsumeTimes`` counts."""

_UNIQ: Final = b"UNIQ_KEY\x01"
_KEYS: Final = b"KEYS\x01"
_POP_CK: Final = POP_CK.encode() + b"\x01"
_TRACE: Final = b"MSG_REGION\x01%b\x02TRACE_ON\x01true\x02" % REGION
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_FACTS: Final = RocketmqFacts()


class SendPublication(Publication, gc=False):
    """A plain send, answered from a template.

    It carries what its response needs, since the engine gives back the object it was given.
    """

    send: SendFrame | None = None
    """None: a oneway send, which nobody waits for."""
    queue_number: int = 0
    unique_key: bytes = b""


class CallbackPublication(Publication, gc=False):
    """Any other message that a request stores: batches, send-backs, half messages."""

    stored: Callable[[CallbackPublication], None] = lambda _publication: None
    """It is durable; position, offset and store_ms are filled in."""
    refused: Callable[[Refusal], None] = lambda _refusal: None
    """It is not stored."""


class SendHandler:
    """Everything that one connection publishes."""

    def __init__(self, connection: RemotingPeer, channel: Channel) -> None:
        broker = connection.broker
        self._connection = connection
        self._broker = broker
        self._topics = broker.topics
        self._request_queue = broker.engine.request_queue
        self._body_bytes_max = broker.settings.body_bytes_max
        self._properties_bytes_max = broker.settings.properties_bytes_max
        self._added = b"%bCLUSTER\x01%b\x02" % (_TRACE, broker.cluster.encode())
        self._channel = channel
        self._side_channels: dict[Topic, Channel] = {}
        self._token = 0
        self._arrived: list[SendFrame] = []
        # By route: order matters within a queue only, and the engine moves runs of one queue.
        self._checked: dict[Route[object] | None, list[Publication]] = {}
        # By token, for refusals only; a confirmation is the publication itself.
        self._pending: dict[int, Publication] = {}

    # In: the sends of one read.

    def add(self, send: SendFrame) -> None:
        """A send came; ``flush`` follows before the read is over."""
        self._arrived.append(send)

    @property
    def publisher(self) -> Culprit:
        return self._channel.publisher

    def flush(self) -> None:
        """Publish what came, let it wait, or answer "busy"."""
        if not self._arrived:
            return
        sends, self._arrived = self._arrived, []
        refusal = self._broker.engine.refuse_now()
        if refusal is not None:
            code, remark = refusal_response(refusal, is_arrival=True)
            self._request_queue.count_refused(SEND, refusal, self.publisher, len(sends))
            for send in sends:
                self.fail(send, code, remark)
        elif self._request_queue.admit(SEND, len(sends)):
            self._run(sends)
        else:
            # Somebody waits already: each waits by itself, so that ages, order and fairness hold.
            for send in sends:
                self._request_queue.submit(SEND, send.header.topic, _WaitingSend(self, send))

    def run(self, send: SendFrame) -> None:
        """Check and publish one send that has waited, or came in a general frame."""
        refusal = self._broker.engine.refuse_now()
        if refusal is not None:
            self.fail(send, *refusal_response(refusal))
        elif not self._connection.is_closed:
            self._run([send])

    def _run(self, sends: list[SendFrame]) -> None:
        for send in sends:
            try:
                publication = self._check(send)
            except ErrorResponse as error:
                self.fail(send, error.code, error.remark)
            except (Malformed, PenstockError) as problem:
                self.fail(send, ResponseCode.SYSTEM_ERROR, str(problem))
            else:
                if publication is not None:
                    # Looked up each time: ``_flush_checked`` puts another dictionary in its place.
                    run = self._checked.get(publication.route)
                    if run is None:
                        self._checked[publication.route] = [publication]
                    else:
                        run.append(publication)
        self._flush_checked()

    def _check(self, send: SendFrame) -> SendPublication | None:
        """The publication of a plain send; None for another one, which is published already."""
        header = send.header
        name = header.topic
        rmq_topic = self._topics.find(name)
        if rmq_topic is None:
            rmq_topic = self._topics.for_send(header, self._connection.peer.maker)
        # The usual case is decided here, without a call; the odd ones find their words elsewhere.
        number = header.queue_id
        if not (rmq_topic.is_writable and 0 <= number < rmq_topic.queues):
            number = self._queue_number(header, rmq_topic)
        body = send.body
        text = header.properties
        properties = text.encode()
        if len(body) > self._body_bytes_max or len(properties) > self._properties_bytes_max:
            self._check_sizes(len(body), len(properties))
        if send.code == _BATCH or header.batch:
            self._flush_checked()
            self._store_batch(send, rmq_topic, number)
            return None
        unique_key, properties = self._complete(properties)
        if "DELAY" in text or "DELIVER" in text or "TRAN_MSG" in text or rmq_topic.is_retry:
            # What came before it must not come behind it.
            self._flush_checked()
            checked = CheckedSend(send, rmq_topic, number, properties, unique_key)
            if self._store_special(checked):
                return None
        record = stored_record(
            name,
            number,
            body,
            properties,
            born_ms=header.born_timestamp,
            born_host=self._connection.born_host,
            store_host=self._broker.store_host,
            flag=header.flag,
            sys_flag=header.sys_flag,
            reconsume_times=header.reconsume_times,
        )
        return SendPublication(
            record,
            route=rmq_topic.routes[number],
            keys=keys_of(properties, unique_key),
            send=None if send.flag & FLAG_ONEWAY else send,
            queue_number=number,
            unique_key=unique_key,
        )

    def checked(self, send: SendFrame) -> CheckedSend:
        """A reply after the checks of any send; raises ``ErrorResponse``."""
        rmq_topic = self._topics.find(send.header.topic)
        if rmq_topic is None:
            rmq_topic = self._topics.for_send(send.header, self._connection.peer.maker)
        number = self._queue_number(send.header, rmq_topic)
        properties = send.header.properties.encode()
        self._check_sizes(len(send.body), len(properties))
        unique_key, properties = self._complete(properties)
        return CheckedSend(send, rmq_topic, number, properties, unique_key)

    def publication(self, checked: CheckedSend) -> CallbackPublication:
        """What stores it; the caller says what comes then."""
        rmq_topic, number = checked.rmq_topic, checked.queue_number
        record = self._record(checked, rmq_topic.name, number, checked.properties)
        keys = tuple(_FACTS.keys(record))
        return CallbackPublication(record, route=rmq_topic.routes[number], keys=keys)

    def _queue_number(self, header: SendHeader, rmq_topic: RocketmqTopic) -> int:
        """The queue it asked for, or any; raises ``ErrorResponse``."""
        number = header.queue_id
        if rmq_topic.is_forbidden:
            raise forbidden(rmq_topic.name)
        if not rmq_topic.is_writable:
            raise no_permission(f"the topic[{rmq_topic.name}] sending message is forbidden")
        if number >= rmq_topic.queues:
            raise ErrorResponse(
                self._broker.settings.invalid_parameter_code,
                f"request queueId[{number}] is illegal, topic[{rmq_topic.name}] has "
                f"{rmq_topic.queues} queues, Producer: {self._connection.peer}",
            )
        if number < 0:
            return self._broker.random.randrange(max(1, rmq_topic.config.write_queue_nums))
        return number

    def _check_sizes(self, body_bytes: int, properties_bytes: int) -> None:
        if body_bytes > self._body_bytes_max or properties_bytes > self._properties_bytes_max:
            raise ErrorResponse(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {self._body_bytes_max}B, msg properties length limit "
                f"{self._properties_bytes_max}B; this one has {body_bytes}B and "
                f"{properties_bytes}B",
            )

    def _complete(self, properties: bytes) -> tuple[bytes, bytes]:
        """(unique key, properties with what the broker adds, without what is not the sender's).

        Added are CLUSTER, what 5.x consumers look at for their trace, and UNIQ_KEY if missing. A
        popped message that is sent on brings its receipt: of the new one it would be a lie.
        """
        if _POP_CK in properties:
            properties = without_properties(properties, (POP_CK,))
        at, size = span_at(properties, _UNIQ, properties.rfind(_UNIQ))
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if size:
            unique_key = properties[at : at + size]
            properties += self._added
        else:
            unique_key = self._broker.unique_keys.make().encode()
            properties = b"%b%b%b\x02%b" % (properties, _UNIQ, unique_key, self._added)
        if len(properties) > PROPERTIES_BYTES_MAX:
            self._check_sizes(0, len(properties))
        return unique_key, properties

    # To the engine.

    def store(self, publications: list[CallbackPublication]) -> None:
        """Publish messages; each calls back when it is durable or refused."""
        self._publish(list(publications))

    def _flush_checked(self) -> None:
        checked = self._checked
        if checked:
            self._checked = {}
            for run in checked.values():
                self._publish(run)

    def _publish(self, publications: list[Publication]) -> None:
        token = self._token
        pending = self._pending
        for publication in publications:
            token += 1
            publication.token = token
            pending[token] = publication
        self._token = token
        # The engine owns the list from now on.
        self._channel_for(publications).publish(publications)

    def _channel_for(self, publications: list[Publication]) -> Channel:
        """The connection's channel, or one for a topic whose publishers a Spark query may hold.

        Other topics of the connection must not wait with it (F18). Sends that are in flight at the
        same time have no promised order in RocketMQ.
        """
        route = publications[0].route if publications else None
        topic = route.queue.topic if isinstance(route, DirectRoute) else None
        if topic is None or (topic.limits is None and not self._side_channels):
            return self._channel
        side = self._side_channels.get(topic)
        is_braked = topic.limits is not None and topic.limits.spark is not None
        if side is None:
            if not is_braked or len(self._side_channels) >= SIDE_CHANNELS_MAX:
                return self._channel
            side = self._channel.connection.open_channel(str(topic.name))
            self._side_channels[topic] = side
        elif not is_braked and not side.inbox:
            self._side_channels.pop(topic).close()
            return self._channel
        return side

    # Out: stored or refused.

    def confirmed(self, confirmations: list[Confirmation]) -> None:
        """These are durable: answer the plain sends in one write, call back for the others."""
        pending = self._pending
        plain: list[SendPublication] = []
        for each in confirmations:
            pending.pop(each.token, None)
            if type(each) is SendPublication:
                if each.send is not None:
                    plain.append(each)
            elif isinstance(each, CallbackPublication):
                each.stored(each)
        if plain:
            host_hex = self._broker.store_host_hex
            self._connection.write(
                *[
                    send_answer(
                        each.send,
                        each.record.position,
                        each.first_offset,
                        host_hex=host_hex,
                        queue_id=each.queue_number,
                        unique_key=each.unique_key,
                    )
                    for each in plain
                    if each.send is not None
                ]
            )

    def refused(self, refusals: list[tuple[int, Refusal]]) -> None:
        for token, refusal in refusals:
            each = self._pending.pop(token, None)
            if isinstance(each, CallbackPublication):
                each.refused(refusal)
            elif isinstance(each, SendPublication) and each.send is not None:
                self.fail(each.send, *refusal_response(refusal))

    def fail(self, send: SendFrame, code: int, remark: str) -> None:
        """ErrorResponse a send that is not stored."""
        if not send.is_oneway and not self._connection.is_closed:
            command = Command(
                code, {}, b"", send.opaque, FLAG_RESPONSE, remark, serialization=send.serialization
            )
            self._connection.write(encode(command))

    def clear(self) -> None:
        """The peer is gone: nobody waits any more."""
        self._pending.clear()

    # Sends that are not simply stored in their queue.

    def _store_special(self, checked: CheckedSend) -> bool:
        """Store a send to a retry topic, a half or a delayed message; False when it is neither.

        The order is RocketMQ's: a message that its group gives up is a dead letter at once, a half
        message waits for its producer and for no time.
        """
        rmq_topic, number = checked.rmq_topic, checked.queue_number
        if rmq_topic.is_retry:
            dead_letters = self._dead_letter_topic(checked.send)
            if dead_letters is not None:
                properties = without_properties(checked.properties, DELAY_NAMES)
                record = self._record(checked, dead_letters.name, 0, properties)
                self._store_one(checked, record, dead_letters.routes[0])
                note_dead_letter(self._broker.engine, dead_letters, properties)
                return True
        if transactions.is_half(rmq_topic.name, checked.properties):
            self._store_half(checked)
            return True
        try:
            delay = plan_delay(
                checked.properties,
                self._broker.clock.wall_ms(),
                self._broker.settings.timer_ms_max,
            )
        except DelayRefused as problem:
            raise ErrorResponse(ResponseCode.MESSAGE_ILLEGAL, str(problem)) from None
        if not delay.deliver_ms:
            return False
        record = self._record(
            checked, rmq_topic.name, number, delay.properties, deliver_ms=delay.deliver_ms
        )
        record.reshape(flags=record.flags | RecordFlag.DELAYED)
        handle = recall_handle(rmq_topic.name, self._broker.broker_name, delay.properties)
        self._store_one(checked, record, rmq_topic.routes[number], handle)
        return True

    def _dead_letter_topic(self, send: SendFrame) -> RocketmqTopic | None:
        """Where a message goes that a client sends to %RETRY%group; None = there indeed.

        Ordered consumers give up this way: while one of the group holds a queue, it is a dead
        letter.
        """
        header, broker = send.header, self._broker
        group = header.topic.removeprefix(RETRY_PREFIX)
        config = broker.service(GroupRegistry).require(group, self._connection.peer.maker)
        times_max = reconsume_times_max(config, send.version, header.max_reconsume_times)
        is_ordered = broker.locks.holds_any(group, broker.clock.monotonic_ms())
        if is_ordered or header.reconsume_times > times_max:
            return broker.topics.for_group(dlq_topic(group))
        return None

    def _store_half(self, checked: CheckedSend) -> None:
        service = self._broker.service(transactions.TransactionService)
        service.check_room()
        properties = without_properties(checked.properties, DELAY_NAMES)
        record = self._record(
            checked,
            checked.rmq_topic.name,
            checked.queue_number,
            transactions.half_properties(properties),
            sys_flag=transactions.committed_flag(checked.send.header.sys_flag),
        )
        transactions.make_half(record)

        def stored(publication: CallbackPublication) -> None:
            service.stored(publication.record)
            self._answer_special(checked, publication)

        publication = CallbackPublication(
            record, route=checked.rmq_topic.routes[checked.queue_number], stored=stored
        )
        publication.refused = lambda refusal: self.fail(checked.send, *refusal_response(refusal))
        self.store([publication])

    def _store_one(
        self,
        checked: CheckedSend,
        record: Record,
        route: Route[Queue],
        handle: str | None = None,
    ) -> None:
        publication = CallbackPublication(
            record,
            route=route,
            keys=tuple(_FACTS.keys(record)),
            stored=lambda publication: self._answer_special(checked, publication, handle),
            refused=lambda refusal: self.fail(checked.send, *refusal_response(refusal)),
        )
        self.store([publication])

    def _record(
        self,
        checked: CheckedSend,
        topic: str,
        queue_number: int,
        properties: bytes,
        *,
        deliver_ms: int = 0,
        sys_flag: int | None = None,
    ) -> Record:
        """The message for another topic, or with other properties."""
        header = checked.send.header
        return stored_record(
            topic,
            queue_number,
            checked.send.body,
            properties,
            born_ms=header.born_timestamp,
            born_host=self._connection.born_host,
            store_host=self._broker.store_host,
            flag=header.flag,
            sys_flag=header.sys_flag if sys_flag is None else sys_flag,
            reconsume_times=header.reconsume_times,
            deliver_ms=deliver_ms,
        )

    def _answer_special(
        self, checked: CheckedSend, publication: CallbackPublication, handle: str | None = None
    ) -> None:
        """Answer; where there is no offset yet, ``queueOffset`` is the position.

        A producer brings that of its half message back in END_TRANSACTION.
        """
        if checked.send.is_oneway or self._connection.is_closed:
            return
        offset = int(publication.offset)
        self._connection.write(
            send_answer(
                checked.send,
                publication.record.position,
                offset if offset >= 0 else int(publication.record.position),
                host_hex=self._broker.store_host_hex,
                queue_id=checked.queue_number,
                unique_key=checked.unique_key,
                recall_handle=handle,
            )
        )

    def _store_batch(self, send: SendFrame, rmq_topic: RocketmqTopic, number: int) -> None:
        """Several messages of one queue in one request: all are checked, then all are published."""
        header = send.header
        items = _batch_items(send, rmq_topic)
        batch = _PendingBatch(self, self._connection, send, number, len(items))
        publications: list[CallbackPublication] = []
        for item in items:
            self._check_sizes(len(item.body), len(item.properties))
            unique_key, properties = self._complete(item.properties)
            batch.unique_key = batch.unique_key or unique_key
            record = stored_record(
                rmq_topic.name,
                number,
                item.body,
                properties,
                born_ms=header.born_timestamp,
                born_host=self._connection.born_host,
                store_host=self._broker.store_host,
                flag=item.flag,
                sys_flag=header.sys_flag,
                reconsume_times=header.reconsume_times,
            )
            publications.append(
                CallbackPublication(
                    record,
                    route=rmq_topic.routes[number],
                    keys=keys_of(properties, unique_key),
                    stored=batch.stored,
                    refused=batch.refused,
                )
            )
        self.store(publications)


class CheckedSend(NamedTuple):
    """A send that passed every check and is not stored yet."""

    send: SendFrame
    rmq_topic: RocketmqTopic
    """The topic it names."""
    queue_number: int
    properties: bytes
    """With what the broker adds."""
    unique_key: bytes


class _WaitingSend:
    """A send in the queue of its class; satisfies ``engine.request_queue.Request``."""

    __slots__ = ("_handler", "_send")

    def __init__(self, handler: SendHandler, send: SendFrame) -> None:
        self._handler = handler
        self._send = send

    def run(self) -> None:
        self._handler.run(self._send)

    @property
    def publisher(self) -> Culprit:
        return self._handler.publisher

    def refuse(self, busy: Busy) -> None:
        self._handler.fail(self._send, ResponseCode.SYSTEM_BUSY, busy_remark(busy))


def _batch_items(send: SendFrame, rmq_topic: RocketmqTopic) -> list[BatchItem]:
    """The messages; raises ``ErrorResponse`` 13 for what no batch may be."""
    if rmq_topic.is_retry:
        raise _illegal(f"batch request does not support retry group {rmq_topic.name}")
    try:
        items = split_batch(send.body)
    except Malformed as problem:
        raise _illegal(str(problem)) from None
    if not items:
        raise _illegal("a batch of no messages; send at least one")
    if any(b"DELAY" in item.properties or b"DELIVER" in item.properties for item in items):
        raise _illegal("messages of a batch cannot be delayed; send them one by one")
    return items


def _illegal(text: str) -> ErrorResponse:
    return ErrorResponse(ResponseCode.MESSAGE_ILLEGAL, text)


class _PendingBatch:
    """A batch between publish and its one response, which comes when the last of it has ended.

    ``msgId`` is the list of the ids, ``queueOffset`` the first offset. Whatever part of it the
    engine refuses, there is one response.
    """

    __slots__ = (
        "_connection", "_count", "_ended", "_first_offset", "_handler", "_ids", "_queue_number",
        "_refusal", "_send", "unique_key",
    )  # fmt: skip

    def __init__(
        self,
        handler: SendHandler,
        connection: RemotingPeer,
        send: SendFrame,
        queue_number: int,
        count: int,
    ) -> None:
        self._handler = handler
        self._connection = connection
        self._send = send
        self._queue_number = queue_number
        self._count = count
        self._ended = 0
        self._ids: list[str] = []
        self._first_offset = 0
        self._refusal: Refusal | None = None
        self.unique_key = b""

    def stored(self, publication: CallbackPublication) -> None:
        """One more is durable; they come in order."""
        if not self._ids:
            self._first_offset = publication.offset
        host = self._connection.broker.store_host
        self._ids.append(offset_message_id(host, publication.record.position))
        self._end()

    def refused(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._end()

    def _end(self) -> None:
        self._ended += 1
        send = self._send
        if self._ended < self._count or send.is_oneway or self._connection.is_closed:
            return
        if self._refusal is not None:
            code, remark = refusal_response(self._refusal)
            if self._ids:
                remark += f"; {len(self._ids)} of {self._count} messages of the batch were stored"
            self._handler.fail(send, code, remark)
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
        self._connection.write(encode(command))


def keys_of(properties: bytes, unique_key: bytes) -> tuple[bytes, ...]:
    """Under which QUERY_MESSAGE finds a message: the unique key and each of KEYS."""
    at = properties.rfind(_KEYS)
    if at < 0:
        return (unique_key,)
    at, size = span_at(properties, _KEYS, at)
    return (unique_key, *properties[at : at + size].split(None, KEYS_MAX)[:KEYS_MAX])


def note_dead_letter(engine: Engine, target: RocketmqTopic, properties: bytes) -> None:
    """A group gave a message up: for the diagnosis, with the topic it was of."""
    origin = value_of(properties, RETRY_TOPIC).decode(errors="replace")
    if origin:
        engine.note_dead_letter(target.topic.name, neutral_name(origin))


def reconsume_times_max(config: SubscriptionGroupConfig, version: int, asked: int | None) -> int:
    """How often a message is tried before it is a dead letter."""
    if version < RECONSUME_MAX_VERSION or asked is None:
        return config.retry_max_times
    return asked
