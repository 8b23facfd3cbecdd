"""A connection and its channels: where publishes enter, and where pressure ends (F1, F2, F9, D23).

The connection is the chain's first stage: it spends credit towards each of its channels, and its
gate says why it is held. Three kinds of reason differ in what the adapter does with the socket:

* FLOW, PENDING and RATE pass by themselves (the disk answers, time goes by): reading stops at once.
* ROOM is the adapter's: it stops reading in the midst of a publish, and only says so here.
* MEMORY, DISK, QUOTA and HELD may need this very connection's acks to pass, so it is read on and
  what it publishes is kept until its byte share is full (then FLOW). ``may_read`` says which.

Which of them stop a socket is the protocol's choice: where many producers and consumers share one
(``ConnectionOptions.holds_channels``), none does. Whatever stops a producer holds its channel, F9
counts per channel, and the socket rests only while there are bytes beyond the connection's share.

Invariants: every byte taken from the pool is given back exactly once, when its publish is durable,
refused or dropped, also after the peer is gone; a reason is opened once per episode (law 7).
Not here: what happens to a publish (``publish.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from penstock.engine.flow_context import FlowContext
from penstock.engine.ports import Confirmation, PoolHolder, Publication, Undone
from penstock.engine.publish_batch import PublishBatch
from penstock.engine.pull import Pull, PullResult
from penstock.engine.subscription.consumer import Consumer, Delivery
from penstock.engine.topic import Hold, Queue
from penstock.flow.budgets import IN_FLIGHT_POOL, PendingLimit
from penstock.flow.credit import Credit, Gate, Stage
from penstock.flow.reason import Culprit, Reason
from penstock.model.errors import InvariantBroken
from penstock.model.ids import ChannelId, ConnectionId
from penstock.model.names import object_id
from penstock.model.refusal import Refusal

PAUSING: Final = frozenset((Reason.FLOW, Reason.PENDING, Reason.RATE))
"""Reasons that need nothing of this connection to pass: its socket may rest meanwhile."""

CHANNEL_CREDITS_MAX: Final = 1024
"""Queues a channel keeps credit for; beyond it the ones with nothing in flight are forgotten."""

UNROUTABLE: Final = "unroutable"

APPLICATION_CHARS_MAX: Final = 64
"""Of the name that a peer gives itself; no id is longer because of it."""

CULPRIT_DEPTH_MAX: Final = 4
"""Connection, channel, queue, log: nothing waits for more than these."""


class ConnectionOptions(msgspec.Struct, frozen=True):
    """How a protocol wants to be held; None = as in the settings."""

    pending_publishes_max: int | None = None
    """F9; 0 = no limit."""
    hold_ms_max: int | None = None
    """D23."""
    alarm_hold_ms_max: int | None = None
    """D23; 0 = no end."""
    holds_channels: bool = False
    """What stops one channel leaves the socket, and so the acks of its consumers, alone."""
    stops_at_refusal: bool = False
    """Behind a refused publish nothing of its channel is stored: what follows is refused with the
    same words, in order, until the adapter opens another channel (Pulsar's producers)."""
    is_fast_failing: bool = False
    """What would be held by an alarm, rate, quota or full queue is refused at once instead."""


class Outlet(Protocol):
    """The engine's way to one connection's peer; implemented by its adapter.

    Never called while one of the peer's calls is on the stack, except for ``refused`` and
    ``gate_changed``.
    """

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        """These are stored and durable (transient ones: stored). One call per channel and sync."""
        ...

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        """These (token, why) were not stored and never will be."""
        ...

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Messages for this consumer, within the demand it had announced."""
        ...

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """The consumer is gone: its topic or subscription was deleted, or it was displaced."""
        ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Failover: this consumer became, or ceased to be, the one that gets messages."""
        ...

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """The set of reasons (with culprits) that hold this connection changed."""
        ...

    def answered(self, pull: Pull, result: PullResult) -> None:
        """A held pull has its answer."""
        ...


class Pipeline(Protocol):
    """The way in, as a channel sees it (``publish.PublishPipeline``)."""

    @property
    def chain(self) -> FlowContext: ...

    def arrived(self, channel: Channel, publications: list[Publication]) -> None: ...

    def closed(self, channel: Channel, *, is_draining: bool) -> None: ...

    def disconnected(self, connection: Connection) -> None: ...

    def withdraw(self, channel: Channel, refusal: Refusal) -> None: ...


class Channel:
    """One ordered stream of publishes; made by ``Connection.open_channel``."""

    __slots__ = (
        "_early",
        "_pipeline",
        "channel_id",
        "connection",
        "credit",
        "drop_cause",
        "dropped",
        "hold",
        "inbox",
        "inbox_messages",
        "is_closed",
        "is_unroutable",
        "last_queue",
        "pending",
        "queue_credits",
        "refusal",
        "stage",
    )

    def __init__(
        self, channel_id: ChannelId, connection: Connection, stage: Stage, pipeline: Pipeline
    ) -> None:
        flow = pipeline.chain.flow
        self.channel_id = channel_id
        self.connection = connection
        self.stage = stage
        self.credit = Credit(
            connection.stage,
            stage,
            initial=flow.reader_channel_credit,
            more=flow.reader_channel_more,
        )
        self.queue_credits: dict[Queue, Credit] = {}
        # Bounded by the reader's credit, or while held by the connection's byte share.
        self.inbox: deque[PublishBatch[Queue]] = deque()
        self.inbox_messages = 0
        self.hold: Hold | None = None
        """Why its first batch is not admitted."""
        self.last_queue: Queue | None = None
        """Where its last batch went, if that was one queue."""
        pending_max = connection.options.pending_publishes_max
        if pending_max is None:
            pending_max = flow.pending_publishes_max
        is_own = connection.options.holds_channels
        self.pending = PendingLimit(pending_max) if is_own else connection.pending
        """F9: its own, or its connection's."""
        self.is_closed = False
        self.is_unroutable = False
        """True while no queue wants anything of what it publishes."""
        self.refusal: Refusal | None = None
        """Why nothing of it is stored any more (``ConnectionOptions.stops_at_refusal``)."""
        self.dropped = 0
        """Publishes that were held on after its close, and then refused; nobody heard it."""
        self.drop_cause = ""
        # Messages at the head of the inbox whose credit went back early because they are held.
        self._early = 0
        self._pipeline = pipeline

    def __repr__(self) -> str:
        return f"<Channel {self.stage.name}>"

    def publish(self, publications: list[Publication]) -> None:
        """Take publishes in; routed in the next turns, confirmed or refused later.

        The list and what is in it belong to the engine from now on.
        """
        if self.is_closed:
            raise InvariantBroken(f"{self.stage.label} is closed and was given publishes")
        if publications:
            self._pipeline.arrived(self, publications)

    def close(self) -> None:
        """The peer is done with it: what came before goes on, unconfirmed, also what is held.

        Held publishes stay charged to the connection and wait as long as they may (D23).
        """
        self._end(is_draining=True)

    def abort(self) -> None:
        """Refused by us, or its peer vanished: what is held is dropped, the rest goes on."""
        self._end(is_draining=False)

    def _end(self, *, is_draining: bool) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._pipeline.closed(self, is_draining=is_draining)

    def note_refusal(self, refusal: Refusal) -> None:
        """One of its publishes is refused; those behind it are, too, where order is promised so."""
        if self.connection.options.stops_at_refusal and self.refusal is None:
            self.refusal = refusal

    def stop(self, refusal: Refusal) -> None:
        """The same for one that was on its way to the log: others of it may be behind it there."""
        self.note_refusal(refusal)
        if self.refusal is not None:
            self._pipeline.withdraw(self, self.refusal)

    @property
    def publisher(self) -> Culprit:
        """Whom people know as the publisher."""
        stage = self.connection.stage
        return Culprit(stage.name, stage.id)

    def note_unroutable(self, messages: int, now_ms: int, via: Culprit | None = None) -> None:
        """No queue wants these; ``via`` is what should have found one (an exchange)."""
        self.is_unroutable = True
        self._pipeline.chain.troubles.note(
            UNROUTABLE,
            Culprit(self.stage.name, self.stage.id),
            messages,
            now_ms,
            publisher=self.publisher,
            via=via,
        )

    def was_routed(self) -> None:
        """A queue wants some of what it publishes: it is not all for nothing."""
        self.is_unroutable = False
        self._pipeline.chain.troubles.forget(UNROUTABLE, self.stage.id)

    def queue_processed(self, queue: Queue, messages: int) -> None:
        """The queue has passed on so many: the credit towards it comes back."""
        credit = self.queue_credits.get(queue)
        # None when the channel is gone, and its credit with it.
        if credit is not None:
            credit.processed(messages)

    def finished(self, messages: int, charge: int) -> None:
        """So many are durable, refused or dropped: give back what they were charged."""
        connection = self.connection
        connection.refund(charge)
        if self.pending.done(messages):
            self._pipeline.chain.mark(connection)

    def confirm(self, confirmations: list[Confirmation]) -> None:
        """Tell the peer that these are stored, if it is still there."""
        if not self.is_closed:
            self.connection.outlet.confirmed(self, confirmations)

    def refuse(self, refusals: list[tuple[int, Refusal]]) -> None:
        """Tell the peer that these (token, why) are not stored, if it is still there."""
        if not self.is_closed:
            self.connection.outlet.refused(self, refusals)

    def credit_to(self, queue: Queue) -> Credit:
        """The credit of the hop to ``queue``."""
        credit = self.queue_credits.get(queue)
        if credit is None:
            if len(self.queue_credits) >= CHANNEL_CREDITS_MAX:
                self.forget_idle_credits()
            flow = self._pipeline.chain.flow
            credit = self.queue_credits[queue] = Credit(
                self.stage,
                queue.stage,
                initial=flow.channel_queue_credit,
                more=flow.channel_queue_more,
            )
        return credit

    def forget_idle_credits(self) -> None:
        """Drop the credit of hops with nothing under way: it starts full when needed again."""
        for queue, credit in list(self.queue_credits.items()):
            if credit.in_flight == 0:
                credit.close()
                del self.queue_credits[queue]

    def forget_queue(self, queue: Queue) -> None:
        """A queue was deleted: it does not wait for it any more."""
        credit = self.queue_credits.pop(queue, None)
        if credit is not None:
            credit.close()

    def retire(self) -> None:
        """Closed and its inbox is empty: let go of everything."""
        for credit in self.queue_credits.values():
            credit.close()
        self.queue_credits.clear()
        self.stage.close()
        self.connection.channels.pop(self.channel_id, None)

    def queued(self, messages: int) -> None:
        """Messages were put into the inbox; the reader's credit is spent for them."""
        self.inbox_messages += messages
        self.credit.spend(messages)
        if self.hold is not None:
            self.hold_back()

    def left(self, messages: int) -> None:
        """Messages left the inbox: the reader gets their credit back, unless it has it already."""
        self.inbox_messages -= messages
        if self._early:
            early = min(self._early, messages)
            self._early -= early
            messages -= early
        if messages:
            self.credit.processed(messages)

    @property
    def is_waiting(self) -> bool:
        """True while it has no credit, or too much unconfirmed: its inbox rests."""
        return self.stage.is_blocked or (
            self.pending.is_held and self.connection.options.holds_channels
        )

    def hold_back(self) -> None:
        """It is held by something that may need its own peer's acks: keep the reader reading."""
        if self.hold is not None and not self.connection.rests_for(self.hold.reason):
            late = self.inbox_messages - self._early
            if late:
                self._early += late
                self.credit.processed(late)


class Connection:
    """One peer; made by ``Engine.connect``."""

    __slots__ = (
        "_alarm_spell",
        "_chain",
        "_next_channel",
        "_on_close",
        "_pipeline",
        "_share",
        "_unpaid_bytes",
        "application",
        "channels",
        "connection_id",
        "gate",
        "holds",
        "is_closed",
        "is_short_of_room",
        "name",
        "options",
        "outlet",
        "pending",
        "room",
        "stage",
        "undone",
    )

    def __init__(
        self,
        connection_id: ConnectionId,
        outlet: Outlet,
        name: str,
        options: ConnectionOptions,
        *,
        pipeline: Pipeline,
        on_close: Callable[[Connection], None],
    ) -> None:
        chain = pipeline.chain
        self.connection_id = connection_id
        self.outlet = outlet
        self.name = name
        self.options = options
        self.stage = chain.stage("connection", name, object_id("connection", connection_id))
        self.stage.wake = self._mark
        self.gate = Gate(self.stage.episodes)
        self.channels: dict[ChannelId, Channel] = {}
        self.holds: dict[Channel, Hold] = {}
        """Channels that are held, and why."""
        pending_max = options.pending_publishes_max
        self.pending = PendingLimit(
            chain.flow.pending_publishes_max if pending_max is None else pending_max
        )
        self.application = ""
        """Id of what its peer says it is a part of (``name_application``); empty = it does not."""
        self._alarm_spell = -1
        """The time of alarms in which it published last (``FlowContext.alarm_spell``)."""
        self.is_short_of_room = False
        """True while it is not read in the midst of a publish, for want of room in the pool."""
        self.room: PoolHolder | None = None
        """Who knows why; since the first time."""
        self.undone: Undone | None = None
        """Set by its adapter while that puts off what the peer wants; it is not read then."""
        self.is_closed = False
        self._share = chain.pool.share(f"connection {name}", chain.flow.connection_bytes_max)
        self._share.wake = self._mark
        # Taken in although the share or the pool was full: one list, because reading stops then.
        self._unpaid_bytes = 0
        self._next_channel = 1
        self._chain = chain
        self._pipeline = pipeline
        self._on_close = on_close

    def __repr__(self) -> str:
        return f"<Connection {self.name}>"

    @property
    def may_read(self) -> bool:
        """False while the socket is to rest (see above); the adapter's ``is_reading``."""
        reasons = self.gate.reasons
        if not reasons:
            return True
        if self.options.holds_channels:
            return not self._unpaid_bytes
        return not PAUSING.intersection(reasons)

    def rests_for(self, reason: Reason) -> bool:
        """Whether its socket is not read while a channel is held by this."""
        return reason in PAUSING and not self.options.holds_channels

    @property
    def bytes_held(self) -> int:
        """Publish bytes of this connection that are not digested yet."""
        return self._share.used + self._unpaid_bytes

    @property
    def is_beyond_share(self) -> bool:
        """True while it has publishes for which the share or the pool had no room."""
        return self._unpaid_bytes > 0

    def open_channel(self, name: str = "") -> Channel:
        """A new channel; without a name it is numbered."""
        channel_id = ChannelId(self._next_channel)
        self._next_channel += 1
        stage = self._chain.stage(
            "channel",
            f"{self.name}/{name or channel_id}",
            object_id("channel", self.connection_id, channel_id),
        )
        channel = Channel(channel_id, self, stage, self._pipeline)
        stage.wake = self._chain.request_turn
        self.channels[channel_id] = channel
        return channel

    def name_application(self, protocol: str, name: str) -> None:
        """Its peer says what it is a part of: several connections may be one application's."""
        if name:
            self.application = object_id("app", protocol, name[:APPLICATION_CHARS_MAX])

    @property
    def is_publisher(self) -> bool:
        """It published since the raised alarm began: who publishes now, not who ever did."""
        return self._alarm_spell == self._chain.alarm_spell

    def note_alarm(self) -> None:
        """It publishes while an alarm is raised, which concerns it until it ends."""
        self._alarm_spell = self._chain.alarm_spell

    def note_publisher(self) -> None:
        """The same, if one is: a publish began to arrive."""
        if not self.is_publisher and self._chain.alarms.is_raised:
            self.note_alarm()
            self.refresh()

    def wait_for_room(self, room: PoolHolder) -> None:
        """Its adapter stops reading in the midst of a publish, until there is room for it."""
        self.room = room
        self.is_short_of_room = True
        self.refresh()

    def found_room(self) -> None:
        self.is_short_of_room = False
        self.refresh()

    def close(self) -> None:
        """The peer takes its leave: what it published goes on, also what is held."""
        self._end(Channel.close)

    def abort(self) -> None:
        """The peer vanished, or we refuse it: what it published goes on, unless it is held."""
        self._end(Channel.abort)

    def _end(self, end: Callable[[Channel], None]) -> None:
        """Nothing is said to it any more."""
        if self.is_closed:
            return
        self.is_closed = True
        for channel in list(self.channels.values()):
            end(channel)
        self._pipeline.disconnected(self)
        self.gate.clear(self._chain.now_ms)
        self.stage.close()
        self._share.wake = None
        self._on_close(self)

    def forget_queue(self, queue: Queue) -> None:
        """A queue was deleted: nobody waits for it any more."""
        for channel in self.channels.values():
            channel.forget_queue(queue)

    def charge(self, size: int) -> None:
        """Publish bytes came in (D22)."""
        if self._unpaid_bytes or not self._chain.pool.take(self._share, size):
            self._unpaid_bytes += size

    def refund(self, size: int) -> None:
        """Publish bytes are digested: durable, refused or dropped."""
        unpaid = 0
        if self._unpaid_bytes:
            unpaid = min(size, self._unpaid_bytes)
            self._unpaid_bytes -= unpaid
        if size > unpaid:
            self._chain.pool.give(self._share, size - unpaid)
        if unpaid:
            self._mark()

    def refresh(self) -> None:
        """Bring the gate in line with what holds the connection, and tell the peer of changes."""
        if self.is_closed:
            return
        if self._unpaid_bytes and self._chain.pool.take(self._share, self._unpaid_bytes):
            self._unpaid_bytes = 0
        gate = self.gate
        is_held = (
            self.stage.is_blocked
            or self._unpaid_bytes
            or self.pending.is_held
            or self.options.holds_channels
            or self.holds
            or self.is_short_of_room
            or self._alarm_spell == self._chain.alarm_spell
        )
        if not (is_held or gate.reasons):
            return  # the rule: ``_reasons`` would be empty
        wanted = self._reasons()
        if wanted.keys() == gate.reasons.keys():
            gate.reasons.update(wanted)
            return
        now_ms = self._chain.now_ms
        for reason in gate.reasons.keys() - wanted.keys():
            gate.open(reason, now_ms)
        for reason, culprit in wanted.items():
            if gate.close(reason, culprit, now_ms) and reason.is_resource:
                self._chain.alarm_holds[reason] += 1
        self.outlet.gate_changed(gate.is_open, dict(gate.reasons))

    def _reasons(self) -> dict[Reason, str]:
        reasons: dict[Reason, str] = {}
        if self.stage.is_blocked:
            reasons[Reason.FLOW] = root_culprit(self.stage)
        elif self._unpaid_bytes:
            reasons[Reason.FLOW] = self.gate.reasons.get(Reason.FLOW) or self.bytes_culprit()
        if self.pending.is_held or (
            self.options.holds_channels
            and any(channel.pending.is_held for channel in self.channels.values())
        ):
            reasons[Reason.PENDING] = pending_culprit(self.pending, self.stage)
        if self.is_short_of_room:
            reasons[Reason.ROOM] = Culprit(IN_FLIGHT_POOL, "pool/in-flight")
        for hold in self.holds.values():
            reasons.setdefault(hold.reason, hold.culprit)
        if self.is_publisher:
            reasons.update(self._chain.alarms.raised)
        return reasons

    def bytes_culprit(self) -> str:
        """Where most of the bytes are for which there is no room: who is to digest them."""
        waiting = {
            channel: sum([batch.charge for batch in channel.inbox])
            for channel in self.channels.values()
        }
        if 2 * sum(waiting.values()) > self.bytes_held:
            return max(waiting, key=lambda channel: waiting[channel]).stage.label
        # Queues pass on all they have in every turn, unless they cannot.
        for channel in waiting:
            for queue in channel.queue_credits:
                if queue.stage.is_blocked:
                    return root_culprit(queue.stage)
        return self._chain.log.label

    def _mark(self) -> None:
        self._chain.mark(self)


def pending_culprit(pending: PendingLimit, of: Stage) -> Culprit:
    """F9 of a connection or channel, as what holds it."""
    return Culprit(
        f"{pending.pending_max} unconfirmed publishes",
        f"limit/flow.pending_publishes_max/{of.id}",
    )


def root_culprit(stage: Stage) -> str:
    """Who is to blame: the first stage down the chain that is not itself held back."""
    for _ in range(CULPRIT_DEPTH_MAX):
        blockers = stage.blocked_by
        if not blockers:
            break
        # Blocked ones first: they lead further down; then by name, so that a run can be repeated.
        stage = min(blockers, key=lambda each: (not each.is_blocked, each.label))
    return stage.label
