"""A batch read by whoever does not take it whole: message by message, in everything."""

import pytest

from kit.batches import batch, numbered
from kit.queues import MemoryHost, MemoryQueue, consume
from penstock.engine.filter.filters import tag_filter
from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.subscription.subscription import PopLimits, Subscription
from penstock.flow.demand import Unlimited, Window
from penstock.model.record import neutral_record
from penstock.model.settlement import Cause


@pytest.fixture
def host():
    return MemoryHost()


@pytest.fixture
def queue(host):
    return MemoryQueue(host)


def subscribe(host, queue, **options):
    return Subscription(1, "s", [queue], SubscriptionOptions(**options), host)


def bodies(taker):
    return [delivery.record.body for delivery in taker.deliveries]


def texts(start, end):
    return [b"%d" % number for number in range(start, end)]


@pytest.mark.parametrize("count", [1, 3, 1_000])
def test_a_batch_of_any_size_is_so_many_deliveries(host, queue, count):
    subscription = subscribe(host, queue)
    taker = consume(subscription, settles=True, name="c")
    queue.append([neutral_record(b"before"), batch(*numbered(count)), neutral_record(b"after")])
    subscription.arrived(1)
    host.run()
    assert bodies(taker) == [b"before", *texts(0, count), b"after"]
    assert taker.offsets == list(range(count + 2))
    assert {each.messages for each in taker.deliveries} == {1}
    assert subscription.low_mark(1) == count + 2


def test_who_takes_batches_whole_gets_one_delivery(host, queue):
    subscription = subscribe(host, queue, whole_batches=True)
    taker = consume(subscription, Window(1), name="c")
    queue.append([batch(*numbered(3))])
    subscription.arrived(1)
    host.run()
    ((delivery,),) = taker.lists
    assert (delivery.offset, delivery.messages, delivery.record.messages) == (0, 3, 3)


def test_a_window_of_one_gets_one_message_at_a_time(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(1), name="c")
    queue.append([batch(*numbered(3)), batch(*numbered(2, 3))])
    subscription.arrived(1)
    for number in range(5):
        host.run()
        assert bodies(taker) == texts(0, number + 1)
        assert subscription.ready(1) == 4 - number
        subscription.settle(1, [number])
    assert subscription.low_mark(1) == 5
    assert sum(each.size for each in taker.deliveries) == sum(e[4] for e in queue.index.all)


def test_one_of_a_batch_comes_back_in_its_place_counted(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(4), name="c")
    queue.append([batch(*numbered(6))])
    subscription.arrived(1)
    host.run()
    subscription.settle(1, [0, 2])
    subscription.requeue(1, [1])
    host.run()
    again = taker.deliveries[4:]
    assert [(each.offset, each.attempts, each.record.body) for each in again] == [
        (1, 1, b"1"), (4, 0, b"4"), (5, 0, b"5"),
    ]  # fmt: skip


def test_many_of_several_batches_come_back_in_order(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(500), name="c")
    queue.append([batch(*numbered(100, start)) for start in range(0, 500, 100)])
    subscription.arrived(1)
    host.run()
    subscription.detach(taker.consumer)
    other = consume(subscription, settles=True, name="d")
    host.run()
    assert bodies(other) == texts(0, 500)
    assert all(each.is_redelivered for each in other.deliveries)


def test_one_of_a_batch_is_rejected_and_becomes_one_dead_letter(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(3), name="c")
    queue.append([batch(*numbered(3))])
    subscription.arrived(1)
    host.run()
    assert taker.offsets == [0, 1, 2]
    subscription.reject(1, [1])
    (burial,) = host.burials
    assert (burial.offset, burial.record.body, burial.cause) == (1, b"1", Cause.REJECTED)
    assert subscription.unacked(1) == 2
    subscription.settle(1, [0, 2])
    assert subscription.low_mark(1) == 3


def test_one_of_a_batch_that_came_back_too_often_is_a_dead_letter(host, queue):
    subscription = subscribe(host, queue, delivery_limit=1)
    consume(subscription, Window(3), name="c")
    queue.append([batch(*numbered(3))])
    subscription.arrived(1)
    host.run()
    for _ in range(2):
        subscription.requeue(1, [2])
        host.run()
    (burial,) = host.burials
    assert (burial.record.body, burial.attempts) == (b"2", 2)


def test_the_oldest_of_a_batch_make_room(host, queue):
    subscription = subscribe(host, queue)
    queue.append([batch(*numbered(5))])
    assert subscription.drop_head(1, 2) == 2
    assert [each.record.body for each in host.burials] == texts(0, 2)
    taker = consume(subscription, name="c")
    host.run()
    assert bodies(taker) == texts(2, 5)


def test_messages_of_a_batch_expire_one_by_one(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(1), name="c")
    queue.append([batch(*numbered(3), expire_ms=host.clock.wall_ms() + 100)])
    subscription.arrived(1)
    host.run()
    assert bodies(taker) == [b"0"]
    host.clock.advance(200)
    subscription.due(host.clock.monotonic_ms())
    host.run()
    assert [(each.offset, each.record.body) for each in host.burials] == [(1, b"1"), (2, b"2")]
    assert subscription.unacked(1) == 1


def test_a_filter_sees_the_tags_inside(host, queue):
    subscription = subscribe(host, queue, filter=tag_filter("odd"))
    taker = consume(subscription, settles=True, name="c")
    queue.append([batch(*numbered(5)), neutral_record(b"x", tag=b"even")])
    queue.append([neutral_record(b"y", tag=b"odd")])
    subscription.arrived(1)
    host.run()
    assert bodies(taker) == [b"1", b"3", b"y"]
    assert subscription.low_mark(1) == 7


def test_a_pop_takes_some_of_a_batch_and_one_of_them_times_out(host, queue):
    subscription = subscribe(host, queue)
    popper = subscription.attach(None, Unlimited(), name="p", is_passive=True)
    queue.append([batch(*numbered(4))])
    popped = subscription.pop(popper, 1, PopLimits(3, 1 << 20, 1_000))
    assert [each.record.body for each in popped] == texts(0, 3)
    subscription.settle(1, [0, 2])
    host.clock.advance(1_001)
    subscription.due(host.clock.monotonic_ms())
    popped = subscription.pop(popper, 1, PopLimits(9, 1 << 20, 1_000))
    assert [(each.record.body, each.attempts) for each in popped] == [(b"1", 1), (b"3", 0)]


def test_one_of_a_batch_moves_to_another_queue(host, queue):
    target = MemoryQueue(host, 2)
    subscription = subscribe(host, queue)
    consume(subscription, Window(3), name="c")
    queue.append([batch(*numbered(3))])
    subscription.arrived(1)
    host.run()
    seen = []

    def rewrite(record, unsettled, attempts):
        seen.append((record.body, unsettled))
        return [(neutral_record(record.body), target)]

    assert subscription.move(1, [1], rewrite) == 1
    assert seen == [(b"1", [1])]
    assert subscription.unacked(1) == 2


def test_keys_inside_a_batch_have_their_own_consumers(host, queue):
    subscription = subscribe(host, queue, mode=Mode.KEY_SHARED)
    takers = [consume(subscription, settles=True, name=f"c{number}") for number in range(3)]
    queue.append([batch(*numbered(30))])
    subscription.arrived(1)
    host.run()
    owners = [{each.record.key for each in taker.deliveries} for taker in takers]
    assert sorted(key for keys in owners for key in keys) == [b"k0", b"k1", b"k2"]
    assert subscription.low_mark(1) == 30


def test_a_cursor_may_be_set_into_the_midst_of_a_batch(host, queue):
    subscription = subscribe(host, queue)
    queue.append([batch(*numbered(5)), batch(*numbered(5, 5))])
    subscription.seek(1, 3)
    taker = consume(subscription, Window(4), name="c")
    host.run()
    assert bodies(taker) == texts(3, 7)
    subscription.seek(1, 8)
    host.run()
    assert bodies(taker)[4:] == texts(8, 10)


def test_what_cannot_be_opened_is_one_delivery_with_all_its_offsets(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(1), name="c")
    queue.append([batch(*numbered(3), is_encrypted=True), batch(*numbered(2))])
    subscription.arrived(1)
    host.run()
    ((delivery,),) = taker.lists
    assert (delivery.offset, delivery.messages, delivery.record.messages) == (0, 3, 3)
    subscription.requeue(1, [0])
    host.run()
    assert (taker.deliveries[-1].offset, taker.deliveries[-1].attempts) == (0, 1)
    subscription.reject(1, [0])
    (burial,) = host.burials
    assert (burial.offset, burial.record) == (0, delivery.record)
    host.run()
    assert taker.deliveries[-1].record.body == b"0"


def test_a_batch_that_can_no_longer_be_read_loses_what_was_not_delivered(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(2), name="c")
    queue.append([batch(*numbered(5)), neutral_record(b"x")])
    subscription.arrived(1)
    host.run()
    host.records[queue.index.all[0][0]] = None
    subscription.settle(1, [0])
    subscription.requeue(1, [1])
    host.run()
    assert bodies(taker) == [b"0", b"1", b"x"]
    assert subscription.statistics().lost == 4
    subscription.settle(1, [5])
    assert subscription.low_mark(1) == 6


def test_several_consumers_share_a_batch(host, queue):
    subscription = subscribe(host, queue)
    takers = [consume(subscription, Window(20), name=f"c{number}") for number in range(2)]
    queue.append([batch(*numbered(40))])
    subscription.arrived(1)
    host.run()
    assert [len(taker.deliveries) for taker in takers] == [20, 20]
    assert sorted(taker.offsets[0] for taker in takers)[0] == 0
