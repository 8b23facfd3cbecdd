"""Topic-level delay: stored at once, delivered at its time, through restarts and clock jumps."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.topic import TopicPolicy
from penstock.flow.demand import Window
from penstock.model.record import RecordFlag, neutral_record
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings
from penstock.testing.storage import FaultKind

HOUR_MS = 3_600_000


@pytest.fixture
def bench():
    return Workbench()


def delayed(bench, body, ms):
    record = neutral_record(body, tag=b"t")
    record.reshape(flags=record.flags | RecordFlag.DELAYED)
    record.reshape(deliver_ms=bench.clock.wall_ms() + ms)
    return record


def undecided(body):
    record = neutral_record(body)
    record.reshape(flags=record.flags | RecordFlag.DELAYED)
    return record


def again(bench, name="orders"):
    return next(topic for topic in bench.engine.topics() if topic.name.name == name)


def test_a_delayed_message_is_confirmed_at_once_and_gets_its_offset_when_due(bench):
    topic, channel = bench.topic(), bench.channel()
    tokens = bench.publish(channel, topic, delayed(bench, b"later", 5_000), b"now")
    bench.settle()
    assert sorted(bench.outlet.confirmed_tokens) == tokens
    assert bench.bodies(topic) == [b"now"]
    bench.advance(4_999)
    assert bench.bodies(topic) == [b"now"]
    bench.advance(1)
    assert bench.bodies(topic) == [b"now", b"later"]
    bench.advance(60_000)
    assert bench.bodies(topic) == [b"now", b"later"]


def test_a_delayed_message_wakes_its_consumers_when_it_is_due(bench):
    topic, channel = bench.topic(), bench.channel()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    subscription.attach(bench.outlet, Window(0), name="c")
    bench.publish(channel, topic, delayed(bench, b"later", 1_000))
    bench.settle()
    bench.advance(1_000)
    bench.settle()
    assert bench.outlet.bodies == [b"later"]


def test_a_time_that_has_passed_delays_nothing(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, delayed(bench, b"past", -1))
    bench.turns()
    assert bench.bodies(topic) == [b"past"]


def test_without_the_flag_a_deliver_time_is_left_to_the_subscriptions(bench):
    record = neutral_record(b"theirs")
    record.reshape(deliver_ms=bench.clock.wall_ms() + 1_000)
    topic = bench.topic()
    bench.publish(bench.channel(), topic, record)
    bench.turns()
    assert bench.bodies(topic) == [b"theirs"]


def test_a_topic_may_delay_every_message_that_has_a_deliver_time(bench):
    record = neutral_record(b"ours")
    record.reshape(deliver_ms=bench.clock.wall_ms() + 1_000)
    topic = bench.topic(policy=TopicPolicy(is_delaying=True))
    bench.publish(bench.channel(), topic, record)
    bench.settle()
    assert bench.bodies(topic) == []
    bench.advance(1_000)
    assert bench.bodies(topic) == [b"ours"]


@pytest.mark.parametrize("ms", [5_000, 2 * HOUR_MS])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_delay_survives_a_restart(bench, ms, end):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, delayed(bench, b"later", ms))
    bench.settle()
    getattr(bench, end)()
    topic = again(bench)
    assert bench.bodies(topic) == []
    bench.advance(ms)
    assert bench.bodies(topic) == [b"later"]


def test_a_release_survives_a_restart_and_is_not_repeated(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, delayed(bench, b"later", 1_000))
    bench.settle()
    bench.advance(1_000)
    bench.settle()
    bench.kill()
    bench.advance(10_000)
    assert bench.bodies(again(bench)) == [b"later"]


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 86_400_000, -86_400_000])
def test_a_jump_of_the_wall_clock_neither_frees_nor_keeps_what_is_armed(bench, jump_ms):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, delayed(bench, b"later", 10_000))
    bench.settle()
    bench.clock.jump_wall(jump_ms)
    bench.advance(9_999)
    assert bench.bodies(topic) == []
    bench.advance(1)
    assert bench.bodies(topic) == [b"later"]


def test_a_release_that_the_disk_refused_is_tried_again(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, delayed(bench, b"later", 500))
    bench.settle()
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    bench.advance(500)
    assert bench.bodies(topic) == []
    bench.advance(1_000)
    assert bench.bodies(topic) == [b"later"]


def test_many_delayed_messages_keep_only_a_bounded_number_in_memory():
    settings = Settings(topics=TopicSettings(delayed_in_memory_max=50))
    bench = Workbench(settings)
    topic, channel = bench.topic(), bench.channel()
    for second in range(1, 201):
        bench.publish(channel, topic, delayed(bench, b"%d" % second, second * 1_000))
        bench.settle()
        assert bench.engine.statistics().delayed <= 50
    for _ in range(220):
        bench.advance(1_000)
        bench.settle()
        assert bench.engine.statistics().delayed <= 50
    assert bench.bodies(topic) == [b"%d" % second for second in range(1, 201)]


def test_a_record_that_waits_for_a_decision_is_let_go_once(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, undecided(b"half"))
    bench.settle()
    position = bench.outlet.events[0].confirmations[0].position
    bench.advance(60_000)
    assert bench.bodies(topic) == []
    assert bench.engine.release(position)
    assert not bench.engine.release(position)
    bench.settle()
    assert bench.bodies(topic) == [b"half"]
    assert not bench.engine.release(position)


def test_a_record_that_waits_for_a_decision_may_be_dropped(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, undecided(b"half"))
    bench.settle()
    position = bench.outlet.events[0].confirmations[0].position
    assert bench.engine.cancel_delayed(position)
    bench.settle()
    bench.kill()
    assert not bench.engine.release(position)
    assert bench.bodies(again(bench)) == []


@pytest.mark.parametrize("wait_ms", [5_000, 2 * HOUR_MS])
def test_a_timed_record_may_be_dropped_before_its_time(bench, wait_ms):
    topic = bench.topic()
    bench.publish(
        bench.channel(), topic, delayed(bench, b"no", wait_ms), delayed(bench, b"yes", wait_ms)
    )
    bench.settle()
    position = bench.outlet.events[0].confirmations[0].position
    assert bench.engine.cancel_delayed(position)
    assert not bench.engine.cancel_delayed(position)
    bench.settle()
    assert not bench.engine.cancel_delayed(position)
    bench.kill()
    assert not bench.engine.cancel_delayed(position)
    bench.advance(wait_ms)
    bench.settle()
    assert bench.bodies(again(bench)) == [b"yes"]
    assert not bench.engine.cancel_delayed(position)


def test_a_far_record_that_is_dropped_while_its_hour_is_read_never_comes(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, delayed(bench, b"no", HOUR_MS))
    bench.settle()
    position = bench.outlet.events[0].confirmations[0].position
    bench.clock.advance(HOUR_MS - 1_000)
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    assert bench.engine.cancel_delayed(position)
    bench.settle()
    bench.advance(HOUR_MS)
    bench.settle()
    assert bench.bodies(topic) == []


def test_a_decision_may_come_after_a_restart(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, undecided(b"half"))
    bench.settle()
    position = bench.outlet.events[0].confirmations[0].position
    bench.kill()
    assert bench.engine.release(position)
    bench.settle()
    assert bench.bodies(again(bench)) == [b"half"]


def test_a_delayed_message_of_a_deleted_topic_is_forgotten(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, delayed(bench, b"later", 1_000))
    bench.settle()
    bench.engine.delete_topic(topic.name)
    bench.settle()
    bench.advance(5_000)
    bench.settle()
    assert bench.engine.statistics().delayed == 0


def test_a_record_that_waits_for_a_decision_may_be_let_go_elsewhere(bench):
    topic, other = bench.topic(), bench.topic("given-up", queues=2)
    bench.publish(bench.channel(), topic, undecided(b"half"))
    bench.settle()
    (position,) = bench.engine.undecided()
    assert bench.engine.is_undecided(position)
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    assert bench.engine.release(position, to=other)
    assert not bench.engine.is_undecided(position)
    bench.settle()
    bench.advance(1_000)
    bench.settle()
    assert (bench.bodies(topic), bench.bodies(other)) == ([], [b"half"])
    bench.kill()
    assert bench.engine.undecided() == []
    assert bench.bodies(again(bench)) == []
    assert bench.bodies(again(bench, "given-up")) == [b"half"]


def test_a_message_is_found_by_its_position_once_it_is_durable(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, b"one")
    bench.turns()
    position = int(bench.records(topic)[0].position)
    assert bench.engine.locate(position) is None
    bench.settle()
    located = bench.engine.locate(position)
    assert located.record.body == b"one"
    assert bench.engine.queue(located.targets[0][0]).topic is topic
    assert bench.engine.locate(-1) is None
    assert bench.engine.locate(1 << 50) is None
