"""Consumers of one connection: SUBSCRIBE, FLOW, ACK and what else clients say of them.

    open        the checks of SUBSCRIBE in Pulsar's order; SUCCESS when all that was made is durable
    grant       FLOW: permits, which every message costs, also one that comes again
    deliver     MESSAGE: the entry as it lies in the log, or another protocol's message as an entry
    hear        what Penstock's own client says of why it takes no more (a PING of its kind)
    add_ack     the ACKs of one read are gathered and settled together; ACK_RESPONSE after the disk
    redeliver   what it has and did not ack comes again
    close       by the client; or under it, which it is told by CLOSE_CONSUMER and then comes again

A consumer reads one topic, or one partition. Its place and its companions are its subscription's
(``subscriptions.py``); permits, limits of what is unacked (F13), turns and redelivery are the
engine's. What a socket has not taken stops all consumers of its connection (F14).

Whoever wants a place that another holds (an exclusive subscription, a range of keys) waits while
the holder's connection is asked for a sign of life: the holder may be the client itself, on a
connection that it has lost.

Invariants: every SUBSCRIBE has one answer, or its connection is gone; a consumer that is over has
nothing attached to the engine. Not here: starting places and types (``subscriptions.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.pulsar.errors import CloseConnection, PulsarError, topic_fenced
from penstock.adapters.pulsar.naming import parse_name
from penstock.adapters.pulsar.ports import ClientConnection, Handler, RunHandler
from penstock.adapters.pulsar.present import present
from penstock.adapters.pulsar.subscriptions import (
    MODE_NAMES,
    Manner,
    PlaceTaken,
    Position,
    PulsarSubscription,
    ack_set,
    acked_ranges,
)
from penstock.engine.host import Mode, Start
from penstock.flow.demand import ClientCause, ClientSays, Permits
from penstock.model.errors import PenstockError
from penstock.model.ids import QueueId
from penstock.model.record import Wire
from penstock.wire.pulsar.frames import NO_ID, AckRun, ProtocolVersion, ServerError
from penstock.wire.pulsar.hot_commands import encode_message, encode_messages
from penstock.wire.pulsar.metadata import Unreadable, is_readable, read_metadata
from penstock.wire.pulsar.names import InvalidTopicName, PulsarName
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CommandAck,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    ConsumerWait,
    KeySharedMode,
    MessageIdData,
)

if TYPE_CHECKING:
    from penstock.adapters.pulsar.broker import PulsarBroker
    from penstock.adapters.pulsar.topics import PulsarTopic
    from penstock.engine.host import IndexEntry
    from penstock.engine.subscription.consumer import Consumer as EngineConsumer
    from penstock.engine.subscription.consumer import Delivery
    from penstock.engine.subscription.subscription import Subscription
    from penstock.model.record import Record

logger = logging.getLogger(__name__)

CONSUMERS_MAX: Final = 10_000
"""Of one connection."""
METADATA_BYTES_MAX: Final = 1_024
"""What a consumer says of itself, as Pulsar allows."""
PERMITS_END: Final = 1 << 31
"""Grants from here on are negative numbers in Pulsar."""
IDS_AT_ONCE: Final = 1_000
"""Of an ACK or REDELIVER with more the rest waits for its turn. As many as clients group."""
COMMANDS_PER_PIECE: Final = 200
"""What so many ids cost."""
KEY_RANGES_MAX: Final = 4_096
"""Of one consumer with ranges of its own."""
CHUNK_BYTES_MIN: Final = 32 * 1024
"""Smaller entries are not looked at whether they are chunks: clients split what is larger than a
frame may be, in pieces of that size. A limit's worth of smaller ones is thousands of them."""
WAITS_MAX: Final = 1_000
"""Of one PING; as many as a client puts into one (``client/pulsar/connection.py``)."""
NUMBER_MAX: Final = 1 << 53
"""Of what a client says of itself: beyond it a reader of JSON would see another number."""
RATE_MS: Final = 10_000
"""Rates are those of the last whole span of this length."""

_PULSAR: Final = int(Wire.PULSAR)
_MODES: Final = {
    CommandSubscribe.Exclusive: Mode.EXCLUSIVE,
    CommandSubscribe.Shared: Mode.SHARED,
    CommandSubscribe.Failover: Mode.FAILOVER,
    CommandSubscribe.Key_Shared: Mode.KEY_SHARED,
}
_CAUSES: Final = {
    ConsumerWait.NOT_RECEIVED: ClientCause.NOT_RECEIVED,
    ConsumerWait.QUEUE_BYTES: ClientCause.QUEUE_BYTES,
    ConsumerWait.LISTENERS: ClientCause.LISTENERS,
    ConsumerWait.PAUSED: ClientCause.PAUSED,
    ConsumerWait.LETTERS: ClientCause.LETTERS,
    ConsumerWait.STARTING: ClientCause.STARTING,
    ConsumerWait.UNACKED: ClientCause.UNACKED,
}
_ALONE: Final = (Mode.EXCLUSIVE, Mode.FAILOVER)
"""Types in which one reads at a time, in order."""
REPLICATION_PREFIX: Final = "pulsar.repl"
DEDUPLICATION_NAME: Final = "pulsar.dedup"
CPP_CLIENT: Final = "Pulsar-CPP"
"""Drops its connection at REACHED_END_OF_TOPIC, which it does not know how to read, and counts
permits in its own way."""


class ConsumerCommands:
    """The commands of one connection's consumers."""

    def __init__(self, connection: ClientConnection, broker: PulsarBroker) -> None:
        self._connection: Final = connection
        self._broker: Final = broker
        self._consumers: Final[dict[int, Consumer]] = {}
        self._acking: list[Consumer] = []

    def handlers(self) -> Mapping[int, Handler]:
        return {
            BaseCommand.SUBSCRIBE: self._subscribe,
            BaseCommand.FLOW: self._flow,
            BaseCommand.ACK: self._ack,
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self._redeliver,
            BaseCommand.CLOSE_CONSUMER: self._close,
            BaseCommand.UNSUBSCRIBE: self._unsubscribe,
            BaseCommand.SEEK: self._seek,
            BaseCommand.GET_LAST_MESSAGE_ID: self._last_message_id,
            BaseCommand.CONSUMER_STATS: self._statistics,
        }

    def run_handlers(self) -> Mapping[type, RunHandler]:
        return {AckRun: self._ack_run}

    def flush(self) -> None:
        acking, self._acking = self._acking, []
        for consumer in acking:
            consumer.flush_acks()

    def socket_drained(self) -> None:
        for consumer in self._consumers.values():
            if consumer.attached is not None:
                consumer.attached.wake()

    def client_waits(self, waits: Sequence[ConsumerWait]) -> None:
        for wait in waits[:WAITS_MAX]:
            consumer = self._consumers.get(wait.consumer_id)
            if consumer is not None:
                consumer.hear(wait)

    def goodbye(self, cause: str) -> None:
        for consumer in list(self._consumers.values()):
            consumer.topic_closed(cause)

    def closed(self) -> None:
        for consumer in list(self._consumers.values()):
            consumer.connection_lost()
        self._consumers.clear()
        self._acking.clear()

    def forget(self, consumer: Consumer) -> None:
        """It is over: its id is free."""
        if self._consumers.get(consumer.consumer_id) is consumer:
            del self._consumers[consumer.consumer_id]

    # Commands.

    def _subscribe(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.subscribe
        name = _topic_name(asked.topic)
        self._check_right(name, asked.subscription)
        _check_size(asked)
        known = self._consumers.get(asked.consumer_id)
        if known is not None:
            known.asked_again(asked.request_id)
            return
        if len(self._consumers) >= CONSUMERS_MAX:
            raise PulsarError(
                ServerError.TooManyRequests, f"the connection has {CONSUMERS_MAX} consumers already"
            )
        consumer = Consumer(self._connection, self._broker, self, asked)
        self._consumers[asked.consumer_id] = consumer
        try:
            consumer.open(name)
        except (PulsarError, PenstockError):
            consumer.connection_lost()
            self.forget(consumer)
            raise

    def _check_right(self, topic: PulsarName, subscription: str) -> None:
        try:
            is_allowed = self._broker.may_consume(self._connection, topic, subscription)
        except Exception as error:
            # Whatever goes wrong in a check of rights is a refusal (B36).
            logger.warning("the right to consume could not be checked", exc_info=error)
            raise PulsarError(ServerError.AuthorizationError, str(error)) from error
        if not is_allowed:
            raise PulsarError(
                ServerError.AuthorizationError, "Client is not authorized to subscribe"
            )

    def _flow(self, command: BaseCommand, _tail: bytes) -> None:
        flow = command.flow
        consumer = self._consumers.get(flow.consumer_id)
        if consumer is not None:
            consumer.grant(flow.messagePermits)

    def _ack(self, command: BaseCommand, _tail: bytes) -> Iterator[int] | None:
        ack = command.ack
        consumer = self._consumers.get(ack.consumer_id)
        if consumer is None:
            return None
        if len(ack.message_id) > IDS_AT_ONCE and ack.ack_type == CommandAck.Individual:
            return self._ack_in_pieces(consumer, ack)
        if consumer.add_ack(ack):
            self._acking.append(consumer)
        return None

    def _ack_in_pieces(self, consumer: Consumer, ack: CommandAck) -> Iterator[int]:
        ids = ack.message_id
        for at in range(0, len(ids), IDS_AT_ONCE):
            is_last = at + IDS_AT_ONCE >= len(ids)
            if consumer.add_ack(ack, ids[at : at + IDS_AT_ONCE], is_whole=is_last):
                consumer.flush_acks()
            yield COMMANDS_PER_PIECE

    def _ack_run(self, run: AckRun) -> None:
        consumer = self._consumers.get(run.consumer_id)
        if consumer is not None and consumer.add_acks(run):
            self._acking.append(consumer)

    def _redeliver(self, command: BaseCommand, _tail: bytes) -> Iterator[int] | None:
        asked = command.redeliver_unacknowledged_messages
        consumer = self._consumers.get(asked.consumer_id)
        if consumer is None or not consumer.is_ready:
            return None
        ids = asked.message_ids
        if consumer.manner.mode in _ALONE:
            consumer.rewind(asked.consumer_epoch if asked.HasField("consumer_epoch") else None)
        elif len(ids) > IDS_AT_ONCE:
            return self._redeliver_in_pieces(consumer, asked)
        else:
            consumer.redeliver([(each.ledgerId, each.entryId) for each in ids])
        return None

    def _redeliver_in_pieces(
        self, consumer: Consumer, asked: CommandRedeliverUnacknowledgedMessages
    ) -> Iterator[int]:
        ids = asked.message_ids
        for at in range(0, len(ids), IDS_AT_ONCE):
            piece = ids[at : at + IDS_AT_ONCE]
            consumer.redeliver([(each.ledgerId, each.entryId) for each in piece])
            yield COMMANDS_PER_PIECE

    def _close(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.close_consumer
        consumer = self._consumers.pop(asked.consumer_id, None)
        if consumer is not None:
            consumer.connection_lost()
        self._connection.succeed(asked.request_id)

    def _unsubscribe(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.unsubscribe
        self._ready(asked.consumer_id).unsubscribe(asked.request_id, force=asked.force)

    def _seek(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.seek
        self._ready(asked.consumer_id).seek(asked)

    def _last_message_id(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.get_last_message_id
        self._ready(asked.consumer_id).tell_last_id(asked.request_id)

    def _statistics(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.consumer_stats
        consumer = self._consumers.get(asked.consumer_id)
        if consumer is None or not consumer.is_ready:
            reply = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
            said = reply.consumer_stats_response
            said.request_id = asked.request_id
            said.error_code = PulsarError(ServerError.ConsumerNotFound, "").wire_code
            said.error_message = "Consumer not found"
            self._connection.send(reply)
        else:
            consumer.tell_statistics(asked.request_id)

    def _ready(self, consumer_id: int) -> Consumer:
        consumer = self._consumers.get(consumer_id)
        if consumer is None or not consumer.is_ready:
            raise PulsarError(ServerError.MetadataError, "Consumer not found")
        return consumer


def _topic_name(text: str) -> PulsarName:
    try:
        return parse_name(text)
    except InvalidTopicName as problem:
        raise PulsarError(ServerError.InvalidTopicName, str(problem)) from None


def _check_size(asked: CommandSubscribe) -> None:
    ranges = len(asked.keySharedMeta.hashRanges)
    if ranges > KEY_RANGES_MAX:
        raise PulsarError(
            ServerError.ConsumerAssignError,
            f"a consumer may have {KEY_RANGES_MAX} ranges of keys, and these are {ranges}",
        )
    if sum([len(each.key) + len(each.value) for each in asked.metadata]) > METADATA_BYTES_MAX:
        raise PulsarError(
            ServerError.MetadataError, f"metadata has a max size of {METADATA_BYTES_MAX} bytes"
        )


class _ConsumerState(Enum):
    OPENING = "opening"
    """It is not answered yet."""
    READY = "ready"
    OVER = "over"


class Consumer:
    """One consumer: a ``TopicUser``, an ``Attendee`` of its subscription, an engine's outlet."""

    def __init__(
        self,
        connection: ClientConnection,
        broker: PulsarBroker,
        commands: ConsumerCommands,
        asked: CommandSubscribe,
    ) -> None:
        self.connection: Final = connection
        self.consumer_id: Final = asked.consumer_id
        self.name: Final = asked.consumer_name
        self.manner: Final = _manner(asked)
        self.connected_ms: Final = broker.clock.wall_ms()
        self.topic: PulsarTopic
        self.subscription: PulsarSubscription
        """Both from ``open`` on."""
        self.attached: EngineConsumer | None = None
        self._broker: Final = broker
        self._commands: Final = commands
        self._asked: Final = asked
        self._state = _ConsumerState.OPENING
        self._has_topic = False
        self._has_probed = False
        self._has_subscription = False
        self._active: bool | None = None
        """What it will be told of its turn once it has had its SUCCESS."""
        self._epoch = asked.consumer_epoch if asked.HasField("consumer_epoch") else None
        # Of a topic with a log, where most of the work is done.
        self._stored: Subscription | None = None
        self._ledger_id = 0
        self._queue_id = QueueId(0)
        self._takes_batches = connection.protocol_version >= ProtocolVersion.BATCHES
        # Such a client gives back a permit for each message of a batch, also for those it is told
        # are acked: for others they are not taken.
        self._pays_for_acked = connection.client_version.startswith(CPP_CLIENT)
        self._began_ms: Final = broker.clock.monotonic_ms()
        self._is_given_up = False
        """It cannot take what is next."""
        # The ACKs of this read.
        self._acks: list[int] = []
        self._odd_acks: list[tuple[int, list[int]]] = []
        self._ack_requests: list[int] = []
        self._figures = _Figures(broker.clock.monotonic_ms())

    def __repr__(self) -> str:
        return f"<Consumer {self.name} {self.consumer_id} {self._state.value}>"

    @property
    def label(self) -> str:
        own = self.name or f"consumer {self.consumer_id}"
        partition = f", partition {self.topic.partition}," if self.topic.is_partition else ""
        return f"{own} of {self._asked.subscription}{partition} on {self.connection.name}"

    @property
    def is_ready(self) -> bool:
        return self._state is _ConsumerState.READY

    # SUBSCRIBE.

    def open(self, name: PulsarName) -> None:
        """Raises ``PulsarError`` and what the engine says of limits."""
        topics = self._broker.topics
        self.topic = topics.open(
            name,
            may_create=self._asked.force_topic_creation,
            maker=self.connection.peer.maker,
            checks_fence=False,
        )
        # From now on it is told if the topic goes.
        self.topic.join(self)
        self._has_topic = True
        self._check_subscription()
        self._bring_schema()
        self._check_manner()
        self._check_rate()
        topics.check_fence(self.topic)
        self._enter()

    def _check_subscription(self) -> None:
        asked, broker = self._asked, self._broker
        if not asked.durable or not self.topic.is_persistent:
            return
        rule = broker.namespaces.effective(self.topic.topic_name).auto_subscription_creation
        if rule.allow_auto_subscription_creation:
            return
        if broker.subscriptions.find(self.topic, asked.subscription) is None:
            raise PulsarError(ServerError.SubscriptionNotFound, "Subscription does not exist")

    def _bring_schema(self) -> None:
        """Added where nobody uses the topic and nothing is in it, else compared (B47)."""
        topic = self.topic
        is_idle = len(topic.users) == 1
        if topic.is_persistent:
            is_idle = is_idle and not topic.queue.index.next_offset
        asked = self._asked
        schema = asked.schema if asked.HasField("schema") else None
        self._broker.schemas.of_consumer(topic, schema, is_idle=is_idle)

    def _check_manner(self) -> None:
        asked, mode = self._asked, self.manner.mode
        if asked.read_compacted and not self.topic.is_persistent:
            raise _not_allowed("readCompacted only valid on persistent topics")
        if asked.read_compacted and mode not in _ALONE:
            raise _not_allowed("readCompacted only allowed on failover or exclusive subscriptions")
        if asked.replicate_subscription_state:
            logger.warning(
                "a subscription is to be replicated, which this broker does not do",
                extra={"topic": str(self.topic.name), "subscription": asked.subscription},
            )
        policies = self._broker.namespaces.effective(self.topic.topic_name)
        if MODE_NAMES[mode] not in policies.subscription_types_enabled:
            raise _not_allowed(
                f"Topic[{{{self.topic.name}}}] doesn't support {MODE_NAMES[mode]} sub type!"
            )
        name = asked.subscription
        if not name.strip():
            raise PulsarError(ServerError.ProducerBusy, "Empty subscription name")
        if name.startswith(REPLICATION_PREFIX) or name == DEDUPLICATION_NAME:
            raise PulsarError(
                ServerError.ProducerBusy, "Subscription with reserved subscription name attempted"
            )

    def _check_rate(self) -> None:
        rule = self._broker.namespaces.effective(self.topic.topic_name).subscribe_rate
        count_max = rule.subscribe_throttling_rate_per_consumer
        if count_max <= 0:
            return
        key = (self.topic.name, self.connection.peer.host, self.name, self.consumer_id)
        now_ms = self._broker.clock.monotonic_ms()
        period_ms = max(1, rule.rate_period_in_second) * 1000
        if not self._broker.subscriptions.rates.may_subscribe(key, count_max, period_ms, now_ms):
            raise _not_allowed("Subscribe limited by subscribe rate limit per consumer.")

    def _enter(self) -> None:
        """Into its subscription, which is made if it is not there."""
        asked, subscriptions = self._asked, self._broker.subscriptions
        found = subscriptions.of(self.topic, asked.subscription)
        if found.is_seeking:
            found.after_seek(self._go_on)
            return
        self._check_limits(found)
        is_durable, is_new = asked.durable, not found.exists
        self.subscription = subscriptions.open(
            self.topic, asked.subscription, self._start(), is_durable=is_durable
        )
        self._has_subscription = True
        unacked_max = subscriptions.unacked_max(self.topic, self.manner, is_durable=is_durable)
        # Readers need not ack at all; of everybody else no more bytes are under way than F13 says.
        unacked = (unacked_max, None if is_durable else 0)
        try:
            self.attached = self.subscription.attach(self, self, Permits(), unacked)
        except PlaceTaken as taken:
            if self._has_probed or taken.holder.connection is self.connection:
                raise
            self._has_probed = True
            taken.holder.connection.probe(partial(self._probed, taken))
            return
        except PulsarError:
            if is_new:
                self.subscription.unsubscribe("its first consumer was not let in")
            raise
        if self.topic.is_persistent:
            self._stored = self.subscription.stored
            self._ledger_id = self.topic.queue.incarnation
            self._queue_id = self.topic.queue.queue_id
            subscriptions.limit(self.subscription)
        self._broker.engine.after_durable(self._opened)

    def _check_limits(self, subscription: PulsarSubscription) -> None:
        policies = self._broker.namespaces.effective(self.topic.topic_name)
        count_max = policies.max_consumers_per_topic
        if count_max and sum([isinstance(each, Consumer) for each in self.topic.users]) > count_max:
            raise PulsarError(ServerError.ConsumerBusy, "Topic reached max consumers limit")
        count_max = policies.max_consumers_per_subscription
        if count_max and len(subscription.users) >= count_max:
            raise PulsarError(ServerError.ConsumerBusy, "Subscription reached max consumers limit")

    def _start(self) -> Start | int:
        """Where a new subscription begins; of a durable one the start id does not count."""
        asked, topic = self._asked, self.topic
        if not topic.is_persistent:
            return Start.LATEST
        if asked.start_message_rollback_duration_sec:
            back_ms = asked.start_message_rollback_duration_sec * 1000
            from_ms = max(0, self._broker.clock.wall_ms() - back_ms)
            return self._offset_published(from_ms)
        if not asked.durable and asked.HasField("start_message_id"):
            start = asked.start_message_id
            where = Position(start.ledgerId, start.entryId)
            offset = self._broker.subscriptions.offset_of(
                topic, where, is_compacted=self.manner.is_compacted
            )
            if not self.manner.is_compacted or offset != start.entryId:
                return offset
            # In a view some messages of batches are entries: those before this one are over.
            return offset + max(0, start.batch_index)
        if asked.initialPosition != CommandSubscribe.Earliest:
            return Start.LATEST
        return 0 if self.manner.is_compacted else Start.EARLIEST

    def _offset_published(self, from_ms: int) -> int:
        is_compacted = self.manner.is_compacted
        return self._broker.subscriptions.offset_at(self.topic, from_ms, is_compacted=is_compacted)

    def _probed(self, taken: PlaceTaken, is_alive: bool, /) -> None:
        """Whoever has its place was asked whether he is still there."""
        if self._state is not _ConsumerState.OPENING:
            return
        if not is_alive:
            taken.holder.connection_lost()
            self._go_on()
        elif taken.holder.attached is None or not taken.holder.attached.is_attached:
            self._go_on()
        else:
            self._fail(taken)

    def _go_on(self) -> None:
        """What it waited for is over."""
        if self._state is not _ConsumerState.OPENING:
            return
        try:
            self._enter()
        except PulsarError as error:
            self._fail(error)
        except PenstockError as error:
            self._fail(PulsarError(ServerError.MetadataError, str(error)))

    def _opened(self) -> None:
        """All that was made for it is durable."""
        if self._state is not _ConsumerState.OPENING:
            return
        self._state = _ConsumerState.READY
        self.connection.succeed(self._asked.request_id)
        if self._active is not None:
            self._say_active(self._active)

    def asked_again(self, request_id: int) -> None:
        """SUBSCRIBE with an id that is in use."""
        if self._state is not _ConsumerState.READY:
            raise PulsarError(
                ServerError.ServiceNotReady, "Consumer is already present on the connection"
            )
        self.connection.succeed(request_id)

    def _fail(self, error: PulsarError) -> None:
        """It is not let in; whoever asked hears why."""
        self.connection.fail(self._asked.request_id, error)
        self._commands.forget(self)
        self.connection_lost()

    # FLOW.

    def grant(self, permits: int) -> None:
        """Permits for a consumer that is not ready do not count."""
        attached = self.attached
        if self._state is not _ConsumerState.READY or attached is None:
            return
        if not 0 < permits < PERMITS_END:
            raise CloseConnection(f"FLOW of {permits} permits to consumer {self.consumer_id}")
        attached.grant(permits)
        if self.topic.is_persistent and self.topic.topic.is_terminated:
            self.subscription.look_for_end()

    def hear(self, wait: ConsumerWait) -> None:
        """Its client says why it takes no more, or that it does again; for people who look."""
        attached = self.attached
        if self._state is not _ConsumerState.READY or attached is None:
            return
        attached.says = None
        cause = _CAUSES.get(wait.cause)
        if cause is not None:
            now_ms = self._broker.clock.monotonic_ms()
            # It cannot have waited for longer than it is there.
            since_ms = max(self._began_ms, now_ms - wait.lasted_ms)
            limit = min(wait.limit, NUMBER_MAX)
            attached.says = ClientSays(cause, wait.waiting, limit, since_ms)

    # MESSAGE: what the engine calls.

    def deliver(self, consumer: EngineConsumer, deliveries: list[Delivery]) -> None:
        """Entries in a row; of most nothing is looked at but their length."""
        if not self._takes_batches:
            deliveries = self._before_a_batch(deliveries)
        is_plain = self._epoch is None and self._takes_batches and self._ledger_id > 0
        frames = self._encode_plain(deliveries) if is_plain else []
        if frames:
            size = sum([len(each) for each in frames[1::2]])
        else:
            size = sum([self._encode_one(each, frames, is_plain) for each in deliveries])
        if size >= CHUNK_BYTES_MIN and consumer.inflight.bytes_max:
            self._look_for_chunks(deliveries)
        self._figures.bytes += size
        self._figures.messages += sum([each.messages for each in deliveries])
        if frames:
            self.connection.write(b"".join(frames))

    def _encode_plain(self, deliveries: list[Delivery]) -> list[bytes]:
        """Whole entries of Pulsar's, all for the first time: the usual case; empty = it is not."""
        records = [each.record for each in deliveries]
        attempts = [each.attempts for each in deliveries]
        messages = [each.messages for each in deliveries]
        if any(attempts) or messages != [each.shape.messages for each in records]:
            return []
        for shape in {each.shape for each in records}:
            if shape.wire != _PULSAR or not shape.body_at:
                return []
        origins = [each.origin for each in records]
        frames = [b""] * (2 * len(origins))
        frames[::2] = encode_messages(
            self.consumer_id,
            (self._ledger_id, self.topic.partition),
            [each.offset for each in deliveries],
            [len(each) for each in origins],
        )
        frames[1::2] = origins
        return frames

    def _encode_one(self, delivery: Delivery, frames: list[bytes], is_plain: bool) -> int:
        """One among others that are odd; its bytes."""
        record, shape = delivery.record, delivery.record.shape
        if (
            is_plain
            and not delivery.attempts
            and shape.wire == _PULSAR
            and shape.messages == delivery.messages
            and shape.body_at
        ):
            origin = record.origin
            place = (self._ledger_id, delivery.offset, self.topic.partition)
            frames += (encode_message(self.consumer_id, place, len(origin)), origin)
            return len(origin)
        return self._encode_odd(delivery, frames)

    def _look_for_chunks(self, deliveries: list[Delivery]) -> None:
        """Who gets chunks has no limit of unacked bytes from then on.

        A client acks none of them before it has the last one, and that may be far away.
        """
        attached = self.attached
        for delivery in deliveries:
            if delivery.size >= CHUNK_BYTES_MIN and _is_chunk(delivery.record):
                if attached is not None:
                    attached.limit_unacked(attached.inflight.messages_max, 0)
                return

    def _before_a_batch(self, deliveries: list[Delivery]) -> list[Delivery]:
        """What a client that knows no batches is sent: nothing from the first one on (B56)."""
        for at, delivery in enumerate(deliveries):
            if self._is_given_up or _is_batch(delivery.record):
                self._is_given_up = True
                self.connection.hang_up("it cannot take batches, and the next message is one")
                return deliveries[:at]
        return deliveries

    def _encode_odd(self, delivery: Delivery, frames: list[bytes]) -> int:
        """A message of another protocol, a part of a batch, one that comes again."""
        record = delivery.record
        if record.wire == _PULSAR and not is_readable(record):
            self._skip(delivery)
            return 0
        engine = self._broker.engine
        shown = present(
            record,
            engine.facts.get(record.wire),
            max_message_size=self._broker.settings.max_message_size,
        )
        is_alone = self.manner.mode in _ALONE
        words: list[int] = []
        if delivery.messages != record.messages and self._stored is not None:
            settled = self._stored.cursor(delivery.queue_id).settled
            end = delivery.offset + record.messages
            words = ack_set(delivery.offset, settled.unsettled_in(delivery.offset, end))
            if self._pays_for_acked and self.attached is not None:
                self.attached.demand.taken(record.messages - delivery.messages, 0)
        frames.append(
            encode_message(
                self.consumer_id,
                (self._ledger_id, max(delivery.offset, 0), self.topic.partition),
                len(shown.tail),
                redelivery_count=shown.attempts + (0 if is_alone else delivery.attempts),
                ack_set=words,
                consumer_epoch=self._epoch if is_alone else None,
            )
        )
        frames.append(shown.tail)
        return len(shown.tail)

    def _skip(self, delivery: Delivery) -> None:
        """A client could not read it; it counts as acked, and its permits as never used."""
        if self._stored is not None:
            self._stored.settle_entries(delivery.queue_id, [delivery.offset])
        if self.attached is not None:
            self.attached.grant(delivery.messages)

    def cancelled(self, consumer: EngineConsumer, cause: str) -> None:
        """Its subscription or topic is gone."""
        self.topic_closed(cause)

    def active_changed(self, consumer: EngineConsumer, is_active: bool) -> None:
        if self._state is _ConsumerState.READY:
            self._say_active(is_active)
        else:
            self._active = is_active

    def _say_active(self, is_active: bool) -> None:
        if self.connection.protocol_version < ProtocolVersion.ACTIVE_CONSUMER_CHANGE:
            return
        reply = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE)
        reply.active_consumer_change.consumer_id = self.consumer_id
        reply.active_consumer_change.is_active = is_active
        self.connection.send(reply)

    def reached_end(self) -> None:
        version = self.connection.client_version
        if self._state is not _ConsumerState.READY or version.startswith(CPP_CLIENT):
            return
        if self.connection.protocol_version >= ProtocolVersion.REACHED_END_OF_TOPIC:
            reply = BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC)
            reply.reached_end_of_topic.consumer_id = self.consumer_id
            self.connection.send(reply)

    # ACK.

    def add_ack(
        self,
        ack: CommandAck,
        ids: Iterable[MessageIdData] | None = None,
        *,
        is_whole: bool = True,
    ) -> bool:
        """An ACK came, ``flush_acks`` follows; True for the first one of a read.

        Or some of its ids: then its request is answered with the last ones (``is_whole``).
        """
        if self._state is not _ConsumerState.READY:
            return False
        is_first = not (self._acks or self._odd_acks or self._ack_requests)
        if is_whole and ack.HasField("request_id"):
            self._ack_requests.append(ack.request_id)
        if self._stored is None or ack.txnid_most_bits or ack.txnid_least_bits:
            pass
        elif ack.ack_type == CommandAck.Cumulative:
            self.flush_settlements()
            self._ack_upto(ack)
        else:
            ledger_id, acks = self._ledger_id, self._acks
            for each in ack.message_id if ids is None else ids:
                if each.ledgerId == ledger_id:
                    if each.ack_set:
                        self._odd_acks.append((each.entryId, list(each.ack_set)))
                    else:
                        acks.append(each.entryId)
        return is_first and bool(self._acks or self._odd_acks or self._ack_requests)

    def add_acks(self, run: AckRun) -> bool:
        """The same for many ACKs of the simplest kind."""
        if self._state is not _ConsumerState.READY:
            return False
        if self._stored is None or run.ledger_id != self._ledger_id:
            return False
        is_first = not (self._acks or self._odd_acks or self._ack_requests)
        self._acks += run.entries
        return is_first

    def flush_acks(self) -> None:
        """The ACKs of one read are settled, and answered when that is durable."""
        if self._state is not _ConsumerState.READY:
            return
        self.flush_settlements()
        requests, self._ack_requests = self._ack_requests, []
        if requests:
            self._broker.engine.after_durable(partial(self._say_acked, requests))

    def flush_settlements(self) -> None:
        stored = self._stored
        if stored is None or not (self._acks or self._odd_acks):
            return
        end = self.topic.queue.index.next_offset
        starts, self._acks = [each for each in self._acks if each < end], []
        odd, self._odd_acks = self._odd_acks, []
        if starts:
            self._figures.acked += stored.settle_entries(self._queue_id, starts)
        if odd:
            ranges = [part for entry, words in odd for part in self._acked_of(entry, words)]
            self._figures.acked += stored.settle_ranges(self._queue_id, ranges)
        if self.topic.topic.is_terminated:
            self.subscription.look_for_end(has_acked=True)

    def _ack_upto(self, ack: CommandAck) -> None:
        """Everything up to an entry, and with it; not where several share the subscription."""
        stored = self._stored
        if stored is None or self.manner.mode not in _ALONE or len(ack.message_id) != 1:
            return
        upto = ack.message_id[0]
        queue = self.topic.queue
        entry = upto.entryId
        if upto.ledgerId != self._ledger_id or entry >= queue.index.next_offset:
            return
        words = list(upto.ack_set)
        found = queue.index.entries(entry, 1)
        if not words and found:
            entry = found[0][1] + found[0][5]
        self._figures.acked += stored.settle_upto(self._queue_id, entry)
        ranges = self._acked_of(entry, words) if words else []
        if ranges:
            self._figures.acked += stored.settle_ranges(self._queue_id, ranges)
        if queue.topic.is_terminated:
            self.subscription.look_for_end(has_acked=True)

    def _acked_of(self, entry: int, words: list[int]) -> list[tuple[int, int]]:
        """The offsets that an ack set of an entry names."""
        queue = self.topic.queue
        if not self._broker.settings.acknowledgment_at_batch_index_level:
            return []
        if entry >= queue.index.next_offset:
            return []
        found = queue.index.entries(entry, 1)
        if not found or found[0][1] != entry:
            return []
        return acked_ranges(entry, found[0][5], words)

    def _say_acked(self, requests: list[int]) -> None:
        for request_id in requests:
            reply = BaseCommand(type=BaseCommand.ACK_RESPONSE)
            reply.ack_response.consumer_id = self.consumer_id
            reply.ack_response.request_id = request_id
            self.connection.send(reply)

    # REDELIVER, SEEK, UNSUBSCRIBE.

    def rewind(self, epoch: int | None) -> None:
        """Of who reads alone: everything it has comes again, and nothing is counted."""
        if epoch is not None:
            self._epoch = epoch
        if self.attached is not None and self._stored is not None:
            self._stored.redeliver(self.attached, self._queue_id, count=False)

    def redeliver(self, ids: list[tuple[int, int]]) -> None:
        """Of shared types: what it has of these ids, or everything, comes again and is counted."""
        attached, stored = self.attached, self._stored
        if self._state is not _ConsumerState.READY or attached is None or stored is None:
            return
        offsets = [entry for ledger, entry in ids if ledger == self._ledger_id]
        stored.redeliver(attached, self._queue_id, offsets if ids else None)

    def seek(self, asked: CommandSeek) -> None:
        done = partial(self.connection.succeed, asked.request_id)
        if not (asked.HasField("message_id") or asked.HasField("message_publish_time")):
            raise PulsarError(
                ServerError.MetadataError, "Message id and message publish time were not present"
            )
        if not self.topic.is_persistent:
            done()
            return
        if asked.HasField("message_id"):
            to = asked.message_id
            where = Position(to.ledgerId, to.entryId)
            offset = self._broker.subscriptions.offset_of(
                self.topic, where, is_compacted=self.manner.is_compacted
            )
            is_exact = self._broker.settings.acknowledgment_at_batch_index_level
            self.subscription.seek(offset, done, list(to.ack_set) if is_exact else None)
        else:
            self.subscription.seek(self._offset_published(asked.message_publish_time), done)

    def unsubscribe(self, request_id: int, *, force: bool) -> None:
        """Its subscription goes; only the last consumer may say so, unless by force."""
        if len(self.subscription.users) > 1 and not force:
            raise PulsarError(
                ServerError.MetadataError,
                "Unconnected or shared consumer attempting to unsubscribe",
            )
        subscription = self.subscription
        self._commands.forget(self)
        self.connection_lost()
        subscription.unsubscribe()
        self._broker.engine.after_durable(partial(self.connection.succeed, request_id))

    def tell_last_id(self, request_id: int) -> None:
        if not self.topic.is_persistent:
            raise PulsarError(ServerError.UnknownError, "Failed to recover Transaction Buffer.")
        reply = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        said = reply.get_last_message_id_response
        said.request_id = request_id
        last, mark = said.last_message_id, said.consumer_mark_delete_position
        last.partition = mark.partition = self.topic.partition
        last.ledgerId = last.entryId = NO_ID
        last.batch_index = -1
        found = self._last_entry()
        if found is not None:
            last.ledgerId, last.entryId = self._ledger_id, found[1]
            last.batch_index = self._last_index(found[0], found[5])
        place = self.subscription.mark_delete
        mark.ledgerId, mark.entryId = place.ledger, place.entry & NO_ID
        self.connection.send(reply)

    def _last_entry(self) -> IndexEntry | None:
        """The last one it can get; what is compacted out no reader may wait for."""
        queue, view = self.topic.queue, self.subscription.view
        end = queue.durable_end
        if view is not None:
            return view.last_entry(end)
        found = queue.index.entries(end - 1, 1) if end > queue.index.min_offset else []
        return found[0] if found else None

    def _last_index(self, position: int, messages: int) -> int:
        """Of the last message in a batch, which may be its only one; -1 where there is no batch."""
        if messages > 1:
            return messages - 1
        found = self._broker.engine.locate(position)
        return 0 if found is not None and _is_batch(found.record) else -1

    def tell_statistics(self, request_id: int) -> None:
        view = self.view()
        reply = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
        said = reply.consumer_stats_response
        said.request_id = request_id
        said.msgRateOut = view.message_rate
        said.msgThroughputOut = view.byte_rate
        said.msgRateRedeliver = view.redeliver_rate
        said.consumerName = view.name
        said.availablePermits = view.permits & NO_ID
        said.unackedMessages = view.unacked
        said.blockedConsumerOnUnackedMsgs = view.is_blocked
        said.address = view.address
        said.connectedSince = str(view.connected_ms)
        said.type = view.mode
        said.messageAckRate = view.ack_rate
        stored = self._stored
        if stored is not None:
            said.msgBacklog = stored.unsettled(self.topic.queue.queue_id)
        self.connection.send(reply)

    # Ends.

    def topic_closed(self, cause: str) -> None:
        """Its subscription was moved or deleted, its topic is gone, or the broker stops."""
        if self._state is _ConsumerState.OPENING:
            self._fail(topic_fenced())
        elif self._state is _ConsumerState.READY:
            self._commands.forget(self)
            self.connection_lost()
            reply = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
            reply.close_consumer.consumer_id = self.consumer_id
            reply.close_consumer.request_id = NO_ID
            self.connection.send(reply)

    def connection_lost(self) -> None:
        """Everything goes back."""
        if self._state is _ConsumerState.OVER:
            return
        self._state = _ConsumerState.OVER
        self._acks.clear()
        self._odd_acks.clear()
        self._ack_requests.clear()
        if self._has_subscription:
            self.subscription.detach(self)
            self._broker.subscriptions.forget(self.subscription)
        if self._has_topic:
            self.topic.leave(self)

    # What operators see.

    def view(self) -> ConsumerStats:
        figures, attached = self._figures, self.attached
        demand = None if attached is None else attached.demand
        redelivered = 0 if attached is None else attached.redelivered_messages
        figures.look(redelivered, self._broker.clock.monotonic_ms())
        return ConsumerStats(
            name=self.name,
            consumer_id=self.consumer_id,
            mode=MODE_NAMES[self.manner.mode],
            address=str(self.connection.peer),
            client_version=self.connection.client_version,
            connected_ms=self.connected_ms,
            metadata={each.key: each.value for each in self._asked.metadata},
            priority=self.manner.priority,
            permits=demand.permits if isinstance(demand, Permits) else 0,
            unacked=0 if attached is None else attached.inflight.messages,
            is_blocked=attached is not None and attached.inflight.is_blocked,
            key_ranges=self.manner.key_ranges,
            messages=figures.messages,
            bytes=figures.bytes,
            acked=figures.acked,
            redelivered=redelivered,
            message_rate=figures.message_rate,
            byte_rate=figures.byte_rate,
            ack_rate=figures.ack_rate,
            redeliver_rate=figures.redeliver_rate,
        )


def _manner(asked: CommandSubscribe) -> Manner:
    mode = _MODES[asked.subType]
    if mode is not Mode.KEY_SHARED:
        return Manner(mode, asked.priority_level, is_compacted=asked.read_compacted)
    meta = asked.keySharedMeta
    is_sticky = meta.keySharedMode == KeySharedMode.STICKY
    ranges = [(each.start, each.end) for each in meta.hashRanges] if is_sticky else []
    return Manner(
        mode, asked.priority_level, is_sticky, tuple(ranges), meta.allowOutOfOrderDelivery
    )


def _not_allowed(text: str) -> PulsarError:
    return PulsarError(ServerError.NotAllowedError, text)


def _is_batch(record: Record) -> bool:
    """Also a batch of one; of another protocol's messages only several are shown as one."""
    if record.messages > 1 or record.wire != _PULSAR:
        return record.messages > 1
    try:
        return read_metadata(record.origin)[0].HasField("num_messages_in_batch")
    except Unreadable:
        return False


def _is_chunk(record: Record) -> bool:
    if record.wire != _PULSAR:
        return False
    try:
        return read_metadata(record.origin)[0].num_chunks_from_msg > 1
    except Unreadable:
        return False


class ConsumerStats(msgspec.Struct, frozen=True):
    """One consumer, at one moment."""

    name: str
    consumer_id: int
    mode: str
    """Pulsar's name of its type."""
    address: str
    client_version: str
    connected_ms: int
    """Wall time."""
    metadata: dict[str, str]
    priority: int
    permits: int
    """Without those that are kept aside while it is blocked; below zero after a batch."""
    unacked: int
    is_blocked: bool
    """It has as many messages unacked as it may."""
    key_ranges: tuple[tuple[int, int], ...]
    messages: int
    bytes: int
    acked: int
    redelivered: int
    message_rate: float
    byte_rate: float
    ack_rate: float
    redeliver_rate: float


class _Figures:
    """What a consumer got and acked, and how fast."""

    __slots__ = (
        "_from",
        "_from_ms",
        "ack_rate",
        "acked",
        "byte_rate",
        "bytes",
        "message_rate",
        "messages",
        "redeliver_rate",
    )

    def __init__(self, now_ms: int) -> None:
        self.messages = 0
        self.bytes = 0
        self.acked = 0
        self.message_rate = 0.0
        self.byte_rate = 0.0
        self.ack_rate = 0.0
        self.redeliver_rate = 0.0
        self._from_ms = now_ms
        self._from = (0, 0, 0, 0)

    def look(self, redelivered: int, now_ms: int) -> None:
        """A span is over: its rates are told until the next one is."""
        span_ms = now_ms - self._from_ms
        if span_ms < RATE_MS:
            return
        now = (self.messages, self.bytes, self.acked, redelivered)
        messages, size, acked, again = [
            (after - before) * 1000 / span_ms for before, after in zip(self._from, now, strict=True)
        ]
        self.message_rate, self.byte_rate = messages, size
        self.ack_rate, self.redeliver_rate = acked, again
        self._from_ms, self._from = now_ms, now
