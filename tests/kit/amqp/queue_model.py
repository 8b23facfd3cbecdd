"""What AMQP queues do, said in plain Python: the model that T21 holds the broker against.

Time stands still within a step, and every step ends at rest. A step is told in three parts: what
the client did (``publish``, ``requeue``, ``purge`` ...), what the broker delivered (``accept``: the
model knows which messages, the broker chooses among consumers with room), and ``rest``, which gives
what should be true of counts.

The order of things at rest: consumers take what they have room for; then what is above a length
limit goes, oldest first; then heads that are out of time go. Dead messages are in the queue's own
dead-letter queue, in the order of their deaths.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

UNLIMITED: Final = 1 << 30


class Flag(Enum):
    """Whether a delivery must be marked as redelivered."""

    NO = "no"
    YES = "yes"
    MAYBE = "maybe"
    """A process before may have delivered it."""


@dataclass(slots=True)
class ModelMessage:
    """One message in one queue."""

    number: int
    """Who it is, through all its lives."""
    place: int
    """Its place in its queue."""
    size: int
    priority: int = 0
    expire_ms: int | None = None
    is_persistent: bool = True
    flag: Flag = Flag.NO
    comebacks: int = 0
    reason: str = ""
    """Why it died last."""
    is_brief: bool = False
    """True without any time to live: once for a consumer that waits, never for a get."""

    def is_expired(self, now_ms: int) -> bool:
        """True when its time is over."""
        return self.expire_ms is not None and self.expire_ms < now_ms

    def is_over(self, now_ms: int) -> bool:
        """True when it is expired for whoever would be given it now."""
        return self.is_expired(now_ms) or (self.is_brief and self.comebacks > 0)


@dataclass(slots=True)
class ModelQueue:
    """One durable queue: its rules and what is ready in it."""

    name: str
    dead: ModelQueue | None = None
    length_max: int = UNLIMITED
    bytes_max: int = UNLIMITED
    is_rejecting: bool = False
    ttl_ms: int | None = None
    priority_max: int = 0
    delivery_limit: int | None = None
    ready: list[ModelMessage] = field(default_factory=list)
    unacked: int = 0
    was_killed: bool = False
    """Its broker once ended without a word: any place may have been delivered from before."""
    _places: int = 0

    def put(self, message: ModelMessage) -> None:
        """At the end, of its priority."""
        self._places += 1
        if self.was_killed:
            message.flag = Flag.MAYBE
        message.place = self._places
        self.back([message])

    def back(self, messages: Iterable[ModelMessage]) -> None:
        """To their places."""
        self.ready.extend(messages)
        self.ready.sort(key=lambda each: (-min(each.priority, self.priority_max), each.place))

    def bury(self, message: ModelMessage, reason: str) -> None:
        """It dies, and begins anew where the dead of this queue go."""
        if self.dead is not None:
            letter = ModelMessage(
                message.number,
                0,
                message.size,
                message.priority,
                is_persistent=message.is_persistent,
                reason=reason,
            )
            self.dead.put(letter)

    def is_full(self, room: int, size: int) -> bool:
        """True when one message more is refused; ``room``: how many consumers are about to take."""
        waiting = self.ready[room:]
        total = sum(each.size for each in waiting)
        return len(waiting) + 1 > self.length_max or total + size > self.bytes_max

    def trim(self, now_ms: int) -> None:
        """What is above a limit goes, unless it was to be refused: what came back may stay."""
        while (
            not self.is_rejecting
            and self.ready
            and (
                len(self.ready) > self.length_max
                or sum(each.size for each in self.ready) > self.bytes_max
            )
        ):
            self._drop_head("expired" if self.ready[0].is_over(now_ms) else "maxlen")

    def expire(self, now_ms: int) -> None:
        """Heads out of time go; those behind a living one wait. Each priority has its head."""
        dying: list[tuple[int, int, ModelMessage]] = []
        for priority in range(self.priority_max, -1, -1):
            died_ms = 0
            for message in self.ready:
                if min(message.priority, self.priority_max) != priority:
                    continue
                if not message.is_expired(now_ms):
                    break
                # Not before those in front of it, and priorities in the order of time.
                died_ms = max(died_ms, message.expire_ms or 0)
                dying.append((died_ms, -priority, message))
        for _, _, message in sorted(dying, key=lambda each: each[:2]):
            self.ready.remove(message)
            self.bury(message, "expired")

    def _drop_head(self, reason: str) -> None:
        self.bury(self.ready.pop(0), reason)


@dataclass(slots=True, eq=False)
class ModelConsumer:
    """One consumer, or a channel's hand for basic.get."""

    queue: ModelQueue
    prefetch: int = 0
    is_no_ack: bool = False
    held: list[ModelMessage] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Messages it would take now."""
        if self.is_no_ack or not self.prefetch:
            return UNLIMITED
        return max(0, self.prefetch - len(self.held))


@dataclass(slots=True, eq=False)
class ModelChannel:
    """One channel: who consumes on it, and what it has by delivery tag."""

    consumers: dict[str, ModelConsumer] = field(default_factory=dict)
    cancelled: list[ModelConsumer] = field(default_factory=list)
    hands: dict[str, ModelConsumer] = field(default_factory=dict)
    tags: int = 0
    unacked: dict[int, tuple[ModelConsumer, ModelMessage]] = field(default_factory=dict)

    def count(self, tags: list[int]) -> None:
        """Deliveries came with these tags, in this order."""
        first = self.tags + 1
        assert tags == list(range(first, first + len(tags))), f"tags {tags}, expected from {first}"
        self.tags += len(tags)

    def note(self, holder: ModelConsumer, message: ModelMessage, heard: Heard) -> None:
        """A message came with this tag."""
        if message.flag is not Flag.MAYBE:
            assert heard.is_redelivered is (message.flag is Flag.YES), heard
        assert heard.reason == message.reason, heard
        if not holder.is_no_ack:
            holder.held.append(message)
            holder.queue.unacked += 1
            self.unacked[heard.tag] = (holder, message)

    def take(self, tag: int, *, is_multiple: bool) -> list[tuple[ModelConsumer, ModelMessage]]:
        """What a tag stands for; it is out of flight."""
        tags = [each for each in self.unacked if each == tag or (is_multiple and each < tag)]
        return [self._out(each) for each in sorted(tags)]

    def take_all(self) -> list[tuple[ModelConsumer, ModelMessage]]:
        """Everything, holder by holder as a closing channel goes through them."""
        holders = [*self.consumers.values(), *self.cancelled, *self.hands.values()]
        order = {holder: number for number, holder in enumerate(holders)}
        tags = sorted(self.unacked, key=lambda tag: (order[self.unacked[tag][0]], tag))
        return [self._out(tag) for tag in tags]

    def _out(self, tag: int) -> tuple[ModelConsumer, ModelMessage]:
        holder, message = self.unacked.pop(tag)
        holder.held.remove(message)
        holder.queue.unacked -= 1
        return holder, message


@dataclass(frozen=True, slots=True)
class Heard:
    """One delivery as the client heard it."""

    channel: int
    consumer: str
    tag: int
    number: int
    is_redelivered: bool
    reason: str
    """Why it died last, as its headers say."""


class QueueModel:
    """All queues, channels and consumers."""

    def __init__(self, queues: Iterable[ModelQueue], channels: Iterable[int]) -> None:
        self.queues: Final = {queue.name: queue for queue in queues}
        self.channels: dict[int, ModelChannel] = {number: ModelChannel() for number in channels}

    def room(self, queue: ModelQueue) -> int:
        """What all consumers of a queue would take now."""
        return sum(
            consumer.room
            for channel in self.channels.values()
            for consumer in channel.consumers.values()
            if consumer.queue is queue
        )

    # What clients do.

    def publish(self, name: str, messages: list[ModelMessage]) -> list[bool]:
        """These arrive, one behind the other; which are taken and which refused."""
        queue = self.queues[name]
        room = self.room(queue)
        answers = []
        for message in messages:
            is_refused = queue.is_rejecting and queue.is_full(room, message.size)
            answers.append(not is_refused)
            if not is_refused:
                queue.put(message)
        return answers

    def requeue(self, taken: list[tuple[ModelConsumer, ModelMessage]]) -> None:
        """Back to their places, or dead when they came back too often."""
        for holder, message in taken:
            queue = holder.queue
            message.flag = Flag.YES
            message.comebacks += 1
            if queue.delivery_limit is not None and message.comebacks > queue.delivery_limit:
                queue.bury(message, "delivery_limit")
            else:
                queue.back([message])

    def reject(self, taken: list[tuple[ModelConsumer, ModelMessage]]) -> None:
        """Refused for good."""
        for holder, message in taken:
            holder.queue.bury(message, "rejected")

    def restart(self, *, is_clean: bool) -> None:
        """Clients are gone; transient messages are, too, and what was unacked waits again."""
        for channel in self.channels.values():
            for holder, message in channel.take_all():
                holder.queue.back([message])
        for queue in self.queues.values():
            queue.was_killed = queue.was_killed or not is_clean
            queue.ready = [each for each in queue.ready if each.is_persistent]
            for message in queue.ready:
                message.flag = Flag.MAYBE
        self.channels = {number: ModelChannel() for number in self.channels}

    def get(self, number: int, name: str, heard: Heard | None, *, is_no_ack: bool) -> int:
        """basic.get was answered with this; how many are ready behind it."""
        queue, channel = self.queues[name], self.channels[number]
        while queue.ready and queue.ready[0].is_brief:
            queue.bury(queue.ready.pop(0), "expired")
        if not queue.ready:
            assert heard is None, f"{heard} of an empty queue"
            return 0
        message = queue.ready.pop(0)
        assert heard is not None, f"nothing, but {message} is ready in {name}"
        assert heard.number == message.number, f"{heard}, expected {message}"
        hand = ModelConsumer(queue, is_no_ack=True)
        if not is_no_ack:
            hand = channel.hands.setdefault(name, ModelConsumer(queue))
        channel.count([heard.tag])
        channel.note(hand, message, heard)
        return len(queue.ready)

    # What the broker did.

    def accept(self, heard: list[Heard], now_ms: int) -> None:
        """Deliveries of one step, checked and done; then everything comes to rest."""
        waiting: dict[int, list[Heard]] = {number: [] for number in self.channels}
        for each in heard:
            waiting[each.channel].append(each)
        for number, several in waiting.items():
            self.channels[number].count([each.tag for each in several])
        # Dead letters of one queue may be delivered from another in the same step.
        for _ in range(len(self.queues) + 1):
            for queue in self.queues.values():
                self._deliver(queue, waiting, now_ms)
                queue.trim(now_ms)
                queue.expire(now_ms)
        left = [each for several in waiting.values() for each in several]
        assert not left, f"delivered without a reason: {left}"

    def _deliver(self, queue: ModelQueue, waiting: dict[int, list[Heard]], now_ms: int) -> None:
        room = self.room(queue)
        while room > 0 and queue.ready:
            message = queue.ready.pop(0)
            if message.is_over(now_ms):
                queue.bury(message, "expired")
                continue
            self._hand(queue, message, waiting)
            room -= 1

    def _hand(
        self, queue: ModelQueue, message: ModelMessage, waiting: dict[int, list[Heard]]
    ) -> None:
        for number, several in waiting.items():
            for heard in several:
                channel = self.channels[number]
                consumer = channel.consumers.get(heard.consumer)
                if heard.number != message.number or consumer is None:
                    continue
                if consumer.queue is not queue:
                    continue
                assert consumer.room > 0, f"{heard} to a consumer without room"
                several.remove(heard)
                channel.note(consumer, message, heard)
                return
        left = [each for several in waiting.values() for each in several]
        raise AssertionError(
            f"message {message.number} of {queue.name} was not delivered, but {left}"
        )
