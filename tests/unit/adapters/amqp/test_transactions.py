"""Transactions: nothing happens before the commit, and then all of it."""

import pytest

from kit.amqp.peer import PERSISTENT, AmqpBench, alarm, durable_topic, ready
from penstock.adapters.amqp.transactions import ACK_BYTES, TxBudget
from penstock.engine.publish_batch import PUBLICATION_BYTES
from penstock.flow.budgets import BytesPool
from penstock.model.ids import ConnectionId
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.testing.storage import FaultKind
from penstock.wire.amqp.methods.basic import Ack, Get, GetEmpty, GetOk, Return
from penstock.wire.amqp.methods.channel import (
    Close,
    CloseOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.wire.amqp.methods.connection import Blocked
from penstock.wire.amqp.properties import Properties, encode_properties


def test_a_commit_or_rollback_needs_a_select(peer):
    closed = peer.call(1, TxCommit())
    assert closed.reply_text == "PRECONDITION_FAILED - channel is not transactional"
    peer.open(2)
    assert peer.call(2, TxRollback()).reply_code == 406


def test_publishes_wait_for_the_commit(bench, peer):
    topic = durable_topic(peer)
    assert isinstance(peer.call(1, TxSelect()), TxSelectOk)
    assert isinstance(peer.call(1, TxSelect()), TxSelectOk), "again is fine"
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.publish(1, "", "q", b"b", PERSISTENT)
    peer.turn()
    assert bench.bodies(topic) == []
    assert isinstance(peer.call(1, TxCommit()), TxCommitOk)
    assert bench.bodies(topic) == [b"a", b"b"]


def test_a_time_to_live_counts_from_the_commit(bench, peer):
    durable_topic(peer)
    peer.call(1, TxSelect())
    for body in (b"a", b"b"):
        peer.publish(1, "", "q", body, encode_properties(Properties(expiration="1000")))
    bench.advance(1500)
    assert isinstance(peer.call(1, TxCommit()), TxCommitOk)
    bench.advance(900)
    assert isinstance(peer.call(1, Get(queue="q")), GetOk)
    bench.advance(200)
    assert isinstance(peer.call(1, Get(queue="q")), GetEmpty)


def test_a_rollback_forgets_publishes(bench, peer):
    topic = durable_topic(peer)
    peer.call(1, TxSelect())
    peer.publish(1, "", "q", b"a")
    assert isinstance(peer.call(1, TxRollback()), TxRollbackOk)
    assert isinstance(peer.call(1, TxCommit()), TxCommitOk)
    assert bench.bodies(topic) == []


def test_commit_ok_leaves_when_everything_is_durable(bench, peer):
    durable_topic(peer)
    peer.call(1, TxSelect())
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.send(1, TxCommit())
    bench.turns()
    assert peer.methods(1) == []
    bench.settle()
    assert [type(each) for each in peer.methods(1)] == [TxCommitOk]


def test_an_empty_commit_is_answered(peer):
    peer.call(1, TxSelect())
    assert isinstance(peer.call(1, TxCommit()), TxCommitOk)


def test_acks_wait_for_the_commit_and_a_rollback_leaves_them_unsettled(bench, peer):
    topic = durable_topic(peer)
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.turn()
    peer.call(1, TxSelect())
    got = peer.call(1, Get(queue="q"))
    assert isinstance(got, GetOk)
    subscription = topic.subscriptions["amqp"]
    queue_id = topic.queues[0].queue_id
    peer.send(1, Ack(got.delivery_tag))
    peer.turn()
    assert subscription.low_mark(queue_id) == 0
    peer.call(1, TxRollback())
    assert isinstance(peer.call(1, Get(queue="q")), GetEmpty), "a rollback does not requeue"
    peer.send(1, Ack(got.delivery_tag))
    peer.call(1, TxCommit())
    assert subscription.low_mark(queue_id) == 1


def test_publishes_and_acks_of_a_commit_are_one_frame(bench, peer):
    topic, other = durable_topic(peer), durable_topic(peer, "other")
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.turn()
    peer.call(1, TxSelect())
    got = peer.call(1, Get(queue="q"))
    peer.send(1, Ack(got.delivery_tag))
    for name in ("q", "other"):
        peer.publish(1, "", name, b"moved", PERSISTENT)
    frames = bench.store.counters.frames
    peer.send(1, TxCommit())
    bench.turns()
    assert bench.store.counters.frames == frames + 1
    assert topic.subscriptions["amqp"].low_mark(topic.queues[0].queue_id) == 1
    assert bench.bodies(other) == [b"moved"]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_synced", [False, True])
def test_a_power_cut_loses_all_of_a_transaction_or_nothing(seed, is_synced):
    bench = AmqpBench(seed=seed)
    peer = bench.client()
    for name in ("q", "other", "third"):
        durable_topic(peer, name)
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.turn()
    peer.call(1, TxSelect())
    got = peer.call(1, Get(queue="q"))
    peer.send(1, Ack(got.delivery_tag))
    for name in ("other", "third"):
        peer.publish(1, "", name, b"moved", PERSISTENT)
    peer.send(1, TxCommit())
    bench.turns()
    if is_synced:
        bench.sync()
    bench.cut_power()
    again = bench.client()
    left = tuple(ready(again, name) for name in ("q", "other", "third"))
    assert left in ((1, 0, 0), (0, 1, 1)) if not is_synced else left == (0, 1, 1)


def test_a_large_transaction_settles_when_the_last_publish_is_durable(bench, peer):
    topic = durable_topic(peer)
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.turn()
    peer.call(1, TxSelect())
    got = peer.call(1, Get(queue="q"))
    peer.send(1, Ack(got.delivery_tag))
    count = FlowSettings().turn_channel_messages_max + 100
    for _ in range(count):
        peer.publish(1, "", "q", b"b", PERSISTENT)
    peer.send(1, TxCommit())
    low_mark = topic.subscriptions["amqp"].low_mark
    queue_id = topic.queues[0].queue_id
    while len(bench.bodies(topic)) < count + 1:
        assert low_mark(queue_id) == 0
        assert bench.turns() + bench.sync()
    peer.turn()
    assert [type(each) for each in peer.methods(1)] == [TxCommitOk]
    assert low_mark(queue_id) == 1


def test_a_returned_message_comes_back_at_the_commit_before_commit_ok(peer):
    peer.call(1, TxSelect())
    peer.publish(1, "", "nowhere", b"a", is_mandatory=True)
    peer.turn()
    assert peer.methods(1) == []
    peer.send(1, TxCommit())
    peer.turn()
    assert [type(each) for each in peer.methods(1)] == [Return, TxCommitOk]


def test_a_commit_waits_for_the_end_of_an_alarm_and_acks_of_others_do_not(bench, peer):
    topic = durable_topic(peer)
    peer.publish(1, "", "q", b"before", PERSISTENT)
    peer.turn()
    consumer = bench.client()
    assert isinstance(consumer.call(1, Get(queue="q")), GetOk)
    peer.call(1, TxSelect())
    peer.publish(1, "", "q", b"a", PERSISTENT)
    alarm(bench, True)
    peer.publish(1, "", "q", b"b", PERSISTENT)
    peer.send(1, TxCommit())
    peer.turn()
    assert peer.methods(1) == []
    assert bench.bodies(topic) == [b"before"]
    assert Blocked("low on memory") in peer.methods(0)
    consumer.send(1, Ack(1))
    consumer.turn()
    assert ready(consumer, "q") == 0
    alarm(bench, False)
    peer.turn()
    assert isinstance(peer.answer(1), TxCommitOk)
    assert bench.bodies(topic) == [b"before", b"a", b"b"]
    assert ready(consumer, "q") == 2


def test_a_commit_of_acks_alone_does_not_wait_for_an_alarm(bench, peer):
    durable_topic(peer)
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.turn()
    peer.call(1, TxSelect())
    peer.call(1, Get(queue="q"))
    peer.send(1, Ack(1))
    alarm(bench, True)
    assert isinstance(peer.call(1, TxCommit()), TxCommitOk)
    peer.leave()
    bench.settle()
    assert ready(bench.client(), "q") == 0


def test_a_client_that_vanishes_while_its_commit_waits_for_an_alarm_has_committed_nothing(
    bench, peer
):
    topic = durable_topic(peer)
    peer.call(1, TxSelect())
    alarm(bench, True)
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.send(1, TxCommit())
    peer.turn()
    peer.leave()
    bench.settle()
    alarm(bench, False)
    bench.settle()
    assert bench.bodies(topic) == []


def test_a_publish_that_is_refused_at_the_commit_closes_the_channel(bench, peer):
    durable_topic(peer, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    peer.call(1, TxSelect())
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.publish(1, "", "q", b"b", PERSISTENT)
    closed = peer.call(1, TxCommit())
    assert closed == Close(406, "PRECONDITION_FAILED - partial tx completion", 90, 20)
    assert peer.methods(1) == [], "no commit-ok behind it"


def test_a_write_that_the_disk_refuses_is_no_commit(bench, peer):
    topic = durable_topic(peer)
    peer.call(1, TxSelect())
    peer.publish(1, "", "q", b"a", PERSISTENT)
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    assert isinstance(peer.call(1, TxCommit()), Close)
    assert bench.bodies(topic) == []


def test_a_transaction_has_the_size_of_the_connections_share_at_most():
    bench = AmqpBench(Settings(flow=FlowSettings(connection_bytes_max=10 * PUBLICATION_BYTES)))
    peer = bench.client()
    durable_topic(peer)
    peer.call(1, TxSelect())
    for _ in range(9):
        peer.publish(1, "", "q", b"")
    peer.turn()
    assert peer.methods(1) == []
    peer.publish(1, "", "q", bytes(PUBLICATION_BYTES))
    peer.turn()
    (closed,) = peer.methods(1)
    assert closed.reply_code == 406
    assert "no room for it before its commit" in closed.reply_text
    assert bench.broker.transactions.bytes == 0, "the channel is gone, and what it held"


def test_settlements_that_wait_weigh_something_too(bench, peer):
    durable_topic(peer)
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.turn()
    peer.call(1, TxSelect())
    got = peer.call(1, Get(queue="q"))
    peer.send(1, Ack(got.delivery_tag))
    assert bench.broker.transactions.bytes == ACK_BYTES
    peer.call(1, TxRollback())
    assert bench.broker.transactions.bytes == 0


@pytest.mark.parametrize("end", [TxCommit(), TxRollback(), Close(200, "bye")])
def test_every_end_of_a_transaction_makes_room(bench, peer, end):
    durable_topic(peer)
    peer.call(1, TxSelect())
    peer.publish(1, "", "q", b"a", PERSISTENT)
    assert bench.broker.transactions.bytes > 0
    peer.call(1, end)
    assert bench.broker.transactions.bytes == 0


def test_the_loss_of_a_connection_makes_room(bench, peer):
    durable_topic(peer)
    peer.call(1, TxSelect())
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.leave()
    assert bench.broker.transactions.bytes == 0


def test_several_commits_at_once_are_answered_in_order_each_once(bench, peer):
    topic = durable_topic(peer)
    peer.call(1, TxSelect())
    for number in range(3):
        peer.publish(1, "", "q", b"%d" % number, PERSISTENT)
        peer.send(1, TxCommit())
    peer.send(1, TxRollback())
    peer.turn()
    kinds = [type(each) for each in peer.methods(1)]
    assert kinds == [TxCommitOk, TxCommitOk, TxCommitOk, TxRollbackOk]
    assert bench.bodies(topic) == [b"0", b"1", b"2"]


def test_a_channel_may_be_closed_while_its_commit_is_under_way(bench, peer):
    topic = durable_topic(peer)
    peer.call(1, TxSelect())
    peer.publish(1, "", "q", b"a", PERSISTENT)
    peer.send(1, TxCommit(), Close(200, "bye"))
    peer.turn()
    assert [type(each) for each in peer.methods(1)] == [CloseOk]
    assert bench.bodies(topic) == [b"a"]
    peer.open(1)


# ---- tx room ------------------------------------------------------------------------------------
# Room for transactions: a part of the pool, each connection its share, nobody waits.


ONE, OTHER = ConnectionId(1), ConnectionId(2)


def test_a_connection_has_its_share_and_all_together_a_quarter_of_the_pool():
    pool = BytesPool(400)
    room = TxBudget(pool, 60)
    assert room.take(ONE, 60)
    assert not room.take(ONE, 1), "its share"
    assert not room.take(OTHER, 41), "a quarter"
    assert room.take(OTHER, 40)
    assert (room.bytes, pool.used) == (100, 100)


def test_what_is_refused_holds_nothing_and_stands_in_no_line():
    pool = BytesPool(400)
    room = TxBudget(pool, 1000)
    assert not room.take(ONE, 101)
    assert (room.bytes, pool.refusals, pool._waiting) == (0, 0, {})


def test_given_back_is_there_for_others():
    room = TxBudget(BytesPool(400), 100)
    assert room.take(ONE, 100)
    room.give(ONE, 100)
    room.give(ONE, 0)
    assert room.take(OTHER, 100)


def test_a_pool_that_publishers_have_filled_has_no_room():
    pool = BytesPool(400)
    pool.take(pool.share("publisher", 400), 390)
    assert not TxBudget(pool, 100).take(ONE, 11)
