"""The way out: demand decides how much, the cursor what, the round who; one list per consumer."""

import pytest

from kit.queues import MemoryHost, MemoryQueue, consume
from kit.workbench import Workbench
from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.subscription.consumer import Consumer
from penstock.engine.subscription.dispatch import DispatchBudget
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import ChannelWindow, Permits, Window
from penstock.model.record import Record, Shape, neutral_record
from penstock.settings.flow import FlowSettings
from penstock.testing.outlet import RecordingOutlet


@pytest.fixture
def host():
    return MemoryHost()


@pytest.fixture
def queue(host):
    return MemoryQueue(host)


def subscribe(host, *queues, **options):
    return Subscription(1, "s", queues, SubscriptionOptions(**options), host)


def publish(host, subscription, queue, count):
    queue.fill(count)
    subscription.arrived(queue.queue_id)
    host.run()


def test_a_round_gives_a_consumer_everything_in_one_list(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(0), name="c")
    publish(host, subscription, queue, 50)
    assert [len(each) for each in taker.lists] == [50]
    assert taker.offsets == list(range(50))
    first = taker.deliveries[0]
    assert (first.record.body, first.attempts, first.is_redelivered) == (b"0", 0, False)


def test_a_window_is_never_passed_and_opens_with_each_settlement(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(3), name="c")
    publish(host, subscription, queue, 10)
    assert taker.offsets == [0, 1, 2]
    taker.settle(taker.deliveries[1])
    host.run()
    assert taker.offsets == [0, 1, 2, 3]


def test_a_window_shared_by_a_channel_counts_all_its_consumers(host, queue):
    other = MemoryQueue(host, 2)
    first, second = (
        subscribe(host, queue),
        Subscription(2, "t", [other], SubscriptionOptions(), host),
    )
    channel = ChannelWindow(4)
    one = consume(first, Window(0, channel), name="one")
    two = consume(second, Window(0, channel), name="two")
    publish(host, first, queue, 3)
    publish(host, second, other, 3)
    assert (one.offsets, two.offsets) == ([0, 1, 2], [0])
    one.settle(*one.deliveries)
    host.run()
    assert two.offsets == [0, 1, 2]


def test_permits_are_spent_per_message_and_a_batch_is_never_split(host, queue):
    subscription = subscribe(host, queue, mode=Mode.EXCLUSIVE)
    permits = Permits()
    taker = consume(subscription, permits, name="c")
    queue.append(Record(b"x", Shape(messages=4)) for _ in range(3))
    subscription.arrived(1)
    host.run()
    assert taker.offsets == []
    permits.add(5)
    host.run()
    assert taker.offsets == [0, 4]
    assert permits.permits == -3
    permits.add(3)
    host.run()
    assert taker.offsets == [0, 4]
    permits.add(1)
    host.run()
    assert taker.offsets == [0, 4, 8]


def test_settling_gives_no_permits_back(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Permits(2), settles=True, name="c")
    publish(host, subscription, queue, 5)
    assert taker.offsets == [0, 1]


def test_a_consumer_stops_at_its_unsettled_messages_and_goes_on_at_half(queue):
    host = MemoryHost(flow=FlowSettings(unacked_consumer_max=10))
    queue = MemoryQueue(host)
    subscription = subscribe(host, queue)
    taker = consume(subscription, name="c")
    publish(host, subscription, queue, 30)
    assert len(taker.offsets) == 10
    assert taker.consumer.blocked_by() == ("unsettled",)
    taker.settle(*taker.deliveries[:4])
    host.run()
    assert len(taker.offsets) == 10
    taker.settle(taker.deliveries[4])
    host.run()
    assert len(taker.offsets) == 15


def test_permits_granted_to_a_blocked_consumer_are_kept_aside(queue):
    host = MemoryHost(flow=FlowSettings(unacked_consumer_max=4))
    queue = MemoryQueue(host)
    subscription = subscribe(host, queue)
    permits = Permits(4)
    taker = consume(subscription, permits, name="c")
    publish(host, subscription, queue, 9)
    permits.add(2)
    assert (permits.aside, permits.permits) == (2, 0)
    taker.settle(*taker.deliveries)
    host.run()
    assert taker.offsets == [0, 1, 2, 3, 4, 5]


def test_a_consumer_stops_at_its_unsettled_bytes(queue):
    host = MemoryHost(flow=FlowSettings(unacked_consumer_bytes_max=1000))
    queue = MemoryQueue(host)
    subscription = subscribe(host, queue)
    taker = consume(subscription, name="c")
    queue.append(neutral_record(b"x" * 312) for _ in range(9))
    subscription.arrived(1)
    host.run()
    # 400 bytes each in the log; the one that crosses the line still goes.
    assert taker.offsets == [0, 1, 2]
    taker.settle(taker.deliveries[0])
    host.run()
    assert len(taker.offsets) == 3, "800 bytes are more than half"
    taker.settle(taker.deliveries[1])
    host.run()
    assert len(taker.offsets) == 5


def test_at_the_subscriptions_limit_only_what_was_delivered_before_goes_out(queue):
    host = MemoryHost(flow=FlowSettings(unacked_subscription_max=4))
    queue = MemoryQueue(host)
    subscription = subscribe(host, queue)
    taker = consume(subscription, name="c")
    queue.fill(2)
    host.run()
    queue.fill(4)
    subscription.arrived(1)
    host.run(2)
    assert taker.offsets == [0, 1, 2, 3]
    subscription.requeue(1, [1])
    host.run()
    assert taker.offsets == [0, 1, 2, 3, 1]
    assert subscription.statistics().is_blocked
    subscription.settle(1, [0, 2])
    host.run()
    assert taker.offsets[5:] == [4, 5]


def test_a_socket_that_takes_nothing_stops_its_consumer_until_it_does(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, name="c", unsent=UnsentLimit(5, 0))
    taker.reads = False
    publish(host, subscription, queue, 20)
    assert len(taker.offsets) == 5
    assert taker.consumer.blocked_by() == ("unsent",)
    taker.consumer.sent(2, sum(each.size for each in taker.deliveries[:2]))
    host.run()
    assert len(taker.offsets) == 5
    taker.consumer.sent(1, taker.deliveries[2].size)
    host.run()
    assert len(taker.offsets) == 8


def test_only_durable_messages_are_seen_unless_the_subscription_may_see_more(host, queue):
    careful = subscribe(host, queue)
    eager = Subscription(2, "e", [queue], SubscriptionOptions(sees_unsynced=True), host)
    one, two = consume(careful, name="one"), consume(eager, name="two")
    queue.append([neutral_record(b"a"), neutral_record(b"b")], is_synced=False)
    for subscription in (careful, eager):
        subscription.arrived(1)
    host.run()
    assert (one.offsets, two.offsets) == ([], [0, 1])
    queue.sync()
    careful.arrived(1)
    host.run()
    assert one.offsets == [0, 1]


def test_handing_over_settles_for_a_consumer_that_does_not_acknowledge(host, queue):
    subscription = subscribe(host, queue)
    taker = consume(subscription, Window(2), name="c", is_auto_settled=True)
    publish(host, subscription, queue, 7)
    assert taker.offsets == list(range(7))
    assert subscription.low_mark(1) == 7
    assert subscription.unacked(1) == 0


def test_several_queues_are_served_in_turn(host, queue):
    other = MemoryQueue(host, 2)
    subscription = subscribe(host, queue, other)
    queue.fill(250)
    other.fill(250)
    taker = consume(subscription, Window(0), name="c", unsent=UnsentLimit(0, 0))
    subscription.dispatch(300)
    by_queue = [delivery.queue_id for delivery in taker.deliveries]
    assert (by_queue.count(1), by_queue.count(2)) == (200, 100)
    assert len(taker.lists) == 1, "one call, also for several queues"
    subscription.dispatch(300)
    by_queue = [delivery.queue_id for delivery in taker.deliveries]
    assert (by_queue.count(1), by_queue.count(2)) == (250, 250)


def test_of_priorities_the_highest_that_has_anything_goes_first(host):
    low, high = MemoryQueue(host, 1), MemoryQueue(host, 2)
    subscription = subscribe(host, low, high, is_priority=True)
    window = Window(1)
    taker = consume(subscription, window, settles=True, name="c")
    low.fill(2)
    high.fill(2)
    for queue in (low, high):
        subscription.arrived(queue.queue_id)
    host.run()
    assert [delivery.queue_id for delivery in taker.deliveries] == [2, 2, 1, 1]


def test_a_round_that_ran_out_of_budget_asks_for_another(host, queue):
    subscription = subscribe(host, queue)
    consume(subscription, settles=True, name="c")
    queue.fill(10)
    host.awake.clear()
    assert subscription.dispatch(4) == 4
    assert subscription in host.awake


def test_a_consumer_of_one_queue_gets_nothing_of_the_others(host, queue):
    other = MemoryQueue(host, 2)
    subscription = subscribe(host, queue, other, mode=Mode.EXCLUSIVE)
    one = consume(subscription, name="one", queue_ids=[1])
    two = consume(subscription, name="two", queue_ids=[2])
    publish(host, subscription, queue, 2)
    publish(host, subscription, other, 3)
    assert (one.offsets, two.offsets) == ([0, 1], [0, 1, 2])


def test_taking_by_hand_ignores_demand_but_counts_as_in_flight(host, queue):
    subscription = subscribe(host, queue)
    queue.fill(5)
    taker = consume(subscription, Window(1), name="get", is_passive=True)
    host.run()
    assert taker.offsets == []
    taken = subscription.take(taker.consumer, 3)
    assert [delivery.offset for delivery in taken] == [0, 1, 2]
    assert subscription.unacked(1) == 3
    subscription.detach(taker.consumer)
    assert subscription.ready(1) == 5


# ---- deal ---------------------------------------------------------------------------------------
# Dealing out: what consumers have a limit for together is counted once.


class Scene:
    """A queue with messages and a reader without consumers."""

    def __init__(self, messages: int) -> None:
        self.bench = Workbench()
        self.topic = self.bench.topic()
        self.reader: Subscription = self.bench.reader(self.topic)
        self.outlet = RecordingOutlet()
        bodies = [b"%d" % number for number in range(messages)]
        self.bench.publish(self.bench.channel(), self.topic, *bodies)

    def join(self, window: Window, unsent: UnsentLimit | None = None) -> Consumer:
        consumer = self.reader.attach(
            self.outlet, window, name=f"c{len(self.reader.consumers)}", unsent=unsent
        )
        assert isinstance(consumer, Consumer)
        return consumer


def test_a_window_that_is_shared_counts_once() -> None:
    scene = Scene(50)
    shared = ChannelWindow(5)
    consumers = [scene.join(Window(0, shared)) for _ in range(3)]
    assert DispatchBudget(consumers).total()[0] == 5
    scene.bench.settle()
    assert sum(each.inflight.messages for each in consumers) == 5
    # And everybody had their turn.
    assert all(each.inflight.messages for each in consumers)


def test_a_total_takes_nothing_and_separate_sockets_add_up() -> None:
    scene = Scene(0)
    budget = DispatchBudget([scene.join(Window(7), UnsentLimit(5, 0)), scene.join(Window(3))])
    assert budget.total()[0] == budget.total()[0] == 8
    assert [budget.left(0)[0], budget.left(1)[0]] == [5, 3]
    assert budget.has_for_each(3, 0)
    assert not budget.has_for_each(4, 0)


def test_windows_inside_the_shared_one_count_too() -> None:
    scene = Scene(50)
    shared = ChannelWindow(10)
    small, large = scene.join(Window(2, shared)), scene.join(Window(20, shared))
    scene.bench.settle()
    assert (small.inflight.messages, large.inflight.messages) == (2, 8)


def test_one_socket_is_one_backlog() -> None:
    scene = Scene(100)
    unsent = UnsentLimit(20, 0)
    ours = [scene.join(Window(), unsent) for _ in range(4)]
    scene.bench.settle()
    assert sum(each.inflight.messages for each in ours) == 20
    other = scene.join(Window(15))
    scene.bench.settle()
    assert other.inflight.messages == 15


def test_bytes_of_one_socket_are_counted_once() -> None:
    scene = Scene(100)
    unsent = UnsentLimit(0, 1000)
    ours = [scene.join(Window(), unsent) for _ in range(4)]
    assert DispatchBudget(ours).total()[1] == 1000
    scene.bench.settle()
    assert unsent.bytes < 1000 + 4 * 200
