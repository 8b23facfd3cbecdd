"""A consumer's room, and what becomes of it when all sockets together are behind."""

import pytest

from kit.queues import MemoryHost, MemoryQueue, consume
from penstock.engine.host import SubscriptionOptions
from penstock.engine.subscription.consumer import STALE_DEADLINES_MIN, PendingEntries, PendingEntry
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Window
from penstock.settings.flow import FlowSettings

MESSAGE_BYTES = 90
POOL_BYTES = 5_000


@pytest.fixture
def host():
    return MemoryHost(
        flow=FlowSettings(inflight_bytes_max=POOL_BYTES, connection_bytes_max=POOL_BYTES)
    )


def stuck_readers(host, count):
    """Subscriptions whose one consumer's socket takes nothing."""
    receivers = []
    for number in range(1, count + 1):
        queue = MemoryQueue(host, number)
        subscription = Subscription(number, f"s{number}", [queue], SubscriptionOptions(), host)
        taker = consume(subscription, Window(10), name=f"stuck-{number}")
        taker.reads = False
        queue.fill(20)
        subscription.arrived(number)
        host.run()
        receivers.append(taker)
    return receivers


def test_all_consumers_together_have_no_more_unsent_than_the_pool_and_one_message_each(host):
    receivers = stuck_readers(host, 50)
    assert host.unsent_pool.is_short
    assert host.unsent_pool.bytes <= POOL_BYTES + 10 * MESSAGE_BYTES + 50 * MESSAGE_BYTES
    assert {len(taker.offsets) for taker in receivers} == {1, 10}
    assert receivers[0].consumer.blocked_by() == ("demand", "unsent")


def test_a_consumer_that_reads_goes_on_while_the_pool_is_short(host):
    stuck_readers(host, 50)
    queue = MemoryQueue(host, 99)
    subscription = Subscription(99, "quick", [queue], SubscriptionOptions(), host)
    quick = consume(subscription, name="quick", settles=True)
    queue.fill(30)
    subscription.arrived(99)
    host.run()
    assert quick.offsets == list(range(30))


def test_those_who_stopped_go_on_when_the_others_are_gone(host):
    receivers = stuck_readers(host, 50)
    last = receivers[-1]
    assert last.offsets == [0]
    assert last.consumer.available_messages() == 0
    for taker in receivers[:-1]:
        taker.subscription.detach(taker.consumer)
    host.run()
    assert last.offsets == list(range(10))
    last.subscription.close("deleted")
    assert host.unsent_pool.bytes == 0


def test_the_socket_that_took_everything_lets_its_consumer_go_on(host):
    receivers = stuck_readers(host, 50)
    last = receivers[-1]
    last.consumer.sent(1, last.deliveries[0].size)
    host.run()
    assert last.offsets == [0, 1]


def test_a_cancelled_consumer_with_nothing_in_flight_weighs_nothing(host):
    (taker,) = stuck_readers(host, 1)
    taker.settle(*taker.deliveries)
    taker.subscription.cancel(taker.consumer)
    assert host.unsent_pool.bytes == 0


# ---- pending ------------------------------------------------------------------------------------
# In-flight entries: found by any offset they cover, and by their deadline.


def test_a_batch_is_found_by_every_offset_it_covers():
    pending = PendingEntries()
    pending.add(10, PendingEntry(1, 100, 0, 4, 4))
    pending.add(14, PendingEntry(1, 100))
    assert [pending.first_offset(at) for at in range(9, 16)] == [None, 10, 10, 10, 10, 14, None]
    assert pending.messages == 5


def test_popping_a_batch_forgets_its_offsets():
    pending = PendingEntries()
    pending.add(0, PendingEntry(1, 100, 0, 3, 3))
    pending.add(3, PendingEntry(2, 100, 0, 3, 3))
    pending.pop(0)
    assert pending.first_offset(1) is None
    assert pending.first_offset(4) == 3
    assert pending.pop(7) is None
    assert pending.messages == 3


def test_a_batch_shrinks_as_its_messages_are_settled():
    pending = PendingEntries()
    held = PendingEntry(1, 100, 0, 3, 3)
    pending.add(0, held)
    pending.shrink(held, 2)
    assert (held.messages, pending.messages, held.span) == (1, 1, 3)


def test_moving_one_deadline_leaves_others_that_share_an_entry_alone():
    pending = PendingEntries()
    pending.spill().update(dict.fromkeys((1, 2), PendingEntry(1, 100)))
    pending.extend(1, 300)
    assert (pending.overdue(300), pending.spill()[2].deadline_ms) == ([1], 0)


def test_an_entry_is_overdue_once_its_deadline_has_come_and_not_before():
    pending = PendingEntries()
    pending.add(5, PendingEntry(1, 100, deadline_ms=300))
    pending.add(6, PendingEntry(1, 100, deadline_ms=200))
    pending.add(7, PendingEntry(1, 100))
    assert pending.next_deadline_ms() == 200
    assert pending.overdue(199) == []
    assert pending.overdue(300) == [6, 5]


def test_a_moved_deadline_counts_and_the_old_one_does_not():
    pending = PendingEntries()
    pending.add(5, PendingEntry(1, 100, deadline_ms=100))
    assert pending.extend(5, 500)
    assert pending.overdue(100) == []
    assert pending.next_deadline_ms() == 500
    assert pending.extend(5, 0)
    assert pending.next_deadline_ms() is None
    assert not pending.extend(99, 500)


def test_the_deadline_of_a_settled_entry_is_forgotten():
    pending = PendingEntries()
    pending.add(5, PendingEntry(1, 100, deadline_ms=100))
    pending.pop(5)
    assert pending.next_deadline_ms() is None
    assert pending.overdue(1000) == []


def test_deadlines_moved_again_and_again_do_not_pile_up():
    pending = PendingEntries()
    pending.add(5, PendingEntry(1, 100, deadline_ms=100))
    for step in range(10_000):
        pending.extend(5, 200 + step)
    assert len(pending.deadlines) <= 2 + STALE_DEADLINES_MIN + 1
    assert pending.next_deadline_ms() == 10_199


def test_single_messages_of_one_size_share_an_entry_and_others_do_not():
    pending = PendingEntries()
    pending.add_run(7, 3, [100, 100, 100])
    pending.add_run(7, 6, [100, 90, 100])
    assert [pending.spill()[at].size for at in range(3, 9)] == [100, 100, 100, 100, 90, 100]
    assert pending.spill()[3] is pending.spill()[5]
    assert {held.consumer_id for held in pending.spill().values()} == {7}


def test_runs_are_taken_from_their_beginning_across_consumers():
    pending = PendingEntries()
    pending.add_run(7, 3, [10, 20, 30])
    pending.add_run(8, 6, [1, 2, 3])
    assert pending.take_run([3]) == [(7, 1, 10)]
    assert pending.take_run([4, 5, 6, 7]) == [(7, 2, 50), (8, 2, 3)]
    assert pending.messages == 1
    assert list(pending.spill()) == [8]
    assert pending.spill()[8].consumer_id == 8


@pytest.mark.parametrize("offsets", [[], [4], [3, 5], [3, 4, 4, 5, 6], [5, 4, 3], [3, 4, 5, 6, 7]])
def test_anything_else_takes_nothing_out_of_a_run(offsets):
    pending = PendingEntries()
    pending.add_run(7, 3, [10, 20, 30, 40])
    assert pending.take_run(offsets) is None
    assert pending.messages == 4
    assert list(pending.spill()) == [3, 4, 5, 6]


def test_what_is_left_of_a_run_is_found_like_any_entry():
    pending = PendingEntries()
    pending.add_run(7, 3, [10, 20, 30])
    pending.take_run([3])
    pending.add(6, PendingEntry(9, 5, messages=2, span=2))
    assert [pending.first_offset(at) for at in range(3, 9)] == [None, 4, 5, 6, 6, None]
    assert pending.pop(5) == PendingEntry(7, 30)
    assert pending.messages == 3
    assert pending.take_run([4]) is None, "it is an entry by now"


def test_runs_have_no_deadline():
    pending = PendingEntries()
    pending.add_run(7, 3, [10, 20])
    assert pending.next_deadline_ms() is None
    assert pending.extend(4, 50)
    assert pending.next_deadline_ms() == 50
    assert pending.overdue(50) == [4]
