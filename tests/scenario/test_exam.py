"""The exam: every stall has the right culprit and cause, and a healthy broker says so.

A whole engine on the manual clock, with the settings it comes with, asked at exactly the instants
that are promised (``kit.exam``): ``ok`` before, found in time and in the middle, ``ok`` again in
time after the end; who is to blame, why, and who waits. An unread queue lies beside all of them:
it changes nothing.
"""

import shlex

import pytest
from msgspec.structs import replace

from kit.exam import Exam
from penstock.cli.topics import POLICY_OPTIONS
from penstock.engine.host import Mode
from penstock.engine.topic import FanoutRoute, Overflow, TopicPolicy
from penstock.flow.demand import Permits, Window
from penstock.flow.progress import STUCK_MS
from penstock.flow.quota import QuotaPolicy
from penstock.flow.rate import DispatchRate
from penstock.flow.reason import Reason
from penstock.flow.views import GroupView, MemberView
from penstock.settings.broker import StorageSettings

NEVER_MS = STUCK_MS + 2_000
"""Who settles nothing for half a minute never acks: a moment later that is said."""
ROUTED_MS = 7_000
"""Every publish of five seconds must have gone nowhere, and it is said within two."""


@pytest.fixture
def exam():
    return Exam()


def connection_of(*channels):
    return [each.connection.stage.id for each in channels]


# Deliveries.


def test_a_consumer_with_a_full_prefetch_is_slow_and_when_it_settles_nothing_it_never_acks(exam):
    topic, subscription = exam.topic()
    slow = exam.reader(subscription, Window(5), "mailer")
    exam.begins()
    exam.publish(topic, 50)
    found = exam.found("behind", "slow-consumer", "consumer/", name="mailer")
    assert "its limit is 5" in found.sentence
    exam.found("behind", "never-acks", "consumer/", name="mailer", within_ms=NEVER_MS)
    slow.ack_all()
    exam.ok_again()


def test_a_consumer_that_is_slower_than_its_publishers_is_found_and_one_that_catches_up_is_not(
    exam,
):
    topic, subscription = exam.topic()
    reader, channel = exam.reader(subscription, Window(5), "mailer"), exam.bench.channel()

    def falls_behind():
        exam.publish(topic, 20, channel)
        reader.ack(5)

    def catches_up():
        exam.publish(topic, 20, channel)
        for _ in range(12):
            reader.ack(5)

    exam.begins()
    exam.meanwhile = falls_behind
    since_ms = exam.found("behind", "slow-consumer", "consumer/", name="mailer").since_ms
    exam.pass_ms(5_000)
    assert exam.now("behind", "slow-consumer", "consumer/").since_ms == since_ms
    exam.meanwhile = catches_up
    exam.ok_again()


def test_a_consumer_that_had_nothing_to_ack_for_an_hour_is_slow_and_does_not_never_ack(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(5), "mailer")
    exam.publish(topic, 3)
    reader.ack_all()
    exam.bench.advance(3_600_000)
    exam.begins()
    exam.publish(topic, 50)
    exam.found("behind", "slow-consumer", "consumer/", name="mailer")
    reader.ack_all()
    exam.ok_again()


def with_long_jobs(exam, readers, topic=None, *, seconds=40, published=1):
    """Each settles its one message after so long, in turn; as many are published as are settled."""
    second = 0

    def works():
        nonlocal second
        for number, reader in enumerate(readers):
            if second % seconds == number * seconds // len(readers):
                reader.ack(1)
                if topic is not None:
                    exam.publish(topic, published)
        second += 1
        exam.bench.advance(1_000)

    return works


@pytest.mark.parametrize(("workers", "waiting", "known_s"), [(4, 2, 80), (1, 1, 121)])
def test_jobs_of_forty_seconds_are_no_fault_once_it_is_known_that_they_take_so_long(
    exam, workers, waiting, known_s
):
    topic, subscription = exam.topic()
    readers = [exam.reader(subscription, Window(1), f"w{number}") for number in range(workers)]
    exam.publish(topic, workers + waiting)
    works = with_long_jobs(exam, readers, topic)
    for _ in range(known_s):
        works()
    for _ in range(240):
        exam.ok()
        works()


def test_twenty_jobs_that_are_worked_off_are_ok_in_every_look_once_each_has_done_two(exam):
    topic, subscription = exam.topic()
    readers = [exam.reader(subscription, Window(1), f"w{number}") for number in range(4)]
    exam.publish(topic, 20)
    for second in range(200):
        exam.bench.advance(1_000)
        for number, reader in enumerate(readers):
            if second % 40 == 39 - number:
                reader.ack(1)
        if second >= 80:
            exam.ok()


def test_jobs_that_take_long_and_come_faster_than_they_are_done_are_slow_and_then_never_acked(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(1), "worker")
    exam.publish(topic, 3)
    exam.meanwhile = with_long_jobs(exam, [reader], topic)
    exam.pass_ms(200_000)
    exam.begins()
    exam.meanwhile = with_long_jobs(exam, [reader], topic, published=3)
    told = {"name": "worker", "within_ms": 205_000, "is_older": True}
    found = exam.found("behind", "slow-consumer", "consumer/", **told)
    exam.pass_ms(38_000)
    assert exam.now("behind", "slow-consumer", "consumer/").since_ms == found.since_ms
    # Nothing for twice as long as usual.
    exam.meanwhile = None
    exam.pass_ms(90_000)
    exam.now("behind", "never-acks", "consumer/", name="worker")
    exam.meanwhile = reader.ack_all
    exam.ok_again()


def test_one_of_two_consumers_never_acks_and_the_other_is_not_to_blame(exam):
    topic, subscription = exam.topic()
    good = exam.reader(subscription, Window(5), "good")
    bad = exam.reader(subscription, Window(5), "bad")
    channel = exam.bench.channel()

    def good_works():
        exam.publish(topic, 20, channel)
        good.ack()

    exam.begins()
    exam.meanwhile = good_works
    exam.found("behind", "slow-consumer", "consumer/", name="bad")
    exam.found("behind", "never-acks", "consumer/", name="bad", within_ms=NEVER_MS)
    exam.meanwhile = lambda: (bad.ack_all(), good.ack_all())
    exam.ok_again()


def test_who_takes_one_by_one_and_too_few(exam):
    topic, subscription = exam.topic()
    getter = exam.reader(subscription, Window(0), "getter", is_passive=True)
    exam.begins()
    exam.publish(topic, 50)

    def takes_one():
        exam.publish(topic, 2)
        subscription.take(getter.consumer, 1)

    exam.meanwhile = takes_one
    exam.found("behind", "does-not-ask", "consumer/", name="getter")
    exam.meanwhile = None
    exam.pass_ms(STUCK_MS)
    exam.now("behind", "stopped-pulling", "consumer/", name="getter")
    subscription.purge(topic.queues[0].queue_id)
    exam.ok_again()


def test_a_consumer_without_a_prefetch_is_found_by_the_age_of_what_it_has(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(0), "greedy")
    exam.begins()
    exam.publish(topic, 1_184)
    exam.pass_ms(STUCK_MS - 1_000)
    exam.ok()
    exam.found("behind", "never-acks", "consumer/", name="greedy", within_ms=NEVER_MS)
    reader.ack()
    exam.ok_again()


def test_a_consumer_without_a_prefetch_that_settles_too_little_is_slow(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(0), "greedy")
    exam.begins()
    exam.publish(topic, 1_184)
    exam.meanwhile = lambda: reader.ack(1)
    found = exam.found("behind", "slow-consumer", "consumer/", name="greedy", within_ms=NEVER_MS)
    assert "no limit (prefetch)" in found.sentence
    reader.ack()
    exam.ok_again()


def test_nobody_consumes_what_was_consumed_a_moment_ago(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription)
    exam.publish(topic, 3)
    reader.ack()
    exam.begins()
    subscription.detach(reader.consumer)
    exam.publish(topic, 3)
    found = exam.found("behind", "nobody", "sub/orders/billing")
    assert found.path == ("topic/orders", "sub/orders/billing")
    exam.reader(subscription).ack_all()
    exam.ok_again()


def test_what_nobody_read_for_an_hour_is_parked_as_what_nobody_ever_read(exam):
    topic, subscription = exam.topic()
    subscription.detach(exam.reader(subscription).consumer)
    exam.begins()
    exam.publish(topic, 3)
    exam.found("behind", "nobody", "sub/orders/billing")
    exam.bench.advance(3_600_000)
    exam.ok_again()
    parked = [each.culprit.id for each in exam.findings() if each.severity == "parked"]
    assert parked == ["sub/audit/archive", "sub/orders/billing"]


def test_a_standby_is_nobodys_fault(exam):
    topic, subscription = exam.topic(mode=Mode.FAILOVER)
    active = exam.reader(subscription, Window(5), "first")
    exam.reader(subscription, Window(5), "second")
    exam.begins()
    exam.publish(topic, 30)
    found = exam.found("behind", "slow-consumer", "consumer/", name="first")
    assert "its limit is 5" in found.sentence
    active.ack_all()
    exam.ok_again()


def test_a_consumer_that_grants_no_permits_does_not_ask(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(2), "ann")
    exam.begins()
    exam.publish(topic, 10)
    assert "ann" in exam.found("behind", "demand", "sub/orders/billing").detail
    reader.consumer.grant(100)
    reader.consumer.wake()
    exam.bench.settle()
    exam.ok_again()


def test_an_unacked_limit_of_a_consumer(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(100), "ann", unacked_max=4)
    exam.begins()
    exam.publish(topic, 10)
    exam.found("behind", "slow-consumer", "consumer/", name="ann")
    reader.ack_all()
    exam.ok_again()


def test_an_unacked_limit_of_the_subscription(exam):
    topic, subscription = exam.topic()
    readers = [exam.reader(subscription, Permits(100), name) for name in ("ann", "bob")]
    subscription.limit_unacked(4)
    exam.begins()
    exam.publish(topic, 20)
    found = exam.found("behind", "subscription-unsettled", "sub/orders/billing")
    assert "together have as many unsettled as it allows" in found.sentence
    while any(reader.outlet.deliveries for reader in readers):
        for reader in readers:
            reader.ack()
    exam.ok_again()


def test_a_limit_that_is_reached_and_leaves_nothing_waiting_is_no_finding(exam):
    topic, subscription = exam.topic()
    readers = [exam.reader(subscription, Permits(100), name) for name in ("ann", "bob")]
    subscription.limit_unacked(4)
    exam.publish(topic, 4)
    exam.ok()
    exam.pass_ms(60_000)
    exam.ok()
    channel = exam.bench.channel()
    for _ in range(40):
        exam.publish(topic, 6, channel)
        exam.ok()
        for _ in range(4):
            for reader in readers:
                reader.ack()
        exam.bench.advance(250)
    exam.ok()


def test_an_owner_says_what_may_be_unacked_and_the_advice_takes_it_away(exam):
    topic, subscription = exam.topic(policy=TopicPolicy(unacked_max=4))
    reader = exam.reader(subscription, Permits(100), "ann")
    exam.begins()
    exam.publish(topic, 20)
    found = exam.found("behind", "subscription-unsettled", "sub/orders/billing")
    assert [each.command for each in found.do] == ["penstock topics set orders --unacked 0"]
    exam.bench.engine.set_policy(topic.name, TopicPolicy(unacked_max=0))
    exam.bench.settle()
    exam.ok_again()
    exam.bench.engine.set_policy(topic.name, TopicPolicy())
    assert subscription.unacked_max == exam.bench.settings.flow.unacked_subscription_max
    reader.ack_all()
    exam.ok()


def test_a_dispatch_rate_that_is_used_up(exam):
    topic, subscription = exam.topic()
    exam.reader(subscription, Permits(10_000), "ann", is_auto_settled=True)
    subscription.limit_dispatch(DispatchRate(1, 0, 1_000))
    channel = exam.bench.channel()
    exam.begins()
    exam.meanwhile = lambda: exam.publish(topic, 5, channel)
    found = exam.found("behind", "rate", "sub/orders/billing")
    assert "ann" in found.sentence
    assert found.do == (), "no command of ours changes it"
    subscription.limit_dispatch(DispatchRate())
    exam.bench.settle()
    exam.ok_again()


def test_a_socket_that_is_not_read(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(100_000), "deaf", is_auto_settled=True)
    unread = []
    reader.outlet.deliver = lambda _consumer, deliveries: unread.extend(deliveries)
    exam.begins()
    exam.publish(topic, 5_000)
    exam.found("behind", "not-reading", "consumer/", name="deaf")
    while unread:
        taken, unread[:] = unread[:], []
        reader.consumer.sent(len(taken), sum(each.size for each in taken))
        exam.bench.settle()
    exam.ok_again()


def test_a_requeue_loop_on_one_message(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(1), "retry")
    exam.begins()
    exam.publish(topic)
    exam.meanwhile = reader.nack
    exam.found("behind", "requeue-loop", "consumer/", name="retry")
    exam.meanwhile = None
    reader.ack()
    exam.ok_again()


def test_dead_letters_that_grow_and_nobody_reads(exam):
    exam.topic("dead", sub="nobody")
    topic, subscription = exam.topic(policy=TopicPolicy(dead_letter_topic="dead"))
    reader = exam.reader(subscription)

    def rejects():
        exam.publish(topic, 5)
        reader.reject()

    exam.begins()
    exam.meanwhile = rejects
    exam.found("dead", "dead-letters", "topic/dead", waiting=["topic/orders"])
    exam.meanwhile = None
    exam.ok_again()


def test_dead_letters_whose_target_is_slow(exam):
    exam.reader(exam.topic("dead", sub="undertaker")[1], is_auto_settled=True)
    topic, subscription = exam.topic(policy=TopicPolicy(dead_letter_topic="dead"))
    reader = exam.reader(subscription)
    for _ in range(10):
        exam.publish(topic, 500)
        exam.pass_ms(500)
    exam.begins()
    began_ms = exam.now_ms
    takes_ms = [1_000]
    exam.bench.engine.watch_appends(lambda _batch: exam.bench.clock.advance(*takes_ms))
    places = [each.offset for each in reader.outlet.deliveries]
    subscription.reject(topic.queues[0].queue_id, places)

    def buries_until(ms):
        while exam.now_ms < began_ms + ms:
            exam.bench.engine.turn()
            exam.bench.sync()

    # It is said of what takes longer than five seconds, within two.
    buries_until(7_000)
    found = exam.now("dead", "letters-slow", "sub/orders/billing")
    assert "are left after 7 s" in found.sentence
    buries_until(8_000)
    assert exam.now("dead", "letters-slow", "sub/orders/billing").since_ms == found.since_ms
    takes_ms[0] = 0
    exam.bench.settle()
    exam.ok_again()


def test_a_group_that_reads_by_asking_is_consumed(exam):
    topic, subscription = exam.topic(sub="rocketmq/fraud-check", holds_data=False)
    members = GroupView((MemberView("client-1"),))
    exam.bench.engine.members_of.append(
        lambda _topic, asked, _is_behind: members if asked is subscription else None
    )
    exam.begins()
    exam.publish(topic, 5)
    exam.meanwhile = subscription.note_read
    found = exam.found("behind", "slow-consumer", "client/client-1")
    assert "nobody consumes" not in found.sentence
    subscription.settle_upto(topic.queues[0].queue_id, 5)
    exam.bench.settle()
    exam.ok_again()


# Publishers.


def test_a_queue_at_its_limit_holds_and_everybody_who_waits_is_named(exam):
    policy = TopicPolicy(length_max=2, overflow=Overflow.HOLD)
    topic, subscription = exam.topic(policy=policy)
    channels = [exam.bench.channel() for _ in range(4)]
    exam.begins()
    began_ms = exam.now_ms
    for channel in channels:
        exam.publish(topic, 3, channel)
    limit, waiting = "limit/length_max/topic/orders", connection_of(*channels)
    exam.found("holding", "held", limit, waiting=waiting)
    exam.pass_ms(10_000)
    found = exam.now("holding", "held", limit, waiting=waiting)
    assert found.since_ms == began_ms, "of the episode"
    assert found.share > 0.9
    assert found.path[-2:] == ("topic/orders", "limit/length_max/topic/orders")
    assert [each.command for each in found.do] == ["penstock topics set orders --length-max 0"]
    # Nobody ever read it, but it holds somebody: that is missed.
    assert ("behind", "nobody") in [(each.severity, each.cause) for each in exam.findings()]
    exam.meanwhile = exam.reader(subscription).ack_all
    exam.ok_again()


def test_a_channel_that_is_held_has_a_share_of_its_own(exam):
    topic, _ = exam.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    channel = exam.bench.channel()
    exam.publish(topic, 3, channel)
    exam.bench.advance(5_000)
    exam.findings()
    views = {view.id: view for view in exam.map.views}
    assert views[channel.stage.id].share == pytest.approx(0.5, abs=0.06)
    assert views[channel.stage.id].belongs_to == channel.connection.stage.id


def test_a_queue_at_its_limit_that_rejects(exam):
    topic, _ = exam.topic(policy=TopicPolicy(length_max=2, overflow=Overflow.REJECT))
    channel = exam.bench.channel()
    exam.begins()
    exam.meanwhile = lambda: exam.publish(topic, 5, channel)
    waiting = connection_of(channel)
    found = exam.found("refusing", "length-limit", "topic/orders", waiting=waiting)
    assert "length_max" in found.sentence
    exam.meanwhile = None
    exam.ok_again()


def test_a_queue_that_drops_its_oldest_is_a_loss_to_who_reads_it(exam):
    topic, subscription = exam.topic(policy=TopicPolicy(length_max=2))
    slow = exam.reader(subscription, Window(1), "slow")
    channel = exam.bench.channel()
    exam.begins()
    exam.meanwhile = lambda: exam.publish(topic, 5, channel)
    exam.found("discarding", "drop-head", "sub/orders/billing", waiting=connection_of(channel))
    exam.meanwhile = None
    slow.ack_all()
    exam.ok_again()


def test_a_queue_that_drops_its_oldest_and_that_nobody_reads_is_a_ring_on_purpose(exam):
    ring, _ = exam.topic("newest", TopicPolicy(length_max=2))
    for _ in range(20):
        exam.publish(ring, 9)
        exam.ok()
        exam.pass_ms(500)
    parked = [(each.cause, each.culprit.id) for each in exam.findings()]
    assert ("ring", "sub/newest/billing") in parked


def test_a_publisher_whose_every_message_goes_nowhere(exam):
    channel, nowhere = exam.bench.channel(), FanoutRoute(())
    exam.begins()
    exam.meanwhile = lambda: exam.bench.publish(channel, nowhere, b"x")
    exam.pass_ms(4_900)
    exam.ok()
    waiting = connection_of(channel)
    exam.found("discarding", "unroutable", channel.stage.id, waiting=waiting, within_ms=ROUTED_MS)
    exam.meanwhile = None
    exam.ok_again()


def test_a_publisher_of_which_one_message_has_a_place_is_forgiven_at_once(exam):
    channel, nowhere = exam.bench.channel(), FanoutRoute(())
    topic, _ = exam.topic()
    exam.meanwhile = lambda: exam.bench.publish(channel, nowhere, b"x")
    exam.pass_ms(ROUTED_MS)
    exam.now("discarding", "unroutable", channel.stage.id, waiting=connection_of(channel))
    exam.publish(topic, 1, channel)
    exam.ok()


def while_it_may(exam, topic, channel, count=3, body=b"x"):
    """Publishes as its connection would: it reads on as long as it may."""

    def publish():
        if channel.connection.may_read:
            exam.bench.publish(channel, topic, *[body] * count)
            exam.bench.settle()

    return publish


def test_a_publish_rate(exam):
    topic, _ = exam.topic(policy=TopicPolicy(publish_messages_per_s=1))
    channel = exam.bench.channel()
    exam.begins()
    exam.meanwhile = while_it_may(exam, topic, channel)
    limit = "limit/publish_messages_per_s/topic/orders"
    found = exam.found("holding", "rate", limit, waiting=connection_of(channel))
    assert found.culprit.name == "publish rate of topic orders"
    assert found.sentence.endswith("is used up; for 3 s.")
    exam.bench.engine.set_policy(topic.name, TopicPolicy())
    exam.ok_again()


def test_a_backlog_quota(exam):
    policy = TopicPolicy(quota_bytes_max=300, quota_policy=QuotaPolicy.HOLD)
    topic, subscription = exam.topic(policy=policy)
    channel = exam.bench.channel()
    exam.begins()
    exam.meanwhile = while_it_may(exam, topic, channel, body=b"x" * 100)
    limit = "limit/quota_bytes_max/topic/orders"
    exam.found("holding", "quota", limit, waiting=connection_of(channel))
    exam.meanwhile = exam.reader(subscription).ack_all
    exam.ok_again()


def followed(exam, topic, finding):
    """Does what is advised, as the command line would."""
    for advice in finding.do:
        words = shlex.split(advice.command)
        assert words[:4] == ["penstock", "topics", "set", str(topic.name)]
        assert len(words) % 2 == 0
        changes = {}
        for option, text in zip(words[4::2], words[5::2], strict=True):
            name = option.removeprefix("--").replace("-", "_")
            field, read = POLICY_OPTIONS[name]
            changes[field] = read(name, text)
        exam.bench.engine.set_policy(topic.name, replace(topic.policy, **changes))
    assert finding.do


LIMITS_OF_LENGTH = [
    (setting, overflow, severity, cause)
    for setting in ("length_max", "bytes_max")
    for overflow, severity, cause in (
        (Overflow.HOLD, "holding", "held"),
        (Overflow.REJECT, "refusing", "length-limit"),
        (Overflow.DROP_HEAD, "discarding", "drop-head"),
    )
]
QUOTAS = [
    (setting, policy, severity, cause)
    for setting in ("quota_bytes_max", "quota_age_ms_max")
    for policy, severity, cause in (
        (QuotaPolicy.HOLD, "holding", "quota"),
        (QuotaPolicy.EXCEPTION, "refusing", "quota"),
        (QuotaPolicy.EVICT, "discarding", "evict"),
    )
]


@pytest.mark.parametrize(("setting", "overflow", "severity", "cause"), LIMITS_OF_LENGTH)
def test_the_advice_for_a_full_topic_ends_it(exam, setting, overflow, severity, cause):
    topic, subscription = exam.topic(policy=TopicPolicy(**{setting: 10}, overflow=overflow))
    reader, channel = exam.reader(subscription, Window(1)), exam.bench.channel()
    exam.begins()
    exam.meanwhile = while_it_may(exam, topic, channel, count=9, body=b"x" * 9)
    culprit = {
        "holding": f"limit/{setting}/topic/orders",
        "refusing": "topic/orders",
        "discarding": "sub/orders/billing",
    }[severity]
    waiting = connection_of(channel)
    found = exam.found(severity, cause, culprit, waiting=waiting)
    followed(exam, topic, found)
    exam.meanwhile = lambda: (while_it_may(exam, topic, channel)(), reader.ack_all())
    exam.ok_again()


@pytest.mark.parametrize(("setting", "policy", "severity", "cause"), QUOTAS)
def test_the_advice_for_a_quota_that_is_passed_ends_it(exam, setting, policy, severity, cause):
    quota = TopicPolicy(**{setting: 1_000}, quota_policy=policy)
    topic, subscription = exam.topic(policy=quota)
    reader, channel = exam.reader(subscription, Permits(1)), exam.bench.channel()
    exam.publish(topic, 1, channel)
    exam.bench.advance(990)
    exam.begins()
    exam.meanwhile = while_it_may(exam, topic, channel, body=b"x" * 200)
    culprit = {
        "holding": f"limit/{setting}/topic/orders",
        "refusing": "topic/orders",
        "discarding": "sub/orders/billing",
    }[severity]
    waiting = connection_of(channel)
    found = exam.found(severity, cause, culprit, waiting=waiting)
    followed(exam, topic, found)
    reader.consumer.grant(10_000)
    exam.meanwhile = lambda: (while_it_may(exam, topic, channel)(), reader.ack_all())
    exam.ok_again()


@pytest.mark.parametrize("setting", ["publish_messages_per_s", "publish_bytes_per_s"])
def test_of_two_publish_rates_the_one_that_is_used_up_is_to_blame(exam, setting):
    rates = {"publish_messages_per_s": 100_000, "publish_bytes_per_s": 100_000}
    topic, _ = exam.topic(policy=TopicPolicy(**{**rates, setting: 1}))
    channel = exam.bench.channel()
    exam.begins()
    exam.meanwhile = while_it_may(exam, topic, channel)
    limit = f"limit/{setting}/topic/orders"
    found = exam.found("holding", "rate", limit, waiting=connection_of(channel))
    followed(exam, topic, found)
    exam.ok_again()


def test_dead_letters_that_are_lost_are_lost_by_the_limit_that_is_reached(exam):
    policy = TopicPolicy(length_max=1_000, bytes_max=2, overflow=Overflow.REJECT)
    dead = exam.topic("dead", policy, sub="nobody")[0]
    topic, subscription = exam.topic(policy=TopicPolicy(dead_letter_topic="dead"))
    reader = exam.reader(subscription)
    exam.publish(topic, 9)
    reader.reject()
    exam.pass_ms(1_000)
    found = exam.now("discarding", "letters-lost", "topic/dead", waiting=["topic/orders"])
    assert [each.command for each in found.do] == ["penstock topics set dead --bytes-max 0"]
    followed(exam, dead, found)


def test_a_topic_that_its_owner_ended_refuses_what_is_published(exam):
    topic, _ = exam.topic()
    channel = exam.bench.channel()
    exam.publish(topic, 1, channel)
    exam.begins()
    exam.bench.engine.terminate_topic(topic.name)
    exam.meanwhile = lambda: exam.publish(topic, 1, channel)
    waiting = connection_of(channel)
    found = exam.found("refusing", "terminated", "topic/orders", waiting=waiting)
    assert "takes no more messages; use another topic" in found.sentence
    exam.meanwhile = None
    exam.ok_again()


def test_messages_that_are_too_large_are_refused_and_others_are_not(exam):
    topic, subscription = exam.topic(policy=TopicPolicy(message_bytes_max=10))
    reader, channel = exam.reader(subscription), exam.bench.channel()
    small = exam.bench.channel()

    def publishes():
        exam.bench.publish(channel, topic, b"x" * 11)
        exam.bench.publish(small, topic, b"x")
        exam.bench.settle()
        reader.ack_all()

    exam.begins()
    exam.meanwhile = publishes
    found = exam.found("refusing", "too-large", "topic/orders", waiting=connection_of(channel))
    assert "limit 10 (message_bytes_max)" in found.sentence
    exam.meanwhile = None
    exam.ok_again()


def test_what_was_held_for_as_long_as_it_may_be_is_refused_and_that_is_told():
    exam = Exam(hold_ms_max=3_000)
    topic, subscription = exam.topic(policy=TopicPolicy(length_max=2, overflow=Overflow.HOLD))
    channels = [exam.bench.channel() for _ in range(2)]
    exam.publish(topic, 2, exam.bench.channel())
    limit, waiting = "limit/length_max/topic/orders", connection_of(*channels)
    exam.begins()
    for channel in channels:
        exam.publish(topic, 1, channel)
    exam.found("holding", "held", limit, waiting=waiting, within_ms=1_000)
    # Each is refused three seconds after it was held; then nobody waits any more.
    exam.pass_ms(1_500)
    found = exam.now("refusing", "held-too-long", limit, waiting=waiting)
    assert "publish held for 3000 ms (flow.hold_ms_max) and refused" in found.sentence
    assert [each.command for each in found.do] == ["penstock topics set orders --length-max 0"]
    exam.pass_ms(1_000)
    exam.now("refusing", "held-too-long", limit, waiting=waiting)
    exam.reader(subscription).ack_all()
    exam.ok_again()


def held_disk(exam, topic):
    """A sync is under way, and comes back when it is finished."""
    exam.bench.publish(exam.bench.channel(), topic, b"a")
    exam.bench.turns()
    return exam.bench.engine.take_sync_job()


def flood(exam, topic, channels, body=b"x", count=100):
    """Publish until nobody may read on."""
    for channel in channels:
        while channel.connection.may_read:
            exam.bench.publish(channel, topic, *[body] * count)
            exam.bench.clock.advance(1)
            exam.bench.turns()


def test_a_disk_that_is_slow_and_then_hangs(exam):
    topic, channel = exam.bench.topic(), exam.bench.channel()
    exam.begins()
    job = held_disk(exam, topic)
    flood(exam, topic, [channel])
    waiting = connection_of(channel)
    exam.found("holding", "slow", "log", waiting=waiting)
    exam.found("holding", "hung", "log", waiting=waiting, within_ms=7_000)
    (log,) = [view for view in exam.map.views if view.kind == "log"]
    assert log.state == "slow"
    assert log.sync.age_ms >= 7_000
    exam.bench.finish(job)
    exam.bench.settle()
    exam.ok_again()


def test_who_has_too_much_unconfirmed_because_the_disk_hangs_waits_for_the_disk():
    exam = Exam(pending_publishes_max=1000)
    topic, channel = exam.topic()[0], exam.bench.channel()
    exam.begins()
    job = held_disk(exam, topic)
    flood(exam, topic, [channel])
    assert Reason.PENDING in channel.connection.gate.reasons
    waiting = connection_of(channel)
    found = exam.found("holding", "slow", "log", waiting=waiting)
    assert found.path == (*waiting, "log")
    exam.found("holding", "hung", "log", waiting=waiting, within_ms=7_000)
    exam.bench.finish(job)
    exam.bench.settle()
    exam.ok_again()


def test_who_has_too_much_unconfirmed_while_the_disk_is_quick_is_at_its_own_limit():
    exam = Exam(pending_publishes_max=50)
    topic, channel = exam.topic()[0], exam.bench.channel()
    exam.begins()

    def publishes():
        while channel.connection.may_read:
            exam.bench.publish(channel, topic, *[b"x"] * 20)
            exam.bench.turns()
        exam.bench.clock.advance(20)
        exam.bench.settle()

    exam.meanwhile = publishes
    limit = "limit/flow.pending_publishes_max/connection/"
    exam.found("holding", "pending", limit, waiting=connection_of(channel))
    exam.meanwhile = None
    exam.ok_again()


def test_a_publisher_with_many_bindings_waits_for_its_channel(exam):
    targets = [exam.topic(f"reader.{number}")[0].queues[0] for number in range(50)]
    channel, route = exam.bench.channel(), FanoutRoute(tuple(targets))

    def routes():
        """Its connection reads on as soon as it may; the turn that routes it takes its time."""
        while channel.connection.may_read:
            exam.bench.publish(channel, route, *[b"x"] * 100)
        exam.bench.clock.advance(20)
        exam.bench.engine.turn()
        exam.bench.sync()

    exam.begins()
    exam.meanwhile = routes
    exam.found("holding", "routing", channel.stage.id, waiting=connection_of(channel))
    exam.meanwhile = exam.bench.settle
    exam.ok_again()


def test_many_small_messages_for_one_queue_wait_for_it():
    exam = Exam(channel_queue_credit=10, channel_queue_more=5)
    topic, channel = exam.topic()[0], exam.bench.channel()
    exam.begins()
    exam.meanwhile = appends_slowly(exam, topic, channel)
    found = exam.found("holding", "index", "queue/orders/0", waiting=[channel.stage.id])
    assert found.path == (channel.stage.id, "queue/orders/0")
    exam.meanwhile = None
    exam.ok_again()


def appends_slowly(exam, topic, channel):
    """A channel with a lot for one queue, whose every append takes its time."""
    exam.bench.engine.watch_appends(
        lambda batch: exam.bench.clock.advance(30 * (exam.meanwhile is not None))
    )

    def publish():
        exam.bench.publish(channel, topic, *[b"x"] * 500)
        exam.bench.turns()
        exam.bench.settle()

    return publish


def test_a_busy_host_is_to_blame_when_somebody_waits_and_else_no_answer():
    exam = Exam(channel_queue_credit=10, channel_queue_more=5)
    topic, channel = exam.topic()[0], exam.bench.channel()
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
    assert ("parked", "host") in [(each.severity, each.culprit.id) for each in exam.findings()]
    exam.begins()
    exam.meanwhile = appends_slowly(exam, topic, channel)
    waiting = [channel.stage.id]
    found = exam.found("holding", "busy-host", "host", waiting=waiting, is_older=True)
    assert found.path[-2:] == ("queue/orders/0", "host")
    exam.meanwhile = None
    exam.ok_again()
    starve(8, 0.0)
    assert "host" not in [each.culprit.id for each in exam.findings()]


class NoRoom:
    """What an adapter says that cannot take in a publish: nobody in particular is in its way."""

    culprit = ""


KIB = 1 << 10


def test_a_noisy_publisher_has_more_than_half_of_the_pool_that_others_lack():
    exam = Exam(connection_bytes_max=600 * KIB, inflight_bytes_max=1024 * KIB)
    topic, _ = exam.topic()
    noisy, quiet, other = [exam.bench.channel().connection for _ in range(3)]
    exam.begins()
    exam.bench.publish(noisy.open_channel(), topic, b"x" * 300 * KIB)
    exam.bench.publish(quiet.open_channel(), topic, b"x" * 100 * KIB)
    # Their bytes are on their way to the disk when somebody else finds no room.
    exam.bench.turns()
    other.wait_for_room(NoRoom())
    exam.found("holding", "room", noisy.stage.id, waiting=[other.stage.id])
    other.found_room()
    exam.bench.settle()
    exam.ok_again()


def test_a_noisy_publisher_has_more_than_half_of_what_waits_for_the_disk_with_others():
    exam = Exam(connection_bytes_max=600 * KIB, inflight_bytes_max=2048 * KIB)
    topic, _ = exam.topic()
    noisy, quiet = exam.bench.channel(), exam.bench.channel()
    exam.begins()
    job = held_disk(exam, topic)
    flood(exam, topic, [noisy], b"x" * 100 * KIB, count=1)
    flood(exam, topic, [quiet], b"x", count=500)
    exam.found("holding", "slow", "log", waiting=connection_of(noisy, quiet))
    (found,) = [each for each in exam.findings() if each.cause == "noisy"]
    assert (found.severity, found.culprit.id) == ("holding", noisy.connection.stage.id)
    assert [each.id for each in found.waiters] == connection_of(quiet)
    exam.bench.finish(job)
    exam.bench.settle()
    exam.ok_again()
    assert "noisy" not in [each.cause for each in exam.findings()]


def test_where_many_have_a_little_of_the_pool_nobody_is_noisy():
    exam = Exam(connection_bytes_max=600 * KIB, inflight_bytes_max=1024 * KIB)
    topic, _ = exam.topic()
    exam.begins()
    for _ in range(5):
        exam.bench.publish(exam.bench.channel(), topic, b"x" * 100 * KIB)
    exam.bench.turns()
    other = exam.bench.channel().connection
    other.wait_for_room(NoRoom())
    pool = {"name": "in-flight pool", "waiting": [other.stage.id]}
    exam.found("holding", "room", "pool/in-flight", **pool)
    other.found_room()
    exam.bench.settle()
    exam.ok_again()


def test_a_publisher_with_most_of_the_pool_is_no_finding_while_nobody_lacks_room():
    exam = Exam(connection_bytes_max=600 * KIB, inflight_bytes_max=1024 * KIB)
    topic, _ = exam.topic()
    exam.bench.publish(exam.bench.channel(), topic, b"x" * 500 * KIB)
    exam.bench.turns()
    for _ in range(4):
        exam.ok()
        exam.pass_ms(500)


def test_an_in_flight_pool_that_is_full_names_the_disk_and_everybody_who_waits():
    exam = Exam(connection_bytes_max=256 * KIB, inflight_bytes_max=512 * KIB)
    topic, _ = exam.topic()
    channels = [exam.bench.channel() for _ in range(4)]
    exam.begins()
    job = held_disk(exam, topic)
    flood(exam, topic, channels, b"x" * 50 * KIB, count=1)
    exam.found("holding", "slow", "log", waiting=connection_of(*channels))
    exam.bench.finish(job)
    exam.bench.settle()
    exam.ok_again()


def test_write_buffers_that_are_exhausted():
    storage = StorageSettings(write_buffers_max=1, write_buffer_bytes=64 * KIB)
    exam = Exam(parts={"storage": storage}, connection_bytes_max=256 * KIB)
    topic, _ = exam.topic()
    channel = exam.bench.channel()
    exam.begins()
    job = held_disk(exam, topic)
    flood(exam, topic, [channel], b"x" * 16 * KIB, count=1)
    found = exam.found("holding", "no-buffer", "log", waiting=connection_of(channel))
    assert "all 1 write buffers are waiting for the disk" in found.detail
    exam.bench.finish(job)
    exam.bench.settle()
    exam.ok_again()


def test_a_disk_that_is_full_refuses_and_says_whom(exam):
    topic, _ = exam.topic()
    channel = exam.bench.channel()
    room = exam.bench.storage.capacity_bytes
    exam.begins()
    exam.bench.storage.capacity_bytes = exam.bench.storage.used_bytes
    exam.meanwhile = lambda: exam.publish(topic, 5, channel)
    exam.found("refusing", "write-failed", "log", waiting=connection_of(channel))
    exam.bench.storage.capacity_bytes = room
    exam.ok_again()


def test_a_sync_that_failed_is_final_and_is_said_when_nobody_publishes_any_more(exam):
    topic, _ = exam.topic()
    channel = exam.bench.channel()
    exam.bench.publish(channel, topic, b"x")
    exam.bench.turns()
    job = exam.bench.engine.take_sync_job()
    exam.ok()
    exam.bench.engine.synced(job, OSError("input/output error"))
    since_ms = exam.now("refusing", "sync-failed", "log", waiting=connection_of(channel)).since_ms
    exam.pass_ms(3_600_000)
    found = exam.now("refusing", "sync-failed", "log")
    assert found.since_ms == since_ms
    assert "a sync failed" in found.sentence


def test_a_dead_letter_target_that_is_full_loses_letters(exam):
    exam.topic("dead", TopicPolicy(length_max=2, overflow=Overflow.REJECT), sub="nobody")
    topic, subscription = exam.topic(policy=TopicPolicy(dead_letter_topic="dead"))
    reader = exam.reader(subscription)

    def rejects():
        exam.publish(topic, 9)
        reader.reject()

    exam.begins()
    exam.meanwhile = rejects
    found = exam.found("discarding", "letters-lost", "topic/dead", waiting=["topic/orders"])
    assert "were lost" in found.sentence
    exam.meanwhile = None
    exam.ok_again()


def test_dead_letters_whose_target_is_missing_are_lost(exam):
    topic, subscription = exam.topic(policy=TopicPolicy(dead_letter_topic="no-such-topic"))
    reader = exam.reader(subscription)

    def rejects():
        exam.publish(topic, 9)
        reader.reject()

    exam.begins()
    exam.meanwhile = rejects
    found = exam.found("discarding", "letters-unrouted", "topic/orders")
    assert "were lost" in found.sentence
    exam.meanwhile = None
    exam.ok_again()


def test_what_is_rejected_without_a_dead_letter_target_is_no_loss(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription)
    for _ in range(5):
        exam.publish(topic, 9)
        reader.reject()
        exam.ok()
        exam.pass_ms(500)


def test_a_disk_that_refuses_what_no_publisher_waits_for_is_named(exam):
    exam.reader(exam.topic("dead", sub="undertaker")[1], is_auto_settled=True)
    topic, subscription = exam.topic(policy=TopicPolicy(dead_letter_topic="dead"))
    reader = exam.reader(subscription)
    exam.publish(topic, 9)
    room = exam.bench.storage.capacity_bytes
    exam.begins()
    exam.bench.storage.capacity_bytes = exam.bench.storage.used_bytes
    reader.reject()
    found = exam.found("refusing", "write-failed", "log")
    assert "it refuses what is written" in found.sentence
    exam.bench.storage.capacity_bytes = room
    exam.ok_again()


# Two at once: both are found, the worse one first.


def both(exam):
    """Severity and culprit of what is wrong, in the order in which it is told."""
    found = [each for each in exam.findings() if each.severity != "parked"]
    return [(each.severity, each.culprit.id) for each in found]


@pytest.mark.parametrize(("name", "worst", "best"), [("memory", 1 << 60, 0), ("disk", 0, 1 << 60)])
def test_an_alarm_is_the_answer_whatever_else_there_is(exam, name, worst, best):
    topic, subscription = exam.topic()
    slow = exam.reader(subscription, Window(5), "mailer")
    exam.begins()
    exam.publish(topic, 20)
    reader = exam.found("behind", "slow-consumer", "consumer/", name="mailer").culprit.id
    exam.bench.engine.set_alarm(name, worst)
    channel = exam.bench.channel()
    exam.publish(topic, 1, channel)
    exam.pass_ms(2_000)
    exam.now("alarm", name, f"alarm/{name}", waiting=connection_of(channel))
    assert both(exam) == [("alarm", f"alarm/{name}"), ("behind", reader)]
    exam.bench.engine.set_alarm(name, best)
    exam.bench.settle()
    slow.ack_all()
    exam.ok_again()


@pytest.mark.parametrize(("name", "worst", "best"), [("memory", 1 << 60, 0), ("disk", 0, 1 << 60)])
def test_an_alarm(exam, name, worst, best):
    topic, _ = exam.topic()
    channel = exam.bench.channel()
    exam.begins()
    exam.bench.engine.set_alarm(name, worst)
    exam.publish(topic, 1, channel)
    found = exam.found("alarm", name, f"alarm/{name}", waiting=connection_of(channel))
    assert found.since_ms is not None
    exam.bench.engine.set_alarm(name, best)
    exam.bench.settle()
    exam.ok_again()


def test_two_limits_at_once_are_two_findings_and_the_one_that_holds_comes_first(exam):
    full, held = exam.topic("full", TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    strict, refused = exam.topic("strict", TopicPolicy(length_max=1, overflow=Overflow.REJECT))
    exam.begins()
    channel = exam.bench.channel()
    exam.meanwhile = lambda: exam.publish(strict, 3)
    exam.publish(full, 3, channel)
    exam.found("holding", "held", "limit/length_max/topic/full", waiting=connection_of(channel))
    assert both(exam)[:2] == [
        ("holding", "limit/length_max/topic/full"),
        ("refusing", "topic/strict"),
    ]
    readers = [exam.reader(each) for each in (held, refused)]
    exam.meanwhile = lambda: [each.ack_all() for each in readers]
    exam.ok_again()


def test_a_loss_and_two_readers_that_are_behind_are_three_findings(exam):
    ring, losing = exam.topic("ring", TopicPolicy(length_max=2))
    orders, billing = exam.topic()
    left, gone = exam.topic("left")
    loser = exam.reader(losing, Window(1), "loser")
    slow = exam.reader(billing, Window(5), "mailer")
    gone.detach(exam.reader(gone).consumer)
    channel = exam.bench.channel()
    exam.begins()
    exam.meanwhile = lambda: exam.publish(ring, 5, channel)
    exam.publish(orders, 50)
    exam.publish(left, 5)
    waiting = connection_of(channel)
    exam.found("discarding", "drop-head", "sub/ring/billing", waiting=waiting, within_ms=10_000)
    told = both(exam)
    assert [each[0] for each in told] == ["discarding", "behind", "behind"]
    assert ("behind", "sub/left/billing") in told
    exam.meanwhile = lambda: [each.ack_all() for each in (loser, slow)]
    exam.reader(gone).ack_all()
    exam.ok_again()


# Names.


def test_things_that_share_a_name_do_not_share_an_id(exam):
    exam.bench.topic("payments", queues=2)
    exam.bench.topic("payments/1")
    exam.findings()
    twins = [view for view in exam.map.views if view.label == "queue payments/1"]
    assert sorted(view.id for view in twins) == ["queue/payments%2F1/0", "queue/payments/1"]


def test_connections_of_an_application_say_so(exam):
    connection = exam.bench.channel().connection
    connection.name_application("amqp", "check out")
    exam.findings()
    (view,) = [view for view in exam.map.views if view.id == connection.stage.id]
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
