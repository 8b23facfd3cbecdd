"""One walk over everything that counts, in slices, and the two samples that are kept."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.sampler import (
    FORGET_SWEEPS,
    PAUSE_MS,
    SLICE_OBJECTS,
    WINDOW_MS,
    Ranking,
    Sampler,
    Samples,
    Stamps,
)

FIELDS = ("messages", "publish")


def noted(*samples):
    """A table of what ``q`` had at these times."""
    table = Samples(FIELDS)
    for at_ms, *figures in samples:
        table.note("q", tuple(figures), at_ms)
    return table


def test_a_rate_is_what_was_added_between_the_last_two_samples_whoever_looks():
    table = noted((0, 0, 100))
    assert table.per_second("q") is None, "one sample says nothing"
    table.note("q", (0, 600), 2_000)
    for _ in range(3):
        assert table.per_second("q") == {"messages": 0.0, "publish": 250.0}


def test_what_does_not_move_has_no_rate_from_its_next_sample_on():
    table = noted((0, 0, 100), (2_000, 0, 600), (12_000, 0, 600))
    assert table.per_second("q") == {"messages": 0.0, "publish": 0.0}
    table.note("q", (0, 600), 17_000)
    assert table.per_second("q") == {"messages": 0.0, "publish": 0.0}


def test_what_moves_again_after_it_was_passed_over_has_the_rate_of_its_last_window_alone():
    table = noted((0, 0, 0), (5_000, 0, 0))
    table.window_ms = WINDOW_MS
    table.note("q", (0, 50), 105_000)
    assert table.per_second("q") == {"messages": 0.0, "publish": 10.0}


def test_a_level_falls_and_a_counter_that_begins_anew_does_not():
    assert noted((0, 100, 100), (1_000, 50, 5)).per_second("q") == {
        "messages": -50.0,
        "publish": 0.0,
    }
    table = Samples(("total",))
    table.note("q", (100,), 0)
    table.note("q", (5,), 1_000)
    assert table.rate("q") == 0.0


def test_two_samples_at_one_moment_are_one():
    assert noted((5, 1, 1), (5, 2, 2)).per_second("q") is None


def test_memory_is_bounded_and_packed():
    table = Samples(FIELDS, objects_max=10)
    for now_ms in (0, 1_000):
        for number in range(20):
            table.note(number, (0, now_ms), now_ms)
    assert len(table) == 10
    assert table.per_second(15) is None
    assert table.size_bytes == 10 * 2 * len(FIELDS) * 8


def test_what_is_dropped_is_forgotten_and_its_place_taken_by_another():
    table = Samples(FIELDS)
    for key in "ab":
        table.note(key, (0, 0), 0)
    table.drop("a")
    table.note("c", (0, 0), 5_000)
    table.note("c", (0, 5_000), 10_000)
    assert table.per_second("a") is None
    assert table.per_second("c") == {"messages": 0.0, "publish": 1_000.0}
    assert table.size_bytes == 2 * 2 * len(FIELDS) * 8


def test_an_object_is_moved_while_its_stamp_changes_and_once_more():
    stamps = Stamps()
    assert [stamps.is_moved("q", each) for each in (1, 1, 1, 2, 3, 3, 3)] == [
        True, True, False, True, True, True, False,
    ]  # fmt: skip
    stamps.drop("q")
    assert stamps.is_moved("q", 3)


def test_a_sum_follows_what_moves_and_what_goes():
    table, total = Samples(FIELDS), [0, 0]
    table.note("a", (3, 10), 0, total)
    table.note("b", (4, 20), 0, total)
    table.note("a", (1, 15), 1_000, total)
    assert total == [5, 35]
    table.drop("b")
    table.drop("b")
    assert total == [1, 15]


def test_the_busiest_are_ranked_when_a_sweep_is_over():
    ranking = Ranking(2)
    for key, per_s in (("a", 1.0), ("b", 0.0), ("c", 5.0), ("d", 3.0)):
        ranking.offer(key, per_s)
    assert not ranking.shown
    ranking.close()
    assert list(ranking.shown.items()) == [("c", 5.0), ("d", 3.0)]
    ranking.close()
    assert not ranking.shown


# ---- the walk -----------------------------------------------------------------------------------


@pytest.mark.parametrize("objects", [0, 1, SLICE_OBJECTS, 10 * SLICE_OBJECTS + 1])
def test_a_sweep_looks_at_no_more_than_a_slice_at_a_time(objects):
    sampler, looked, slices = Sampler(0), [], []

    def walk():
        for number in range(objects):
            looked.append(number)
            yield 1

    sampler.add(walk)
    while not sampler.sweeps:
        before, now_ms = len(looked), sampler.next_deadline_ms()
        sampler.due(now_ms)
        slices.append(len(looked) - before)
        assert sampler.next_deadline_ms() - now_ms in (PAUSE_MS, WINDOW_MS) or sampler.sweeps
    assert max(slices) <= SLICE_OBJECTS
    assert len(looked) == objects
    assert sampler.next_deadline_ms() == max(WINDOW_MS, now_ms + PAUSE_MS)


def swept(bench):
    """A window passes, with one sweep in it."""
    sampler = bench.engine.sampler
    bench.advance(max(0, sampler.next_deadline_ms() - bench.clock.monotonic_ms()))
    sweeps = sampler.sweeps
    while sampler.sweeps == sweeps:
        sampler.due(bench.clock.monotonic_ms())


def test_every_hop_has_its_exact_rate():
    bench = Workbench()
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"first")
    bench.settle()
    swept(bench)
    bench.publish(channel, topic, *[b"x"] * 50)
    bench.settle()
    swept(bench)
    rates, (queue,) = bench.engine.hop_rates, topic.queues
    found = (
        rates.connection(channel.connection),
        rates.channel(channel),
        rates.hop(channel, queue),
        rates.queue(queue),
        rates.log,
    )
    assert found == (10.0,) * 5
    assert list(rates.busy_queues.shown.items()) == [(queue.queue_id, 10.0)]
    assert list(rates.busy_connections.shown) == [channel.connection.connection_id]


def test_a_reader_has_the_rate_of_what_it_settles():
    bench = Workbench()
    topic, channel = bench.topic(), bench.channel()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    bench.publish(channel, topic, *[b"x"] * 10)
    bench.settle()
    swept(bench)
    subscription.settle_upto(topic.queues[0].queue_id, 10)
    bench.settle()
    swept(bench)
    assert bench.engine.hop_rates.subscription(subscription) == 2.0
    assert subscription.subscription_id in bench.engine.hop_rates.busy_subscriptions.shown


def test_what_is_gone_has_no_rate_and_takes_no_place():
    bench = Workbench()
    topic, channel = bench.topic(), bench.channel()
    (queue,) = topic.queues
    bench.publish(channel, topic, b"x")
    bench.settle()
    swept(bench)
    channel.connection.close()
    bench.engine.delete_topic(topic.name)
    bench.settle()
    for _ in range(FORGET_SWEEPS):
        swept(bench)
    rates = bench.engine.hop_rates
    assert (rates.queue(queue), rates.channel(channel)) == (0.0, 0.0)
    kept = [key for each, _ in bench.engine.sampler._kept for key in each.known()]
    assert kept == ["log"]


def test_what_stands_still_is_passed_over_by_its_stamp():
    bench, looked = Workbench(), []

    class Look:
        def stamp(self, topic):
            return 0

        def look(self, topic):
            looked.append(str(topic.name))

    bench.engine.hop_rates.looks.append(Look())
    topics = [bench.topic(f"t{number}") for number in range(20)]
    for _ in range(2):
        swept(bench)
    assert len(looked) == 2 * 20, "when it is new, and once more"
    looked.clear()
    swept(bench)
    assert not looked
    bench.publish(bench.channel(), topics[7], b"x")
    bench.settle()
    for _ in range(3):
        swept(bench)
    assert looked == ["t7", "t7"]


def test_a_topic_with_a_thousand_subscriptions_is_looked_at_one_after_the_other():
    bench = Workbench()
    topic = bench.topic()
    for number in range(1_000):
        bench.engine.create_subscription(topic.name, f"s{number}", SubscriptionOptions())
    bench.publish(bench.channel(), topic, b"x")
    bench.settle()
    steps = list(bench.engine.hop_rates._walk_topics())
    assert max(steps) <= SLICE_OBJECTS
    assert sum(steps) >= 2_000, "the stamp of each, and each"
