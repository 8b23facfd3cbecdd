"""Members of a group come and go, and every queue has one reader."""

import itertools
import threading
import time
from collections import Counter

import pytest

from penstock.client import Message, Producer, PushConsumer
from penstock.model.assignment import QueueRef, fixed

PERIOD_MS = 1_000
NAMES = itertools.count(1)


@pytest.fixture
def join(cluster, group):
    """Make a running member of the group; all are stopped at the end."""
    members = []

    def make(topic, listener=lambda message: None, at=cluster, **options):
        options = {
            "instance_name": f"member-{next(NAMES)}",
            "consume_from": "first",
            "rebalance_interval_ms": PERIOD_MS,
            "rebalance_spacing_ms": 100,
            "consume_threads": 2,
        } | options
        member = PushConsumer(at.name_server, group, listener, **options)
        member.subscribe(topic)
        member.start()
        members.append(member)
        return member

    yield make
    for member in members:
        member.stop()


def queues_of(members, topic):
    return [[queue.queue for queue in each.queues() if queue.topic == topic] for each in members]


def is_balanced(members, topic, count):
    owned = queues_of(members, topic)
    everything = sorted(itertools.chain(*owned))
    sizes = {len(each) for each in owned}
    return everything == list(range(count)) and max(sizes) - min(sizes) <= 1


def test_eight_members_joining_and_leaving_are_balanced_within_two_periods(
    cluster, unique, join, eventually
):
    topic = unique("topic")
    cluster.create_topic(topic, 16)
    members = [join(topic) for _ in range(8)]
    joined = time.monotonic()
    eventually(lambda: is_balanced(members, topic, 16), what="eight share sixteen queues")
    assert time.monotonic() - joined < 2 * PERIOD_MS / 1000
    leaving, staying = members[::2], members[1::2]
    for member in leaving:
        member.stop()
    left = time.monotonic()
    eventually(lambda: is_balanced(staying, topic, 16), what="four share sixteen queues")
    assert time.monotonic() - left < 2 * PERIOD_MS / 1000


def test_without_notices_the_timer_alone_balances_within_two_periods(
    cluster, topic, group, join, eventually
):
    cluster.create_group(group, notify_consumer_ids_changed_enable=False)
    members = [join(topic) for _ in range(3)]
    joined = time.monotonic()
    eventually(lambda: is_balanced(members, topic, 4), what="three share four queues")
    assert time.monotonic() - joined < 2 * PERIOD_MS / 1000


def test_nothing_is_lost_when_queues_change_hands(cluster, topic, join, eventually):
    seen = Counter()
    with Producer(cluster.name_server, "p") as producer:

        def send(start):
            for number in range(start, start + 40):
                producer.send(Message(topic, str(number).encode()))

        def listener(message):
            seen[int(message.body)] += 1

        first = join(topic, listener)
        send(0)
        second = join(topic, listener)
        send(40)
        eventually(lambda: is_balanced([first, second], topic, 4))
        first.stop()
        send(80)
        eventually(lambda: len(seen) == 120, what="all messages came")
        eventually(lambda: is_balanced([second], topic, 4))


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_named_strategies_give_every_queue_to_one_member(topic, join, eventually, strategy):
    members = [join(topic, strategy=strategy) for _ in range(2)]
    eventually(lambda: sorted(itertools.chain(*queues_of(members, topic))) == [0, 1, 2, 3])


def test_a_strategy_of_ones_own_and_a_fixed_list(cluster, topic, join, eventually):
    def odd_ones(me, queues, members):
        return [queue for queue in queues if queue.queue % 2]

    member = join(topic, strategy=odd_ones)
    eventually(lambda: queues_of([member], topic) == [[1, 3]])
    broker = member.queues()[0].broker
    member.stop()
    other = join(topic, strategy=fixed([QueueRef(topic, broker, 2)]))
    eventually(lambda: queues_of([other], topic) == [[2]])


def test_broadcasting_members_read_every_queue(tmp_path, topic, join, eventually):
    options = {"is_broadcasting": True, "offsets_directory": str(tmp_path)}
    members = [join(topic, **options) for _ in range(2)]
    eventually(lambda: queues_of(members, topic) == [[0, 1, 2, 3]] * 2)


def test_the_queue_listener_hears_of_every_change(topic, join, eventually):
    heard = []

    def changed(topic, queues, mine):
        heard.append((topic, len(queues), len(mine)))

    member = join(topic, queue_listener=changed)
    eventually(lambda: (topic, 4, 4) in heard)
    join(topic)
    eventually(lambda: (topic, 4, 2) in heard)
    member.unsubscribe(topic)
    assert queues_of([member], topic) == [[]]


def test_a_paused_member_keeps_its_queues_and_resumes(cluster, topic, join, eventually):
    seen = []
    member = join(topic, lambda message: seen.append(message.body))
    eventually(lambda: queues_of([member], topic) == [[0, 1, 2, 3]])
    member.pause()
    member.resume()
    with Producer(cluster.name_server, "p") as producer:
        producer.send(Message(topic, b"after"))
    eventually(lambda: seen == [b"after"])


def test_a_broker_that_is_away_takes_no_queues_from_its_members(
    own_cluster, unique, join, eventually
):
    topic = unique("topic")
    own_cluster.create_topic(topic, 4)
    seen, told = [], threading.Event()

    def listener(message):
        seen.append(message.body)
        told.set()

    member = join(topic, listener, at=own_cluster, rebalance_interval_ms=100)
    eventually(lambda: queues_of([member], topic) == [[0, 1, 2, 3]])
    own_cluster.kill()
    # Several rounds that cannot learn who the members are.
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        assert queues_of([member], topic) == [[0, 1, 2, 3]]
    own_cluster.start()
    with own_cluster.connect() as client:
        assert client.send(topic, b"back").is_ok
    assert told.wait(20)
    eventually(lambda: queues_of([member], topic) == [[0, 1, 2, 3]])
