"""What a subscription looks like from outside: snapshots for operators and for the diagnosis."""

import msgspec

from penstock.engine.consumer import Consumer
from penstock.engine.deliver import Journey
from penstock.engine.lane import Lane
from penstock.flow.demand import UNLIMITED
from penstock.flow.diagnosis import ConsumerView, StageView
from penstock.flow.reason import Reason


class ConsumerStatistics(msgspec.Struct, frozen=True):
    """One consumer at one moment."""

    name: str
    demand: int
    """Messages it asks for now; -1 = no limit."""
    unacked: int
    unacked_bytes: int
    unsent: int
    delivered: int
    redelivered: int
    blocked_by: tuple[str, ...]
    """Why it gets nothing more: demand, unsettled, unsent; empty = it would take the next one."""


class SubscriptionStatistics(msgspec.Struct, frozen=True):
    """One subscription at one moment."""

    name: str
    ready: int
    unacked: int
    delayed: int
    redelivered: int
    """Messages handed over a second time or more, since the start."""
    settled: int
    dead_letters: int
    lost: int
    """Records that could not be read (P7)."""
    skipped: int
    """Offsets that no longer existed when their turn came."""
    unknown_settles: int
    """Settlements of offsets that had never been delivered; ignored."""
    is_blocked: bool
    """At its own limit of unsettled messages (F13)."""
    backlog_bytes: int
    """Log bytes from its low marks on."""
    consumers: int
    each_consumer: tuple[ConsumerStatistics, ...]


def consumer_statistics(consumer: Consumer) -> ConsumerStatistics:
    """A consumer's snapshot."""
    demand = consumer.demand.available_messages()
    return ConsumerStatistics(
        name=consumer.name,
        demand=-1 if demand >= UNLIMITED else demand,
        unacked=consumer.inflight.messages,
        unacked_bytes=consumer.inflight.bytes,
        unsent=consumer.unsent.messages,
        delivered=consumer.delivered_messages,
        redelivered=consumer.redelivered_messages,
        blocked_by=consumer.blocked_by(),
    )


def consumer_view(consumer: Consumer) -> ConsumerView:
    """A consumer as the diagnosis wants it: what binds it is its window or its in-flight limit."""
    unacked = consumer.inflight.messages
    available = consumer.demand.available_messages()
    limit = consumer.inflight.messages_max
    if consumer.inflight.is_blocked or (available <= 0 < unacked):
        # It holds messages and takes no more: whatever it calls its limit, it has reached it.
        limit = unacked
    return ConsumerView(
        name=consumer.name,
        unacked=unacked,
        unacked_max=limit,
        is_unsent_high=consumer.unsent.is_held,
        has_demand=available > 0,
    )


def snapshot(
    name: str, lanes: list[Lane], journey: Journey, consumers: list[Consumer]
) -> SubscriptionStatistics:
    """A subscription's snapshot."""
    return SubscriptionStatistics(
        name=name,
        ready=sum(lane.ready_messages for lane in lanes),
        unacked=sum(lane.pending.messages for lane in lanes),
        delayed=sum(lane.redelivery.delayed_messages for lane in lanes),
        redelivered=journey.redelivered_messages,
        settled=journey.settler.settled_messages,
        dead_letters=journey.picker.dead_letters,
        lost=journey.picker.lost,
        skipped=journey.picker.skipped,
        unknown_settles=journey.settler.unknown_settles,
        is_blocked=journey.settler.inflight.is_blocked,
        backlog_bytes=sum(lane.backlog_bytes for lane in lanes),
        consumers=len(consumers),
        each_consumer=tuple(consumer_statistics(consumer) for consumer in consumers),
    )


def stage_view(
    name: str, lanes: list[Lane], journey: Journey, consumers: list[Consumer]
) -> StageView:
    """A subscription as a stage of the delivery side."""
    is_blocked = journey.settler.inflight.is_blocked
    limit = journey.settler.inflight.messages_max
    # Who takes by hand now and then always could take more: that says nothing of the others.
    pushed = [consumer for consumer in consumers if not consumer.is_passive]
    return StageView(
        kind="subscription",
        name=name,
        state="flow" if is_blocked else "running",
        reason=Reason.PENDING if is_blocked else None,
        culprit=f"{limit} unsettled messages (flow.unacked_subscription_max)" if is_blocked else "",
        ready=sum(lane.ready_messages for lane in lanes),
        consumers=tuple(consumer_view(consumer) for consumer in pushed or consumers),
        undone=journey.undone(lanes),
    )
