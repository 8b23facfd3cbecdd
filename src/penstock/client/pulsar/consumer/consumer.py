"""The consumer as an application has it: one topic, its partitions, several topics or a pattern.

    consumer = client.subscribe("orders", "billing", subscription_type=SubscriptionType.SHARED)
    message = consumer.receive()
    consumer.acknowledge(message)

Its parts (``partition_consumer.py``), one for each topic or partition, share one inbox, so that the
application receives from all of them in the order of arrival. With several parts the flow of each
begins when all are subscribed (B29), and together they receive no further ahead than
``max_total_receiver_queue_size_across_partitions``. Every ``pattern_refresh_ms`` new partitions of
its topics, and with a pattern new topics, are joined.

A listener is called by threads of this consumer. With several threads each has an inbox of its own
where order matters: messages of one key (key-shared) or of one partition (exclusive, failover) are
for the same thread.

Threads: every method may be called from any thread but the client's own.
Not here: acks and permits (``acks.py``, ``receiver_queue.py``), one partition
(``partition_consumer.py``).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any, Final, cast
from zlib import crc32

import msgspec

from penstock.client.loop import awaitable, blocking, client_loop
from penstock.client.pulsar.consumer.partition_consumer import PartitionConsumer, SubscribeTerms
from penstock.client.pulsar.consumer.receiver_queue import InboxRoom, MessageInbox
from penstock.client.pulsar.consumer.redelivery import (
    dead_letter_properties,
    dead_letter_topic,
    retry_letter_topic,
    retry_properties,
)
from penstock.client.pulsar.errors import (
    ClientError,
    InvalidUse,
    NothingReceived,
    Refused,
    StateError,
)
from penstock.client.pulsar.lookup import Cluster
from penstock.client.pulsar.message import Message, MessageId, ReceivedMessage
from penstock.client.pulsar.options import (
    ConsumerOptions,
    DeadLetterPolicy,
    RedeliveryBackoff,
    SubscriptionType,
)
from penstock.client.pulsar.producer import Producer
from penstock.client.pulsar.schema import Schema
from penstock.client.pulsar.topics import check_subscription, parse_topic
from penstock.client.pulsar.why import Waits, Why
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.names import PulsarName

_log = logging.getLogger(__name__)

PARTS_MAX: Final = 10_000
"""Topics and partitions of one consumer."""
OPENED_AT_ONCE: Final = 100
LETTER_RETRY_MS: Final = 1_000
"""A dead letter that could not be sent waits at least so long, whatever a negative ack does."""
LETTERS_UNDER_WAY_MAX: Final = 1_000
"""Dead letters that are being sent; more of them are asked for again later."""
NOTICES_MAX: Final = 1_000
"""Active changes that the application has not been told; of more the oldest are forgotten."""

MakeProducer = Callable[[str, str | None], Awaitable[Producer]]
"""A producer of bytes for a topic, and the subscription that is made with the topic."""


class ConsumerStatistics(msgspec.Struct, frozen=True):
    """Of all parts of a consumer together."""

    parts: int
    messages: int
    """Received and handed out, or ready to be."""
    bytes: int
    acked: int
    queued: int
    queued_bytes: int
    permits_outstanding: int
    """What brokers may still send."""
    permits_gathered: int
    """What was received by the application and is not worth a FLOW yet."""
    unacked_tracked: int
    negative_acks: int
    redeliveries_asked: int
    dead_letters: int
    duplicates: int
    corrupt: int
    encrypted: int
    chunked_pending: int
    chunked_given_up: int
    """Messages in chunks that had to give way, or of which the next chunk did not come."""
    acks_dropped: int
    """Beyond what can wait for a connection: their messages come again."""
    untracked: int
    """Entries that the application has and no ack time-out watches any more: they are too many."""
    reconnects: int
    why: Why


class Consumer:
    """Receives messages of one subscription; made by ``Client.subscribe``."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[PulsarName] | re.Pattern[str],
        subscription_name: str,
        options: ConsumerOptions,
        *,
        schema: Schema | None = None,
        make_producer: MakeProducer,
        on_closed: Callable[[Consumer], None],
    ) -> None:
        _check(topics, subscription_name, options)
        self.subscription_name: Final = subscription_name
        self._thread: Final = client_loop()
        self._cluster = cluster
        self._topics = topics
        self._options = options
        self._subscription = SubscribeTerms(
            subscription_name,
            options["consumer_name"] or secrets.token_hex(5),
            options,
            schema,
            may_create_topics=not isinstance(topics, re.Pattern),
        )
        self._make_producer = make_producer
        self._on_closed = on_closed
        self._parts: dict[str, PartitionConsumer] = {}
        self._joining: dict[str, PartitionConsumer] = {}
        """Not yet of them, but one that is not durable receives already."""
        self._opening = asyncio.Semaphore(OPENED_AT_ONCE)
        self._producers: dict[str, asyncio.Task[Producer]] = {}
        self._letters: set[asyncio.Task[None]] = set()
        self._dead_letters = 0
        self.letters_under_way = self.letters_sent = 0
        self._is_closed = False
        self._is_paused = False
        self._is_multiple = True
        """Several topics or partitions, now or some day: its parts have a parent."""
        self._is_counted = False
        """A topic of it has partitions, which may become more."""
        self._refresher: asyncio.Task[None] | None = None
        self._notices: ThreadPoolExecutor | None = None
        self._untold: deque[tuple[str, bool | None]] = deque(maxlen=NOTICES_MAX)
        """Active changes, by topic or partition."""
        self._listeners: list[ListenerThread] = []
        self.lock = threading.RLock()
        count = 1
        if (
            options["listener"] is not None
            and self._subscription.kind is not SubscriptionType.SHARED
        ):
            count = options["listener_threads"]
        room = InboxRoom(options["receiver_queue_bytes_max"], self._room)
        self.inboxes: Sequence[MessageInbox] = [
            MessageInbox(room, on_wait=self._waits, lock=self.lock) for _ in range(count)
        ]

    # ---- receiving -------------------------------------------------------------------------------

    def receive(self, timeout_ms: int | None = None) -> ReceivedMessage:
        """The next message; waits for it, or raises ``TimedOut``."""
        self._check_receives(timeout_ms)
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        message = self.inboxes[0].take_within(timeout_s)
        if message is None:
            raise self._too_late(timeout_ms or 0)
        return message

    async def receive_async(self, timeout_ms: int | None = None) -> ReceivedMessage:
        """The same for any event loop."""
        self._check_receives(timeout_ms)
        message = self.inboxes[0].take()
        if message is not None:
            return message
        (message,) = await self._received(partial(self._wait, timeout_ms))
        return message

    async def _wait(self, timeout_ms: int | None, found: list[ReceivedMessage]) -> None:
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                found.append(await self.inboxes[0].wait())
        except TimeoutError:
            raise self._too_late(timeout_ms or 0) from None

    async def _received(
        self, receive: Callable[[list[ReceivedMessage]], Coroutine[Any, Any, None]]
    ) -> list[ReceivedMessage]:
        """What it finds; who gives up waiting leaves that for the next one."""
        found: list[ReceivedMessage] = []
        receiving: list[asyncio.Task[None]] = []

        async def begin() -> None:
            receiving.append(cast("asyncio.Task[None]", asyncio.current_task()))
            await receive(found)

        try:
            await self._thread.on(begin())
        except asyncio.CancelledError:
            # Awaited: whoever receives next must find it in its place.
            await asyncio.shield(self._thread.on(self._leave(receiving, found)))
            raise
        return found

    async def _leave(
        self, receiving: list[asyncio.Task[None]], found: list[ReceivedMessage]
    ) -> None:
        # It is cancelled already; until it has ended it may still find something.
        if receiving:
            await asyncio.wait(receiving)
        self._put_back(found)

    def _put_back(self, found: list[ReceivedMessage]) -> None:
        while found:
            self.inboxes[0].put_back(found.pop())

    def receive_batch(
        self,
        messages_max: int | None = None,
        *,
        bytes_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> list[ReceivedMessage]:
        """Messages that come within a time (or sooner, when there are enough); perhaps none.

        ``messages_max`` is the queue's size, the other two are options of the consumer, unless
        they are given.
        """
        self._check_receives(timeout_ms)
        count, size, wait_ms = self._batch(messages_max, bytes_max, timeout_ms)
        return self.inboxes[0].take_many(count, size, wait_ms / 1000)

    async def receive_batch_async(
        self,
        messages_max: int | None = None,
        *,
        bytes_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> list[ReceivedMessage]:
        """The same for any event loop."""
        self._check_receives(timeout_ms)
        count, size, wait_ms = self._batch(messages_max, bytes_max, timeout_ms)
        return await self._received(partial(self._gather, count, size, wait_ms))

    async def _gather(
        self, count: int, size: int, wait_ms: int, found: list[ReceivedMessage]
    ) -> None:
        inbox, got = self.inboxes[0], 0
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while len(found) < count and got < size:
                    found.append(await inbox.wait())
                    got += len(found[-1].data)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self._put_back(found)
            raise

    def _batch(
        self, messages_max: int | None, bytes_max: int | None, timeout_ms: int | None
    ) -> tuple[int, int, int]:
        for option, given in (("messages_max", messages_max), ("bytes_max", bytes_max)):
            if given is not None and (not isinstance(given, int) or given < 0):
                raise InvalidUse(f"{option} is {given!r}; a number from 0 on is needed")
        options = self._options
        # More than the queue can hold would never come together.
        most = max(1, options["receiver_queue_size"])
        count = most if messages_max is None else min(messages_max, most)
        size = options["batch_receive_bytes_max"] if bytes_max is None else bytes_max
        size = min(size, options["receiver_queue_bytes_max"])
        wait_ms = options["batch_receive_timeout_ms"] if timeout_ms is None else timeout_ms
        return count, size, wait_ms

    def __iter__(self) -> Consumer:
        """Messages without end: until the consumer is closed."""
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            return self.receive()
        except StateError:
            raise StopIteration from None

    def _check_receives(self, timeout_ms: int | None = None) -> None:
        if timeout_ms is not None and not isinstance(timeout_ms, (int, float)):
            raise InvalidUse(
                f"timeout_ms is {timeout_ms!r}; milliseconds are needed, or None to wait for ever"
            )
        # In the child of a fork nothing would ever come, and somebody gone may hold the lock.
        self._thread.check_alive()
        if self._options["listener"] is not None:
            raise StateError(f"{self.what} has a listener, which gets all messages")

    def _too_late(self, timeout_ms: int) -> NothingReceived:
        return NothingReceived(self.what, timeout_ms, str(self.why()))

    # ---- acks ------------------------------------------------------------------------------------

    def acknowledge(
        self, message: ReceivedMessage | MessageId | Iterable[ReceivedMessage | MessageId]
    ) -> None:
        """These messages are done with: they do not come again.

        Acks are gathered and sent within ``ack_group_ms``. With ``has_ack_receipts`` this returns
        when the broker has them.
        """
        parts = self._say(message)
        if self._options["has_ack_receipts"]:
            self._thread.run(self._receipts(parts))

    async def acknowledge_async(
        self, message: ReceivedMessage | MessageId | Iterable[ReceivedMessage | MessageId]
    ) -> None:
        """The same for any event loop."""
        parts = self._say(message)
        if self._options["has_ack_receipts"]:
            await self._thread.on(self._receipts(parts))

    def acknowledge_cumulative(self, message: ReceivedMessage | MessageId) -> None:
        """This message and all before it, of its partition; not for shared subscriptions."""
        part = self._say_cumulative(message)
        if self._options["has_ack_receipts"]:
            self._thread.run(self._receipts([part]))

    async def acknowledge_cumulative_async(self, message: ReceivedMessage | MessageId) -> None:
        """The same for any event loop."""
        part = self._say_cumulative(message)
        if self._options["has_ack_receipts"]:
            await self._thread.on(self._receipts([part]))

    async def _flush_acks(self) -> None:
        """Wait until the brokers have all acks so far; raises ``ClientError``.

        All of these connections: what was acked before one was lost, and had no receipt, may come
        again.
        """
        await self._receipts(list(self._parts.values()))

    flush_acks = blocking(_flush_acks)
    flush_acks_async = awaitable(_flush_acks)

    def negative_acknowledge(self, message: ReceivedMessage | MessageId) -> None:
        """It could not be dealt with: it comes again after ``negative_ack_delay_ms``."""
        self._check_open()
        message_id, part = self._find(message)
        count = message.redelivery_count if isinstance(message, ReceivedMessage) else 0
        self._thread.post(part.give_back_later, message_id, count)

    async def _redeliver_unacknowledged(self) -> None:
        """Everything received and not acked comes again, at once."""
        self._check_open()
        for part in self._parts.values():
            part.redeliver_all()

    redeliver_unacknowledged = blocking(_redeliver_unacknowledged)
    redeliver_unacknowledged_async = awaitable(_redeliver_unacknowledged)

    def _say(
        self, message: ReceivedMessage | MessageId | Iterable[ReceivedMessage | MessageId]
    ) -> list[PartitionConsumer]:
        self._check_open()
        if isinstance(message, (ReceivedMessage, MessageId)):
            message_id, part = self._find(message)
            part.say_acked(message_id)
            return [part]
        if not isinstance(message, Iterable):
            raise InvalidUse(_no_message(message))
        # All of them are looked at before any is acked.
        pairs = [self._find(each) for each in message]
        for message_id, part in pairs:
            part.say_acked(message_id)
        return list({id(part): part for _, part in pairs}.values())

    def _say_cumulative(self, message: ReceivedMessage | MessageId) -> PartitionConsumer:
        self._check_open()
        if self._subscription.kind.is_shared:
            raise InvalidUse(
                f"{self.what} shares its subscription: a cumulative ack would ack what others have;"
                " use acknowledge()"
            )
        message_id, part = self._find(message)
        part.say_acked(message_id, is_cumulative=True)
        return part

    async def _receipts(self, parts: Iterable[PartitionConsumer]) -> None:
        await asyncio.gather(*[part.flush_with_receipt() for part in parts])

    def _find(self, message: ReceivedMessage | MessageId) -> tuple[MessageId, PartitionConsumer]:
        if isinstance(message, ReceivedMessage):
            # Not the part that received it: that of a consumer closed since acks nothing.
            mine = self._parts.get(message.topic) or self._joining.get(message.topic)
            if mine is None:
                raise InvalidUse(
                    f"{message} was not received by {self.what}, or its topic is gone since"
                )
            return message.message_id, mine
        if not isinstance(message, MessageId):
            raise InvalidUse(_no_message(message))
        parts = [*self._parts.values(), *self._joining.values()]
        if len(parts) > 1:
            parts = [each for each in parts if each.partition == message.partition]
        if len(parts) != 1:
            raise InvalidUse(
                f"message id {message} does not say of which topic of {self.what} it is; give the"
                " message"
            )
        return message, parts[0]

    # ---- once more, elsewhere --------------------------------------------------------------------

    async def _reconsume_later(
        self,
        message: ReceivedMessage,
        delay_ms: int,
        properties: dict[str, str] | None = None,
    ) -> None:
        """Ack a message, and get it again after a delay by way of the retry-letter topic.

        After ``redeliveries_max`` times it goes to the dead-letter topic.
        """
        self._check_open()
        if not self._options["is_retry_enabled"]:
            raise InvalidUse(f"{self.what} was made without is_retry_enabled=True")
        policy = self._options["dead_letter_policy"] or DeadLetterPolicy()
        message_id, part = self._find(message)
        # What came by way of the retry-letter topic goes there again: it is named after the first.
        whole = str(next(iter(self._parts.values())).topic.whole)
        told, times = retry_properties(message, self.subscription_name, delay_ms)
        told |= properties or {}
        letter = letter_of(message, told)
        if times > policy.redeliveries_max:
            topic = dead_letter_topic(policy, whole, self.subscription_name)
            await self._send_letter(topic, policy.initial_subscription, letter)
            self._dead_letters += 1
        else:
            topic = retry_letter_topic(policy, whole, self.subscription_name)
            letter.deliver_after_ms = delay_ms
            await self._send_letter(topic, None, letter)
        part.say_acked(message_id)

    reconsume_later = blocking(_reconsume_later)
    reconsume_later_async = awaitable(_reconsume_later)

    def bury(self, child: PartitionConsumer, messages: list[ReceivedMessage]) -> None:
        """Send messages to the dead-letter topic, then ack them; on the client's thread."""
        if len(self._letters) >= LETTERS_UNDER_WAY_MAX or self._is_closed:
            self._bury_later(child, messages)
            return
        task = asyncio.get_running_loop().create_task(self._bury(child, messages))
        self._letters.add(task)
        task.add_done_callback(self._letters.discard)

    async def _bury(self, child: PartitionConsumer, messages: list[ReceivedMessage]) -> None:
        policy = self._options["dead_letter_policy"]
        if policy is None or child.letters is None:
            return
        topic = dead_letter_topic(policy, str(child.topic.whole), self.subscription_name)
        epoch, sent = child.epoch, 0
        try:
            for message in messages:
                letter = letter_of(message, dead_letter_properties(message))
                await self._send_letter(topic, policy.initial_subscription, letter)
                sent += 1
                child.say_acked(message.message_id)
                self._dead_letters += 1
        except ClientError as problem:
            _log.warning("dead letter not sent", extra={"topic": topic, "why": str(problem)})
            if child.epoch == epoch:
                self._bury_later(child, messages[sent:])

    def _bury_later(self, child: PartitionConsumer, messages: list[ReceivedMessage]) -> None:
        if child.letters is not None and not self._is_closed:
            child.letters.put_back(messages)
            first = messages[0]
            child.give_back_later(first.message_id, first.redelivery_count, LETTER_RETRY_MS)

    async def _send_letter(self, topic: str, subscription: str | None, letter: Message) -> None:
        self.letters_under_way += 1
        try:
            producer = await self._producer(topic, subscription)
            await producer.send_async(letter)
            self.letters_sent += 1
        finally:
            self.letters_under_way -= 1

    async def _producer(self, topic: str, subscription: str | None) -> Producer:
        """One for each topic of letters, made when it is first needed."""
        task = self._producers.get(topic)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):

            async def make() -> Producer:
                return await self._make_producer(topic, subscription)

            task = self._producers[topic] = asyncio.get_running_loop().create_task(make())
        return await asyncio.shield(task)

    # ---- moving, pausing -------------------------------------------------------------------------

    async def _seek(self, target: MessageId | int) -> None:
        """Go to a message (of the only partition, or of the id's), or to a wall time in ms.

        The message itself comes next only with ``is_start_inclusive``. ``MessageId.earliest`` and
        ``latest`` are for all partitions.
        """
        self._check_open()
        if not isinstance(target, (MessageId, int)) or (isinstance(target, int) and target < 0):
            raise InvalidUse(
                f"seek goes to a MessageId or to a wall time in ms as an int, not {target!r}"
            )
        parts = list(self._parts.values())
        is_place = target in (MessageId.earliest, MessageId.latest)
        if isinstance(target, MessageId) and not is_place and len(parts) > 1:
            parts = [self._find(target)[1]]
        await asyncio.gather(*[part.seek(target) for part in parts])

    seek = blocking(_seek)
    seek_async = awaitable(_seek)

    async def _last_message_ids(self) -> dict[str, MessageId]:
        """Of each topic or partition: the id of its last message; (-1, -1) when it is empty."""
        self._check_open()
        parts = list(self._parts.values())
        found = await asyncio.gather(*[part.last_message_id() for part in parts])
        return {part.topic_name: last for part, (last, _) in zip(parts, found, strict=True)}

    last_message_ids = blocking(_last_message_ids)
    last_message_ids_async = awaitable(_last_message_ids)

    async def _last_message_id(self) -> MessageId:
        """The same for a topic without partitions."""
        found = list((await self._last_message_ids()).values())
        if len(found) != 1:
            raise InvalidUse(
                f"{self.what} has {len(found)} topics or partitions: last_message_ids()"
            )
        return found[0]

    last_message_id = blocking(_last_message_id)
    last_message_id_async = awaitable(_last_message_id)

    async def _pause(self) -> None:
        """No more is asked for; what was granted already still comes (B32)."""
        self._is_paused = True
        for part in self._parts.values():
            part.pause()

    pause = blocking(_pause)
    pause_async = awaitable(_pause)

    async def _resume(self) -> None:
        """What gathered meanwhile is asked for."""
        self._is_paused = False
        for part in self._parts.values():
            part.resume()

    resume = blocking(_resume)
    resume_async = awaitable(_resume)

    async def _unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription and close this consumer; ``force``: also if others have it."""
        self._check_open()
        await asyncio.gather(*[part.unsubscribe(is_forced=force) for part in self._parts.values()])
        await self.shut()

    unsubscribe = blocking(_unsubscribe)
    unsubscribe_async = awaitable(_unsubscribe)

    # ---- what is known ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What the broker calls it."""
        return self._subscription.consumer_name

    @property
    def topics(self) -> list[str]:
        """Full names of topics and partitions it receives from."""
        return list(self._parts)

    @property
    def is_connected(self) -> bool:
        """True while all parts have a connection."""
        parts = list(self._parts.values())
        return bool(parts) and all(part.handler.ready_connection is not None for part in parts)

    @property
    def has_reached_end_of_topic(self) -> bool:
        """True when all topics were terminated and everything in them was acked."""
        parts = list(self._parts.values())
        return bool(parts) and all(part.has_reached_end for part in parts)

    def why(self) -> Why:
        """What it waits for, in one sentence; of several parts, what keeps most of them."""
        if self._is_closed:
            return Why(Waits.CLOSED, "it is closed")
        parts = list(self._parts.values())
        if not parts:
            return Why(Waits.MESSAGES, "no topic matches its pattern yet")
        found = [part.why() for part in parts]
        if len(found) == 1:
            return found[0]
        worst = min(found, key=_weight)
        same = sum([each.reason is worst.reason for each in found])
        return Why(worst.reason, f"{same} of {len(found)} parts: {worst.text}", worst.lasted_ms)

    def statistics(self) -> ConsumerStatistics:
        """What happened so far, and how it stands."""
        parts = list(self._parts.values())
        counters = [part.counters for part in parts]
        return ConsumerStatistics(
            parts=len(parts),
            messages=sum(each.messages for each in counters),
            bytes=sum(each.bytes for each in counters),
            acked=sum(each.acked for each in counters),
            queued=sum(map(len, self.inboxes)),
            queued_bytes=sum(inbox.bytes for inbox in self.inboxes),
            permits_outstanding=sum(part.permits.outstanding for part in parts),
            permits_gathered=sum(part.permits.gathered + part.taken for part in parts),
            unacked_tracked=sum(len(part.tracker) for part in parts),
            negative_acks=sum(len(part.negatives) for part in parts),
            redeliveries_asked=sum(each.redeliveries_asked for each in counters),
            dead_letters=self._dead_letters,
            duplicates=sum(each.duplicates for each in counters),
            corrupt=sum(each.corrupt for each in counters),
            encrypted=sum(each.encrypted for each in counters),
            chunked_pending=sum(len(part.chunks) for part in parts),
            chunked_given_up=sum(part.chunks.given_up for part in parts),
            acks_dropped=sum(part.acks.dropped for part in parts),
            untracked=sum(part.tracker.dropped for part in parts),
            reconnects=sum(each.reconnects for each in counters),
            why=self.why(),
        )

    @property
    def what(self) -> str:
        """Its name in sentences."""
        topics = list(self._parts) or [str(self._topics)]
        more = f" and {len(topics) - 1} more" if len(topics) > 1 else ""
        return (
            f"consumer {self.name!r} of subscription {self.subscription_name!r}, {topics[0]}{more}"
        )

    def __str__(self) -> str:
        return f"{self.what}: {self.why()}"

    def __repr__(self) -> str:
        return f"<{self}>"

    # ---- opening and closing; the client's thread ------------------------------------------------

    @property
    def is_closed_before_producers(self) -> bool:
        """For its client, which closes it first."""
        return True

    async def open(self) -> None:
        """Subscribe to all there is; raises what the first refusal was."""
        names = await self._names()
        topics = self._topics
        is_several = isinstance(topics, re.Pattern) or len(topics) > 1
        self._is_multiple = is_several or self._is_counted
        if self._is_multiple and not self._options["receiver_queue_size"]:
            raise InvalidUse(
                "receiver_queue_size=0 is for one topic without partitions: each of several would"
                " send a message for every receive; use 1"
            )
        await self._join_all(names)
        if self._options["listener"] is not None:
            self._start_listeners()
        self._refresher = asyncio.get_running_loop().create_task(self._refresh_again())

    async def shut(self) -> None:
        """Close all parts; what was acked is sent first."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._refresher is not None and self._refresher is not asyncio.current_task():
            self._refresher.cancel()
        if self._letters:
            await asyncio.gather(*self._letters, return_exceptions=True)
        await asyncio.gather(*[part.close() for part in self._parts.values()])
        self._close_inboxes()
        for task in self._producers.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                await task.result().shut()
            else:
                task.cancel()
        if self._notices is not None:
            self._notices.shutdown(wait=False)
        self._on_closed(self)

    def close(self) -> None:
        """Send the last acks and leave; again does nothing.

        A listener at work is waited for, and may ack its message; one that calls this, of
        whichever consumer, waits for no other.
        """
        if self._thread.is_orphan:
            # It is the parent's, and stays there.
            return
        ListenerThread.join_all(self._thread.run(self.end_listeners()))
        self._thread.run(self.shut())

    async def close_async(self) -> None:
        """The same for any event loop, without waiting for a listener."""
        if self._thread.is_orphan:
            return
        await self._thread.on(self.shut())

    async def end_listeners(self) -> list[ListenerThread]:
        """Let each end behind the message it has; all of them, to be waited for."""
        if self._listeners:
            self._close_inboxes()
        return self._listeners

    def _close_inboxes(self) -> None:
        for inbox in self.inboxes:
            inbox.close(f"{self.what} is closed; make a new one")

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def _check_open(self) -> None:
        self._thread.check_alive()
        if self._is_closed:
            raise StateError(f"{self.what} is closed; make a new one")

    # ---- parts -----------------------------------------------------------------------------------

    def parts(self) -> list[PartitionConsumer]:
        """Of topics and partitions; on the client's thread."""
        self._check_open()
        return list(self._parts.values())

    async def _names(self) -> list[PulsarName]:
        """Topics and partitions there are now."""
        topics = self._topics
        if isinstance(topics, re.Pattern):
            wholes = await self._matching(topics)
        else:
            wholes = list(topics)
        counts = await asyncio.gather(*map(self._partitions, wholes))
        names: dict[str, PulsarName] = {}
        for topic, count in zip(wholes, counts, strict=True):
            self._is_counted = self._is_counted or count > 0
            for each in [topic.of_partition(n) for n in range(count)] or [topic]:
                names[str(each)] = each
        if len(names) > PARTS_MAX:
            raise InvalidUse(
                f"{len(names)} topics and partitions, at most {PARTS_MAX} are possible"
            )
        return list(names.values())

    async def _partitions(self, topic: PulsarName) -> int:
        cluster = self._cluster
        return await cluster.retried(lambda: cluster.partitions(topic), f"partitions of {topic}")

    async def _matching(self, pattern: re.Pattern[str]) -> list[PulsarName]:
        namespace, bare = split_pattern(pattern)
        cluster, domain = self._cluster, self._options["pattern_domain"]
        found = await cluster.retried(
            lambda: cluster.topics(namespace, domain), f"topics of namespace {namespace}"
        )
        wholes = {str(topic.whole): topic.whole for topic in map(parse_topic, found)}
        return [each for name, each in sorted(wholes.items()) if bare.fullmatch(_undomained(name))]

    async def _join_all(self, names: Sequence[PulsarName]) -> None:
        """Subscribe to these, all or none; then let all of them flow (B29)."""
        parts = self._made(names)
        try:
            results = await asyncio.gather(*map(self._opened, parts), return_exceptions=True)
            found = list(zip(parts, results, strict=True))
            if not self._subscription.may_create_topics:
                # One may have been deleted since it was listed.
                found = [each for each in found if not _is_missing(each[1])]
            joined = [part for part, _ in found]
            problem = next((each for _, each in found if isinstance(each, BaseException)), None)
            if problem is None and self._is_closed:
                problem = StateError(f"{self.what} was closed while it was opened")
            if problem is not None:
                raise problem
        except BaseException:
            await asyncio.gather(*[part.close() for part in parts])
            raise
        finally:
            self._joining.clear()
        for part in joined:
            self._parts[part.topic_name] = part
        for part in joined:
            self._begin(part)

    async def _join(self, part: PartitionConsumer) -> None:
        """Subscribe to one that came later, whatever becomes of others."""
        try:
            await self._opened(part)
            self._check_open()
            self._parts[part.topic_name] = part
        except ClientError as problem:
            await part.close()
            if self._subscription.may_create_topics or not _is_missing(problem):
                extra = {"of": self.what, "topic": part.topic_name, "why": str(problem)}
                _log.warning("topic not joined", extra=extra)
            return
        except BaseException:
            await part.close()
            raise
        finally:
            self._joining.pop(part.topic_name, None)
        self._begin(part)

    def _made(self, names: Sequence[PulsarName]) -> list[PartitionConsumer]:
        """Parts for those that have none, which the next steps join."""
        new = [each for each in names if str(each) not in self._parts]
        if not new:
            return []
        size = self._queue_size(len(new))
        parts = [
            PartitionConsumer(
                self,
                self._cluster,
                each,
                self._subscription,
                queue_size=size,
                has_parent=self._is_multiple,
            )
            for each in new
        ]
        for part in parts:
            self._joining[part.topic_name] = part
            if self._is_paused:
                # One that is not durable begins by itself.
                part.pause()
        return parts

    async def _opened(self, part: PartitionConsumer) -> None:
        async with self._opening:
            await part.open()

    def _begin(self, part: PartitionConsumer) -> None:
        if self._is_paused:
            part.pause()
        elif part.permits.is_paused:
            part.resume()
        part.start_flow()

    def _queue_size(self, new: int) -> int:
        """Of each new part: what the others have left of the total, and at least one."""
        size = self._options["receiver_queue_size"]
        if not self._is_multiple:
            return size
        total = self._options["max_total_receiver_queue_size_across_partitions"]
        left = total - sum([part.permits.queue_size for part in self._parts.values()])
        return min(size, max(1, left // new))

    async def _refresh_again(self) -> None:
        is_pattern = isinstance(self._topics, re.Pattern)
        while not self._is_closed and (is_pattern or self._is_counted):
            await asyncio.sleep(self._options["pattern_refresh_ms"] / 1000)
            try:
                await self.refresh()
            except ClientError as problem:
                _log.warning("topics not looked for", extra={"of": self.what, "why": str(problem)})

    async def refresh(self) -> None:
        """Join what is new, leave what is gone; on the client's thread."""
        names = await self._names()
        if isinstance(self._topics, re.Pattern):
            wanted = set(map(str, names))
            for name in [each for each in self._parts if each not in wanted]:
                await self._parts.pop(name).close()
        await asyncio.gather(*map(self._join, self._made(names)))

    # ---- notices ---------------------------------------------------------------------------------

    def _room(self) -> None:
        """From any thread, locked: reading may go on."""
        self._thread.post(self._review)

    def _review(self) -> None:
        parts = [*self._parts.values(), *self._joining.values()]
        found = {id(each): each for each in [part.handler.connection for part in parts]}
        for connection in found.values():
            if connection is not None:
                connection.review_reading()

    def _waits(self) -> None:
        """From any thread, locked: somebody waits for a message."""
        if not self._options["receiver_queue_size"]:
            self._thread.post(self._ask)
            return
        # Copies: the client's thread may join a topic meanwhile.
        for part in [*self._parts.values(), *self._joining.values()]:
            connection = part.handler.connection
            if connection is not None and not connection.is_reading:
                self._thread.post(self._review)
                return

    def _ask(self) -> None:
        for part in self._parts.values():
            part.ask()

    def active_changed(self, child: PartitionConsumer, is_active: bool | None) -> None:
        """Tell the application, in the order of the changes."""
        listener = self._options["active_listener"]
        if listener is None or self._is_closed:
            return
        if self._notices is None:
            self._notices = ThreadPoolExecutor(1, "penstock-active")
        with self.lock:
            # Each that is untold has a call; who takes the oldest's place takes its call.
            has_call = len(self._untold) == NOTICES_MAX
            self._untold.append((child.topic_name, is_active))
        if not has_call:
            self._notices.submit(self._tell, listener)

    def _tell(self, listener: Callable[..., object]) -> None:
        with self.lock:
            topic, is_active = self._untold.popleft()
        try:
            listener(self, topic, is_active)
        except Exception:
            _log.exception("listener for active changes failed", extra={"of": self.what})

    def inbox_for(self, message: ReceivedMessage) -> MessageInbox:
        """The same for all that must stay in order."""
        if self._subscription.kind is SubscriptionType.KEY_SHARED:
            # As it was sent: what says that it is base64 need not be.
            token = message.ordering_key or (message.key or "").encode()
        else:
            token = message.topic.encode()
        return self.inboxes[crc32(token) % len(self.inboxes)]

    def _start_listeners(self) -> None:
        for number in range(self._options["listener_threads"]):
            inbox = self.inboxes[number % len(self.inboxes)]
            name = f"penstock-listener-{self.name}-{number}"
            thread = ListenerThread(target=self._listen, args=(inbox,), name=name, daemon=True)
            self._listeners.append(thread)
            thread.start()

    def _listen(self, inbox: MessageInbox) -> None:
        listener = self._options["listener"]
        while listener is not None:
            try:
                message = inbox.take_within(None)
            except ClientError:
                return
            if message is None:
                continue
            try:
                listener(self, message)
            except Exception:
                # As with Pulsar's clients: it is not acked, and comes again by what was chosen.
                _log.exception("listener failed", extra={"of": repr(message)})


class ListenerThread(threading.Thread):
    """Calls a listener, message after message."""

    @staticmethod
    def join_all(threads: Iterable[ListenerThread]) -> None:
        """Wait until they have ended; a listener waits for none.

        It would wait for itself, or two for each other, each of which closes what the other is of.
        """
        if not isinstance(threading.current_thread(), ListenerThread):
            for thread in threads:
                thread.join()


def letter_of(message: ReceivedMessage, properties: dict[str, str]) -> Message:
    """A message as it is sent elsewhere."""
    key, raw = message.key, message.key_bytes
    return Message(
        message.data,
        key=key if key is None or raw == key.encode() else raw,
        ordering_key=message.ordering_key,
        event_time_ms=message.event_time_ms,
        properties=properties,
    )


def split_pattern(pattern: re.Pattern[str]) -> tuple[str, re.Pattern[str]]:
    """The namespace a pattern is for, and the pattern for ``tenant/namespace/topic``."""
    text = _undomained(pattern.pattern)
    parts = text.split("/", 2)
    if len(parts) == 1:
        parts = ["public", "default", text]
    if len(parts) != 3:
        raise InvalidUse(f"pattern {pattern.pattern!r}: use 'tenant/namespace/regular expression'")
    tenant, namespace, local = parts
    parse_topic(f"{tenant}/{namespace}/x")
    found = f"{re.escape(tenant)}/{re.escape(namespace)}/(?:{local})"
    return f"{tenant}/{namespace}", re.compile(found, pattern.flags)


def _undomained(name: str) -> str:
    return name.partition("://")[2] if "://" in name else name


def _check(
    topics: Sequence[PulsarName] | re.Pattern[str], subscription_name: str, options: ConsumerOptions
) -> None:
    """What can be known to be wrong before anything is sent (B8, B9)."""
    check_subscription(subscription_name)
    kind = options["subscription_type"]
    is_single = kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
    if isinstance(topics, re.Pattern):
        split_pattern(topics)
        is_persistent = options["pattern_domain"] == "persistent"
        if options["is_retry_enabled"]:
            raise InvalidUse("is_retry_enabled is not for patterns: name the topics")
    else:
        is_persistent = all(each.is_persistent for each in topics)
        if not topics:
            raise InvalidUse("a consumer needs a topic, several, or a compiled pattern")
    if options["is_read_compacted"] and (not is_persistent or not is_single):
        raise InvalidUse(
            "is_read_compacted is for persistent topics and for exclusive or failover"
            " subscriptions only"
        )
    if options["active_listener"] is not None and kind is not SubscriptionType.FAILOVER:
        raise InvalidUse("active_listener is for failover subscriptions only")
    _check_callable("listener", options["listener"], ("consumer", "message"))
    _check_callable(
        "active_listener", options["active_listener"], ("consumer", "topic", "is_active")
    )
    has_start = options["start_message_id"] is not None or options["start_rollback_s"]
    if has_start and options["is_durable"]:
        raise InvalidUse(
            "a durable subscription begins at initial_position; start_message_id and"
            " start_rollback_s are for is_durable=False, or use seek()"
        )
    if options["sticky_ranges"] is not None:
        _check_ranges(kind, options["sticky_ranges"])
    policy = options["dead_letter_policy"]
    if policy is not None and not kind.is_shared:
        raise InvalidUse("dead_letter_policy is for shared and key-shared subscriptions only")
    if policy is not None:
        _check_policy(policy)
    if options["negative_ack_backoff"] is not None:
        _check_backoff(options["negative_ack_backoff"])


def _check_policy(policy: DeadLetterPolicy) -> None:
    most = policy.redeliveries_max
    if not isinstance(most, int) or most < 1:
        raise InvalidUse(f"redeliveries_max is {most!r}, at least 1 is needed")
    for topic in (policy.dead_letter_topic, policy.retry_letter_topic):
        if topic is not None:
            parse_topic(topic)
    if policy.initial_subscription is not None:
        check_subscription(policy.initial_subscription)


def _check_backoff(backoff: RedeliveryBackoff) -> None:
    least = 0
    for name, given in (("min_ms", backoff.min_ms), ("max_ms", backoff.max_ms)):
        if not isinstance(given, int) or given < least:
            raise InvalidUse(f"{name} is {given!r}, milliseconds from {least} on are needed")
        least = given
    factor = backoff.multiplier
    if not isinstance(factor, (int, float)) or not factor >= 1:
        raise InvalidUse(f"multiplier is {factor!r}, a number from 1 on is needed")


def _check_callable(
    option: str, given: Callable[..., object] | None, arguments: Sequence[str]
) -> None:
    """Sooner than with the first message, in a log that nobody reads."""
    if given is None:
        return
    try:
        signature(given).bind(*arguments)
    except TypeError:
        raise InvalidUse(
            f"{option} is called as {option}({', '.join(arguments)}), which {given!r} does not take"
        ) from None
    except ValueError:
        # Something built in that does not tell.
        pass


def _check_ranges(kind: SubscriptionType, ranges: Sequence[tuple[int, int]]) -> None:
    if kind is not SubscriptionType.KEY_SHARED:
        raise InvalidUse("sticky_ranges are for key-shared subscriptions only")
    for each in ranges:
        is_pair = isinstance(each, Sequence) and len(each) == 2
        if not is_pair or not all(type(end) is int for end in each):
            raise InvalidUse(f"sticky range {each!r} is no pair of hashes, such as (0, 32767)")
    ordered = sorted(ranges)
    if not ordered:
        raise InvalidUse("sticky_ranges must not be empty; None = an equal share")
    for start, end in ordered:
        if not 0 <= start <= end <= 65_535:
            raise InvalidUse(f"sticky range {start}..{end} is not within 0..65535")
    for (_, end), (start, _) in pairwise(ordered):
        if start <= end:
            raise InvalidUse(f"sticky ranges overlap at {start}")


_WEIGHTS: Final = (
    Waits.CLOSED,
    Waits.CONNECTION,
    Waits.RESUME,
    Waits.APPLICATION,
    Waits.NOTHING,
    Waits.MESSAGES,
    Waits.ACTIVE,
)


def _weight(why: Why) -> int:
    return _WEIGHTS.index(why.reason) if why.reason in _WEIGHTS else len(_WEIGHTS)


def _no_message(given: object) -> str:
    return f"{given!r} is no message; give what was received, its message_id, or a list of these"


def _is_missing(outcome: object) -> bool:
    return isinstance(outcome, Refused) and outcome.code == ServerError.TopicNotFound


def topics_of(given: object) -> Sequence[PulsarName] | re.Pattern[str]:
    """What an application named, checked; raises ``InvalidUse``."""
    if isinstance(given, re.Pattern):
        return given
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise InvalidUse(f"a consumer needs a topic, several, or a compiled pattern, not {given!r}")
    names = [given] if isinstance(given, str) else given
    found = {str(topic): topic for topic in map(parse_topic, names)}
    return list(found.values())
