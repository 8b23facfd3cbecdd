import pytest

from penstock.engine.host import SubscriptionOptions
from penstock.engine.ports import Publication
from penstock.engine.topic import route_to
from penstock.flow.demand import Window
from penstock.model.names import topic_name
from penstock.model.record import neutral_record
from penstock.testing.broker import MemoryCatalog, MemoryLog, in_memory_engine
from penstock.testing.outlet import Cancelled, Confirmed, Delivered
from penstock.testing.storage import FaultKind, SimulatedStorage

NAME = topic_name("orders")


@pytest.fixture
def core():
    core = in_memory_engine()
    core.engine.create_topic(NAME)
    core.engine.create_subscription(NAME, "s", SubscriptionOptions())
    return core


def publish(core, peer, *bodies):
    route = route_to(core.engine.topic(NAME))
    peer.channel.publish(
        [
            Publication(record=neutral_record(body), queues=(), route=route, token=number)
            for number, body in enumerate(bodies)
        ]
    )


def subscription_of(core):
    return core.engine.topic(NAME).subscriptions["s"]


def test_a_peer_hears_its_confirms_and_deliveries_in_order(core):
    peer = core.connect()
    subscription_of(core).attach(peer, Window(10), name="c")
    publish(core, peer, b"1", b"2")
    core.settle()
    assert peer.confirmed_tokens == [0, 1]
    assert peer.bodies == [b"1", b"2"]
    kinds = [type(event) for event in peer.events]
    assert kinds.index(Confirmed) < kinds.index(Delivered)


def test_settling_everything_moves_the_cursor_and_leaves_nothing_unsettled(core):
    peer = core.connect()
    subscription = subscription_of(core)
    subscription.attach(peer, Window(10), name="c")
    publish(core, peer, b"1", b"2", b"3")
    core.settle()
    assert len(peer.unsettled) == 3
    assert peer.settle_all(subscription) == 3
    core.settle()
    assert peer.unsettled == []
    queue_id = core.engine.topic(NAME).queues[0].queue_id
    assert subscription.low_mark(queue_id) == 3


def test_what_is_given_back_comes_again_and_says_so(core):
    peer = core.connect()
    subscription = subscription_of(core)
    subscription.attach(peer, Window(10), name="c")
    publish(core, peer, b"1")
    core.settle()
    peer.requeue_all(subscription)
    core.settle()
    assert [delivery.is_redelivered for delivery in peer.deliveries] == [False, True]


def test_what_is_rejected_does_not_come_again(core):
    peer = core.connect()
    subscription = subscription_of(core)
    subscription.attach(peer, Window(10), name="c")
    publish(core, peer, b"1")
    core.settle()
    assert peer.reject_all(subscription) == 1
    core.settle()
    assert len(peer.deliveries) == 1


def test_a_cancelled_consumer_has_nothing_left_to_settle(core):
    peer = core.connect()
    subscription_of(core).attach(peer, Window(10), name="c")
    publish(core, peer, b"1")
    core.settle()
    core.engine.delete_subscription(NAME, "s")
    assert peer.unsettled == []
    assert [event.cause for event in peer.events if isinstance(event, Cancelled)] == ["deleted"]


def test_a_failed_sync_is_told_to_the_engine_and_refuses_what_it_covered():
    storage = SimulatedStorage(1)
    core = in_memory_engine(storage)
    core.engine.create_topic(NAME)
    core.settle()
    peer = core.connect()
    publish(core, peer, b"1")
    core.engine.turn()
    storage.plan.fail_next("sync", FaultKind.EIO)
    core.sync()
    assert core.engine.is_failed
    assert peer.refused_tokens == [0]
    assert peer.confirmed_tokens == []


def test_a_memory_log_is_found_again_on_the_storage_it_was_made_on():
    log = MemoryLog()
    log.store.definitions.put("colour", "sky", b"blue")
    log.sync()
    again = MemoryLog(log.storage, log.catalog, clock=log.clock)
    assert again.store.definitions.get("colour", "sky") == b"blue"


# ---- catalog ------------------------------------------------------------------------------------


def test_applied_rows_are_loaded_and_deleted_ones_are_gone():
    catalog = MemoryCatalog()
    catalog.apply([("topic", "a", b"1"), ("topic", "b", b"2")])
    catalog.apply([("topic", "a", None), ("topic", "c", b"3")])
    assert catalog.load() == {("topic", "b"): b"2", ("topic", "c"): b"3"}


def test_the_heir_of_a_crash_has_what_was_applied_and_the_dead_one_refuses():
    catalog = MemoryCatalog()
    catalog.apply([("topic", "a", b"1")])
    heir = catalog.crash()
    assert heir.load() == {("topic", "a"): b"1"}
    with pytest.raises(OSError, match="died"):
        catalog.apply([])


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_a_failed_transaction_changes_nothing_unless_only_its_answer_was_lost(is_answer_lost):
    catalog = MemoryCatalog()
    catalog.failures, catalog.is_answer_lost = 1, is_answer_lost
    with pytest.raises(OSError, match="planned"):
        catalog.apply([("topic", "a", b"1")])
    assert bool(catalog.load()) is is_answer_lost
    catalog.apply([("topic", "b", b"1")])
    assert ("topic", "b") in catalog.load()
