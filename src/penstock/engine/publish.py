"""The way in: what happens to a publish between its channel and the log.

In the order of this file::

    arrive    channel.publish -> arrived()   charged to the connection's share, one batch per route,
                                             into the channel's inbox; reader -> channel credit
    route     the turn -> run()              channels take turns: which queues get the batch
    admit     Admission                      may it in now? yes, no (refused), not yet (held)
              _hand_over()                   into every queue's inbox; channel -> queue credit
    collect   FrameBuilder.collect()         queues take turns: heads of their inboxes become one
                                             frame; queue -> log credit

After the append transient publishes are confirmed, after the sync the rest, and queue -> log credit
comes back (``commit.py``).

Refusals are made before anything is stored (law 6) and told at the end of the turn, in one list per
channel. A full queue refuses for itself: the others of a fan-out take the message. Nothing is
waited for inside: a channel that cannot go on is skipped, and whatever made it stop asks for a turn
when it passes (law 4).

A channel that its peer closed goes on until all it sent is stored, also what is held (D23): it is
charged as before, and what must be refused in the end is counted and logged, for nobody is there to
hear it. What is held of a channel that was refused, or whose peer vanished, is dropped: such a peer
knows that nothing was promised, and after a refusal nothing behind it may be stored.

Fairness (law 5): every channel with work gets its equal part of the turn first, at least one
publish, and only then the rest of the turn goes to those who have more; a queue takes newcomers
first (``publish_batch.Inbox``). So a quiet publish is in the next frame or the one after.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final

import msgspec

from penstock.engine.commit import Frame, PublisherReplies
from penstock.engine.connection import Channel, Connection
from penstock.engine.delay import Delays
from penstock.engine.flow_context import FlowContext
from penstock.engine.non_persistent import NonPersistentRoute
from penstock.engine.ports import Publication
from penstock.engine.publish_batch import BatchKind, PublishBatch, publish_batches
from penstock.engine.statistics import EngineCounters
from penstock.engine.topic import Hold, Overflow, Queue, too_large
from penstock.flow.alarms import AlarmBoard
from penstock.flow.budgets import IN_FLIGHT_POOL, BufferPool
from penstock.flow.credit import Stage
from penstock.flow.reason import Reason
from penstock.model.clock import Clock, Deadlines
from penstock.model.names import TopicName
from penstock.model.record import Record
from penstock.model.refusal import Refusal, RefusalKind
from penstock.settings.load import Settings

logger = logging.getLogger(__name__)

CLOSED = Refusal(
    RefusalKind.CLOSING, "channel", "the channel was refused or lost while publishes were held"
)
NO_ROOM = Refusal(
    RefusalKind.CLOSING,
    IN_FLIGHT_POOL,
    "held publishes of a closed connection beyond its share of bytes; raise "
    "flow.connection_bytes_max or use confirms",
)
TOO_MANY = Refusal(
    RefusalKind.CLOSING,
    "channel",
    "too many closed channels have held publishes; use confirms, or fewer channels",
)

DRAINING_CHANNELS_MAX: Final = 1000
"""Closed channels whose publishes are held on: who opens and closes on and on is bounded, too."""

Held = tuple[Hold, list[PublishBatch[Queue]]]
"""Why, and what has to wait, in order."""

WOKEN_AT_ONCE: Final = 40
"""Channels that one turn wakes when an alarm is over, or refuses when they waited as long as they
may, or tells that another alarm holds them: with thousands it would last a tenth of a second. Each
is 6 us here, and five times as much with what its adapter then reads, stores and answers."""

BUSY_STEPS_MIN = 100
"""Steps of one channel in one turn from which on it counts whom it waits for then."""


class PublishPipeline:
    """The channels with publishes, and their way to the queues' inboxes.

    A publish is here until every queue it is routed to has taken it in, or it is refused. Order
    within a channel is kept: what follows a held publish waits behind it.
    """

    def __init__(
        self,
        chain: FlowContext,
        admission: Admission,
        frame_builder: FrameBuilder,
        *,
        delays: Delays,
        replies: PublisherReplies,
        counters: EngineCounters,
    ) -> None:
        self.chain = chain
        self._admission = admission
        self._frame_builder = frame_builder
        self._delays = delays
        self._replies = replies
        self._counters = counters
        self._draining: dict[Channel, None] = {}
        """Closed ones that are held; at most ``DRAINING_CHANNELS_MAX``."""
        self.channels: dict[Channel, None] = {}
        """Those with something in their inbox, in the order in which they take turns."""
        self._resting: dict[Channel, Reason] = {}
        """The same, but an alarm holds them: no turn looks at them before it is over, or they have
        waited as long as they may. With thousands of them that look would be the turn."""
        self._rest_reason: Reason | None = None
        """The alarm of the last turn in which somebody rested."""
        self._rest_ends: Deadlines[Channel] = Deadlines()
        self._is_waking = False
        """Some may rest for another alarm than that: each turn sees to a few of them."""

    # Arrival.

    def arrived(self, channel: Channel, publications: list[Publication]) -> None:
        """Publishes came in on a channel."""
        chain, connection, inbox = self.chain, channel.connection, channel.inbox
        messages = len(publications)
        now_ms = chain.clock.monotonic_ms()
        # Whoever is out of credit with this waits from now on: reading was not waiting.
        chain.journal.tick(now_ms)
        for batch in publish_batches(channel, publications, now_ms):
            self._counters.published += batch.messages
            connection.charge(batch.charge)
            if not inbox or not inbox[-1].join(batch):
                inbox.append(batch)
        if self._resting:
            self._rested(channel)
        self.channels[channel] = None
        channel.queued(messages)
        if chain.alarms.is_raised:
            connection.note_alarm()
        connection.refresh()
        chain.is_turn_requested = True

    def closed(self, channel: Channel, *, is_draining: bool) -> None:
        """A channel was closed: what it sent goes on; what is held, only if it is to drain."""
        channel.credit.close()
        self._wake(channel)
        if channel.hold is not None:
            if is_draining:
                self._drain(channel)
            else:
                self._drop_held(channel, CLOSED)
        self.chain.mark(channel.connection)
        self._retire_if_done(channel)

    def disconnected(self, connection: Connection) -> None:
        """A connection is over: what its channels hold on must have been paid for.

        Otherwise whoever connects, publishes and leaves again and again could fill the memory.
        """
        for channel in list(connection.holds):
            self._wake(channel)
            while connection.is_beyond_share and channel.inbox:
                self._refuse(channel, channel.inbox.pop(), NO_ROOM)
            if not channel.inbox:
                self._set_hold(channel, None)
            self._retire_if_done(channel)

    def _drain(self, channel: Channel) -> None:
        """A closed channel is held: it waits on, if there are not too many of them."""
        if channel in self._draining:
            return
        if len(self._draining) < DRAINING_CHANNELS_MAX:
            self._draining[channel] = None
        else:
            self._drop_held(channel, TOO_MANY)

    def _drop_held(self, channel: Channel, refusal: Refusal) -> None:
        while channel.inbox:
            self._refuse(channel, channel.inbox.popleft(), refusal)
        self._set_hold(channel, None)

    # The turn.

    def run(self, turn: int) -> None:
        """Let every channel route its part of a turn."""
        if not self.has_publishes:
            return
        alarm = self._admission.begin(turn)
        if self._resting:
            self._look_at_rested(alarm)
        if self.channels:
            self._run_channels([*self.channels], alarm)

    def _run_channels(self, channels: list[Channel], alarm: Hold | None) -> None:
        flow = self.chain.flow
        share = flow.turn_messages_max // len(channels) or 1
        share = min(share, flow.turn_channel_messages_max)
        share_bytes = flow.turn_bytes_max // len(channels) or 1
        left, left_bytes = flow.turn_messages_max, flow.turn_bytes_max
        unfinished = []
        for channel in channels:
            steps, size = self._run_channel(channel, share, share_bytes, alarm)
            left -= steps
            left_bytes -= size
            if channel.inbox:
                unfinished.append((channel, steps))
            else:
                self._retire_if_done(channel)
        if unfinished:
            self._go_on(unfinished, alarm, share, left, left_bytes)
            # Whoever was first is last next time.
            if channels[0] in self.channels:
                self.channels[channels[0]] = self.channels.pop(channels[0])
            for channel, _ in unfinished:
                self._retire_if_done(channel)
                if alarm is not None and channel.inbox and channel.hold == alarm:
                    self._rest(channel, alarm.reason)

    def _go_on(
        self,
        unfinished: list[tuple[Channel, int]],
        alarm: Hold | None,
        share: int,
        left: int,
        left_bytes: int,
    ) -> None:
        """What is left of a turn is for those who have more than their equal part."""
        rest = self.chain.flow.turn_channel_messages_max - share
        for channel, _ in unfinished:
            if left <= 0 or left_bytes <= 0 or rest <= 0:
                break
            if self._can_run(channel):
                steps, size = self._run_channel(channel, min(left, rest), left_bytes, alarm)
                left -= steps
                left_bytes -= size
        for channel, steps in unfinished:
            if steps >= BUSY_STEPS_MIN and self._can_run(channel) and channel.last_queue:
                self._frame_builder.awaits(channel, channel.last_queue, self.chain)

    # Channels that an alarm holds.

    def _rest(self, channel: Channel, reason: Reason) -> None:
        del self.channels[channel]
        self._resting[channel] = self._rest_reason = reason
        self._rest_ends.arm(channel, min(self._admission.deadlines(channel), default=None))

    def _wake(self, channel: Channel) -> None:
        """The next turn looks at it, whatever the alarm does."""
        if channel in self._resting:
            self._rested(channel)
            self.channels[channel] = None

    def _rested(self, channel: Channel) -> None:
        self._resting.pop(channel, None)
        self._rest_ends.disarm(channel)

    def _look_at_rested(self, alarm: Hold | None) -> None:
        """Some of those that waited as long as they may, and of those whose alarm is over.

        These are woken in the order in which they rest, or keep their place if another alarm holds
        them. That the figure of theirs changed is nothing to them: what is refused is told the
        figure of then.
        """
        reason = None if alarm is None else alarm.reason
        if reason is not self._rest_reason:
            self._rest_reason, self._is_waking = reason, True
        if alarm is not None:
            now_ms = self.chain.clock.monotonic_ms()
            for channel in self._rest_ends.take_due(now_ms, WOKEN_AT_ONCE):
                self._wake(channel)
        if not self._is_waking:
            return
        others = (each for each, held_by in self._resting.items() if held_by is not reason)
        found = dict.fromkeys(islice(others, WOKEN_AT_ONCE))
        self._is_waking = len(found) == WOKEN_AT_ONCE
        for channel in found:
            if alarm is None:
                self._rested(channel)
            else:
                self._resting[channel] = alarm.reason
                self._set_hold(channel, alarm)
        if alarm is None:
            # They came before those that were not looked at yet.
            self.channels = {**found, **self.channels}

    def refuse_all(self, refusal: Refusal) -> None:
        """Refuse everything in channels and queues: nothing can be stored any more."""
        for channel in [*self.channels, *self._resting]:
            while channel.inbox:
                self._refuse(channel, channel.inbox.popleft(), refusal)
            self._set_hold(channel, None)
            self._retire_if_done(channel)
        for batch in self._frame_builder.take_all():
            batch.channel.finished(len(batch.publications), batch.charge)
            if not batch.is_answered:
                self._replies.refuse(batch.channel, batch.publications, refusal)

    def remove(self, queue: Queue) -> None:
        """A queue was deleted: what waits in it and goes nowhere else is unroutable."""
        for channel in (*self.channels, *self._resting):
            channel.forget_queue(queue)
        for batch in self._frame_builder.remove(queue):
            batch.channel.finished(len(batch.publications), batch.charge)
            if not batch.is_answered:
                self._replies.unroutable(batch)

    def turn_away(self, queue: Queue, refusal: Refusal) -> None:
        """A queue takes no more: what waits in it for the log and goes nowhere else is refused."""
        for batch in queue.inbox:
            batch.channel.queue_processed(queue, len(batch.publications))
        for batch in self._frame_builder.empty(queue):
            batch.channel.finished(len(batch.publications), batch.charge)
            if not batch.is_answered:
                self._replies.refuse(batch.channel, batch.publications, refusal)
        self.chain.request_turn()

    def withdraw(self, channel: Channel, refusal: Refusal) -> None:
        """A channel stops: what of it waits in queues for the log is refused."""
        self._wake(channel)
        for batch in self._frame_builder.withdraw(channel):
            channel.finished(len(batch.publications), batch.charge)
            if not batch.is_answered:
                self._replies.refuse(channel, batch.publications, refusal)
        self.chain.request_turn()

    def _run_channel(
        self, channel: Channel, steps_max: int, size_max: int, alarm: Hold | None
    ) -> tuple[int, int]:
        """Route batches until the budget is used or something stops it; (steps, bytes) used."""
        steps = size = 0
        inbox = channel.inbox
        hold: Hold | None = None
        while inbox and steps < steps_max and size < size_max and not channel.is_waiting:
            batch = inbox[0]
            if channel.refusal is not None:
                steps += len(batch.publications)
                self._refuse(channel, inbox.popleft(), channel.refusal)
                continue
            if alarm is not None:
                refusal = self._admission.overdue(channel, alarm, batch)
                if refusal is None:
                    hold = alarm
                    break
                steps += len(batch.publications)
                self._refuse(channel, inbox.popleft(), refusal)
                continue
            cost, count = batch.route.steps, len(batch.publications)
            if cost * count <= steps_max - steps and batch.size <= size_max - size:
                inbox.popleft()
            else:
                count = _fitting(batch, max(1, (steps_max - steps) // cost), size_max - size)
                if count < len(batch.publications):
                    batch = batch.split(count)
                else:
                    inbox.popleft()
            steps += cost * count
            size += batch.size
            held = self._admit(channel, batch)
            if held is not None:
                hold, rest = held
                inbox.extendleft(reversed(rest))
                break
        if hold != channel.hold:
            self._set_hold(channel, hold)
        return steps, size

    def _admit(self, channel: Channel, batch: PublishBatch[Queue]) -> Held | None:
        """Route a batch and hand over what is admitted; what has to wait comes back."""
        if batch.queues is None:
            if isinstance(batch.route, NonPersistentRoute):
                self._hand_out(channel, batch, batch.route)
                return None
            if not batch.route.is_constant:
                return self._admit_parts(channel, routed(batch))
            batch.queues = batch.route.targets(batch.publications[0].record)
        queues = batch.queues
        for queue in queues:
            # Deleted since it was routed: it may have been held meanwhile.
            if queue.is_deleted:
                queues = batch.queues = tuple([each for each in queues if not each.is_deleted])
                break
        if not queues:
            channel.connection.refund(batch.charge)
            self._replies.unroutable(batch)
            channel.left(len(batch.publications))
            return None
        return self._judge(channel, batch, queues)

    def _judge(
        self, channel: Channel, batch: PublishBatch[Queue], queues: tuple[Queue, ...]
    ) -> Held | None:
        """Hand over what of a routed batch is admitted; what has to wait comes back."""
        if (
            channel.connection.options.stops_at_refusal
            and len(batch.publications) > 1
            and not self._admission.is_free(batch)
        ):
            # One by one: behind a refused one nothing may be admitted.
            each = [batch.part([publication], queues) for publication in batch.publications]
            return self._admit_parts(channel, each)
        result = self._admission.judge(batch)
        if result is None:
            self._hand_over(channel, batch)
            return None
        for publication, refusal in result.refused:
            self._refuse(channel, batch.part([publication], queues), refusal)
        for publication, refusal in result.refused_in_part:
            self._replies.refuse(channel, [publication], refusal)
        for admitted in result.admitted:
            self._hand_over(channel, admitted)
        if result.hold is not None and result.rest is not None:
            overdue = self._admission.overdue(channel, result.hold, result.rest)
            if overdue is None:
                return result.hold, [result.rest]
            channel.stage.episodes.refused(result.hold.reason)
            self._refuse(channel, result.rest, overdue)
        return None

    def _admit_parts(self, channel: Channel, parts: list[PublishBatch[Queue]]) -> Held | None:
        for number, part in enumerate(parts):
            if channel.refusal is not None:
                self._refuse(channel, part, channel.refusal)
                continue
            held = self._admit(channel, part)
            if held is not None:
                # Order within a channel is promised: what follows waits, too.
                held[1].extend(parts[number + 1 :])
                return held
        return None

    def _hand_out(
        self, channel: Channel, batch: PublishBatch[Queue], route: NonPersistentRoute
    ) -> None:
        """To consumers, now, past the log; what is too large is refused, the rest confirmed."""
        oversized = self._admission.oversized(batch, route.name)
        if oversized:
            for publication, refusal in oversized:
                self._refuse(channel, batch.part([publication], ()), refusal)
            refused = {id(publication) for publication, _ in oversized}
            batch = batch.part([each for each in batch.publications if id(each) not in refused], ())
            if not batch.publications:
                return
        if route.hand_out(batch.publications, self.chain.clock.wall_ms()):
            self._counters.bytes_in += batch.size
            self._replies.confirm(channel, batch.publications, batch.extra_messages)
        else:
            self._replies.unroutable(batch)
        channel.connection.refund(batch.charge)
        channel.left(len(batch.publications))

    def _hand_over(self, channel: Channel, batch: PublishBatch[Queue]) -> None:
        """Put an admitted batch into the inbox of every target queue."""
        queues, connection = batch.queues or (), channel.connection
        publications = batch.publications
        messages = len(publications)
        is_lone = len(queues) == 1
        indexes = queues[0].target if is_lone else tuple([queue.index for queue in queues])
        for publication in publications:
            publication.queues = indexes
        if batch.kind is BatchKind.TIMED:
            self._delays.judge(batch)
        for queue in queues:
            credit = channel.queue_credits.get(queue) or channel.credit_to(queue)
            if credit.available <= messages:
                # It waits for the queue from now on, not from the beginning of the turn.
                self.chain.journal.tick(self.chain.now_ms)
            credit.spend(messages)
            queue.inbox.put(batch)
            self._frame_builder.queues[queue] = None
        channel.last_queue = queues[0] if is_lone else None
        if channel.is_unroutable:
            channel.was_routed()
        counters = self._counters
        counters.routed += batch.messages * len(queues)
        counters.bytes_in += batch.size
        if channel.pending.add(messages):
            self.chain.mark(connection)
        channel.left(messages)

    def _refuse(self, channel: Channel, batch: PublishBatch[Queue], refusal: Refusal) -> None:
        """Refuse what never left its channel."""
        channel.left(len(batch.publications))
        channel.connection.refund(batch.charge)
        channel.note_refusal(refusal)
        self._replies.refuse(channel, batch.publications, refusal)
        # A full queue that rejects would not have told a publisher without confirms either.
        is_loss = refusal is not CLOSED and refusal.kind is not RefusalKind.LENGTH_LIMIT
        if is_loss and channel.is_closed:
            self._counters.dropped_after_close += batch.messages
            channel.dropped += batch.messages
            channel.drop_cause = refusal.text

    def _note_hold(self, channel: Channel, before: Hold | None, hold: Hold | None) -> None:
        """A hold is an episode of its channel; alarms, which hold all, have their own."""
        if before is not None and hold is not None and before.reason is hold.reason:
            return
        episodes, now_ms = channel.stage.episodes, self.chain.now_ms
        if before is not None and not before.reason.is_resource:
            episodes.left(before.reason, now_ms)
        if hold is not None and not hold.reason.is_resource:
            episodes.entered(hold.reason, hold.culprit, now_ms)

    def _set_hold(self, channel: Channel, hold: Hold | None) -> None:
        connection = channel.connection
        self._note_hold(channel, channel.hold, hold)
        channel.hold = hold
        if hold is None:
            connection.holds.pop(channel, None)
        else:
            connection.holds[channel] = hold
            if hold.reason.is_resource:
                connection.note_alarm()
            channel.hold_back()
            if channel.is_closed:
                self._drain(channel)
        self.chain.mark(connection)

    def _retire_if_done(self, channel: Channel) -> None:
        if channel.inbox:
            return
        self.channels.pop(channel, None)
        if self._resting:
            self._rested(channel)
        if channel.is_closed:
            self._draining.pop(channel, None)
            if channel.dropped:
                _tell_dropped(channel)
            channel.retire()

    # What is still to do.

    @property
    def has_publishes(self) -> bool:
        """True when some channel has something in its inbox."""
        return bool(self.channels or self._resting)

    @property
    def draining_channels(self) -> Collection[Channel]:
        """Closed ones that are held on, the longest closed first; to be looked at only."""
        return self._draining

    @property
    def draining(self) -> int:
        """Publishes of closed channels that are held on."""
        return sum([channel.inbox_messages for channel in self._draining])

    def can_move(self, *, has_drained: bool) -> bool:
        """True when some channel could go on in the next turn (law 4).

        One that is held could when something was handed out, dropped or refused after it had its
        turn: there may be room now.
        """
        if self._is_waking and self._resting:
            return True
        for channel in self.channels:
            if self._can_run(channel) or (has_drained and channel.hold is not None):
                return True
        return False

    def next_deadline_ms(self) -> int | None:
        """When the first hold passes, or has lasted as long as it may."""
        held = [channel for channel in self.channels if channel.hold is not None]
        times = [at_ms for channel in held for at_ms in self._admission.deadlines(channel)]
        if self._resting and self._rest_ends.heap:
            times.append(self._rest_ends.heap[0][0])
        return min(times, default=None)

    def _can_run(self, channel: Channel) -> bool:
        return bool(channel.inbox) and channel.hold is None and not channel.is_waiting


def _tell_dropped(channel: Channel) -> None:
    """Nobody is there to hear of a refusal after a close: say it here, once per channel."""
    dropped, channel.dropped = channel.dropped, 0
    logger.warning(
        "publishes that were held when their channel was closed are dropped",
        extra={"channel": channel.stage.name, "messages": dropped, "why": channel.drop_cause},
    )


def routed(batch: PublishBatch[Queue]) -> list[PublishBatch[Queue]]:
    """One batch for each set of targets, order per queue kept."""
    route = batch.route
    parts: dict[tuple[Queue, ...], list[Publication]] = {}
    done: list[PublishBatch[Queue]] = []
    for publication in batch.publications:
        queues = route.targets(publication.record)
        group = parts.get(queues)
        if group is not None:
            group.append(publication)
            continue
        if parts and (len(queues) > 1 or len(next(iter(parts))) > 1):
            # Sets of several queues may overlap: then only strict order keeps order per queue.
            done += [batch.part(group, targets) for targets, group in parts.items()]
            parts.clear()
        parts[queues] = [publication]
    return done + [batch.part(group, targets) for targets, group in parts.items()]


def _fitting(batch: PublishBatch[Queue], count_max: int, size_max: int) -> int:
    """How many of a batch's publications fit; one always does."""
    publications = batch.publications
    count = min(len(publications), count_max)
    if batch.size <= size_max:
        return count
    size = 0
    for number in range(count):
        size += len(publications[number].record.origin)
        if size > size_max:
            return max(1, number)
    return count


class AdmissionResult(msgspec.Struct):
    """What becomes of a batch that is not simply let in."""

    admitted: list[PublishBatch[Queue]] = []
    """One for each change of targets, in order."""
    refused: list[tuple[Publication, Refusal]] = []
    """By all queues: they are stored nowhere."""
    refused_in_part: list[tuple[Publication, Refusal]] = []
    """By full queues: they are admitted to the others, and answered already."""
    hold: Hold | None = None
    rest: PublishBatch[Queue] | None = None
    """What is held; set exactly when ``hold`` is."""


class Admission:
    """May this publish in now? Asked by the channel before anything is stored (law 6).

    Three answers: yes; no (a refusal, told to the publisher); not yet (a hold, bounded by
    ``hold_ms_max``, D23). A publish for several queues is admitted to those that are not full, and
    refused if one that rejects is (as in RabbitMQ); for every other reason to all or to none. A
    protocol that fails fast is refused at once where another one would be held.
    """

    def __init__(
        self,
        clock: Clock,
        settings: Settings,
        alarms: AlarmBoard,
        dead_letter_refused: Callable[[Queue, Record], None],
    ) -> None:
        self._clock = clock
        self._flow = settings.flow
        self._busy_hold_ms_max = settings.spark.busy_hold_ms_max
        self._message_bytes_max = settings.topics.message_bytes_max
        self._alarms = alarms
        self._dead_letter_refused = dead_letter_refused
        self._turn = 0

    def begin(self, turn: int) -> Hold | None:
        """A turn begins, figures of earlier ones are old.

        Returns what a raised alarm means for every channel that publishes (F3).
        """
        self._turn = turn
        if not self._alarms.is_raised:
            return None
        reason, culprit = next(iter(self._alarms.raised.items()))
        return Hold(reason, culprit)

    def is_free(self, batch: PublishBatch[Queue]) -> bool:
        """True when nothing can speak against any of it."""
        # If all of them together are not too large, none of them is.
        is_free = batch.size <= self._message_bytes_max
        for queue in batch.queues or ():
            if queue.topic.limits is not None:
                is_free = False
        return is_free

    def judge(self, batch: PublishBatch[Queue]) -> AdmissionResult | None:
        queues = batch.queues or ()
        if self.is_free(batch):
            return None
        limited = [limits for queue in queues if (limits := queue.topic.limits) is not None]
        for limits in limited:
            limits.begin(self._turn, self._clock.wall_ms())
        return self._rule(batch, queues)

    def oversized(
        self, batch: PublishBatch[Queue], name: TopicName
    ) -> list[tuple[Publication, Refusal]]:
        """Those of a batch for a topic without a log that are larger than any message may be."""
        size_max = self._message_bytes_max
        if batch.size <= size_max:
            return []
        sizes = [(each, len(each.record.origin)) for each in batch.publications]
        return [(each, too_large(name, size, size_max)) for each, size in sizes if size > size_max]

    def overdue(self, channel: Channel, hold: Hold, batch: PublishBatch[Queue]) -> Refusal | None:
        """The refusal for a held batch that may not wait (any longer); None = let it wait."""
        is_fast_failing = channel.connection.options.is_fast_failing
        if is_fast_failing and hold.reason is not Reason.SPARK:
            return hold.refusal
        held_ms_max = self._held_ms_max(channel, hold)
        waited_ms = self._clock.monotonic_ms() - batch.arrived_ms
        if held_ms_max and waited_ms >= held_ms_max:
            setting = "spark.busy_hold_ms_max" if is_fast_failing else "flow.hold_ms_max"
            return hold.overdue(waited_ms, setting)
        return None

    def deadlines(self, channel: Channel) -> Iterator[int]:
        """When a held channel must be looked at again: the hold passes, or patience ends."""
        if channel.hold is None or not channel.inbox:
            return
        if channel.hold.until_ms is not None:
            yield channel.hold.until_ms
        held_ms_max = self._held_ms_max(channel, channel.hold)
        if held_ms_max:
            yield channel.inbox[0].arrived_ms + held_ms_max

    def _rule(self, batch: PublishBatch[Queue], queues: tuple[Queue, ...]) -> AdmissionResult:
        result = AdmissionResult()
        now_ms = self._clock.monotonic_ms()
        runs: list[tuple[tuple[Queue, ...], list[Publication]]] = []
        for number, publication in enumerate(batch.publications):
            record = publication.record
            answer, targets = self._judge_one(record, queues, now_ms)
            if isinstance(answer, Hold):
                result.hold = answer
                result.rest = batch.part(batch.publications[number:], queues)
                break
            if answer is not None:
                refused = result.refused_in_part if targets else result.refused
                refused.append((publication, answer))
                if answer.kind is RefusalKind.LENGTH_LIMIT:
                    self._dead_letter(record, queues, now_ms)
            if targets:
                for queue in targets:
                    if queue.topic.limits is not None:
                        queue.topic.limits.admit(record, queue, now_ms)
                if not runs or runs[-1][0] != targets:
                    runs.append((targets, []))
                runs[-1][1].append(publication)
        for targets, publications in runs:
            part = batch.part(publications, targets)
            part.is_answered = targets != queues
            result.admitted.append(part)
        return result

    def _judge_one(
        self, record: Record, queues: tuple[Queue, ...], now_ms: int
    ) -> tuple[Refusal | Hold | None, tuple[Queue, ...]]:
        """What speaks against a publish, and the queues that take it now."""
        size = len(record.origin)
        if size > self._message_bytes_max:
            return too_large(queues[0].topic.name, size, self._message_bytes_max), ()
        full: dict[Queue, Refusal] = {}
        hold: Hold | None = None
        for queue in queues:
            limits = queue.topic.limits
            answer = None if limits is None else limits.judge(record, now_ms)
            if isinstance(answer, Refusal):
                if answer.kind is not RefusalKind.LENGTH_LIMIT:
                    return answer, ()
                full[queue] = answer
            else:
                hold = hold or answer
        if len(full) == len(queues):
            return next(iter(full.values())), ()
        if hold is not None:
            # It waits for those that will take it: what the full ones say then is what counts.
            return hold, ()
        if not full:
            return None, queues
        return next(iter(full.values())), tuple([each for each in queues if each not in full])

    def _dead_letter(self, record: Record, queues: tuple[Queue, ...], now_ms: int) -> None:
        """Dead letters of those that are full; the others refuse nothing by themselves."""
        for queue in queues:
            topic = queue.topic
            if topic.policy.overflow is Overflow.REJECT_DEAD_LETTER and topic.limits is not None:
                answer = topic.limits.judge(record, now_ms)
                if isinstance(answer, Refusal) and answer.kind is RefusalKind.LENGTH_LIMIT:
                    self._dead_letter_refused(queue, record)

    def _held_ms_max(self, channel: Channel, hold: Hold) -> int:
        options = channel.connection.options
        if hold.reason.is_resource:
            given, default = options.alarm_hold_ms_max, self._flow.alarm_hold_ms_max
        elif options.is_fast_failing:
            # Only Spark's holds come here: a moment's wait paces a sender, a refusal makes it spin.
            return max(1, min(self._busy_hold_ms_max, self._flow.hold_ms_max))
        else:
            given, default = options.hold_ms_max, self._flow.hold_ms_max
        return default if given is None else given


class FrameBuilder:
    """The queues' part of the way in: batches at the head of their lanes become one frame.

    Who spends: the queue, credit towards the log, when a batch is taken. Who grants: the log, when
    the sync that covers it returned (``commit.py``). Who stops: a queue without credit; all of them
    while no write buffer is free. What wakes them: that sync. To the channels the queue gives their
    credit back at the end of the turn, when its work is done: that is how long they waited for it.

    A batch for several queues is taken when it is at the head of its lane in all of them and none
    of them is stopped. It cannot wait for ever: a channel's batches are in the same order in every
    inbox.

    Fairness (law 5): first every newcomer of every queue, then all lanes in turn until the turn's
    bytes are used; and which queue was first is last next time.
    """

    def __init__(self, turn_bytes_max: int, buffers: BufferPool) -> None:
        self._turn_bytes_max = turn_bytes_max
        self._buffers = buffers
        self.queues: dict[Queue, None] = {}
        """Those that have batches; the pipeline adds, this class removes."""
        self.held: dict[Queue, None] = {}
        """Those that wait for the log; to be looked at only."""
        # Taken in this turn; their channels have not got their credit back yet.
        self._taken: list[PublishBatch[Queue]] = []
        self._awaiting: list[Channel] = []

    def collect(self, frame: Frame) -> None:
        """Move batches into the frame as far as credit, buffers and the turn reach."""
        if not self.queues:
            return
        left = 0
        for queue in [*self.queues]:
            for batch in queue.inbox.newcomers():
                self._take_if_free(queue, batch, frame)
            left += queue.inbox.messages
        if not left:
            # Everybody was a newcomer and could be taken: the usual turn.
            self.queues.clear()
            return
        is_moving = True
        while is_moving and frame.size < self._turn_bytes_max:
            is_moving = False
            for queue in list(self.queues):
                # A batch for several queues may be gone by now, or come free by the next round.
                for batch in queue.inbox.heads():
                    if frame.size >= self._turn_bytes_max:
                        break
                    is_moving |= self._take_if_free(queue, batch, frame)
        for queue in [each for each in self.queues if not each.inbox.messages]:
            del self.queues[queue]
        if self.queues:
            first = next(iter(self.queues))
            self.queues[first] = self.queues.pop(first)

    def give_back(self) -> None:
        """The queues have stored and handed out what they took in this turn."""
        if self._taken:
            taken, self._taken = self._taken, []
            for batch in taken:
                for queue in batch.queues or ():
                    batch.channel.queue_processed(queue, len(batch.publications))
        if self._awaiting:
            awaiting, self._awaiting = self._awaiting, []
            for channel in awaiting:
                channel.stage.waited()

    def awaits(self, channel: Channel, queue: Queue, chain: FlowContext) -> None:
        """A channel gave all it could in this turn to one queue, and has more.

        Until the turn ends it waits for the queue, however much credit is left; it is seen to, and
        nothing else.
        """
        chain.journal.tick(chain.now_ms)
        channel.stage.waits(queue.stage)
        self._awaiting.append(channel)

    def hold(self, log: Stage) -> None:
        """Nothing may be written: queues with batches wait for the log, and are seen to."""
        for queue in self.queues:
            if queue not in self.held:
                queue.stage.block(log, self)
                self.held[queue] = None

    def let_go(self, log: Stage) -> None:
        """The log takes frames again."""
        held, self.held = self.held, {}
        for queue in held:
            queue.stage.unblock(log, self)

    @property
    def can_move(self) -> bool:
        """True when some queue has a batch that could be taken now (law 4)."""
        for queue in self.queues:
            if not queue.stage.is_blocked:
                for batch in queue.inbox.heads():
                    if self._is_free(queue, batch, 0):
                        return True
        return False

    def take_all(self) -> list[PublishBatch[Queue]]:
        """Empty every inbox: nothing can be appended any more."""
        batches: dict[PublishBatch[Queue], None] = {}
        for queue in self.queues:
            for batch in queue.inbox:
                batches[batch] = None
                batch.channel.queue_processed(queue, len(batch.publications))
            queue.inbox.clear()
        self.queues.clear()
        return list(batches)

    def remove(self, queue: Queue) -> list[PublishBatch[Queue]]:
        """A queue was deleted: empty its inbox; batches that go nowhere else come back."""
        self.held.pop(queue, None)
        return self.empty(queue)

    def empty(self, queue: Queue) -> list[PublishBatch[Queue]]:
        """Take every batch out of a queue's inbox; those that go nowhere else come back."""
        self.queues.pop(queue, None)
        orphans = []
        for batch in queue.inbox:
            batch.queues = tuple(each for each in batch.queues or () if each is not queue)
            for publication in batch.publications:
                publication.queues = tuple(each.index for each in batch.queues)
            if not batch.queues:
                orphans.append(batch)
        queue.inbox.clear()
        return orphans

    def withdraw(self, channel: Channel) -> list[PublishBatch[Queue]]:
        """Take everything of a channel out of all inboxes."""
        batches: dict[PublishBatch[Queue], None] = {}
        for queue in list(self.queues):
            for batch in queue.inbox.take_lane(channel):
                batches[batch] = None
                channel.queue_processed(queue, len(batch.publications))
            if not queue.inbox:
                del self.queues[queue]
        return list(batches)

    def _take_if_free(self, queue: Queue, batch: PublishBatch[Queue], frame: Frame) -> bool:
        if not self._is_free(queue, batch, frame.size):
            return False
        messages = len(batch.publications)
        for each in batch.queues or ():
            each.inbox.take(batch)
            each.log_credit.spend(messages)
            frame.queues[each] = None
        frame.add(batch)
        self._taken.append(batch)
        return True

    def _is_free(self, queue: Queue, batch: PublishBatch[Queue], waiting_bytes: int) -> bool:
        """True when the batch, which is at the head of its lane in ``queue``, could be taken."""
        if queue.stage.is_blocked:
            return False
        if not self._buffers.can_take(batch.size, waiting_bytes):
            self._buffers.is_awaited = self._buffers.unsynced_bytes > 0
            return False
        queues = batch.queues or ()
        return len(queues) == 1 or all(
            each.inbox.is_head(batch) and not each.stage.is_blocked for each in queues
        )
