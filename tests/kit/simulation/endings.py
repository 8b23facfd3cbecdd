"""How a run ends: peers behave, the disk answers, and everything owed must come (laws 3 and 8, P1).

``calm`` is law 3 in action: alarms are over, consumers settle, syncs succeed, and every gate must
open within a bounded number of turns. ``drain`` then reads every subscription to its end, and
``audit`` compares every queue with what was confirmed.
"""

from collections.abc import Callable
from typing import Final

from kit.simulation import direct, staging
from kit.simulation.committing import finish_job, run_job, start_job, turn
from kit.simulation.consuming import hand_back, leave
from kit.simulation.delaying import put_aside
from kit.simulation.laws import check_step
from kit.simulation.ledger import LawBroken, Sent
from kit.simulation.operating import raise_or_clear
from kit.simulation.peers import Following, SimConsumer, SimReader
from kit.simulation.world import LONG_MS, PLENTY_BYTES, SimTopic, World, kept_from
from penstock.engine.pull import Pull, PullStatus
from penstock.engine.subscription.consumer import Consumer
from penstock.flow.demand import Unlimited
from penstock.testing.storage import NO_CAPACITY

ROUNDS_MAX: Final = 100
"""Turns, beside one per message, within which everything held must be free again."""

ROUND_MS: Final = 20
"""Time that passes per round: holds, delays and invisible times are over before the rounds are."""

LONG_ENOUGH_MS: Final = 20 * 3_600_000
"""More than all the hours by which a run may have set the wall clock back."""

SWEEP_ROUNDS: Final = 100
"""Rounds in which snapshots and sweeps have their time several times over."""

LAST_SEGMENT_BYTES_MAX: Final = 72 * 1024
"""What the segment that is written to may have: a frame may cross its end."""

VANISHING: Final = ("short", "short partitioned", "transient", "dead")
"""Kinds of topics from which messages may go unseen."""


def finish(world: World, *, is_released: bool) -> None:
    """End the run and check what is owed."""
    calm(world)
    drain(world)
    audit(world)
    if is_released:
        release(world)
    # What is true before a last stop must be true after it.
    world.restart(is_power_cut=world.rng.random() < 0.5)
    audit(world)


def calm(world: World) -> None:
    """Misfortune is over; stuck consumers first stay stuck (law 8), then everybody settles."""
    world.storage.plan.clear()
    world.catalog.failures = 0
    world.catalog.is_full = False
    world.storage.capacity_bytes = NO_CAPACITY
    for name in ("memory", "disk"):
        raise_or_clear(world, name, is_raised=False)
    _settle_until(world, _undrained, "is held by somebody else's stuck consumer (law 8)")
    for consumer in world.consumers:
        consumer.is_stuck = False
    _settle_until(world, _shut, "stays shut although consumers settle and the disk syncs (law 3)")
    _settle_until(world, direct.unanswered, "gets no answer (law 3)")


def drain(world: World) -> None:
    """Read every subscription to its end; nothing confirmed may be missing (P1)."""
    for consumer in list(world.consumers):
        leave(world, consumer)
    for publisher in world.publishers:
        publisher.gone()
        publisher.connection.abort()
    world.publishers = []
    for sim_topic in world.live_topics:
        for following in sim_topic.followings.values():
            attach_drain(world, sim_topic, following)
    _settle_until(world, staging.unfinished, "is never committed (law 3)")
    _settle_until(world, _undrained, "cannot be drained")
    # Delayed messages arrive by time, not by turns; the wall clock may have been set back.
    world.clock.advance(LONG_ENOUGH_MS)
    for _ in range(4):
        world.clock.advance(250)
        _round(world)
    _settle_until(world, _undrained, "cannot be drained")
    _settle_until(world, put_aside, "never gets what was put aside (D14)")
    _settle_until(world, _undrained, "cannot be drained")
    confirmed = world.ledger.confirmed_by_queue()
    delayed = world.ledger.delayed_by_topic()
    for sim_topic in world.live_topics:
        if sim_topic.kind not in VANISHING:
            for following in sim_topic.followings.values():
                _check_seen(sim_topic, following, confirmed)
                _check_delayed(sim_topic, following, delayed.get(sim_topic.label, []))


def release(world: World) -> None:
    """Everything is read: what queues have that nobody reads any more is not kept (D11)."""
    storage = world.settings.storage
    if storage.settled_keep_ms >= LONG_MS and storage.settled_keep_bytes_max >= PLENTY_BYTES:
        return
    names = {name for sim_topic in world.live_topics for name in sim_topic.followings}
    if any(not names.issuperset(topic.subscriptions) for topic in world.engine.topics()):
        return  # a crash brought one back that was deleted: nobody reads it
    for _ in range(SWEEP_ROUNDS):
        _round(world)
    kept_bytes = min(storage.settled_keep_bytes_max, LAST_SEGMENT_BYTES_MAX)
    if world.store.log_bytes > LAST_SEGMENT_BYTES_MAX + kept_bytes:
        raise LawBroken(f"{world.store.log_bytes} bytes of log are kept, and all is settled (D11)")


def audit(world: World) -> None:
    """Every queue holds what was confirmed, at the offset that was named (P1, D7)."""
    staging.audit(world)
    confirmed = world.ledger.confirmed_by_queue()
    for sim_topic in world.live_topics:
        if sim_topic.kind == "transient":
            continue
        for queue in sim_topic.topic.queues:
            reader = SimReader(world.fresh("audit"), world.ledger, world.trace)
            reader.queue = queue
            reader.offset = queue.index.min_offset
            found = _read_all(world, reader)
            kept = kept_from(world, sim_topic, queue)
            for offset, sent in confirmed.get(queue.queue_id, ()):
                if offset >= kept and offset not in found and not sent.may_vanish:
                    raise LawBroken(
                        f"{sent.value} was confirmed at {queue.queue_id}@{offset} and is gone (P1)"
                    )


def _read_all(world: World, reader: SimReader) -> set[int]:
    found: set[int] = set()
    while True:
        pull = Pull(outlet=reader, queue=reader.queue, offset=reader.offset, messages_max=64)
        result = world.engine.pulls.read(pull)
        reader.take(result)
        if result.status in (PullStatus.NO_NEW, PullStatus.OFFSET_TOO_LARGE):
            return found
        found.update(entry[1] for entry in result.entries)


def attach_drain(world: World, sim_topic: SimTopic, following: Following) -> None:
    """A consumer that takes whatever there is."""
    consumer = SimConsumer(world.fresh("drain"), world.ledger, world.trace, following)
    consumer.subscription = sim_topic.topic.subscriptions[following.name]
    consumer.now_ms = world.clock.monotonic_ms()
    attached = consumer.subscription.attach(consumer, Unlimited(), name=consumer.name)
    if not isinstance(attached, Consumer):
        raise LawBroken(f"{following.name} has no consumer and refuses one: {attached}")
    consumer.consumer = attached
    world.consumers.append(consumer)


def _check_seen(
    sim_topic: SimTopic,
    following: Following,
    confirmed: dict[int, list[tuple[int, Sent]]],
) -> None:
    if following.is_loose:
        return
    for queue_id, start in following.start.items():
        if following.is_loose_in(queue_id):
            continue
        for offset, sent in confirmed.get(queue_id, ()):
            if offset >= start and not sent.may_vanish and not following.has_seen(sent):
                raise LawBroken(
                    f"{following.name} never got {sent.value}, confirmed at {queue_id}@{offset}"
                )


def _check_delayed(sim_topic: SimTopic, following: Following, delayed: list[Sent]) -> None:
    """Whoever reads from the very beginning gets every delayed message in the end."""
    is_whole = following.start.keys() >= set(sim_topic.queue_ids)
    if following.is_loose or following.loose_queues or any(following.start.values()):
        return
    if not is_whole:
        return
    for sent in delayed:
        if sent.value not in following.seen:
            raise LawBroken(f"{following.name} never got {sent.value}, which was delayed (P1)")


def _settle_until(world: World, find: Callable[[World], str], complaint: str) -> None:
    """Rounds of settling and syncing until nothing is found any more."""
    for _ in range(ROUNDS_MAX + _backlog(world)):
        if not find(world):
            return
        _round(world)
    raise LawBroken(f"{find(world)} {complaint}")


def _round(world: World) -> None:
    world.clock.advance(ROUND_MS)
    now_ms = world.clock.monotonic_ms()
    for consumer in world.consumers:
        consumer.now_ms = now_ms
        consumer.flush()
        if consumer.is_stuck or consumer.consumer is None:
            continue
        if consumer.permits is not None and consumer.permits.available_messages() == 0:
            consumer.permits.add(10)
        if consumer.visibility_ms:
            taken = consumer.subscription.take(consumer.consumer, 10)
            if taken:
                consumer.deliver(consumer.consumer, taken)
        consumer.give_up_overdue()
        if consumer.held:
            hand_back(world, consumer, list(consumer.held), "settle")
    start_job(world)
    run_job(world)
    finish_job(world)
    turn(world)
    check_step(world)


def _undrained(world: World) -> str:
    """A subscription with something to deliver, willing consumers, and no stuck one."""
    for sim_topic in world.live_topics:
        for following in sim_topic.followings.values():
            takers = [c for c in world.consumers if c.following is following]
            if any(taker.queue_ids for taker in takers):
                continue  # some of its queues may have nobody
            if not takers or any(taker.is_stuck for taker in takers):
                continue
            subscription = sim_topic.topic.subscriptions[following.name]
            if any(subscription.ready(queue_id) for queue_id in following.start):
                return f"subscription {following.name}"
    return ""


def _shut(world: World) -> str:
    for publisher in world.publishers:
        if not publisher.connection.gate.is_open:
            names = sorted(reason.value for reason in publisher.connection.gate.reasons)
            return f"gate of {publisher.name} ({', '.join(names)})"
    return ""


def _backlog(world: World) -> int:
    return sum(
        sim_topic.topic.subscriptions[name].ready(queue_id)
        for sim_topic in world.live_topics
        for name, following in sim_topic.followings.items()
        for queue_id in following.start
    )
