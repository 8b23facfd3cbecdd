"""The journey in: what happens to a publish between its channel and the log.

::

    channel.publish(list)   arrived()   charged to the connection's share, one parcel per route,
                                        into the channel's inbox; reader -> channel credit is spent
    the turn                run()       channels take turns: route, admit, into the inbox of every
                                        target queue; channel -> queue credit is spent
                   collect.collect()    queues take turns: parcels at the head of all their inboxes
                                        become one frame; queue -> log credit is spent
    after the append  commit.append()   transient ones are confirmed
    after the sync    commit.synced()   the rest is confirmed; queue -> log credit comes back

Refusals are made before anything is stored (law 6) and told at the end of the turn, in one list per
channel. Nothing is waited for inside: a channel that cannot go on is skipped, and whatever made it
stop asks for a turn when it passes (law 4).

Fairness (law 5): every channel with work gets its equal part of the turn first, at least one
publish, and only then the rest of the turn goes to those who have more; a queue takes newcomers
first (``inbox.py``). So a quiet publish is in the next frame or the one after.

Not here: what is refused or held and why (``admission.py``), the queues' part (``collect.py``),
what happens after the append (``commit.py``).
"""

from __future__ import annotations

from penstock.engine.admission import Admission
from penstock.engine.answers import Answers
from penstock.engine.chain import Chain
from penstock.engine.collect import Collector
from penstock.engine.connection import Channel
from penstock.engine.delay import Delays
from penstock.engine.hold import Hold
from penstock.engine.parcel import TIMED, Parcel, parcels_of
from penstock.engine.ports import Publication
from penstock.engine.queue import Queue
from penstock.engine.statistics import Counters
from penstock.model.refusal import Refusal, RefusalKind

CLOSED = Refusal(RefusalKind.CLOSING, "channel", "the channel was closed while publishes were held")

Held = tuple[Hold, list[Parcel]]
"""Why, and what has to wait, in order."""

BUSY_STEPS_MIN = 100
"""Steps of one channel in one turn from which on it counts whom it waits for then."""


class Intake:
    """All channels with publishes."""

    def __init__(
        self,
        chain: Chain,
        admission: Admission,
        collector: Collector,
        *,
        delays: Delays,
        answers: Answers,
        counters: Counters,
    ) -> None:
        self.chain = chain
        self._admission = admission
        self._collector = collector
        self._delays = delays
        self._answers = answers
        self._counters = counters
        self.channels: dict[Channel, None] = {}
        """Those with something in their inbox, in the order in which they take turns."""

    # Arrival.

    def arrived(self, channel: Channel, publications: list[Publication]) -> None:
        """Publishes came in on a channel."""
        chain, connection, inbox = self.chain, channel.connection, channel.inbox
        messages = len(publications)
        now_ms = chain.clock.monotonic_ms()
        # Whoever is out of credit with this waits from now on: reading was not waiting.
        chain.journal.tick(now_ms)
        self._counters.published += messages
        for parcel in parcels_of(channel, publications, now_ms):
            connection.charge(parcel.charge)
            if not inbox or not inbox[-1].join(parcel):
                inbox.append(parcel)
        self.channels[channel] = None
        channel.queued(messages)
        connection.is_publisher = True
        connection.refresh()
        chain.is_stirred = True

    def closed(self, channel: Channel) -> None:
        """A channel was closed: what it sent goes on, unless it is held; nobody waits for it."""
        channel.credit.close()
        if channel.hold is not None:
            while channel.inbox:
                self._refuse(channel, channel.inbox.popleft(), CLOSED)
            self._set_hold(channel, None)
        self.chain.mark(channel.connection)
        self._retire_if_done(channel)

    # The turn.

    def run(self, turn: int) -> None:
        """Let every channel route its part of a turn."""
        channels = [*self.channels]
        if not channels:
            return
        alarm = self._admission.begin(turn)
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
            rest = flow.turn_channel_messages_max - share
            for channel, _ in unfinished:
                if left <= 0 or left_bytes <= 0 or rest <= 0:
                    break
                if self._can_run(channel):
                    steps, size = self._run_channel(channel, min(left, rest), left_bytes, alarm)
                    left -= steps
                    left_bytes -= size
            for channel, steps in unfinished:
                if steps >= BUSY_STEPS_MIN and self._can_run(channel) and channel.last_queue:
                    self._collector.awaits(channel, channel.last_queue, self.chain)
            # Whoever was first is last next time.
            if channels[0] in self.channels:
                self.channels[channels[0]] = self.channels.pop(channels[0])
            for channel, _ in unfinished:
                self._retire_if_done(channel)

    def refuse_all(self, refusal: Refusal) -> None:
        """Refuse everything that waits in channels: nothing can be stored any more."""
        for channel in list(self.channels):
            while channel.inbox:
                self._refuse(channel, channel.inbox.popleft(), refusal)
            self._set_hold(channel, None)
            self._retire_if_done(channel)

    def _run_channel(
        self, channel: Channel, steps_max: int, size_max: int, alarm: Hold | None
    ) -> tuple[int, int]:
        """Route parcels until the budget is used or something stops it; (steps, bytes) used."""
        steps = size = 0
        inbox = channel.inbox
        hold: Hold | None = None
        while inbox and steps < steps_max and size < size_max and not channel.stage.is_blocked:
            parcel = inbox[0]
            if alarm is not None:
                refusal = self._admission.patience(channel, alarm, parcel)
                if refusal is None:
                    hold = alarm
                    break
                steps += len(parcel.publications)
                self._refuse(channel, inbox.popleft(), refusal)
                continue
            cost, count = parcel.route.steps, len(parcel.publications)
            if cost * count <= steps_max - steps and parcel.size <= size_max - size:
                inbox.popleft()
            else:
                count = _fitting(parcel, max(1, (steps_max - steps) // cost), size_max - size)
                if count < len(parcel.publications):
                    parcel = parcel.split(count)
                else:
                    inbox.popleft()
            steps += cost * count
            size += parcel.size
            held = self._admit(channel, parcel)
            if held is not None:
                hold, rest = held
                inbox.extendleft(reversed(rest))
                break
        if hold != channel.hold:
            self._set_hold(channel, hold)
        return steps, size

    def _admit(self, channel: Channel, parcel: Parcel) -> Held | None:
        """Route a parcel and hand over what is admitted; what has to wait comes back."""
        if parcel.queues is None:
            if not parcel.route.is_constant:
                return self._admit_parts(channel, routed(parcel))
            parcel.queues = parcel.route.targets(parcel.publications[0].record)
        return self._admit_routed(channel, parcel)

    def _admit_parts(self, channel: Channel, parts: list[Parcel]) -> Held | None:
        for number, part in enumerate(parts):
            held = self._admit_routed(channel, part)
            if held is not None:
                held[1].extend(parts[number + 1 :])
                return held
        return None

    def _admit_routed(self, channel: Channel, parcel: Parcel) -> Held | None:
        queues = parcel.queues or ()
        for queue in queues:
            if queue.is_deleted:
                queues = parcel.queues = tuple(each for each in queues if not each.is_deleted)
                break
        if not queues:
            self._answers.unroutable(parcel)
            channel.left(len(parcel.publications))
            return None
        ruling = self._admission.judge(parcel)
        if ruling is None:
            self._hand_over(channel, parcel)
            return None
        for publication, refusal in ruling.refused:
            self._refuse(channel, parcel.part([publication], queues), refusal)
        if ruling.admitted is not None:
            self._hand_over(channel, ruling.admitted)
        if ruling.hold is not None and ruling.rest is not None:
            overdue = self._admission.patience(channel, ruling.hold, ruling.rest)
            if overdue is None:
                return ruling.hold, [ruling.rest]
            self._refuse(channel, ruling.rest, overdue)
        return None

    def _hand_over(self, channel: Channel, parcel: Parcel) -> None:
        """Put an admitted parcel into the inbox of every target queue."""
        queues, connection = parcel.queues or (), channel.connection
        publications = parcel.publications
        messages = len(publications)
        is_lone = len(queues) == 1
        indexes = queues[0].target if is_lone else tuple([queue.index for queue in queues])
        for publication in publications:
            publication.queues = indexes
        if parcel.manner is TIMED:
            self._delays.judge(parcel)
        for queue in queues:
            credit = channel.queue_credits.get(queue) or channel.credit_to(queue)
            if credit.available <= messages:
                # It waits for the queue from now on, not from the beginning of the turn.
                self.chain.journal.tick(self.chain.now_ms)
            credit.spend(messages)
            self._collector.put(queue, parcel)
        channel.last_queue = queues[0] if is_lone else None
        counters = self._counters
        counters.routed += messages * len(queues)
        counters.bytes_in += parcel.size
        if connection.pending.add(messages):
            self.chain.mark(connection)
        channel.left(messages)

    def _refuse(self, channel: Channel, parcel: Parcel, refusal: Refusal) -> None:
        """Refuse what never left its channel."""
        channel.left(len(parcel.publications))
        channel.connection.refund(parcel.charge)
        self._answers.refuse(channel, parcel.publications, refusal)

    def _set_hold(self, channel: Channel, hold: Hold | None) -> None:
        connection = channel.connection
        channel.hold = hold
        if hold is None:
            connection.holds.pop(channel, None)
        else:
            connection.holds[channel] = hold
            channel.hold_back()
        self.chain.mark(connection)

    def _retire_if_done(self, channel: Channel) -> None:
        if channel.inbox:
            return
        self.channels.pop(channel, None)
        if channel.is_closed:
            channel.retire()

    # What is still to do.

    def can_move(self, *, has_drained: bool) -> bool:
        """True when some channel could go on in the next turn (law 4).

        One that is held could when something was handed out, dropped or refused after it had its
        turn: there may be room now.
        """
        for channel in self.channels:
            if self._can_run(channel) or (has_drained and channel.hold is not None):
                return True
        return False

    def next_deadline_ms(self) -> int | None:
        """When the first hold passes, or has lasted as long as it may."""
        if not self.channels:
            return None
        held = [channel for channel in self.channels if channel.hold is not None]
        times = [at_ms for channel in held for at_ms in self._admission.deadlines(channel)]
        return min(times, default=None)

    def _can_run(self, channel: Channel) -> bool:
        return bool(channel.inbox) and channel.hold is None and not channel.stage.is_blocked


def routed(parcel: Parcel) -> list[Parcel]:
    """One parcel for each set of targets, order per queue kept."""
    route = parcel.route
    parts: dict[tuple[Queue, ...], list[Publication]] = {}
    done: list[Parcel] = []
    for publication in parcel.publications:
        queues = route.targets(publication.record)
        group = parts.get(queues)
        if group is not None:
            group.append(publication)
            continue
        if parts and (len(queues) > 1 or len(next(iter(parts))) > 1):
            # Sets of several queues may overlap: then only strict order keeps order per queue.
            done += [parcel.part(group, targets) for targets, group in parts.items()]
            parts.clear()
        parts[queues] = [publication]
    return done + [parcel.part(group, targets) for targets, group in parts.items()]


def _fitting(parcel: Parcel, count_max: int, size_max: int) -> int:
    """How many of a parcel's publications fit; one always does."""
    publications = parcel.publications
    count = min(len(publications), count_max)
    if parcel.size <= size_max:
        return count
    size = 0
    for number in range(count):
        size += len(publications[number].record.origin)
        if size > size_max:
            return max(1, number)
    return count
