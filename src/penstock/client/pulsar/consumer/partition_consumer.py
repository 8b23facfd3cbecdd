"""A consumer of one topic or partition: SUBSCRIBE, what comes, what is acked, and coming back.

It lives on the client's thread. Its application is on others: those take messages from an
``MessageInbox``, and leave acks in a list of their own that is looked at once per group.

After every SUBSCRIBE (B20-B26): what was received and not handed out is thrown away and its first
id remembered; a durable subscription starts where the broker knows, one that is not starts with
that first message, or behind the last one handed out when there was none; permits begin at 0, and
candidates for the dead-letter topic are forgotten.

Not here: several of them as one (``consumer.py``), connecting (``pulsar/handler.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import Final, NamedTuple, Protocol

from penstock.client.loop import client_loop
from penstock.client.pulsar.connection import Connection
from penstock.client.pulsar.consumer.acks import AckGroup, ack_command, entry_id
from penstock.client.pulsar.consumer.entries import (
    Chunks,
    Corrupt,
    Encrypted,
    EntryOrigin,
    Opened,
    batch_messages,
    open_entry,
    single_message,
)
from penstock.client.pulsar.consumer.receiver_queue import MessageInbox, ReceiverPermits
from penstock.client.pulsar.consumer.redelivery import (
    DeadLetterCandidates,
    NegativeAcks,
    UnackedTracker,
)
from penstock.client.pulsar.errors import ClientError, Refused, TimedOut, Unreachable, WouldBlock
from penstock.client.pulsar.handler import Handler, HandlerState
from penstock.client.pulsar.lookup import Cluster
from penstock.client.pulsar.message import (
    EARLIEST,
    LATEST,
    EntryId,
    MessageId,
    ReceivedMessage,
)
from penstock.client.pulsar.options import ConsumerOptions, InitialPosition, SubscriptionType
from penstock.client.pulsar.schema import Schema
from penstock.client.pulsar.why import RUNNING, Standstill, Waits, WaitTeller, Why
from penstock.wire.pulsar.frames import Frame, signed
from penstock.wire.pulsar.names import PulsarName
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CommandMessage,
    CommandSubscribe,
    ConsumerWait,
    KeySharedMeta,
    KeySharedMode,
)

_log = logging.getLogger(__name__)

NEVER: Final = 1 << 62
_SUB_TYPES: Final = {
    SubscriptionType.EXCLUSIVE: CommandSubscribe.Exclusive,
    SubscriptionType.SHARED: CommandSubscribe.Shared,
    SubscriptionType.FAILOVER: CommandSubscribe.Failover,
    SubscriptionType.KEY_SHARED: CommandSubscribe.Key_Shared,
}
_POSITIONS: Final = {
    InitialPosition.LATEST: CommandSubscribe.Latest,
    InitialPosition.EARLIEST: CommandSubscribe.Earliest,
}
REDELIVERED_PER_COMMAND: Final = 1_000


class SubscribeTerms(NamedTuple):
    """What all consumers of one application's subscription have in common."""

    name: str
    consumer_name: str
    options: ConsumerOptions
    schema: Schema | None
    may_create_topics: bool
    """False for a pattern, which would bring deleted topics back."""

    @property
    def kind(self) -> SubscriptionType:
        return self.options["subscription_type"]


class StartPlace(NamedTuple):
    """Where a consumer begins, or was moved to."""

    message_id: MessageId | None
    """Of a durable one None until it is moved: the broker knows."""
    is_inclusive: bool
    published_ms: int = 0
    """Wall time before which nothing is wanted, after a seek by time."""
    rollback_to_ms: int | None = None
    """Wall time from which a broker begins that forgot this one."""


class ParentConsumer(Protocol):
    """The application's consumer, of which this is a part."""

    inboxes: Sequence[MessageInbox]
    lock: RLock
    letters_under_way: int
    """To retry-letter and dead-letter topics, without a receipt so far."""
    letters_sent: int

    def active_changed(self, child: PartitionConsumer, is_active: bool | None) -> None: ...

    def bury(self, child: PartitionConsumer, messages: list[ReceivedMessage]) -> None:
        """Send messages to the dead-letter topic, then ack them; put them back when it fails."""
        ...

    def inbox_for(self, message: ReceivedMessage) -> MessageInbox: ...


class Counters:
    """What happened to one consumer so far."""

    __slots__ = (
        "acked", "bytes", "corrupt", "duplicates", "encrypted", "messages", "reconnects",
        "redeliveries_asked",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.acked = 0
        self.corrupt = 0
        self.encrypted = 0
        self.duplicates = 0
        self.redeliveries_asked = 0
        self.reconnects = 0


class AckReceipts:
    """Receipts of one consumer's acks, asked for on demand; its connection bounds them."""

    def __init__(self, cluster: Cluster, what: str) -> None:
        self.unconfirmed: BaseCommand | None = None
        """An ACK on this connection, the last one that went without a receipt."""
        self._forgotten = 0
        self._cluster = cluster
        self._what = what
        self._awaited: set[asyncio.Task[None]] = set()

    def forget(self) -> None:
        """Another connection, or another place: what was acked before is not said again."""
        self.unconfirmed = None
        self._forgotten += 1

    async def of(self, connection: Connection, commands: list[BaseCommand]) -> None:
        """Send these; return when the broker has them and all that was sent before."""
        sent, self.unconfirmed = self.unconfirmed, None
        if not commands and sent is not None:
            # Brokers take acks in their order: the last one, said again, answers for all of them.
            del sent.ack.message_id[:-1]
            commands = [sent]
        for command in commands:
            task = asyncio.get_running_loop().create_task(self._request(connection, command))
            self._awaited.add(task)
            task.add_done_callback(self._ended)
        # Also of acks that left with another one's.
        if self._awaited:
            ended, _ = await asyncio.wait(set(self._awaited))
            for each in ended:
                each.result()

    async def _request(self, connection: Connection, command: BaseCommand) -> None:
        request_id = self._cluster.pool.next_request_id()
        command.ack.request_id = request_id
        forgotten = self._forgotten
        try:
            said = (await connection.request(command, request_id, self._what)).ack_response
        except (TimedOut, WouldBlock) as problem:
            if isinstance(problem, WouldBlock):
                # It was not sent, and nobody else has it; as without receipts it goes all the same.
                command.ack.ClearField("request_id")
                connection.send(command)
            if self.unconfirmed is None and forgotten == self._forgotten:
                self.unconfirmed = command
            raise
        if said.HasField("error"):
            raise Refused(said.error, said.message, self._what)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._awaited.discard(task)
        if not task.cancelled():
            # Who waited for it may have gone away.
            task.exception()


class PartitionConsumer:
    """One SUBSCRIBE at one broker; a ``Handled`` of its ``Handler``, an ``InboxSource``."""

    def __init__(
        self,
        host: ParentConsumer,
        cluster: Cluster,
        topic: PulsarName,
        subscription: SubscribeTerms,
        *,
        queue_size: int,
        has_parent: bool,
    ) -> None:
        options = subscription.options
        self.topic: Final = topic
        self.topic_name: Final = str(topic)
        self.partition: Final = topic.partition
        self.consumer_id: Final = cluster.next_consumer_id()
        self.permits: Final = ReceiverPermits(queue_size)
        self.acks: Final = AckGroup(has_batch_index_acks=options["has_batch_index_acks"])
        self.tracker: Final = UnackedTracker(options["ack_timeout_ms"])
        self.negatives: Final = NegativeAcks(
            options["negative_ack_delay_ms"], options["negative_ack_backoff"]
        )
        self.letters: Final = _letters(options)
        self.chunks: Final = _chunks(options)
        self.counters: Final = Counters()
        self._teller: Final = WaitTeller()
        self.is_active: bool | None = None
        """Of a failover subscription: whether this one gets messages; None = not told yet."""
        self.has_reached_end = False
        # Of the inbox's lock.
        self.epoch = -1
        self.taken = 0
        self.taken_post_at = self.permits.refill_at if queue_size else NEVER
        self.is_noting = bool(self.tracker.timeout_ms)
        self.last_taken: MessageId | None = None
        self._noted: list[EntryId] = []
        self._said: list[tuple[MessageId, bool]] = []
        """Acks of the application, True for cumulative ones."""
        self._are_acks_begun = False
        # Of the client's thread.
        self._host = host
        self._cluster = cluster
        self._subscription = subscription
        self._options = options
        self._ack_group_max = options["ack_group_max"]
        self._has_parent = has_parent
        self._place = _first_place(options, cluster.clock.wall_ms())
        self._sought: StartPlace | None = None
        """Where a seek goes that has no answer yet."""
        self._redeliver_epoch = 0
        self._back, self._is_noted_posted, self._unacked_before = 0, False, 0
        # What was taken, acked and sent as letters at the last look at its standstill.
        self._last_seen: tuple[MessageId | None, int] = (None, 0)
        self._letters_seen = 0
        self._loop = asyncio.get_running_loop()
        self._thread: Final = client_loop()
        what = f"consumer of subscription {subscription.name!r} of topic {self.topic_name}"
        self.handler: Final = Handler(self, cluster, topic, what)
        self._receipts: Final = AckReceipts(cluster, f"ack by {what}")
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    # ---- connecting ------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.handler.open()
        if self._options["ack_timeout_ms"]:
            self._tick()

    async def opened(self, connection: Connection) -> None:
        """SUBSCRIBE on a new connection."""
        first = self._begin_epoch()
        if self._sought is not None:
            # The broker closed this one to move it; what was in flight then is not the way.
            self._go_to(self._sought)
        elif not self._options["is_durable"]:
            self._go_on_from(first)
        connection.add_consumer(self.consumer_id, self)
        request_id = self._cluster.pool.next_request_id()
        try:
            await connection.request(self._subscribe(request_id), request_id, self.handler.what)
        except TimedOut:
            # It may succeed yet: a consumer that nobody has would keep others from messages.
            connection.send(self._goodbye())
            raise
        if self.handler.connection is not connection or self.handler.is_over:
            return
        # Of those that succeeded: a first attempt that was refused is no connection.
        is_first = self.handler.epoch < 0
        if not is_first:
            self.counters.reconnects += 1
        # Before the FLOW: the broker would send again what it does not know to be acked.
        self._look_at_acks()
        self._flush(connection)
        may_start = not (is_first and self._has_parent and self._options["is_durable"])
        self._flow(connection, self.permits.connected(may_start=may_start))
        if not self.permits.queue_size:
            self._ask(connection)
        self._teller.forget()
        connection.watch(self.consumer_id, self)

    def forget(self, connection: Connection) -> None:
        connection.remove_consumer(self.consumer_id)

    def lost(self, why: str) -> None:
        self.permits.disconnected()
        if self._subscription.kind is SubscriptionType.FAILOVER:
            self.is_active = None
            self._host.active_changed(self, None)

    def failed(self, error: ClientError) -> None:
        self.permits.disconnected()

    def is_final(self, error: ClientError) -> bool:
        return False

    def connection_lost(self, connection: Connection, why: str) -> None:
        self.handler.connection_lost(connection, why)

    def start_flow(self) -> None:
        """The parent has all its children: this one may receive, too (B29)."""
        connection = self.handler.ready_connection
        if connection is not None:
            self._flow(connection, self.permits.start())
            if not self.permits.queue_size:
                self._ask(connection)

    def _begin_epoch(self) -> MessageId | None:
        """Throw away what nobody has; the first id of it."""
        # Before batches in pieces are forgotten: what is said of one now may have made it whole.
        self._look_at_acks()
        with self._host.lock:
            gone = [each for inbox in self._host.inboxes for each in inbox.clear(self)]
            self.taken = 0
            self._noted.clear()
            self.epoch += 1
        # Permits of the last connection: what came with its end has not given them back.
        self._back = 0
        # What was not acked then comes again, and is counted again.
        self._unacked_before = self.counters.messages - self.counters.acked
        self._receipts.forget()
        self.acks.reconnected()
        self.tracker.clear()
        self.negatives.clear()
        self.chunks.clear()
        if self.letters is not None:
            self.letters.clear()
        ids = [each.message_id for each in gone]
        return min(ids, key=_position) if ids else None

    def _go_on_from(self, first: MessageId | None) -> None:
        """Not durable: the broker forgot where this one was (B22)."""
        found = (first.first_chunk or first) if first is not None else self.last_taken
        if found is not None:
            self._place = StartPlace(found, first is not None, self._place.published_ms)

    def _go_to(self, place: StartPlace) -> None:
        """It was moved: what was received before is no place to go on from."""
        with self._host.lock:
            self._place, self.last_taken = place, None

    def _subscribe(self, request_id: int) -> BaseCommand:
        options, subscription = self._options, self._subscription
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        it = command.subscribe
        it.topic, it.subscription = self.topic_name, subscription.name
        it.subType = _SUB_TYPES[subscription.kind]
        it.consumer_id, it.request_id = self.consumer_id, request_id
        it.consumer_name = subscription.consumer_name
        it.priority_level = options["priority_level"]
        it.durable = options["is_durable"]
        it.read_compacted = options["is_read_compacted"]
        it.initialPosition = _POSITIONS[options["initial_position"]]
        it.replicate_subscription_state = options["is_replicated"]
        it.force_topic_creation = subscription.may_create_topics
        if not options["is_durable"]:
            place = self._place
            if place.message_id is not None:
                start = it.start_message_id
                data = place.message_id.to_wire()
                start.ledgerId, start.entryId = data.ledgerId, data.entryId
                if place.message_id.batch_index >= 0:
                    start.batch_index = place.message_id.batch_index
            if place.rollback_to_ms is not None:
                age_ms = max(0, self._cluster.clock.wall_ms() - place.rollback_to_ms)
                it.start_message_rollback_duration_sec = age_ms // 1000
        for name, value in (options["properties"] or {}).items():
            it.metadata.add(key=name, value=value)
        for name, value in (options["subscription_properties"] or {}).items():
            it.subscription_properties.add(key=name, value=value)
        schema = None if subscription.schema is None else subscription.schema.to_wire()
        if schema is not None:
            it.schema.CopyFrom(schema)
        if subscription.kind is SubscriptionType.KEY_SHARED:
            it.keySharedMeta.CopyFrom(_key_shared(options))
        if not subscription.kind.is_shared:
            it.consumer_epoch = self._redeliver_epoch
        return command

    # ---- what comes ------------------------------------------------------------------------------

    @property
    def is_durable(self) -> bool:
        return self._options["is_durable"]

    @property
    def holds_reading(self) -> bool:
        return self._host.inboxes[0].room.is_full

    @property
    def awaits_answer(self) -> bool:
        inboxes = self._host.inboxes
        # Idle threads of a listener would keep the others' messages coming without end.
        is_full = inboxes[0].room.is_full
        return not is_full and any(inbox.receivers > len(inbox) for inbox in inboxes)

    def received(self, frames: list[Frame]) -> None:
        """Messages go to the inbox in one piece; notices are for this one."""
        found: list[ReceivedMessage] = []
        is_closed = False
        for command, tail in frames:
            kind = command.type
            if kind == BaseCommand.MESSAGE:
                self._message(command.message, tail, found)
            elif kind == BaseCommand.CLOSE_CONSUMER:
                is_closed = True
            elif kind == BaseCommand.ACTIVE_CONSUMER_CHANGE:
                self.is_active = command.active_consumer_change.is_active
                self._host.active_changed(self, self.is_active)
            elif kind == BaseCommand.REACHED_END_OF_TOPIC:
                self.has_reached_end = True
        if found:
            self.counters.messages += len(found)
            self.counters.bytes += sum([len(each.data) for each in found])
            self._hand_over(found)
        if is_closed:
            self.handler.closed_by_broker()
            return
        self._give_back()
        self._watch()

    def _hand_over(self, messages: list[ReceivedMessage]) -> None:
        inboxes = self._host.inboxes
        if len(inboxes) == 1:
            inboxes[0].put(messages)
            return
        lists: dict[int, tuple[MessageInbox, list[ReceivedMessage]]] = {}
        for message in messages:
            inbox = self._host.inbox_for(message)
            lists.setdefault(id(inbox), (inbox, []))[1].append(message)
        for inbox, mine in lists.values():
            inbox.put(mine)

    def _message(self, message: CommandMessage, tail: bytes, found: list[ReceivedMessage]) -> None:
        data = message.message_id
        entry = signed(data.ledgerId), signed(data.entryId)
        charged = 0
        mine: list[ReceivedMessage] = []
        try:
            opened = open_entry(tail)
            charged = opened.messages
            if message.ack_set:
                charged = sum([(word & (2**64 - 1)).bit_count() for word in message.ack_set])
            mine = self._open(message, entry, opened)
        except Corrupt as problem:
            charged = charged or problem.messages
            self._discard(entry, problem)
        except Encrypted as problem:
            charged = problem.messages
            is_first = not self.counters.encrypted
            self.counters.encrypted += problem.messages
            _log.log(
                logging.WARNING if is_first else logging.DEBUG,
                "an encrypted entry is not handed out",
                extra={"topic": self.topic_name, "entry": entry},
            )
        self.permits.arrived(charged)
        if charged > len(mine):
            self._back += charged - len(mine)
        if self.letters is not None and self.letters.judge(mine, message.redelivery_count):
            self._back += len(mine)
            self.redeliver([entry])
            return
        found += mine

    def _open(
        self, message: CommandMessage, entry: EntryId, opened: Opened
    ) -> list[ReceivedMessage]:
        """Messages of an entry that are to be handed out."""
        if message.HasField("consumer_epoch") and message.consumer_epoch < self._redeliver_epoch:
            # Sent before the broker heard that all is wanted again.
            return []
        whole: Opened | None = opened
        chunks: list[EntryId] | None = None
        if opened.is_chunk:
            whole = self._put_together(opened, entry, message.redelivery_count)
            chunks = self.chunks.entries_of(entry)
        if whole is None or self._is_unwanted(opened):
            return []
        origin = EntryOrigin(
            self.topic_name,
            entry,
            self.partition,
            message.redelivery_count,
            self._subscription.schema,
            self,
            self.epoch,
        )
        if whole.is_batch:
            left = self.acks.arrived(entry, whole.messages, message.ack_set)
            start = self._place.message_id
            if start is not None and not self._is_end(start):
                for index in range(whole.messages):
                    if self._is_before_start(entry, index):
                        left &= ~(1 << index)
            if self.acks.is_acked(entry):
                return []
            found = batch_messages(whole, origin, left) if left else []
            if len(found) < whole.messages:
                # The broker would keep the rest for ever, as nobody acks it.
                bits = sum([1 << each.message_id.batch_index for each in found])
                self.acks.handed_out(entry, whole.messages, bits)
                if not bits:
                    self._begin_acks()
            return found
        is_acked = self.acks.is_acked(entry)
        if is_acked or self._is_before_start(entry, -1):
            self.counters.duplicates += 1
            if not is_acked:
                self.acks.add_entries(chunks or [entry])
                self._begin_acks()
            return []
        first = None if not chunks else MessageId(*chunks[0], self.partition)
        message_id = MessageId(*entry, self.partition, first_chunk=first)
        return [single_message(whole, origin, message_id)]

    def _put_together(self, chunk: Opened, entry: EntryId, redelivery_count: int) -> Opened | None:
        """The message, when this was its last chunk."""
        now_ms = self._cluster.clock.monotonic_ms()
        whole = self.chunks.add(chunk, entry, now_ms)
        strays = self.chunks.take_strays()
        # With one active consumer the order is kept.
        if strays and self._subscription.kind.is_shared:
            for each in strays:
                self.negatives.add_stray(each, redelivery_count, now_ms)
            self._watch_negatives()
        doubles = self.chunks.take_doubles()
        if doubles:
            self.counters.duplicates += len(doubles)
            self.acks.add_entries(doubles)
            self._begin_acks()
        if len(self.chunks):
            self._later(self._options["chunked_expire_ms"], self._expire_chunks)
        return whole

    def _is_unwanted(self, opened: Opened) -> bool:
        return opened.metadata.publish_time < self._place.published_ms

    @staticmethod
    def _is_end(start: MessageId) -> bool:
        return start in (EARLIEST, LATEST)

    def _is_before_start(self, entry: EntryId, index: int) -> bool:
        """The broker begins with a whole entry; what is before the start id is not wanted."""
        start, is_inclusive = self._place.message_id, self._place.is_inclusive
        if start is None or self._is_end(start):
            return False
        if entry != start.entry:
            return entry < start.entry and not self._options["is_durable"]
        if start.batch_index < 0 or index < 0:
            return not is_inclusive
        if is_inclusive:
            return index < start.batch_index
        return index <= start.batch_index

    def _discard(self, entry: EntryId, problem: Corrupt) -> None:
        """Nobody can read it: the broker is told so with its ack."""
        self.counters.corrupt += 1
        _log.log(
            logging.WARNING if self.counters.corrupt == 1 else logging.DEBUG,
            "an entry cannot be read and is acked",
            extra={"topic": self.topic_name, "entry": entry, "why": str(problem)},
        )
        ids = [entry_id(each) for each in self.chunks.entries_of(entry) or [entry]]
        self.chunks.settled(entry)
        command = ack_command(self.consumer_id, ids)
        command.ack.validation_error = problem.error
        connection = self.handler.ready_connection
        if connection is not None:
            connection.send(command)

    # ---- permits ---------------------------------------------------------------------------------

    def note_taken(self, message: ReceivedMessage) -> None:
        """Under the lock: remember what may have to come again."""
        self._noted.append(message.message_id.entry)

    def post_taken(self) -> None:
        """From any thread, under the lock."""
        if not self._is_noted_posted:
            self._is_noted_posted = True
            self._thread.post(self.look_at_taken)

    def look_at_taken(self) -> None:
        """The application took messages: their places are free."""
        with self._host.lock:
            self._is_noted_posted = False
            count, self.taken = self.taken, 0
            noted, self._noted = self._noted, []
        if noted:
            now_ms = self._cluster.clock.monotonic_ms()
            for entry in noted:
                self.tracker.add(entry, now_ms)
        self._back += count
        self._give_back()
        connection = self.handler.ready_connection
        if connection is not None and not connection.is_reading:
            connection.review_reading()

    def ask(self) -> None:
        """A queue of 0: somebody waits for a message (B30)."""
        connection = self.handler.ready_connection
        if connection is not None:
            self._ask(connection)
            connection.review_reading()

    def pause(self) -> None:
        self.permits.pause()
        self._watch()

    def resume(self) -> None:
        self.look_at_taken()
        connection = self.handler.ready_connection
        flow = self.permits.resume()
        if connection is not None:
            self._flow(connection, flow)
            self._ask(connection)

    def _give_back(self) -> None:
        back, self._back = self._back, 0
        flow = self.permits.taken(back) if back else 0
        connection = self.handler.ready_connection
        if connection is None:
            return
        self._flow(connection, flow)
        if not self.permits.queue_size:
            self._ask(connection)

    def _ask(self, connection: Connection) -> None:
        receivers = sum([max(0, each.receivers - len(each)) for each in self._host.inboxes])
        self._flow(connection, self.permits.wanted(receivers))

    def _flow(self, connection: Connection, permits: int) -> None:
        if permits > 0:
            command = BaseCommand(type=BaseCommand.FLOW)
            command.flow.consumer_id, command.flow.messagePermits = self.consumer_id, permits
            connection.send(command)

    # ---- acks ------------------------------------------------------------------------------------

    def say_acked(self, message_id: MessageId, *, is_cumulative: bool = False) -> None:
        """From any thread: ack it with the next group."""
        with self._host.lock:
            said = self._said
            said.append((message_id, is_cumulative))
            # Those behind it go with it: another flush would find nothing.
            is_due = len(said) == self._ack_group_max
            if self._are_acks_begun and not is_due:
                return
            self._are_acks_begun = True
        self._thread.post(self.flush_acks if is_due else self._begin_acks)

    def _begin_acks(self) -> None:
        group_ms = self._options["ack_group_ms"]
        if not group_ms:
            self.flush_acks()
        else:
            self._later(group_ms, self.flush_acks)

    def flush_acks(self) -> None:
        """Send what was acked so far."""
        timer = self._timers.pop(self.flush_acks, None)
        if timer is not None:
            timer.cancel()
        self._look_at_acks()
        connection = self.handler.ready_connection
        if connection is not None:
            self._flush(connection)

    async def flush_with_receipt(self) -> None:
        """The same; when this returns, the broker has it, and all sent before on its connection.

        Raises ``ClientError``.
        """
        self._look_at_acks()
        connection = self.handler.ready_connection
        if connection is None:
            raise Unreachable(self.topic_name, f"acks wait: {self.handler.why()}")
        await self._receipts.of(connection, self.acks.flush(self.consumer_id))

    def _look_at_acks(self) -> None:
        if self.tracker.timeout_ms:
            # What is acked may have been taken just before.
            self.look_at_taken()
        with self._host.lock:
            said, self._said = self._said, []
            self._are_acks_begun = False
        at, end = 0, len(said)
        while at < end:
            message_id, is_cumulative = said[at]
            at += 1
            if is_cumulative:
                self._ack_up_to(message_id)
                continue
            bits = 0
            if message_id.batch_index >= 0:
                # Messages of one batch are mostly acked in a row, and then all at once.
                entry_id, bits = message_id.entry_id, 1 << message_id.batch_index
                while at < end:
                    other, is_cumulative = said[at]
                    if (
                        other.entry_id != entry_id
                        or is_cumulative
                        or other.ledger_id != message_id.ledger_id
                        or other.batch_index < 0
                    ):
                        break
                    bits |= 1 << other.batch_index
                    at += 1
            self._ack(message_id, bits)
        if self.letters is not None:
            for message_id, is_cumulative in said:
                if not is_cumulative:
                    self.letters.settled(message_id)
        self.counters.acked += end
        last = self.last_taken
        if end and said[-1][1] and last is not None and said[-1][0].position >= last.position:
            # A cumulative ack of all that was handed out: it is one of many.
            self._unacked_before = self.counters.messages - self.counters.acked - self._queued

    def _ack(self, message_id: MessageId, bits: int) -> None:
        """One message, or those of its batch that have a bit."""
        entry = message_id.entry
        chunks = self.chunks.entries_of(entry)
        if chunks is not None:
            self.acks.add_entries(chunks)
            self.chunks.settled(entry)
            is_whole = True
        else:
            is_whole = self.acks.add(message_id, bits)
        if is_whole:
            self.tracker.remove(entry)
            self.negatives.remove(entry)

    def _ack_up_to(self, message_id: MessageId) -> None:
        self.acks.add_cumulative(message_id)
        is_inside = 0 <= message_id.batch_index < message_id.batch_size - 1
        ledger_id, entry_number = message_id.entry
        self.tracker.remove_up_to((ledger_id, entry_number - is_inside))

    def _flush(self, connection: Connection) -> None:
        if len(self.acks):
            for command in self.acks.flush(self.consumer_id):
                connection.send(command)
                self._receipts.unconfirmed = command

    # ---- once more -------------------------------------------------------------------------------

    def give_back_later(
        self, message_id: MessageId, redelivery_count: int, least_ms: int = 0
    ) -> None:
        """A negative ack."""
        if self.tracker.timeout_ms:
            self.look_at_taken()
        entry = message_id.entry
        self.tracker.remove(entry)
        now_ms = self._cluster.clock.monotonic_ms()
        self.negatives.add(entry, redelivery_count, now_ms, least_ms)
        self._watch_negatives()

    def redeliver(self, entries: Iterable[EntryId]) -> None:
        """Ask for entries again; those at the end of their lives go to the dead-letter topic."""
        wanted = []
        for entry in entries:
            dead = [] if self.letters is None else self.letters.take(entry)
            if dead:
                self._host.bury(self, dead)
            else:
                wanted += self.chunks.entries_of(entry) or [entry]
        if not wanted:
            return
        if not self._subscription.kind.is_shared:
            # The broker would begin from the first unacked one anyway.
            self.redeliver_all()
            return
        self.counters.redeliveries_asked += len(wanted)
        connection = self.handler.ready_connection
        if connection is None:
            return
        for at in range(0, len(wanted), REDELIVERED_PER_COMMAND):
            command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
            it = command.redeliver_unacknowledged_messages
            it.consumer_id = self.consumer_id
            it.message_ids.extend(map(entry_id, wanted[at : at + REDELIVERED_PER_COMMAND]))
            connection.send(command)

    def redeliver_all(self) -> None:
        """Everything that is not acked comes again, also what was not handed out yet."""
        connection = self.handler.ready_connection
        if connection is None:
            return
        self.flush_acks()
        command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        it = command.redeliver_unacknowledged_messages
        it.consumer_id = self.consumer_id
        if not self._subscription.kind.is_shared:
            self._redeliver_epoch += 1
            it.consumer_epoch = self._redeliver_epoch
        connection.send(command)
        self.counters.redeliveries_asked += 1
        with self._host.lock:
            gone = sum([len(inbox.clear(self)) for inbox in self._host.inboxes])
            self._noted.clear()
        self.tracker.clear()
        self.negatives.clear()
        self.chunks.clear()
        self._back += gone
        # With what was taken: a message that was put back was granted again before.
        self.look_at_taken()

    def _watch_negatives(self) -> None:
        # One given back later may be due earlier.
        timer = self._timers.pop(self._negatives_due, None)
        if timer is not None:
            timer.cancel()
        next_ms = self.negatives.next_ms
        if next_ms is not None:
            wait_ms = max(0, next_ms - self._cluster.clock.monotonic_ms())
            self._later(wait_ms, self._negatives_due)

    def _negatives_due(self) -> None:
        # What was acked after all is not given back, nor what else was acked of its batch.
        self.flush_acks()
        entries = self.negatives.due(self._cluster.clock.monotonic_ms())
        if entries:
            self.redeliver(entries)
        self._watch_negatives()

    def _tick(self) -> None:
        """Ack time-out."""
        if self.handler.is_over:
            return
        self.look_at_taken()
        self._look_at_acks()
        entries = self.tracker.due(self._cluster.clock.monotonic_ms())
        if entries:
            _log.info(
                "messages were not acked in time and come again",
                extra={"topic": self.topic_name, "entries": len(entries)},
            )
            self.redeliver(entries)
        tick_ms = min(self._options["ack_timeout_tick_ms"], self._options["ack_timeout_ms"])
        self._later(tick_ms, self._tick)

    def _expire_chunks(self) -> None:
        self.chunks.expire(self._cluster.clock.monotonic_ms())
        if len(self.chunks):
            self._later(self._options["chunked_expire_ms"], self._expire_chunks)

    def _later(self, wait_ms: int, call: Callable[[], None]) -> None:
        """Once, however often it is wished for before it happens."""
        if call not in self._timers:
            self._timers[call] = self._loop.call_later(wait_ms / 1000, self._now, call)

    def _now(self, call: Callable[[], None]) -> None:
        self._timers.pop(call, None)
        call()

    # ---- moving ----------------------------------------------------------------------------------

    async def seek(self, target: MessageId | int) -> None:
        """Move the subscription to a message, or to a wall time in ms; raises ``ClientError``."""
        connection = self._connection("seek")
        self.flush_acks()
        request_id = self._cluster.pool.next_request_id()
        command = BaseCommand(type=BaseCommand.SEEK)
        it = command.seek
        it.consumer_id, it.request_id = self.consumer_id, request_id
        before, epoch, is_durable = self._place, self.epoch, self._options["is_durable"]
        if isinstance(target, MessageId):
            data = (target.first_chunk or target).to_wire()
            it.message_id.ledgerId, it.message_id.entryId = data.ledgerId, data.entryId
            sought = StartPlace(target, self._options["is_start_inclusive"])
        else:
            it.message_publish_time = target
            # To a whole second before it: what is too much is not handed out.
            sought = StartPlace(LATEST, before.is_inclusive, target, target - 1000)
            if is_durable:
                sought = StartPlace(None, before.is_inclusive)
        self._sought = sought
        self._receipts.forget()
        with self._host.lock:
            # A reconnect must not go on from what was received before.
            gone = [each for inbox in self._host.inboxes for each in inbox.clear(self)]
        try:
            await connection.request(command, request_id, f"seek by {self.handler.what}")
        except BaseException:
            if self.epoch == epoch:
                with self._host.lock:
                    # What came meanwhile is behind it.
                    gone += [each for inbox in self._host.inboxes for each in inbox.clear(self)]
                    self._hand_over(gone)
            elif is_durable:
                self._place = before
            raise
        finally:
            if self._sought is sought:
                self._sought = None
        with self._host.lock:
            late = [each for inbox in self._host.inboxes for each in inbox.clear(self, epoch)]
            if self.epoch == epoch:
                # Behind it: a thread that takes one in between would say where to go on.
                self._go_to(sought)
                self._noted.clear()
        self.acks.reset()
        self._receipts.forget()
        self.tracker.clear()
        self.negatives.clear()
        if self.epoch == epoch:
            self._back += len(gone) + len(late)
            self.look_at_taken()

    async def last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """Of the topic's last message, and up to where the subscription is acked."""
        connection = self._connection("last message id")
        request_id = self._cluster.pool.next_request_id()
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
        it = command.get_last_message_id
        it.consumer_id, it.request_id = self.consumer_id, request_id
        answer = await connection.request(
            command, request_id, f"last message id for {self.handler.what}"
        )
        said = answer.get_last_message_id_response
        acked = None
        if said.HasField("consumer_mark_delete_position"):
            acked = MessageId.from_wire(
                said.consumer_mark_delete_position, partition=self.partition
            )
        return MessageId.from_wire(said.last_message_id, partition=self.partition), acked

    async def has_more(self) -> bool:
        """Whether the topic has a message behind the last one handed out, or behind the start."""
        what = f"last message id for {self.handler.what}"
        last, acked = await self._cluster.retried(self.last_message_id, what)
        if last.entry_id < 0:
            return False
        if self.last_taken is not None:
            return last.position > self.last_taken.position
        start = self._place.message_id
        if start is None or start == LATEST:
            return acked is not None and last.entry > acked.entry
        if self._place.is_inclusive:
            return last.position >= start.position
        return last.position > start.position

    async def unsubscribe(self, *, is_forced: bool) -> None:
        """Delete the subscription; raises ``ClientError``."""
        connection = self._connection("unsubscribe")
        request_id = self._cluster.pool.next_request_id()
        command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
        it = command.unsubscribe
        it.consumer_id, it.request_id = self.consumer_id, request_id
        if is_forced:
            it.force = True
        what = f"unsubscribe by {self.handler.what}"
        try:
            await connection.request(command, request_id, what)
        except Refused as problem:
            if is_forced:
                raise
            hint = "close its other consumers first, or use unsubscribe(force=True)"
            raise Refused(problem.code, f"{problem.text}; {hint}", what) from None

    async def close(self) -> None:
        """The last acks, then CLOSE_CONSUMER; a broker that is away hears neither."""
        self.flush_acks()
        connection = self.handler.begin_close()
        self._stop_timers()
        if connection is not None and not connection.is_closed:
            command = self._goodbye()
            request_id = command.close_consumer.request_id
            try:
                await connection.request(command, request_id, f"close of {self.handler.what}")
            except ClientError as problem:
                _log.debug("not said good-bye", extra={"what": self.handler.what, "why": problem})
        self.handler.closed()
        self.permits.disconnected()

    def _goodbye(self) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = self.consumer_id
        command.close_consumer.request_id = self._cluster.pool.next_request_id()
        return command

    def _connection(self, what: str) -> Connection:
        self.handler.check_usable()
        connection = self.handler.ready_connection
        if connection is None:
            raise Unreachable(self.topic_name, f"{what} is not possible: {self.handler.why()}")
        return connection

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # ---- what the broker hears -------------------------------------------------------------------

    def _watch(self) -> None:
        connection = self.handler.ready_connection
        if connection is not None:
            connection.watch(self.consumer_id, self)

    @property
    def is_watch_over(self) -> bool:
        """Whatever comes next begins with a message, ``pause`` or a connection."""
        return self._teller.is_done and self._queued == 0 and self._unacked <= 0

    def look_at_wait(self) -> ConsumerWait | None:
        """What the broker is to be told of why this one takes no more, if that is news."""
        return self._teller.look(self._standstill(), self._cluster.clock.monotonic_ms())

    def _standstill(self) -> Standstill:
        permits, host = self.permits, self._host
        if permits.is_paused:
            return Standstill(ConsumerWait.PAUSED, self._queued)
        if permits.is_waiting_for_start:
            return Standstill(ConsumerWait.STARTING)
        letters, self._letters_seen = self._letters_seen, host.letters_sent
        if host.letters_under_way and letters == host.letters_sent:
            return Standstill(ConsumerWait.LETTERS, host.letters_under_way, moved=host.letters_sent)
        return self._standstill_of_application()

    def _standstill_of_application(self) -> Standstill:
        permits, queued = self.permits, self._queued
        before, self._last_seen = self._last_seen, (self.last_taken, self.counters.acked)
        if self.holds_reading:
            size = self._host.inboxes[0].room.bytes_max
            return Standstill(ConsumerWait.QUEUE_BYTES, queued, size, self.last_taken)
        is_empty_handed = permits.outstanding <= 0 and (queued > 0 or not permits.queue_size)
        if is_empty_handed or (queued > 0 and before[0] == self.last_taken):
            if self._options["listener"] is not None:
                threads = self._options["listener_threads"]
                return Standstill(ConsumerWait.LISTENERS, queued, threads, self.last_taken)
            size = permits.queue_size
            return Standstill(ConsumerWait.NOT_RECEIVED, queued, size, self.last_taken)
        if before == self._last_seen and self._unacked > 0:
            return Standstill(ConsumerWait.UNACKED)
        return RUNNING

    @property
    def _queued(self) -> int:
        """Messages that came and the application did not take."""
        permits = self.permits
        if not permits.queue_size:
            return sum([len(inbox) for inbox in self._host.inboxes])
        if permits.is_waiting_for_start:
            return 0
        on_their_way = permits.outstanding + permits.gathered + self.taken + self._back
        return max(0, permits.queue_size - on_their_way)

    @property
    def _unacked(self) -> int:
        """Handed out or to be, and not acked; what comes again is counted again."""
        return self.counters.messages - self.counters.acked - self._unacked_before

    # ---- why -------------------------------------------------------------------------------------

    def why(self) -> Why:
        """What this one waits for, as far as it knows."""
        return self._why_away() or self._why_application() or self._why_broker()

    def _why_away(self) -> Why | None:
        handler, permits = self.handler, self.permits
        if handler.is_over:
            return Why(Waits.CLOSED, f"nothing more comes: {handler.why()}")
        if handler.state is not HandlerState.READY:
            lasted_ms = self._cluster.clock.monotonic_ms() - handler.waiting_since_ms
            return Why(Waits.CONNECTION, f"no connection: {handler.why()}", lasted_ms)
        if permits.is_paused:
            return Why(Waits.RESUME, "paused by the application; resume() goes on")
        if permits.is_waiting_for_start:
            return Why(Waits.CONNECTION, "other partitions or topics are still being subscribed")
        return None

    def _why_application(self) -> Why | None:
        permits, inboxes = self.permits, self._host.inboxes
        held = sum([len(inbox) for inbox in inboxes])
        if self.holds_reading:
            room = inboxes[0].room
            return Why(
                Waits.APPLICATION,
                f"reading is stopped: the application has not received {held} messages,"
                f" {room.bytes} bytes of at most {room.bytes_max} (receiver_queue_bytes_max)",
            )
        if permits.outstanding <= 0 and held:
            return Why(
                Waits.APPLICATION,
                f"permits are out: the application has not received {held} messages of a queue of"
                f" {permits.queue_size}",
            )
        if held:
            return Why(Waits.NOTHING, f"nothing: {held} messages can be received")
        if permits.outstanding <= 0 and not permits.queue_size:
            return Why(Waits.APPLICATION, "a queue of 0 asks for a message when one is received")
        return None

    def _why_broker(self) -> Why:
        permits = self.permits
        if self.is_active is False:
            return Why(Waits.ACTIVE, "another consumer of the failover subscription is active")
        # What the application took a moment ago may not have been granted again yet.
        may_send = max(0, permits.outstanding)
        unacked = self._unacked
        if self._subscription.kind.is_shared and unacked > 0:
            return Why(
                Waits.MESSAGES,
                f"the broker has nothing to send, or waits for acks of {unacked} messages;"
                f" it may send {may_send}",
            )
        return Why(Waits.MESSAGES, f"the broker has nothing to send; it may send {may_send}")

    def __str__(self) -> str:
        return self.handler.what


def _letters(options: ConsumerOptions) -> DeadLetterCandidates | None:
    policy = options["dead_letter_policy"]
    return None if policy is None else DeadLetterCandidates(policy)


def _first_place(options: ConsumerOptions, now_ms: int) -> StartPlace:
    # A wall time: with every reconnect it is longer ago.
    seconds = options["start_rollback_s"]
    rollback_to_ms = now_ms - seconds * 1000 if seconds else None
    start, is_inclusive = options["start_message_id"], options["is_start_inclusive"]
    return StartPlace(start, is_inclusive, rollback_to_ms=rollback_to_ms)


def _chunks(options: ConsumerOptions) -> Chunks:
    return Chunks(
        pending_max=options["pending_chunked_max"],
        bytes_max=options["chunked_bytes_max"],
        expire_ms=options["chunked_expire_ms"],
    )


def _position(message_id: MessageId) -> tuple[int, int, int]:
    return message_id.position


def _key_shared(options: ConsumerOptions) -> KeySharedMeta:
    meta = KeySharedMeta()
    ranges = options["sticky_ranges"]
    meta.keySharedMode = KeySharedMode.AUTO_SPLIT if ranges is None else KeySharedMode.STICKY
    for start, end in ranges or ():
        meta.hashRanges.add(start=start, end=end)
    meta.allowOutOfOrderDelivery = options["is_out_of_order_allowed"]
    return meta
