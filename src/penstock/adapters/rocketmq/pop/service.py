"""Pop: what the broker keeps of it between requests.

    PopService          the entry: subscriptions by group and topic, pop times and revive numbers
    PopSubscription     one group on one topic: what is in flight, and which receipts are alive
    PopLongPolling      pops and notifications that found nothing and wait
    PopReviveService    messages whose invisible time ended without an acknowledgement
    PopStatistics       counters for ``/metrics``

A popped message is in flight on the group's engine subscription, the very one that pull offsets
move, with a deadline. Its receipt is the moment of the pop and the revive number; both are the
*tag* of the in-flight entry, so a receipt is alive exactly as long as the entry carries its tag:
acknowledging, changing the invisible time, a time-out and a moved offset end it.

Invariants: at most one receipt of a message is alive; a message that comes again gets a later pop
time than any receipt given out before, so an old receipt never fits the new delivery; a queue
without a stored offset gets one before the first pop reads from it.
Not here: requests (``processor.py``, ``ack.py``), deadlines (the engine's in-flight entries).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from enum import Enum, StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.group_registry import NO_OFFSET, OffsetRegistry
from penstock.adapters.rocketmq.naming import RETRY_PREFIX, wire_name
from penstock.adapters.rocketmq.present import place_of, present
from penstock.engine.subscription.consumer import Consumer, ConsumerRefusal
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Unlimited
from penstock.flow.long_poll import HeldPulls
from penstock.model.errors import AlreadyExists, PenstockError
from penstock.model.ids import ConnectionId, QueueId
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.pop_handle import REVIVE_ORDERLY, PopHandle, RetryFlag
from penstock.wire.rocketmq.properties import PROPERTIES_BYTES_MAX, value_of, with_property
from penstock.wire.rocketmq.stored import decode_stored, record_of, topic_field

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker
    from penstock.adapters.rocketmq.connection import RocketmqConnection
    from penstock.engine.subscription.consumer import Delivery
    from penstock.engine.topic import Queue, Topic
    from penstock.model.record import Record

_log = logging.getLogger(__name__)

INIT_MAX: Final = 1
"""``initMode``: a new group begins at the newest message, not at the oldest."""

IN_MEMORY_BYTES_MAX: Final = 64 << 20
"""A queue up to this size is young: a new group that wants the newest begins at its first message.
RocketMQ asks whether message 0 is still in the page cache."""

REVIVE_QUEUES: Final = 8
"""Normal pops are numbered 0 to 7, in turn."""

_REVIVE_BITS: Final = 10
"""Room for 999 below the time of the pop."""

POLLS_MAX: Final = 100_000
POLLS_PER_KEY_MAX: Final = 1_024

ANY_QUEUE: Final = -1

FIRST_POP_TIME: Final = "1ST_POP_TIME"

OpenRetry = Callable[["Topic", str, str], "PopSubscription"]
"""(retry topic, group, topic) -> the group's subscription of the retry topic."""


class PopService:
    """All groups that pop; one ``PopSubscription`` per engine subscription, forgotten with it."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self.broker = broker
        self.long_polling = broker.service(PopLongPolling)
        self.revive_service = PopReviveService(broker, self._open_retry)
        self._offsets = broker.service(OffsetRegistry)
        # Bounded by the engine's subscriptions.
        self._subscriptions: dict[int, PopSubscription] = {}
        self._popped = 0
        self._last_pop_ms = 0

    def open(self, topic: Topic, group: str) -> PopSubscription:
        """The group's subscription of a topic, made if need be; ``AlreadyExists`` for no room."""
        found = self.find(topic, group)
        if found is None:
            found = PopSubscription(topic, group, self._offsets, self._gone)
            subscription = found.subscription
            self._subscriptions[subscription.subscription_id] = found
            subscription.on_visibility_timeout = partial(self.revive_service.late, found)
            subscription.on_ready = partial(self._ready, found)
        return found

    def find(self, topic: Topic, group: str) -> PopSubscription | None:
        """The same, if the group ever popped from the topic."""
        subscription = self._offsets.subscription(topic, group)
        return (
            None if subscription is None else self._subscriptions.get(subscription.subscription_id)
        )

    def retry_subscription(self, topic: str, group: str) -> PopSubscription | None:
        """The group's subscription of the retry topic of a topic, if that exists."""
        rmq_topic = self.broker.topics.find(pop_retry_topic(group, topic))
        return None if rmq_topic is None else self._open_retry(rmq_topic.topic, group, topic)

    def pop_ms(self, *, is_again: bool) -> int:
        """The time that receipts of a pop carry; unique where a message may have an older one."""
        now_ms = self.broker.clock.wall_ms()
        if is_again:
            now_ms = max(now_ms, self._last_pop_ms + 1)
        self._last_pop_ms = max(self._last_pop_ms, now_ms)
        return now_ms

    def next_revive_qid(self, *, is_orderly: bool) -> int:
        """The ``reviveQid`` of the next pop."""
        self._popped += 1
        return REVIVE_ORDERLY if is_orderly else self._popped % REVIVE_QUEUES

    def _open_retry(self, retry: Topic, group: str, origin: str) -> PopSubscription:
        pop_sub = self.open(retry, group)
        pop_sub.origin = origin
        return pop_sub

    def _ready(self, pop_sub: PopSubscription) -> None:
        self.long_polling.try_serve(pop_sub.name, pop_sub.group, len(pop_sub.topic.queues))
        if pop_sub.origin:
            origin = self.broker.topics.find(pop_sub.origin)
            queues = 0 if origin is None else len(origin.topic.queues)
            self.long_polling.try_serve(pop_sub.origin, pop_sub.group, queues)

    def _gone(self, pop_sub: PopSubscription) -> None:
        if self._subscriptions.pop(pop_sub.subscription.subscription_id, None) is not None:
            self.long_polling.cancel_all(pop_sub.name, pop_sub.group, len(pop_sub.topic.queues))


def tag_of(pop_ms: int, revive_qid: int) -> int:
    """What a receipt must say, as one number."""
    return pop_ms << _REVIVE_BITS | revive_qid


def pop_retry_topic(group: str, topic: str) -> str:
    """Where messages of a topic come back that a group popped and did not acknowledge."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def retry_flag(topic: str) -> int:
    """How answers and receipts mark a message's topic."""
    return int(RetryFlag.RETRY_V1 if topic.startswith(RETRY_PREFIX) else RetryFlag.NORMAL)


def forget_retries(broker: RocketmqBroker, topic: str) -> None:
    """A topic is about to be deleted: what its groups popped in vain goes with it."""
    rmq_topic = broker.topics.find(topic)
    if rmq_topic is not None:
        for group in broker.service(OffsetRegistry).groups_of(rmq_topic.topic):
            broker.topics.delete(pop_retry_topic(group, topic))


class PopSubscription:
    """One group on one topic.

    Its engine consumers are passive and belong to nobody's connection: a client that goes keeps its
    messages invisible until their time is up. Orderly pops have a consumer of their own, because
    their messages go back to their places, while others are revived in the retry topic.
    """

    __slots__ = (
        "_attempts",
        "_offsets",
        "_on_gone",
        "_started",
        "_starting",
        "flag",
        "group",
        "is_rewound",
        "name",
        "orderly",
        "origin",
        "plain",
        "subscription",
        "topic",
    )

    def __init__(
        self,
        topic: Topic,
        group: str,
        offsets: OffsetRegistry,
        on_gone: Callable[[PopSubscription], None],
    ) -> None:
        self.topic = topic
        self.name = wire_name(topic.name)
        """RocketMQ's spelling of the topic."""
        self.group = group
        self.flag = retry_flag(self.name)
        self.is_rewound = False
        """It was reset once: messages without a count may have older receipts, too."""
        self.origin = ""
        """The topic whose retries these are, for a pop retry topic."""
        self.subscription: Subscription = offsets.opened(topic, group)
        self._offsets = offsets
        self._on_gone = on_gone
        # Queues whose offset is stored; and who had the last orderly pop of a queue.
        self._started: set[int] = set()
        self._starting: set[int] = set()
        self._attempts: dict[int, str] = {}
        self.plain = self._attach("pop")
        self.orderly = self._attach("pop-orderly")

    # Taking.

    def start(self, queue: Queue, init_mode: int) -> bool:
        """Choose where the group begins in a queue, if it has no offset there; stored at once.

        True until ``confirm_start``: nothing may be given out before the choice is durable, or a
        crash would choose again, and perhaps a later place.
        """
        # Pops follow a reset at once; nobody has to be told of it later.
        if self._offsets.take_reset(queue, self.group) is not None:
            self.is_rewound = True
        if queue.queue_id in self._started:
            return queue.queue_id in self._starting
        is_new = self._offsets.committed(queue, self.group) == NO_OFFSET
        if is_new:
            self._offsets.commit(queue, self.group, self._first(queue, init_mode), "pop")
            self._starting.add(queue.queue_id)
        self._started.add(queue.queue_id)
        return is_new

    def confirm_start(self, queues: Sequence[Queue]) -> None:
        """What was chosen for these is durable."""
        self._starting.difference_update(queue.queue_id for queue in queues)

    def _first(self, queue: Queue, init_mode: int) -> int:
        lowest, end = queue.index.min_offset, queue.visible_end(False)
        if init_mode != INIT_MAX or self.flag:
            return lowest
        if lowest <= 0 and queue.index.bytes_between(0, end) <= IN_MEMORY_BYTES_MAX:
            return 0
        return max(0, end - 1)

    def is_blocked(self, queue: Queue, attempt_id: str | None) -> bool:
        """Whether order forbids a pop now: something of the queue is out, with another attempt."""
        if not self.subscription.unacked(queue.queue_id):
            return False
        return not attempt_id or self._attempts.get(queue.queue_id) != attempt_id

    def begin_attempt(self, queue: Queue, attempt_id: str | None) -> None:
        """An orderly pop comes: what the same attempt got before goes back, uncounted.

        Behind the first message that is not acknowledged everything comes again, the acknowledged,
        too, as in RocketMQ: a consumer that failed at one message must see the next ones after it.
        """
        queue_id = queue.queue_id
        if self.subscription.unacked(queue_id):
            entries = self.subscription.cursor(queue_id).pending.spill()
            self.subscription.requeue(queue_id, list(entries), count=False)
        self.subscription.rewind(queue_id)
        if attempt_id:
            self._attempts[queue_id] = attempt_id
        else:
            self._attempts.pop(queue_id, None)

    def ready(self, queue: Queue) -> int:
        """Messages of a queue that wait to be popped."""
        return self.subscription.ready(queue.queue_id)

    def waiting(self, queue: Queue) -> int:
        """The same, also for a queue the group has no offset in yet: nothing is decided by it."""
        if self._offsets.committed(queue, self.group) == NO_OFFSET:
            return queue.visible_end(False) - queue.index.min_offset
        return self.ready(queue)

    def next_offset(self, queue: Queue) -> int:
        """What a pop would give first."""
        if self._offsets.committed(queue, self.group) == NO_OFFSET:
            return queue.index.min_offset
        cursor = self.subscription.cursor(queue.queue_id)
        again = cursor.redelivery.ready
        return min(again[0], cursor.next_offset) if again else cursor.next_offset

    def sign(self, deliveries: list[Delivery], pop_ms: int, revive_qid: int) -> None:
        """Make the receipts of what was just taken of one queue valid."""
        offsets = [delivery.offset for delivery in deliveries]
        self.subscription.tag(deliveries[0].queue_id, offsets, tag_of(pop_ms, revive_qid))

    # Receipts.

    def is_alive(self, queue: Queue, offset: int, handle: PopHandle) -> bool:
        """Whether the message is still out under this very receipt."""
        held = self.subscription.in_flight(queue.queue_id, offset)
        return held is not None and held.tag == tag_of(handle.pop_time, handle.revive_qid)

    def popped_ms(self, queue_id: QueueId, offset: int) -> int:
        """When a message that is out was popped."""
        held = self.subscription.in_flight(queue_id, offset)
        return 0 if held is None else held.tag >> _REVIVE_BITS

    def settle(self, queue: Queue, offsets: list[int]) -> int:
        """These are acknowledged; a batch that cannot be opened has one receipt for all of it."""
        queue_id = queue.queue_id
        settled = self.subscription.settle(queue_id, offsets)
        for offset in offsets:
            rest = self.subscription.in_flight(queue_id, offset)
            if rest is not None:
                self.subscription.settle_ranges(queue_id, [(offset, offset + rest.span)])
        return settled

    def extend(self, queue: Queue, offset: int, *, deadline_ms: int, tag: int) -> None:
        """Another time, another receipt."""
        queue_id = queue.queue_id
        held = self.subscription.in_flight(queue_id, offset)
        assert held is not None, "the receipt was looked at before"
        held.tag = tag
        self.subscription.extend(queue_id, offset, deadline_ms)

    def split_late(self, queue_id: QueueId, offsets: list[int]) -> tuple[list[int], list[int]]:
        """Of entries whose time is up: those popped in order, and the others."""
        orderly: list[int] = []
        others: list[int] = []
        for offset in offsets:
            held = self.subscription.in_flight(queue_id, offset)
            if held is not None and held.consumer_id == self.orderly.consumer_id:
                orderly.append(offset)
            else:
                others.append(offset)
        return orderly, others

    def still_late(self, queue_id: QueueId, offsets: list[int], now_ms: int) -> list[int]:
        """Of entries that were late: those nobody acknowledged or gave more time since."""
        if self.subscription.is_closed:
            return []
        found = [(offset, self.subscription.in_flight(queue_id, offset)) for offset in offsets]
        return [offset for offset, held in found if held and 0 < held.deadline_ms <= now_ms]

    # What the engine calls: nothing is pushed.

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None: ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None: ...

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """The topic or the group's offsets were deleted."""
        self._on_gone(self)

    def _attach(self, name: str) -> Consumer:
        found = self.subscription.attach(self, Unlimited(), name=name, is_passive=True)
        if isinstance(found, ConsumerRefusal):
            raise AlreadyExists(found.text)
        return found


class PollingResult(Enum):
    """What became of a request that found nothing."""

    HELD = "held"
    FULL = "full"
    """No place to wait: 209."""
    TIMED_OUT = "timed-out"
    """Its time was up when it came: 210."""
    NOT_POLLING = "not-polling"
    """It does not want to wait."""


class HeldPop:
    """A pop or notification that waits."""

    __slots__ = ("connection", "expire", "group", "kind", "queue", "topic", "try_serve")

    def __init__(
        self,
        connection: RocketmqConnection,
        rmq_topic: tuple[str, str, int],
        *,
        kind: Hashable,
        try_serve: Callable[[], bool],
        expire: Callable[[], None],
    ) -> None:
        self.connection = connection
        self.topic, self.group, self.queue = rmq_topic
        self.kind = kind
        """What it wants; where one found nothing, others of its kind need not look."""
        self.try_serve = try_serve
        """Serve it if there is something now; True when it was answered."""
        self.expire = expire
        """ErrorResponse that nothing came."""


class PopLongPolling:
    """Pops and notifications that found nothing and wait (F12 for pops).

    Who grants: the client, once per request. Who stops: nobody; a request holds only its place
    here. What wakes it: a dispatch of its subscription, or of the retry topic's, that leaves
    something ready (an arrival, a revival, an acknowledgement that ends an order's block), or its
    deadline.

    A request waits under its topic, group and queue, where -1 is "any queue". Whoever waits longest
    is tried first and takes what it can; the next one gets what is left. Bounded in total and per
    key; a request leaves exactly once: served, timed out, or its connection closed. A try that
    finds nothing changes nothing, so it cannot make turns for ever.
    """

    def __init__(self, broker: RocketmqBroker) -> None:
        self._clock = broker.clock
        self._wait_ms_max = broker.settings.suspend_ms_max
        self._timers = broker.timers
        self._held: HeldPulls[HeldPop] = HeldPulls(POLLS_MAX, POLLS_PER_KEY_MAX)
        self._watched: set[ConnectionId] = set()
        """Connections whose end we are told of; those that live, so bounded by the listener."""
        broker.timers.add(self)

    def __len__(self) -> int:
        return len(self._held)

    def wait(self, poll: HeldPop, *, born_ms: int, poll_ms: int) -> PollingResult:
        """Let a request wait ``poll_ms`` from the moment it was made (wall time; 0 = now)."""
        if poll_ms <= 0:
            return PollingResult.NOT_POLLING
        wall_ms = self._clock.wall_ms()
        # A peer's clock may be ahead of ours: nobody waits longer than it asked for.
        left_ms = min(poll_ms, self._wait_ms_max, (born_ms or wall_ms) + poll_ms - wall_ms)
        if left_ms <= 0:
            return PollingResult.TIMED_OUT
        key = (poll.topic, poll.group, poll.queue)
        deadline_ms = self._clock.monotonic_ms() + left_ms
        owner = id(poll.connection)
        if not self._held.hold(key, poll, deadline_ms, owner=owner):
            return PollingResult.FULL
        self._watch(poll.connection)
        self._timers.reschedule()
        return PollingResult.HELD

    def try_serve(self, topic: str, group: str, queues: int) -> None:
        """Something is ready for a group: whoever waits for it looks, the oldest first."""
        if not len(self._held):
            return
        for queue in (ANY_QUEUE, *range(queues)):
            unserved: set[Hashable] = set()
            self._held.arrived((topic, group, queue), partial(_try_serve, unserved))

    def cancel_all(self, topic: str, group: str, queues: int) -> None:
        """Topic or group are gone: nothing will come."""
        for queue in (ANY_QUEUE, *range(queues)):
            for poll in self._held.cancel_key((topic, group, queue)):
                poll.expire()

    def _watch(self, connection: RocketmqConnection) -> None:
        """When the connection goes, nobody reads the answers to what it lets wait."""
        if connection.connection_id not in self._watched:
            self._watched.add(connection.connection_id)
            connection.on_close(lambda: self._cancel(connection))

    def _cancel(self, connection: RocketmqConnection) -> None:
        self._watched.discard(connection.connection_id)
        self._held.cancel_owner(id(connection))

    def next_deadline_ms(self) -> int | None:
        """When the first one's time is up."""
        return self._held.next_deadline_ms

    def due(self, now_ms: int) -> None:
        """ErrorResponse those whose time is up, with what there is or with nothing."""
        for poll in self._held.due(now_ms):
            if not poll.try_serve():
                poll.expire()


def _try_serve(unserved: set[Hashable], poll: HeldPop) -> bool:
    if poll.kind in unserved:
        return False
    is_served = poll.try_serve()
    if not is_served:
        unserved.add(poll.kind)
    return is_served


class PopReviveService:
    """Messages whose invisible time ended without an acknowledgement (sheet 2.7).

    They go to the pop retry topic of their group and topic, queue 0, with one attempt more and the
    time of their first pop kept; a message of the retry topic goes to its end again. Copy and
    settlement are one frame (D5), so nothing is lost and nothing comes twice through a crash; a
    retry topic that was made for it is waited for, because a frame must not name a queue that a
    crash would forget. What is gone meanwhile is skipped. Messages popped in order go back to their
    places instead: a retry would overtake.

    Where no retry topic can be made (too many queues, a name too long) the message goes back to its
    place as well: late and out of the usual way, but not lost.
    """

    def __init__(self, broker: RocketmqBroker, open_retry: OpenRetry) -> None:
        self._broker = broker
        self._open_retry = open_retry
        # Retry topics (by id) whose definition is durable; and who waits for that of others.
        self._known: set[int] = set()
        self._postponed: dict[int, list[tuple[PopSubscription, QueueId, list[int]]]] = {}
        self._counts = broker.service(PopStatistics).messages

    def late(self, pop_sub: PopSubscription, queue_id: QueueId, offsets: list[int]) -> None:
        orderly, others = pop_sub.split_late(queue_id, offsets)
        if orderly:
            self._return(pop_sub, queue_id, orderly)
        if not others:
            return
        queue = next(each for each in pop_sub.topic.queues if each.queue_id == queue_id)
        try:
            target = self._target(pop_sub)
        except (PenstockError, Malformed) as problem:
            _log.warning(
                "no pop retry topic; late messages go back to their places",
                extra={"group": pop_sub.group, "topic": pop_sub.name, "problem": str(problem)},
            )
            self._return(pop_sub, queue_id, others)
            return
        if target.topic.topic_id in self._known:
            self._revive(pop_sub, queue, others, target)
        else:
            self._postpone(target.topic, (pop_sub, queue_id, others))

    def _postpone(self, retry: Topic, late: tuple[PopSubscription, QueueId, list[int]]) -> None:
        waiting = self._postponed.get(retry.topic_id)
        if waiting is not None:
            waiting.append(late)
            return
        waiting = self._postponed[retry.topic_id] = [late]

        def durable() -> None:
            self._known.add(retry.topic_id)
            del self._postponed[retry.topic_id]
            for pop_sub, queue_id, offsets in waiting:
                still = pop_sub.still_late(queue_id, offsets, self._broker.clock.monotonic_ms())
                if still:
                    self.late(pop_sub, queue_id, still)

        self._broker.engine.after_durable(durable)

    def _revive(
        self, pop_sub: PopSubscription, queue: Queue, offsets: list[int], target: Queue
    ) -> None:
        queue_id = queue.queue_id
        popped_ms = {offset: pop_sub.popped_ms(queue_id, offset) for offset in offsets}

        def rewrite(
            record: Record, unsettled: list[int], attempts: int
        ) -> list[tuple[Record, Queue]]:
            entry = place_of(queue, record, unsettled[0])
            try:
                return [
                    (_retried(data, target, popped_ms[entry[1]], attempts + 1), target)
                    for offset, data in enumerate(
                        present(self._broker, queue, record, entry), entry[1]
                    )
                    if offset in unsettled
                ]
            except Malformed as problem:
                # No client could read it either; keeping it would bring it back for ever.
                _log.error(
                    "a message that cannot be read is not revived",
                    extra={"queue": queue.name, "offset": entry[1], "problem": str(problem)},
                )
                return []

        moved = pop_sub.subscription.move(queue_id, offsets, rewrite)
        self._counts[PopEvent.REVIVED] += moved

    def _return(self, pop_sub: PopSubscription, queue_id: QueueId, offsets: list[int]) -> None:
        returned = pop_sub.subscription.requeue(queue_id, offsets, count=True)
        self._counts[PopEvent.RETURNED] += returned

    def _target(self, pop_sub: PopSubscription) -> Queue:
        if pop_sub.flag:
            return pop_sub.topic.queues[0]
        name = pop_retry_topic(pop_sub.group, pop_sub.name)
        topic_field(name)
        rmq_topic = self._broker.topics.ensure(name)
        self._open_retry(rmq_topic.topic, pop_sub.group, pop_sub.name)
        return rmq_topic.topic.queues[0]


def _retried(data: bytes, target: Queue, popped_ms: int, attempts: int) -> Record:
    """A stored message as it goes to the retry topic."""
    message, _ = decode_stored(data)
    properties = message.properties
    if not value_of(properties, FIRST_POP_TIME):
        properties = with_property(properties, FIRST_POP_TIME, str(popped_ms))
    if len(properties) <= PROPERTIES_BYTES_MAX:
        message.properties = properties
    message.topic = wire_name(target.topic.name)
    message.queue_id = target.number
    message.reconsume_times += attempts
    return record_of(message)


class PopOutcome(StrEnum):
    """How a pop was answered."""

    FOUND = "FOUND"
    NOT_FOUND = "NOT_FOUND"
    """It did not want to wait: 19."""
    POLLING_FULL = "POLLING_FULL"
    POLLING_TIMEOUT = "POLLING_TIMEOUT"


class PopEvent(StrEnum):
    """What happened to a popped message."""

    POPPED = "popped"
    ACKNOWLEDGED = "acknowledged"
    VOID = "void"
    """A receipt came too late and nothing was done."""
    EXTENDED = "extended"
    """Its invisible time was changed."""
    REVIVED = "revived"
    """Its time was up: it went to the retry topic."""
    RETURNED = "returned"
    """Its time was up: it went back to its place."""


class PopStatistics:
    """What became of pops and of popped messages; counting is adding to the dictionaries.

    What is out now is no counter: it is ``unacked`` of the group's subscription.
    """

    def __init__(self, broker: RocketmqBroker) -> None:
        self.answers: dict[str, int] = dict.fromkeys(PopOutcome, 0)
        self.messages: dict[str, int] = dict.fromkeys(PopEvent, 0)
        counters = broker.engine.counter_families
        counters.register("rocketmq_pops", "Answers to pops", "outcome", self.answers)
        counters.register(
            "rocketmq_popped_messages", "What became of popped messages", "event", self.messages
        )
