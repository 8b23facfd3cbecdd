"""When a topic that nobody uses goes."""

from penstock.engine.topic import TopicPolicy
from penstock.flow.demand import Window
from penstock.testing.workbench import Workbench


def expiring(bench, name="t", expires_ms=1000):
    return bench.topic(name, TopicPolicy(expires_ms=expires_ms))


def test_time_counts_from_the_last_touch():
    bench = Workbench()
    topic = expiring(bench)
    for _ in range(3):
        bench.advance(900)
        topic.touch(bench.clock.monotonic_ms())
    assert not topic.is_deleted
    bench.advance(1001)
    assert topic.is_deleted


def test_time_counts_from_the_moment_the_last_consumer_left():
    bench = Workbench()
    topic = expiring(bench)
    reader = bench.reader(topic)
    consumers = [reader.attach(bench.outlet, Window(1), name=name) for name in "ab"]
    bench.advance(5300)
    reader.detach(consumers[0])
    bench.advance(5300)
    reader.detach(consumers[1])
    bench.advance(999)
    assert not topic.is_deleted
    bench.advance(2)
    assert topic.is_deleted


def test_a_policy_may_shorten_the_time_or_end_it():
    bench = Workbench()
    topic, other = expiring(bench, "a", 1_000_000), expiring(bench, "b")
    bench.engine.set_policy(topic.name, TopicPolicy(expires_ms=1000))
    bench.engine.set_policy(other.name, TopicPolicy())
    bench.advance(2000)
    assert topic.is_deleted
    assert not other.is_deleted


def test_topics_at_rest_ask_for_no_turn_before_their_time():
    bench = Workbench()
    for number in range(100):
        expiring(bench, f"t{number}", 10_000 + number)
    bench.settle()
    assert bench.engine.next_deadline_ms() > bench.clock.monotonic_ms()
    bench.advance(10_050)
    assert len(bench.engine.topics()) == 49


def test_a_deleted_topic_is_not_remembered():
    bench = Workbench()
    topic = expiring(bench)
    bench.engine.delete_topic(topic.name)
    again = expiring(bench, expires_ms=5000)
    bench.advance(1500)
    assert not again.is_deleted
