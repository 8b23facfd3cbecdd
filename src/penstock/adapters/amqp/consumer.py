"""The way out and back: a channel's consumers, what they were given, what becomes of it.

``ChannelConsumers`` is the receiving half of a channel: consumers by tag, the ledger of delivery
tags, the two windows of basic.qos, and the silent consumers of basic.get. Each consumer is one of
the engine's and its own outlet, so a list of deliveries finds its way without a look-up; it leaves
as one piece of bytes. Its ``demand`` is its window inside the channel's (F10). Without acks it has
none of its own and leaves the channel's as it is, but waits while others have it full.

F14: what the socket has not taken is counted by the engine when it hands a list over, against the
connection's ``UnsentLimit``; ``AmqpConnection.flushed`` gives it back and ``ChannelConsumers.wake``
lets the engine go on. So a peer that does not read stops its own connection's deliveries and nobody
else's.

Acks: tags become pieces of the ledger, pieces of one queue one list of offsets, and each list one
verb of its subscription: settled, back to its place (flagged as redelivered; counted in quorum
queues), or rejected (dead letter). In a transaction pieces wait for tx.commit; a rollback puts them
back. A tag that is not unsettled is an error of the channel (406); what came before it in the same
run of acks is settled, as if each had come by itself.

Invariants: when a channel is closed everything unsettled is back in its place before a queue that
its last consumer leaves is deleted; a consumer that was cancelled keeps what it has, and stays
known to the channel until nothing of it is unsettled: only then may the engine forget it.
Bounds: ``amqp.consumers_per_channel_max`` consumers, with those that are cancelled and still have
something unsettled; consumers of basic.get by ``GETTERS_MAX``.
Not here: the commands (``consumer_commands.py``), the layout of frames
(``wire/amqp/serializer.py``), transactions (``transactions.py``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from enum import Enum
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter, lt
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.adapters.amqp.present import as_amqp, with_attempts
from penstock.adapters.amqp.statistics import DeliveryCounters
from penstock.engine.host import Mode
from penstock.engine.subscription.consumer import Consumer
from penstock.flow.demand import ChannelWindow, Demand, Unlimited, Window
from penstock.model.record import Record, Wire
from penstock.wire.amqp.codes import CLASS_BASIC, AmqpError, ReplyCode
from penstock.wire.amqp.methods.basic import Ack, Cancel, Consume, Nack, Reject
from penstock.wire.amqp.serializer import DeliveryEncoder

if TYPE_CHECKING:
    from penstock.adapters.amqp.ports import ChannelPort
    from penstock.adapters.amqp.publisher import ChannelPublisher
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.engine.subscription.consumer import Delivery
    from penstock.engine.subscription.subscription import Subscription
    from penstock.model.ids import QueueId
    from penstock.wire.amqp.frames import AckRun, SettleRun

GETTERS_MAX: Final = 256
"""Queues one channel has consumers of basic.get for; beyond it those who hold nothing go."""
QUORUM: Final = "quorum"
QUORUM_PREFETCH: Final = 2000
"""What "no limit" means for consumers of quorum queues, as RabbitMQ has it."""
CANCEL_NOTIFY: Final = "consumer_cancel_notify"
RUN_TAGS_MAX: Final = 4096
"""Tags after which a new run is begun although the last one could go on."""
RUN_AGE_MS_MAX: Final = 1000
"""So is it after this time: a run is as old as its first delivery, for ``consumer_timeout``."""

_AMQP: Final = int(Wire.AMQP)
_RECORD: Final = attrgetter("record")
_SHAPE: Final = attrgetter("shape")
_OFFSET: Final = attrgetter("offset")
_QUEUE: Final = attrgetter("queue_id")
_IS_REDELIVERED: Final = attrgetter("is_redelivered")


class SettleAction(Enum):
    """What a client says of messages it was given."""

    ACK = "ack"
    REQUEUE = "requeue"
    REJECT = "reject"


ACTIONS: Final = {
    Ack.method_id: SettleAction.ACK,
    Nack.method_id: SettleAction.REJECT,
    Nack.method_id + 1: SettleAction.REQUEUE,
    Reject.method_id: SettleAction.REJECT,
    Reject.method_id + 1: SettleAction.REQUEUE,
}
"""By the words of a ``SettleRun``."""


class ChannelConsumers:
    """The receiving half of one channel."""

    __slots__ = (
        "_publisher",
        "by_tag",
        "channel",
        "counters",
        "getters",
        "is_closed",
        "lingering",
        "prefetch_count",
        "unacked",
        "window",
    )

    def __init__(self, channel: ChannelPort, publisher: ChannelPublisher) -> None:
        """``publisher`` knows the transaction that settlements wait in."""
        self.channel: Final = channel
        self._publisher: Final = publisher
        self.by_tag: Final[dict[str, BasicConsumer]] = {}
        self.counters: Final = DeliveryCounters()
        """What its client was given and acknowledged."""
        self.unacked: Final = UnackedTags()
        self.window: Final = ChannelWindow()
        """All consumers together; counts from the start, so that a limit may come later."""
        self.prefetch_count = 0
        """What consumers made from now on may have each; 0 = no limit."""
        self.getters: dict[tuple[Subscription, bool], AttachedConsumer] = {}
        """Consumers of basic.get: by queue, and whether it needs no ack."""
        self.lingering: Final[dict[AttachedConsumer, None]] = {}
        """Consumers that were cancelled and still have something unsettled."""
        self.is_closed = False

    @property
    def unacked_count(self) -> int:
        """Messages its client was given and did not settle."""
        return self.unacked.count

    @property
    def global_prefetch_count(self) -> int:
        """What all its consumers may have together; 0 = no limit."""
        return self.window.count

    @property
    def consumers_kept(self) -> int:
        """Consumers, and those that were cancelled and are not done."""
        return len(self.by_tag) + len(self.lingering)

    # Settling.

    def ack(self, run: AckRun) -> None:
        """Acks, in the order they came."""
        unacked = self.unacked
        take = unacked.take_multiples if run.is_multiple else unacked.take_each
        pieces, unknown = take(run.tags)
        if pieces:
            self._decide(pieces, SettleAction.ACK)
        if unknown is not None:
            raise unknown_tag(unknown).about(self.channel.number, CLASS_BASIC, Ack.method_id)

    def settle(self, run: SettleRun) -> None:
        """Words about single messages, one action at a time: they do not touch each other's.

        Only who comes back and who is rejected, of one queue that counts, may die beside each
        other: those stay in the order in which they were named, and so do all that are rejected.
        """
        pieces, unknown = self.unacked.take_each(run.tags)
        count = sum([piece.tags for piece in pieces])
        words = run.words[:count]
        if words and words.count(words[0]) == count:
            self._decide(_as_named(pieces, run.tags, words[0]), ACTIONS[words[0]])
        elif words:
            for action, part in _parted(singles(pieces, run.tags[:count]), words):
                self._decide(part, action)
        if unknown is not None:
            method_id = run.words[count] & ~1
            raise unknown_tag(unknown).about(self.channel.number, CLASS_BASIC, method_id)

    def nack(self, tag: int, *, is_multiple: bool, is_requeue: bool) -> None:
        """basic.nack or reject that came by itself: for all up to a tag, mostly."""
        pieces = self.unacked.take(tag, is_multiple=is_multiple)
        self._decide(pieces, SettleAction.REQUEUE if is_requeue else SettleAction.REJECT)

    def requeue_all(self) -> None:
        """basic.recover: everything unsettled goes back, transaction or not."""
        self._apply(self.unacked.take_all(), SettleAction.REQUEUE)

    def _decide(self, pieces: list[TagRun], action: SettleAction) -> None:
        """Carry it out now, or at the commit."""
        tx = self._publisher.tx
        if tx is None:
            self._apply(pieces, action)
        else:
            tx.hold_ack(
                partial(self._apply, pieces, action), partial(self.unacked.put_back, pieces)
            )

    def _apply(self, pieces: list[TagRun], action: SettleAction) -> None:
        """One verb of the engine for all messages of a queue."""
        for holder, queue_id, offsets in grouped(pieces):
            subscription = holder.subscription
            if subscription.is_closed:
                continue  # the queue is gone, and with it what was to be settled
            if action is SettleAction.ACK:
                subscription.settle(queue_id, offsets)
                self.counters.ack += len(offsets)
                holder.queue.counters.ack += len(offsets)
            elif action is SettleAction.REQUEUE:
                subscription.requeue(queue_id, offsets, count=holder.is_counted)
                if holder.queue.topic.limits is not None:
                    self.channel.connection.note_requeued()
            else:
                subscription.reject(queue_id, offsets)
        if self.lingering:
            self._forget_settled()

    def _forget_settled(self) -> None:
        """After a settlement: cancelled consumers that have nothing left are forgotten."""
        for holder in [each for each in self.lingering if not each.unacked]:
            del self.lingering[holder]
            holder.detach()

    # Who comes and goes.

    def add(self, consumer: BasicConsumer) -> None:
        consumer.start()
        self.by_tag[consumer.tag] = consumer
        consumer.queue.exclusive_consumer = consumer.is_exclusive
        self.channel.vhost.queues.consumer_added(consumer.queue)

    def remove(self, tag: str) -> None:
        """A consumer takes no more; its queue may be deleted by that."""
        consumer = self.by_tag.pop(tag)
        consumer.cancel()
        if consumer.unacked:
            self.lingering[consumer] = None
        self._left(consumer)

    def forget(self, consumer: BasicConsumer) -> bool:
        """Its queue is gone; False when the channel did not know it any more."""
        return self.by_tag.pop(consumer.tag, None) is not None

    def getter(self, queue: AmqpQueue, *, is_no_ack: bool) -> AttachedConsumer:
        """The silent consumer of basic.get for this queue, on this channel."""
        found = self.getters.get((queue.subscription, is_no_ack))
        if found is None:
            self._make_room_for_getter()
            found = AttachedConsumer(self, queue)
            name = f"{self.channel.connection.name} ({self.channel.number}) basic.get"
            found.attach(Unlimited(), name, is_passive=True, is_auto_settled=is_no_ack)
            self.getters[queue.subscription, is_no_ack] = found
        return found

    def forget_getter(self, getter: AttachedConsumer) -> None:
        """The queue of a consumer of basic.get is gone."""
        self.getters = {key: each for key, each in self.getters.items() if each is not getter}

    def _make_room_for_getter(self) -> None:
        """Let consumers of basic.get go that hold nothing, once there are many."""
        if len(self.getters) >= GETTERS_MAX:
            for key, getter in list(self.getters.items()):
                if not getter.unacked:
                    del self.getters[key]
                    getter.detach()

    def close(self) -> None:
        """The channel ends: everything goes back; may be called twice."""
        if self.is_closed:
            return
        self.is_closed = True
        consumers = list(self.by_tag.values())
        self.by_tag.clear()
        for holder in (*consumers, *self.lingering, *self.getters.values()):
            holder.detach()
        self.lingering.clear()
        self.getters.clear()
        self.unacked.take_all()
        for consumer in consumers:
            self._left(consumer)

    def _left(self, consumer: BasicConsumer) -> None:
        if consumer.is_exclusive:
            consumer.queue.exclusive_consumer = False
        self.channel.vhost.queues.consumer_removed(consumer.queue)

    # Time and the socket.

    def wake(self) -> None:
        """The socket took what it had: the engine may go on (F14)."""
        for each in self.by_tag.values():
            if each.consumer is not None:
                each.consumer.wake()

    def next_deadline_ms(self) -> int | None:
        """When ``due`` may find something that is unsettled for too long."""
        oldest_ms = self.unacked.oldest_ms
        limit_ms = self.channel.context.settings.consumer_timeout_ms
        return oldest_ms + limit_ms if limit_ms and oldest_ms is not None else None

    def due(self, now_ms: int) -> None:
        """Fail the channel when a delivery is unsettled for longer than allowed."""
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is not None and now_ms >= deadline_ms:
            limit_ms = self.channel.context.settings.consumer_timeout_ms
            text = (
                f"delivery acknowledgement on channel {self.channel.number} timed out. "
                f"Timeout value used: {limit_ms} ms. This timeout value can be configured "
                "(amqp.consumer_timeout_ms)"
            )
            self.channel.fail(AmqpError(ReplyCode.PRECONDITION_FAILED, text))


class AttachedConsumer:
    """A consumer of the engine that this channel attached to one queue, and its outlet.

    By itself it is the silent one of basic.get, which is given messages only when it asks.
    """

    __slots__ = ("channel", "consumer", "consumers", "is_counted", "queue", "subscription")

    def __init__(self, consumers: ChannelConsumers, queue: AmqpQueue) -> None:
        self.consumers: Final = consumers
        self.channel: Final = consumers.channel
        self.queue: Final = queue
        self.subscription: Final[Subscription] = queue.subscription
        """The one it was attached to; a queue made anew under that name has another."""
        self.is_counted: Final = queue.kind == QUORUM
        """Whether coming back is counted as an attempt (``x-delivery-count``)."""
        self.consumer: Consumer | None = None

    @property
    def unacked(self) -> int:
        """Messages it has and did not settle."""
        return self.consumer.inflight.messages if self.consumer is not None else 0

    def attach(self, demand: Demand, name: str, **keywords: Any) -> None:
        """Become a consumer of the engine; raises when it takes no more of them."""
        connection = self.channel.connection
        attached = self.subscription.attach(
            self,
            demand,
            unsent=connection.unsent,
            name=name,
            **keywords,
        )
        if not isinstance(attached, Consumer):
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, attached.text)
        attached.connection_id = connection.engine_connection.connection_id
        self.consumer = attached

    def detach(self) -> None:
        """It is gone; what it has goes back to its place."""
        if self.consumer is not None and not self.subscription.is_closed:
            self.subscription.detach(self.consumer, count=self.is_counted)

    def note_unacked(self, deliveries: list[Delivery], *, is_plain: bool) -> int:
        """Enter deliveries into the ledger; the first tag."""
        unacked = self.consumers.unacked
        now_ms = self.channel.context.clock.monotonic_ms()
        first_tag = unacked.next_tag
        if is_plain and len(self.queue.topic.queues) == 1:
            offsets = list(map(_OFFSET, deliveries))
            return unacked.add(self, deliveries[0].queue_id, offsets, now_ms)
        for queue_id, group in groupby(deliveries, _QUEUE):
            offsets = []
            for delivery in group:
                span = delivery.record.messages
                if span == 1:
                    offsets.append(delivery.offset)
                    continue
                if offsets:
                    unacked.add(self, queue_id, offsets, now_ms)
                    offsets = []
                whole = list(range(delivery.offset, delivery.offset + span))
                unacked.add_batch(self, queue_id, whole, now_ms)
            if offsets:
                unacked.add(self, queue_id, offsets, now_ms)
        return first_tag

    def presented(self, delivery: Delivery) -> Record:
        """The record of a delivery as its AMQP peer shall see it."""
        record = delivery.record
        if record.shape.wire != _AMQP:
            context = self.channel.context
            bytes_max = context.all_settings.topics.message_bytes_max
            record = as_amqp(
                record,
                self.queue.name,
                reader=context.engine.facts.get(record.wire),
                bytes_max=bytes_max,
                unopened=context.engine.batches.why_unopened(record),
            )
        if delivery.attempts and self.is_counted:
            record = with_attempts(record, delivery.attempts)
        return record

    # What the engine calls.

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Only consumers with a tag are given messages without asking."""

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """The queue is gone."""
        self.consumers.forget_getter(self)

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Only consumers with a tag wait for their turn to be the active one."""


class BasicConsumer(AttachedConsumer):
    """A consumer as its client knows it: by its tag."""

    __slots__ = (
        "arguments",
        "frames",
        "is_active",
        "is_exclusive",
        "is_no_ack",
        "prefetch_count",
        "priority",
        "tag",
        "window",
    )

    def __init__(
        self,
        consumers: ChannelConsumers,
        queue: AmqpQueue,
        method: Consume,
        tag: str,
        priority: int,
    ) -> None:
        super().__init__(consumers, queue)
        self.tag: Final = tag
        self.arguments: Final[dict[str, Any]] = method.arguments
        self.is_no_ack: Final = method.is_no_ack
        self.is_exclusive: Final = method.is_exclusive
        self.priority: Final = priority
        self.prefetch_count: Final = 0 if method.is_no_ack else consumers.prefetch_count
        """As its client asked; 0 = no limit."""
        self.is_active = True
        """False for those who wait until the single active consumer leaves."""
        self.window: Window | None = None
        self.frames: Final = DeliveryEncoder(
            self.channel.number, tag, self.channel.connection.frame_max
        )

    def start(self) -> None:
        """Take messages from now on."""
        self.is_active = self.subscription.options.mode is not Mode.SINGLE_ACTIVE
        count = 0
        if not self.is_no_ack:
            count = self.prefetch_count or (QUORUM_PREFETCH if self.is_counted else 0)
        self.window = Window(count, self.consumers.window)
        self.attach(
            self.window,
            f"{self.channel.connection.name} ({self.channel.number}) {self.tag}",
            priority=self.priority,
            is_auto_settled=self.is_no_ack,
        )

    def cancel(self) -> None:
        """Take no more; what it has stays its own."""
        if self.window is not None:
            self.window.close()
        if self.consumer is not None and not self.subscription.is_closed:
            self.subscription.cancel(self.consumer)

    def detach(self) -> None:
        """It is gone; what it has goes back to its place."""
        if self.window is not None:
            self.window.close()
        super().detach()

    # What the engine calls.

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Send these, a list at a time; what needs an ack is in the ledger afterwards.

        Per list: one look whether all records are plain AMQP ones of one shape (the rule), one
        entry in the ledger, one piece of bytes. Records of other protocols are rewritten as AMQP
        shows them; what came back to a quorum queue says how often.
        """
        count = len(deliveries)
        records: list[Record] = list(map(_RECORD, deliveries))
        first = records[0].shape
        is_plain = first.wire == _AMQP and (
            count == 1 or list(map(_SHAPE, records)).count(first) == count
        )
        redelivered: list[bool] | None = None
        again = 0
        if True in map(_IS_REDELIVERED, deliveries):
            redelivered = list(map(_IS_REDELIVERED, deliveries))
            again = redelivered.count(True)
        if not is_plain or (redelivered is not None and self.is_counted):
            records = [self.presented(delivery) for delivery in deliveries]
        channel, consumers, is_no_ack = self.channel, self.consumers, self.is_no_ack
        consumers.counters.delivered(count, again, is_no_ack=is_no_ack)
        self.queue.counters.delivered(count, again, is_no_ack=is_no_ack)
        if is_no_ack:
            first_tag = consumers.unacked.skip(count)
        else:
            first_tag = self.note_unacked(deliveries, is_plain=is_plain)
        if channel.replies.is_waiting:
            channel.replies.note_deliveries(count, sum([each.size for each in deliveries]))
        channel.send(self.frames.encode(records, first_tag, redelivered))

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """The queue is gone; its client is told if it wants to know."""
        if self.window is not None:
            self.window.close()
        is_told = CANCEL_NOTIFY in self.channel.connection.client_capabilities
        if self.consumers.forget(self) and is_told:
            self.channel.answer(Cancel(self.tag, is_nowait=True))

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """It became the single active one, or ceased to be it."""
        self.is_active = is_active


class TagRun(msgspec.Struct, eq=False):
    """Tags next to each other, that one consumer got from one queue."""

    first_tag: int
    tags: int
    holder: AttachedConsumer
    queue_id: QueueId
    offsets: list[int]
    at: int = 0
    """Where in the list its offsets begin; negative for the one tag of a record with several."""
    time_ms: int = 0
    """Monotonic time of its first delivery."""

    @property
    def end_tag(self) -> int:
        return self.first_tag + self.tags

    @property
    def settled_offsets(self) -> list[int]:
        at, tags, offsets = self.at, self.tags, self.offsets
        if at < 0 or (at == 0 and tags == len(offsets)):
            return offsets
        return offsets[at : at + tags]

    def part(self, first_tag: int, tags: int) -> TagRun:
        return TagRun(
            first_tag,
            tags,
            self.holder,
            self.queue_id,
            offsets=self.offsets,
            at=self.at if self.at < 0 else self.at + first_tag - self.first_tag,
            time_ms=self.time_ms,
        )


class UnackedTags:
    """The ledger of delivery tags: what one channel was given and has not settled yet.

    Tags count up from 1, those of deliver and get-ok together; what needs no ack uses up tags, too.
    They are kept as runs, not one by one. Settling cuts pieces out of runs; a piece is a run of its
    own, so that it can be put back (tx.rollback)::

        run   | first_tag 7 | tags 5 | holder, queue | offsets, from ``at`` on |
        ack 9 -> run 7..8, piece 9 (settled), run 10..11: all three share one list of offsets

    A batch record of another protocol is one tag with several offsets; it is a run by itself.

    Invariants: runs are in order of their tags and do not overlap; ``count`` is the number of
    unsettled tags; a tag is taken at most once. Bounds: what is unsettled is bounded by F13; a list
    is at most ``RUN_TAGS_MAX`` long, so a settled tag keeps no more than that in memory.
    """

    __slots__ = ("_firsts", "_runs", "count", "next_tag")

    def __init__(self) -> None:
        self.next_tag = 1
        self.count = 0
        # The same runs twice: their first tags for finding them, by bisection.
        self._firsts: list[int] = []
        self._runs: list[TagRun] = []

    @property
    def oldest_ms(self) -> int | None:
        """When the longest unsettled message was delivered, up to a second; None = there is none.

        What was put back by a rollback is as old as it was.
        """
        return self._runs[0].time_ms if self._runs else None

    def skip(self, tags: int) -> int:
        """Tags of deliveries that need no ack; the first of them."""
        first = self.next_tag
        self.next_tag += tags
        return first

    def add(
        self, holder: AttachedConsumer, queue_id: QueueId, offsets: list[int], now_ms: int
    ) -> int:
        """One tag for each offset; the first of them. The list belongs to the ledger now."""
        count = len(offsets)
        first = self.next_tag
        self.next_tag = first + count
        self.count += count
        last = self._runs[-1] if self._runs else None
        if (
            last is not None
            and last.first_tag + last.tags == first
            and last.holder is holder
            and last.queue_id == queue_id
            and last.at >= 0
            and len(last.offsets) + count <= RUN_TAGS_MAX
            and now_ms - last.time_ms < RUN_AGE_MS_MAX
        ):
            # Tags and offsets are handed out together: where the tags end, so does the list.
            last.offsets += offsets
            last.tags += count
        else:
            run = TagRun(first, count, holder, queue_id, offsets=offsets, time_ms=now_ms)
            self._firsts.append(first)
            self._runs.append(run)
        return first

    def add_batch(
        self, holder: AttachedConsumer, queue_id: QueueId, offsets: list[int], now_ms: int
    ) -> int:
        """One tag for all these offsets."""
        first = self.skip(1)
        self.count += 1
        run = TagRun(first, 1, holder, queue_id, offsets=offsets, at=-1, time_ms=now_ms)
        self._firsts.append(first)
        self._runs.append(run)
        return first

    def take(self, tag: int, *, is_multiple: bool) -> list[TagRun]:
        """Settle this tag, or all up to it (0 = all there are); raises 406 when it is not known."""
        if is_multiple and not tag:
            return self.take_all()
        pieces: list[TagRun] = []
        if not (self._take_upto(tag, pieces) if is_multiple else self._span(tag, tag, pieces)):
            raise unknown_tag(tag)
        return pieces

    def take_each(self, tags: list[int]) -> tuple[list[TagRun], int | None]:
        """Settle these, in order, up to the first that is not known: that one comes back, too."""
        pieces: list[TagRun] = []
        for first, last in tag_ranges(tags):
            if not self._span(first, last, pieces):
                break
        else:
            return pieces, None
        self.put_back(pieces)
        pieces = []
        for tag in tags:
            if not self._span(tag, tag, pieces):
                return pieces, tag
        return pieces, None

    def take_multiples(self, tags: list[int]) -> tuple[list[TagRun], int | None]:
        """The same for tags of which each settles all before it."""
        pieces: list[TagRun] = []
        if len(tags) > 1 and tags[0] > 0 and tag_ranges(tags) == [(tags[0], tags[-1])]:
            # After the first of them nothing is left in front of the others.
            if not self._take_upto(tags[0], pieces):
                return pieces, tags[0]
            rest, unknown = self.take_each(tags[1:])
            return pieces + rest, unknown
        if len(tags) > 1 and _is_rising(tags) and min(map(self._find, tags)) >= 0:
            # All of them are known, and none settles a later one: the last says it for all.
            self._take_upto(tags[-1], pieces)
            return pieces, None
        for tag in tags:
            if not tag:
                pieces += self.take_all()
            elif not self._take_upto(tag, pieces):
                return pieces, tag
        return pieces, None

    def take_all(self) -> list[TagRun]:
        pieces, self._runs, self._firsts, self.count = self._runs, [], [], 0
        return pieces

    def put_back(self, pieces: list[TagRun]) -> None:
        for piece in pieces:
            at = bisect_right(self._firsts, piece.first_tag)
            self._firsts.insert(at, piece.first_tag)
            self._runs.insert(at, piece)
            self.count += piece.tags

    def _find(self, tag: int) -> int:
        """The place of the run with this tag; -1 when it is not unsettled."""
        at = bisect_right(self._firsts, tag) - 1
        if at >= 0:
            run = self._runs[at]
            if tag < run.first_tag + run.tags:
                return at
        return -1

    def _take_upto(self, tag: int, pieces: list[TagRun]) -> bool:
        at = self._find(tag)
        if at < 0:
            return False
        run = self._runs[at]
        if run.first_tag + run.tags > tag + 1:
            self._split(at, tag + 1)
        taken = self._runs[: at + 1]
        pieces += taken
        del self._runs[: at + 1], self._firsts[: at + 1]
        self.count -= run.tags if not at else sum([run.tags for run in taken])
        return True

    def _span(self, first: int, last: int, pieces: list[TagRun]) -> bool:
        """Settle the tags from first to last; False when one is not known: some may be taken."""
        at = self._find(first)
        if at < 0:
            return False
        runs = self._runs
        if runs[at].first_tag < first:
            self._split(at, first)
            at += 1
        start, tag = at, first
        while tag <= last and at < len(runs) and (run := runs[at]).first_tag == tag:
            if tag + run.tags > last + 1:
                self._split(at, last + 1)
            tag += run.tags
            at += 1
        pieces += runs[start:at]
        del runs[start:at], self._firsts[start:at]
        self.count -= tag - first
        return tag > last

    def _split(self, at: int, tag: int) -> None:
        """Make two runs of one; the second begins with this tag."""
        run = self._runs[at]
        behind = run.part(tag, run.first_tag + run.tags - tag)
        # The list is not cut: both go on in it, and only the last one may ever grow.
        run.tags -= behind.tags
        self._runs.insert(at + 1, behind)
        self._firsts.insert(at + 1, tag)


def singles(pieces: list[TagRun], tags: list[int]) -> list[TagRun]:
    """The same tags one by one, in this order."""
    homes: dict[int, TagRun] = {}
    for piece in pieces:
        homes.update(dict.fromkeys(range(piece.first_tag, piece.end_tag), piece))
    return [homes[tag].part(tag, 1) for tag in tags]


def _is_rising(tags: list[int]) -> bool:
    return tags[0] > 0 and all(map(lt, tags, tags[1:]))


def tag_ranges(tags: list[int]) -> list[tuple[int, int]]:
    """First and last of each range of tags that follow each other, in ascending order."""
    if len(tags) == 1:
        return [(tags[0], tags[0])]
    if tags == list(range(tags[0], tags[0] + len(tags))):
        return [(tags[0], tags[-1])]
    found: list[tuple[int, int]] = []
    ordered = sorted(tags)
    first = last = ordered[0]
    for tag in ordered[1:]:
        if tag != last + 1:
            found.append((first, last))
            first = tag
        last = tag
    found.append((first, last))
    return found


def unknown_tag(tag: int) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")


def _as_named(pieces: list[TagRun], tags: list[int], word: int) -> list[TagRun]:
    """Pieces in the order of these tags, where that can be seen: dead letters are in order."""
    is_ordered = ACTIONS[word] is SettleAction.REJECT or any(
        each.holder.is_counted for each in pieces
    )
    if not is_ordered or all(map(lt, tags, tags[1:])):
        return pieces
    return singles(pieces, tags[: sum([piece.tags for piece in pieces])])


def _parted(pieces: list[TagRun], words: bytes) -> Iterable[tuple[SettleAction, list[TagRun]]]:
    """Pieces of one tag each, and what is said of them."""
    actions = [ACTIONS[word] for word in words]
    parts: dict[SettleAction, list[TagRun]] = {}
    for action, piece in zip(actions, pieces, strict=True):
        parts.setdefault(action, []).append(piece)
    done = parts.pop(SettleAction.ACK, None)
    if done is not None:
        yield SettleAction.ACK, done
    if len(parts) < 2 or not any(each.holder.is_counted for each in pieces):
        yield from parts.items()
        return
    rest = [each for each in zip(actions, pieces, strict=True) if each[0] is not SettleAction.ACK]
    for action, part in groupby(rest, itemgetter(0)):
        yield action, [piece for _, piece in part]


def grouped(pieces: list[TagRun]) -> Iterable[tuple[AttachedConsumer, QueueId, list[int]]]:
    """The offsets of these pieces by queue, and one of those who held them there."""
    if len(pieces) == 1:
        piece = pieces[0]
        return ((piece.holder, piece.queue_id, piece.settled_offsets),)
    found: dict[tuple[Subscription, QueueId], tuple[AttachedConsumer, QueueId, list[int]]] = {}
    for piece in pieces:
        holder, queue_id = piece.holder, piece.queue_id
        known = found.get((holder.subscription, queue_id))
        if known is None:
            # A copy: it may grow here, and its list is the piece's.
            offsets = list(piece.settled_offsets)
            found[holder.subscription, queue_id] = (holder, queue_id, offsets)
        else:
            known[2].extend(piece.settled_offsets)
    return found.values()
