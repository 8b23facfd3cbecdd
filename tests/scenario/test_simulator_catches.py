"""The simulator must be able to fail: mistakes planted in the core, and the law that names each."""

import logging

import pytest

from kit.simulation.steps import CLASSIC, DIRECT, PARTITIONS
from kit.simulator import SimulationFailed, simulate
from penstock.engine import registry, turn
from penstock.engine.commit import SettlementBuffer
from penstock.engine.connection import Connection
from penstock.engine.non_persistent import NonPersistentTopics
from penstock.engine.publish import PublishPipeline
from penstock.engine.registry import Registry
from penstock.engine.subscription.consumer import Consumer
from penstock.engine.subscription.cursor import QueueCursor
from penstock.engine.subscription.pick import Picker
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.turn import DispatchQueue
from penstock.flow.credit import Credit, Gate
from penstock.log.retention import NOTHING_NEEDED
from penstock.log.store import Store

SEEDS = 25
STEPS = 700
SHORT_DISK_SEED = 38
"""A run with a disk alarm in which there are segments that a sweep could take: one in eighty."""
STARVED = ("(law 4)", "(law 5)", "(law 8)")
"""A lost wake-up is seen as such, as unfairness, or at the end: whichever is looked at first."""


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def first_failure(first_seed=0, family=CLASSIC, steps=STEPS):
    for seed in range(first_seed, first_seed + SEEDS):
        try:
            simulate(seed, steps, family)
        except SimulationFailed as failure:
            return str(failure)
    pytest.fail(f"{SEEDS} seeds did not notice it")


def nothing(*_, **__):
    return None


def test_confirms_before_the_sync_are_noticed(monkeypatch):
    append = Store.append

    def hasty(store, *arguments):
        store.durable_position = end = append(store, *arguments)
        return end

    monkeypatch.setattr(Store, "append", hasty)
    assert "(P1)" in (text := first_failure()) or "(D7)" in text or "was durable" in text


def test_acks_forgotten_by_a_second_restart_are_noticed(monkeypatch):
    monkeypatch.setattr(SettlementBuffer, "replayed", nothing)
    text = first_failure(first_seed=110)  # two restarts that matter are rare: one in fifty
    assert "(P2)" in text or "its ack was durable (P1)" in text


def test_a_short_disk_that_takes_what_is_not_settled_is_noticed(monkeypatch):
    sweep = Store.sweep

    def greedy(store, needs, now_ms, shortage_bytes=0):
        needed = (lambda _queue_id: NOTHING_NEEDED) if shortage_bytes else needs
        return sweep(store, needed, now_ms, shortage_bytes)

    monkeypatch.setattr(Store, "sweep", greedy)
    with pytest.raises(SimulationFailed, match="never got"):
        simulate(SHORT_DISK_SEED)


def test_a_short_disk_that_is_remembered_after_its_alarm_is_noticed(monkeypatch):
    sweep = Store.sweep

    def mindful(store, needs, now_ms, shortage_bytes=0):
        store.shortage_bytes = max(shortage_bytes, getattr(store, "shortage_bytes", 0))
        return sweep(store, needs, now_ms, store.shortage_bytes)

    monkeypatch.setattr(Store, "sweep", mindful)
    with pytest.raises(SimulationFailed, match=r"and is gone \(P1\)"):
        simulate(SHORT_DISK_SEED)


def test_a_consumer_that_is_not_woken_is_noticed(monkeypatch):
    monkeypatch.setattr(DispatchQueue, "wake", nothing)
    assert any(law in first_failure() for law in STARVED)


def test_a_socket_that_drains_without_a_wake_up_is_noticed(monkeypatch):
    monkeypatch.setattr(Consumer, "wake", nothing)
    assert any(law in first_failure() for law in STARVED)


def test_bytes_that_never_come_back_are_noticed(monkeypatch):
    monkeypatch.setattr(Connection, "refund", nothing)
    text = first_failure()
    assert "(law 3)" in text or "(law 2)" in text


def test_credit_that_is_given_twice_is_noticed(monkeypatch):
    processed = Credit.processed
    monkeypatch.setattr(Credit, "processed", lambda credit, n=1: processed(credit, 2 * n))
    text = first_failure()
    assert "(law 1)" in text or "processed more than" in text


def test_a_gate_that_does_not_tell_is_noticed(monkeypatch):
    monkeypatch.setattr(Gate, "open", lambda gate, reason, now_ms: False)
    text = first_failure()
    assert "(law 7)" in text or "(law 3)" in text


def test_a_channel_passed_over_for_busier_ones_is_noticed(monkeypatch):
    run_channel = PublishPipeline._run_channel

    def busy_first(pipeline, channel, *budget):
        is_quiet = channel.inbox_messages == 1
        if is_quiet and any(other.inbox_messages > 1 for other in pipeline.channels):
            return 0, 0
        return run_channel(pipeline, channel, *budget)

    monkeypatch.setattr(PublishPipeline, "_run_channel", busy_first)
    assert "(law 5)" in first_failure()


def test_messages_without_a_log_that_are_neither_handed_out_nor_counted_are_noticed(monkeypatch):
    monkeypatch.setattr(NonPersistentTopics, "deliver", lambda topics: topics.outbox.clear())
    with pytest.raises(SimulationFailed, match="published directly"):
        simulate(20_000, STEPS, DIRECT)


def test_an_unsubscribed_queue_that_a_crash_brings_back_is_noticed(monkeypatch):
    monkeypatch.setattr(Registry, "unsubscribed", nothing)
    assert "and was told False" in first_failure(family=PARTITIONS)


def test_a_new_queue_that_joins_nobody_is_noticed(monkeypatch):
    monkeypatch.setattr(registry, "_reads_all", lambda subscription, topic: False)
    assert "reads the new queue" in first_failure(family=PARTITIONS)


def test_another_type_under_those_who_read_is_noticed(monkeypatch):
    monkeypatch.setattr(QueueCursor, "refusal", nothing)
    monkeypatch.setattr(QueueCursor, "_change_mode", nothing)
    assert "was answered None, not" in first_failure(family=PARTITIONS)


def test_parts_of_batches_that_a_crash_forgets_are_noticed(monkeypatch):
    def settle_ranges(subscription, queue_id, ranges):
        cursor = subscription.cursor(queue_id)
        for start, end in ranges:
            subscription._settler.settle_range(cursor, start, end)
        cursor.unsaved.reset(cursor.settled.low_mark)

    monkeypatch.setattr(Subscription, "settle_ranges", settle_ranges)
    text = first_failure(family=PARTITIONS)
    assert "are not settled" in text or "(P1)" in text or "(P2)" in text


def test_a_drop_of_nothing_that_asks_for_a_turn_is_noticed(monkeypatch):
    drop_head = Subscription.drop_head

    def restless(subscription, queue_id, *arguments):
        dropped = drop_head(subscription, queue_id, *arguments)
        subscription._changed()
        return dropped

    monkeypatch.setattr(Subscription, "drop_head", restless)
    assert "still wants turns" in first_failure(family=PARTITIONS)


def test_queues_that_nobody_reads_and_that_keep_the_log_are_noticed(monkeypatch):
    lowest_needed = turn._lowest_needed

    def clinging(queue, *arguments):
        is_read = any(each.reads(queue.queue_id) for each in queue.topic.subscriptions.values())
        return lowest_needed(queue, *arguments) if is_read else queue.index.min_offset

    monkeypatch.setattr(turn, "_lowest_needed", clinging)
    # A run must be long enough to fill segments.
    assert "all is settled (D11)" in first_failure(family=PARTITIONS, steps=2000)


def test_a_message_of_a_batch_that_is_passed_over_is_noticed(monkeypatch):
    opened = Picker._opened
    monkeypatch.setattr(Picker, "_opened", lambda *arguments: opened(*arguments)[-1:])
    text = first_failure(family=PARTITIONS)
    assert "never got" in text or "(law" in text or "cannot be drained" in text
