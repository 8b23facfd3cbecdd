"""The exam: every stall has the right culprit and cause, and a healthy broker says so.

A whole engine on the manual clock, asked before, in time, and after the end. ``ok`` before and
after; in between who is to blame, why, and who waits. An unread queue lies beside all of them: it
changes nothing.
"""

import pytest

from kit.exam import Exam
from penstock.engine.host import Mode
from penstock.engine.topic import FanoutRoute, Overflow, TopicPolicy
from penstock.flow.demand import Permits, Window
from penstock.flow.diagnosis import GroupView, MemberView
from penstock.flow.quota import QuotaPolicy
from penstock.flow.rate import DispatchRate
from penstock.settings.broker import StorageSettings


@pytest.fixture
def exam():
    return Exam()


# Deliveries.


def test_a_consumer_with_a_full_prefetch_is_slow_and_when_it_settles_nothing_it_never_acks(exam):
    topic, subscription = exam.topic()
    slow = exam.reader(subscription, Window(5), "mailer")
    exam.publish(topic, 50)
    exam.ok()
    exam.bench.advance(6_000)
    found = exam.found("behind", "slow-consumer", "consumer/")
    assert found.culprit.name == "mailer"
    assert "its limit is 5" in found.sentence
    exam.bench.advance(30_000)
    exam.found("behind", "never-acks", "consumer/")
    while slow.outlet.deliveries:
        slow.ack()
    exam.ok()


def test_a_consumer_that_is_slower_than_its_publishers_is_found_and_one_that_catches_up_is_not(
    exam,
):
    topic, subscription = exam.topic()
    reader, channel = exam.reader(subscription, Window(5), "mailer"), exam.bench.channel()
    for _ in range(12):
        exam.publish(topic, 20, channel)
        reader.ack(5)
        exam.bench.advance(1_000)
    since_ms = exam.found("behind", "slow-consumer", "consumer/").since_ms
    for _ in range(5):
        exam.publish(topic, 20, channel)
        reader.ack(5)
        exam.bench.advance(1_000)
    assert exam.found("behind", "slow-consumer", "consumer/").since_ms == since_ms
    for _ in range(4):
        for _ in range(10):
            reader.ack(5)
        exam.bench.advance(1_000)
    exam.ok()


def test_a_consumer_that_had_nothing_to_ack_for_an_hour_is_slow_and_does_not_never_ack(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(5), "mailer")
    exam.publish(topic, 3)
    reader.ack_all()
    exam.ok()
    exam.bench.advance(3_600_000)
    exam.ok()
    exam.publish(topic, 50)
    exam.bench.advance(7_000)
    exam.found("behind", "slow-consumer", "consumer/", is_lasting=True)
    reader.ack_all()
    exam.ok()


def test_one_of_two_consumers_never_acks_and_the_other_is_not_to_blame(exam):
    topic, subscription = exam.topic()
    good = exam.reader(subscription, Window(5), "good")
    bad = exam.reader(subscription, Window(5), "bad")
    channel = exam.bench.channel()
    for _ in range(40):
        exam.publish(topic, 20, channel)
        good.ack()
        exam.bench.advance(1_000)
    found = exam.found("behind", "never-acks", "consumer/")
    assert found.culprit.name == "bad"
    bad.ack_all()
    good.ack_all()
    exam.bench.advance(1_000)
    exam.ok()


def test_who_takes_one_by_one_and_too_few(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(0), "getter", is_passive=True)
    exam.publish(topic, 50)
    exam.ok()
    for _ in range(8):
        exam.publish(topic, 5)
        subscription.take(reader.consumer, 1)
        exam.bench.advance(1_000)
    exam.found("behind", "does-not-ask", "consumer/", is_lasting=True)
    exam.bench.advance(31_000)
    found = exam.found("behind", "stopped-pulling", "consumer/", is_lasting=True)
    assert found.culprit.name == "getter"
    subscription.purge(topic.queues[0].queue_id)
    exam.ok()


def test_a_consumer_without_a_prefetch_is_found_by_the_age_of_what_it_has(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(0), "greedy")
    exam.publish(topic, 1_184)
    exam.bench.advance(20_000)
    exam.ok()
    exam.bench.advance(11_000)
    assert exam.found("behind", "never-acks", "consumer/").culprit.name == "greedy"
    reader.ack()
    exam.ok()


def test_nobody_consumes_what_was_consumed_an_hour_ago_and_what_never_was_is_parked(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription)
    exam.publish(topic, 3)
    reader.ack()
    subscription.detach(reader.consumer)
    exam.publish(topic, 3)
    exam.ok()
    exam.bench.advance(6_000)
    assert exam.found("behind", "nobody", "sub/orders/billing").path[0] == "topic/orders"
    exam.bench.advance(3_600_000)
    exam.ok()
    parked = [each.culprit.id for each in exam.findings() if each.severity == "parked"]
    assert parked == ["sub/audit/archive", "sub/orders/billing"]


def test_a_standby_is_nobodys_fault(exam):
    topic, subscription = exam.topic(mode=Mode.FAILOVER)
    active = exam.reader(subscription, Window(5), "first")
    exam.reader(subscription, Window(5), "second")
    exam.publish(topic, 30)
    exam.bench.advance(6_000)
    found = exam.found("behind", "slow-consumer", "consumer/")
    assert found.culprit.name == "first"
    assert "its limit is 5" in found.sentence
    while active.outlet.deliveries:
        active.ack()
    exam.ok()


def test_a_consumer_that_grants_no_permits_does_not_ask(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(2), "ann")
    exam.publish(topic, 10)
    exam.bench.advance(6_000)
    exam.found("behind", "demand", "sub/orders/billing")
    reader.consumer.grant(100)
    reader.consumer.wake()
    exam.bench.settle()
    exam.ok()


def test_an_unacked_limit_of_a_consumer(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(100), "ann", unacked_max=4)
    exam.publish(topic, 10)
    exam.bench.advance(6_000)
    assert exam.found("behind", "slow-consumer", "consumer/").culprit.name == "ann"
    while reader.outlet.deliveries:
        reader.ack()
    exam.ok()


def test_an_unacked_limit_of_the_subscription(exam):
    topic, subscription = exam.topic()
    readers = [exam.reader(subscription, Permits(100), name) for name in ("ann", "bob")]
    subscription.limit_unacked(4)
    exam.publish(topic, 20)
    exam.bench.advance(6_000)
    found = exam.found("behind", "subscription-unsettled", "sub/orders/billing", is_lasting=True)
    assert "together have as many unsettled as it allows" in found.sentence
    while any(reader.outlet.deliveries for reader in readers):
        for reader in readers:
            reader.ack()
    exam.ok()


def test_an_owner_says_what_may_be_unacked_and_the_advice_takes_it_away(exam):
    topic, subscription = exam.topic(policy=TopicPolicy(unacked_max=4))
    reader = exam.reader(subscription, Permits(100), "ann")
    exam.publish(topic, 20)
    exam.bench.advance(6_000)
    found = exam.found("behind", "subscription-unsettled", "sub/orders/billing", is_lasting=True)
    assert [each.command for each in found.do] == ["penstock topics set orders --unacked 0"]
    exam.bench.engine.set_policy(topic.name, TopicPolicy(unacked_max=0))
    exam.bench.settle()
    exam.ok()
    exam.bench.engine.set_policy(topic.name, TopicPolicy())
    assert subscription.unacked_max == exam.bench.settings.flow.unacked_subscription_max
    reader.ack_all()
    exam.ok()


def test_a_dispatch_rate_that_is_used_up(exam):
    topic, subscription = exam.topic()
    exam.reader(subscription, Permits(10_000), "ann", is_auto_settled=True)
    subscription.limit_dispatch(DispatchRate(1, 0, 1_000))
    channel = exam.bench.channel()
    for _ in range(15):
        exam.publish(topic, 5, channel)
        exam.bench.advance(990)
    found = exam.found("behind", "rate", "sub/orders/billing")
    assert "ann" in found.sentence
    subscription.limit_dispatch(DispatchRate())
    exam.bench.settle()
    exam.ok()


def test_a_socket_that_is_not_read(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(100_000), "deaf")
    reader.outlet.deliver = lambda consumer, deliveries: None
    exam.publish(topic, 5_000)
    exam.bench.advance(6_000)
    found = exam.found("behind", "not-reading", "consumer/")
    assert found.culprit.name == "deaf"


def test_a_requeue_loop_on_one_message(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(1), "retry")
    exam.publish(topic)
    for _ in range(30):
        exam.bench.advance(200)
        reader.nack()
    found = exam.found("behind", "requeue-loop", "consumer/")
    assert found.culprit.name == "retry"
    reader.ack()
    exam.ok()


def test_dead_letters_that_grow_and_nobody_reads(exam):
    exam.topic("dead", sub="nobody")
    topic, subscription = exam.topic(policy=TopicPolicy(dead_letter_topic="dead"))
    reader = exam.reader(subscription)
    exam.publish(topic, 5)
    reader.reject()
    found = exam.found("dead", "dead-letters", "topic/dead")
    assert [each.id for each in found.waiters] == ["topic/orders"]
    exam.bench.advance(5_000)
    exam.ok()


def test_a_group_that_reads_by_asking_is_consumed(exam):
    topic, subscription = exam.topic(sub="rocketmq/fraud-check", holds_data=False)
    members = GroupView((MemberView("client-1"),))
    exam.bench.engine.members_of.append(
        lambda _topic, asked, _is_behind: members if asked is subscription else None
    )
    subscription.note_read()
    exam.publish(topic, 5)
    exam.ok()
    exam.bench.advance(6_000)
    subscription.note_read()
    found = exam.found("behind", "does-not-ask", "client/client-1")
    assert "nobody consumes" not in found.sentence
    subscription.settle_upto(topic.queues[0].queue_id, 5)
    exam.bench.settle()
    exam.ok()


# Publishers.


def test_a_queue_at_its_limit_holds_and_everybody_who_waits_is_named(exam):
    policy = TopicPolicy(length_max=2, overflow=Overflow.HOLD)
    topic, subscription = exam.topic(policy=policy)
    channels = [exam.bench.channel() for _ in range(4)]
    for channel in channels:
        exam.publish(topic, 3, channel)
    began_ms = exam.bench.clock.monotonic_ms()
    exam.bench.advance(12_000)
    found = exam.found("holding", "held", "limit/length_max/topic/orders")
    waiting = {channel.connection.stage.id for channel in channels}
    assert {each.id for each in found.waiters} == waiting
    assert found.waiters_total == 4
    assert found.since_ms == began_ms, "of the episode"
    assert found.share > 0.9
    assert found.path[-2:] == ("topic/orders", "limit/length_max/topic/orders")
    assert [each.command for each in found.do] == ["penstock topics set orders --length-max 0"]
    # Nobody ever read it, but it holds somebody: that is missed.
    assert ("behind", "nobody") in [(each.severity, each.cause) for each in exam.findings()]
    reader = exam.reader(subscription)
    for _ in range(20):
        reader.ack()
    exam.bench.advance(2_000)
    exam.ok()


def test_a_channel_that_is_held_has_a_share_of_its_own(exam):
    topic, _ = exam.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    channel = exam.bench.channel()
    exam.publish(topic, 3, channel)
    exam.bench.advance(5_000)
    exam.findings()
    views = {view.id: view for view in exam.now.views}
    assert views[channel.stage.id].share == pytest.approx(0.5, abs=0.06)
    assert views[channel.stage.id].belongs_to == channel.connection.stage.id


def test_a_queue_at_its_limit_that_rejects(exam):
    topic, _ = exam.topic(policy=TopicPolicy(length_max=2, overflow=Overflow.REJECT))
    channel = exam.bench.channel()
    exam.publish(topic, 5, channel)
    found = exam.found("refusing", "length-limit", "topic/orders")
    assert [each.id for each in found.waiters] == [channel.connection.stage.id]
    assert "length_max" in found.sentence
    exam.bench.advance(5_000)
    exam.ok()


def test_a_queue_that_drops_its_oldest_is_a_loss_to_who_reads_it_and_else_a_ring(exam):
    policy = TopicPolicy(length_max=2)
    ring, _ = exam.topic("newest", policy)
    exam.publish(ring, 9)
    exam.ok()
    topic, subscription = exam.topic(policy=policy)
    exam.reader(subscription, Window(1), "slow")
    exam.publish(topic, 9)
    exam.found("discarding", "drop-head", "sub/orders/billing")
    exam.bench.advance(4_000)
    exam.ok()


def test_a_publisher_whose_every_message_goes_nowhere(exam):
    channel, nowhere = exam.bench.channel(), FanoutRoute(())
    for second in range(7):
        exam.bench.publish(channel, nowhere, b"x")
        exam.bench.settle()
        if second < 5:
            exam.ok()
        exam.bench.advance(1_000)
    found = exam.found("discarding", "unroutable", channel.stage.id)
    assert [each.id for each in found.waiters] == [channel.connection.stage.id]
    topic, _ = exam.topic()
    exam.publish(topic, 1, channel)
    exam.ok()


def test_a_publish_rate(exam):
    topic, _ = exam.topic(policy=TopicPolicy(publish_messages_per_s=1))
    channel = exam.bench.channel()
    for _ in range(4):
        exam.publish(topic, 3, channel)
    exam.found("holding", "rate", "limit/publish_messages_per_s/topic/orders")
    exam.bench.advance(30_000)
    exam.ok()


def test_a_backlog_quota(exam):
    policy = TopicPolicy(quota_bytes_max=300, quota_policy=QuotaPolicy.HOLD)
    topic, subscription = exam.topic(policy=policy)
    channel = exam.bench.channel()
    for _ in range(9):
        exam.bench.publish(channel, topic, b"x" * 100)
        exam.bench.settle()
    found = exam.found("holding", "quota", "limit/quota_bytes_max/topic/orders")
    assert [each.id for each in found.waiters] == [channel.connection.stage.id]
    reader = exam.reader(subscription)
    for _ in range(9):
        reader.ack()
    exam.bench.advance(2_000)
    exam.ok()


def test_a_disk_that_is_slow_and_then_hangs(exam):
    topic, channel = exam.bench.topic(), exam.bench.channel()
    exam.bench.publish(channel, topic, b"a")
    exam.bench.turns()
    job = exam.bench.engine.take_sync_job()
    while channel.connection.may_read:
        exam.bench.publish(channel, topic, *[b"x"] * 100)
        exam.bench.clock.advance(20)
        exam.bench.turns()
    found = exam.found("holding", "slow", "log")
    assert [each.id for each in found.waiters] == [channel.connection.stage.id]
    exam.bench.clock.advance(6_000)
    exam.bench.turns()
    exam.found("holding", "hung", "log")
    (log,) = [view for view in exam.now.views if view.kind == "log"]
    assert log.state == "slow"
    assert log.sync.age_ms >= 6_000
    exam.bench.finish(job)
    exam.bench.settle()
    exam.bench.advance(2_000)
    exam.ok()


def test_a_publisher_with_many_bindings_waits_for_its_channel(exam):
    targets = [exam.topic(f"reader.{number}")[0].queues[0] for number in range(50)]
    channel, route = exam.bench.channel(), FanoutRoute(tuple(targets))

    def flood():
        """Its connection reads on as soon as it may; the turn that routes it takes its time."""
        for _ in range(50):
            while channel.connection.may_read:
                exam.bench.publish(channel, route, *[b"x"] * 100)
            exam.bench.clock.advance(20)
            exam.bench.engine.turn()
            exam.bench.sync()

    flood()
    waiting = [channel.connection.stage.id]
    found = exam.found("holding", "routing", channel.stage.id, waiting=waiting)
    flood()
    assert exam.found("holding", "routing", channel.stage.id).since_ms == found.since_ms
    exam.bench.settle()
    exam.bench.advance(2_000)
    purge(exam, targets)
    exam.ok()


def purge(exam, queues):
    for queue in queues:
        for subscription in queue.topic.subscriptions.values():
            subscription.purge(queue.queue_id)
    exam.bench.settle()


def test_many_small_messages_for_one_queue_wait_for_it():
    exam = Exam(channel_queue_credit=10, channel_queue_more=5)
    topic, _ = exam.topic()
    channel = exam.bench.channel()
    is_slow = [True]
    exam.bench.engine.watch_appends(lambda _batch: exam.bench.clock.advance(30 * is_slow[0]))
    for _ in range(24):
        exam.bench.publish(channel, topic, *[b"x"] * 500)
        exam.bench.turns()
        exam.bench.settle()
    found = exam.found("holding", "index", "queue/orders/0", waiting=[channel.stage.id])
    assert found.path == (channel.stage.id, "queue/orders/0")
    is_slow[0] = False
    exam.bench.advance(3_000)
    purge(exam, topic.queues)
    exam.ok()


def test_a_busy_host_is_to_blame_when_somebody_waits_and_else_no_answer():
    exam = Exam(channel_queue_credit=10, channel_queue_more=5)
    topic, _ = exam.topic()
    channel = exam.bench.channel()
    waited_ms = 0.0

    def starve(seconds, part):
        nonlocal waited_ms
        for _ in range(seconds):
            exam.bench.engine.note_run_delay({1: 5.0, 2: waited_ms})
            waited_ms += 1000 * part
            exam.bench.advance(1_000)

    starve(8, 0.1)
    exam.ok()
    assert "host" not in [each.culprit.id for each in exam.findings()]
    starve(8, 0.4)
    exam.ok()
    assert ("parked", "host") in [(each.severity, each.culprit.id) for each in exam.findings()]
    exam.bench.engine.watch_appends(lambda _batch: exam.bench.clock.advance(30))
    for _ in range(24):
        exam.bench.publish(channel, topic, *[b"x"] * 500)
        exam.bench.turns()
        exam.bench.settle()
    found = exam.found("holding", "busy-host", "host", waiting=[channel.stage.id])
    assert found.path[-2:] == ("queue/orders/0", "host")
    exam.bench.advance(3_000)
    starve(8, 0.0)
    purge(exam, topic.queues)
    exam.ok()
    assert "host" not in [each.culprit.id for each in exam.findings()]


class NoRoom:
    """What an adapter says that cannot take in a publish: nobody in particular is in its way."""

    culprit = ""


def test_a_noisy_publisher_has_more_than_half_of_the_pool_that_others_lack():
    kib = 1 << 10
    exam = Exam(connection_bytes_max=600 * kib, inflight_bytes_max=1024 * kib)
    topic, _ = exam.topic()
    noisy, quiet, other = [exam.bench.channel().connection for _ in range(3)]
    channel = noisy.open_channel()
    exam.bench.publish(channel, topic, b"x" * 300 * kib)
    exam.bench.publish(quiet.open_channel(), topic, b"x" * 100 * kib)
    # Their bytes are on their way to the disk when somebody else finds no room.
    exam.bench.turns()
    other.wait_for_room(NoRoom())
    exam.bench.turns()
    exam.bench.clock.advance(1_000)
    exam.found("holding", "room", noisy.stage.id, waiting=[other.stage.id])
    other.found_room()
    exam.bench.settle()
    exam.bench.advance(2_000)
    purge(exam, topic.queues)
    exam.ok()


def test_where_many_have_a_little_of_the_pool_nobody_is_noisy():
    kib = 1 << 10
    exam = Exam(connection_bytes_max=600 * kib, inflight_bytes_max=1024 * kib)
    topic, _ = exam.topic()
    for _ in range(5):
        exam.bench.publish(exam.bench.channel(), topic, b"x" * 100 * kib)
    exam.bench.turns()
    other = exam.bench.channel().connection
    other.wait_for_room(NoRoom())
    exam.bench.turns()
    exam.bench.clock.advance(1_000)
    exam.found("holding", "room", "pool/in-flight", waiting=[other.stage.id])
    other.found_room()
    exam.bench.settle()
    exam.bench.advance(2_000)
    purge(exam, topic.queues)
    exam.ok()


def test_an_in_flight_pool_that_is_full_names_the_disk_and_everybody_who_waits():
    kib = 1 << 10
    exam = Exam(connection_bytes_max=256 * kib, inflight_bytes_max=512 * kib)
    topic, _ = exam.topic()
    channels = [exam.bench.channel() for _ in range(4)]
    exam.bench.publish(channels[0], topic, b"a")
    exam.bench.turns()
    job = exam.bench.engine.take_sync_job()
    for channel in channels:
        while channel.connection.may_read:
            exam.bench.publish(channel, topic, b"x" * 50 * kib)
            exam.bench.turns()
    exam.bench.clock.advance(2_000)
    exam.bench.turns()
    waiting = [each.connection.stage.id for each in channels]
    exam.found("holding", "slow", "log", waiting=waiting)
    exam.bench.finish(job)
    exam.bench.settle()
    exam.bench.advance(2_000)
    purge(exam, topic.queues)
    exam.ok()


def test_write_buffers_that_are_exhausted():
    storage = StorageSettings(write_buffers_max=1, write_buffer_bytes=64 << 10)
    exam = Exam(parts={"storage": storage}, connection_bytes_max=256 << 10)
    topic, _ = exam.topic()
    channel = exam.bench.channel()
    exam.bench.publish(channel, topic, b"a")
    exam.bench.turns()
    job = exam.bench.engine.take_sync_job()
    while channel.connection.may_read:
        exam.bench.publish(channel, topic, b"x" * (16 << 10))
        exam.bench.clock.advance(5)
        exam.bench.turns()
    exam.bench.clock.advance(50)
    found = exam.found("holding", "no-buffer", "log", waiting=[channel.connection.stage.id])
    assert "all 1 write buffers are waiting for the disk" in found.detail
    exam.bench.finish(job)
    exam.bench.settle()
    exam.bench.advance(4_000)
    purge(exam, topic.queues)
    exam.ok()


def test_a_disk_that_is_full_refuses_and_says_whom(exam):
    topic, _ = exam.topic()
    channel = exam.bench.channel()
    room = exam.bench.storage.capacity_bytes
    exam.bench.storage.capacity_bytes = exam.bench.storage.used_bytes
    exam.publish(topic, 5, channel)
    waiting = [channel.connection.stage.id]
    exam.found("refusing", "write-failed", "log", waiting=waiting)
    exam.bench.storage.capacity_bytes = room
    exam.bench.advance(5_000)
    exam.ok()


def test_a_dead_letter_target_that_is_full_loses_letters(exam):
    exam.topic("dead", TopicPolicy(length_max=2, overflow=Overflow.REJECT), sub="nobody")
    topic, subscription = exam.topic(policy=TopicPolicy(dead_letter_topic="dead"))
    reader = exam.reader(subscription)
    exam.publish(topic, 9)
    reader.reject()
    found = exam.found("discarding", "letters-lost", "topic/dead", waiting=["topic/orders"])
    assert "were lost" in found.sentence
    exam.bench.advance(5_000)
    exam.ok()


@pytest.mark.parametrize(("name", "worst", "best"), [("memory", 1 << 60, 0), ("disk", 0, 1 << 60)])
def test_an_alarm_is_the_answer_whatever_else_there_is(exam, name, worst, best):
    topic, subscription = exam.topic()
    slow = exam.reader(subscription, Window(5), "mailer")
    exam.publish(topic, 20)
    exam.bench.advance(6_000)
    exam.bench.engine.set_alarm(name, worst)
    channel = exam.bench.channel()
    exam.publish(topic, 1, channel)
    found = exam.found("alarm", name, f"alarm/{name}")
    assert [each.id for each in found.waiters] == [channel.connection.stage.id]
    both = [each.severity for each in exam.findings() if each.severity != "parked"]
    assert both == ["alarm", "behind"], "two at once: both are found, the worse one first"
    exam.bench.engine.set_alarm(name, best)
    exam.bench.settle()
    while slow.outlet.deliveries:
        slow.ack()
    exam.bench.advance(2_000)
    exam.ok()


def test_two_limits_at_once_are_two_findings_and_the_one_that_holds_comes_first(exam):
    full, _ = exam.topic("full", TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    strict, _ = exam.topic("strict", TopicPolicy(length_max=1, overflow=Overflow.REJECT))
    exam.publish(strict, 3)
    exam.publish(full, 3)
    found = [(each.severity, each.culprit.id) for each in exam.findings()[:2]]
    assert found == [("holding", "limit/length_max/topic/full"), ("refusing", "topic/strict")]


def test_things_that_share_a_name_do_not_share_an_id(exam):
    exam.bench.topic("payments", queues=2)
    exam.bench.topic("payments/1")
    exam.findings()
    twins = [view for view in exam.now.views if view.label == "queue payments/1"]
    assert sorted(view.id for view in twins) == ["queue/payments%2F1/0", "queue/payments/1"]


def test_connections_of_an_application_say_so(exam):
    connection = exam.bench.channel().connection
    connection.name_application("amqp", "check out")
    exam.findings()
    (view,) = [view for view in exam.now.views if view.id == connection.stage.id]
    assert view.belongs_to == "app/amqp/check%20out"


def test_ten_thousand_queues_do_not_hide_the_log_and_the_connections(exam):
    for number in range(1_200):
        exam.bench.topic(f"tenant.{number}")
    found = exam.bench.engine.flow_map(exam.bench.clock.monotonic_ms(), 1_000)
    kinds = {view.kind for view in found.views}
    assert {"log", "connection", "channel", "queue", "subscription"} <= kinds
    assert found.stages_total > len(found.views)


# Health.


LOADS = {
    "idle": lambda second: 0,
    "steady": lambda second: 20,
    "bursty": lambda second: 200 if second % 4 == 0 else 0,
    "drained": lambda second: 400 if second == 0 else 5,
}


@pytest.mark.parametrize("load", LOADS)
def test_a_healthy_load_is_ok_in_every_look(exam, load):
    topic, subscription = exam.topic()
    reader, channel = exam.reader(subscription, Window(100)), exam.bench.channel()
    for second in range(10):
        exam.bench.publish(channel, topic, *[b"x"] * LOADS[load](second))
        exam.bench.settle()
        for _ in range(5):
            exam.ok()
            reader.ack(20)
            exam.bench.advance(200)
    exam.ok()


def test_a_big_fan_out_is_ok_in_every_look(exam):
    topics = [exam.topic(f"reader.{number}") for number in range(50)]
    readers = [exam.reader(subscription, Window(100)) for _, subscription in topics]
    route = FanoutRoute(tuple(topic.queues[0] for topic, _ in topics))
    channel = exam.bench.channel()
    for _ in range(10):
        exam.bench.publish(channel, route, *[b"x"] * 20)
        exam.bench.settle()
        exam.ok()
        for reader in readers:
            reader.ack()
        exam.bench.advance(1_000)
        exam.ok()
