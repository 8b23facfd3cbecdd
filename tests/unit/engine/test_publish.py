"""The journey in, as a publisher sees it: confirmed, refused, held; never both, never neither."""

import pytest

from penstock.engine.connection import ConnectionOptions
from penstock.engine.ports import Publication
from penstock.engine.routing import DirectRoute, FanoutRoute
from penstock.engine.subscription_options import SubscriptionOptions
from penstock.engine.topic import Overflow, TopicPolicy
from penstock.flow.quota import QuotaPolicy
from penstock.flow.reason import Reason
from penstock.model.errors import InvariantBroken
from penstock.model.record import RecordFlag, neutral_record
from penstock.model.refusal import RefusalKind
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.settings.topics import TopicSettings
from penstock.testing.faults import FaultKind
from penstock.testing.workbench import Workbench


@pytest.fixture
def bench():
    return Workbench()


def flow_bench(**flow):
    return Workbench(Settings(flow=FlowSettings(**flow)))


def make_reader(bench, topic, name="reader"):
    return bench.engine.create_subscription(
        topic.name, name, SubscriptionOptions(sees_unsynced=True)
    )


def kinds(outlet):
    return [refusal.kind for _, refusal in outlet.refusals]


def bodies(bench, queue):
    entries = queue.index.entries(0, 10_000)
    return [record.body for record in bench.store.read([(e[0], e[4]) for e in entries])]


class Nowhere:
    steps = 1
    is_constant = True

    def targets(self, _record, /):
        return ()


def test_a_publish_is_confirmed_only_after_the_sync_that_covers_it(bench):
    topic, channel = bench.topic(), bench.channel()
    tokens = bench.publish(channel, topic, b"a", b"b")
    bench.turns()
    assert bench.outlet.confirmed_tokens == []
    job = bench.engine.take_sync_job()
    late = bench.publish(channel, topic, b"late")
    bench.turns()
    bench.finish(job)
    assert bench.outlet.confirmed_tokens == tokens
    bench.settle()
    assert bench.outlet.confirmed_tokens == tokens + late


def test_a_confirm_names_queue_offset_position_and_time(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    first, second = bench.outlet.events[0].confirmations
    assert (first.queue_id, first.offset, second.offset) == (topic.queues[0].queue_id, 0, 1)
    assert first.position < second.position
    assert first.store_ms == bench.clock.wall_ms()


def test_one_confirm_call_per_channel_and_sync_whatever_the_lists_were(bench):
    topic, channel = bench.topic(), bench.channel()
    for body in (b"a", b"b", b"c"):
        bench.publish(channel, topic, body)
        bench.turns()
    bench.sync()
    assert [len(event.confirmations) for event in bench.outlet.events] == [3]


def test_a_list_that_was_confirmed_before_is_not_given_out_again_longer(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a")
    bench.turns()
    bench.publish(channel, topic, b"b")
    bench.turns()
    bench.sync()
    bench.publish(channel, topic, b"c")
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1, 2]


@pytest.mark.parametrize("is_durable", [True, False])
def test_transient_messages_and_topics_are_confirmed_when_appended(bench, is_durable):
    topic, channel = bench.topic(is_durable=is_durable), bench.channel()
    record = neutral_record(b"quick")
    record.flags |= RecordFlag.TRANSIENT if is_durable else 0
    tokens = bench.publish(channel, topic, record)
    bench.engine.turn()
    assert bench.outlet.confirmed_tokens == tokens
    bench.settle()
    assert bench.outlet.confirmed_tokens == tokens


def test_a_mixed_list_confirms_the_transient_part_first(bench):
    topic, channel = bench.topic(), bench.channel()
    quick = neutral_record(b"quick")
    quick.flags |= RecordFlag.TRANSIENT
    slow, early, last = bench.publish(channel, topic, b"slow", quick, b"last")
    bench.engine.turn()
    assert bench.outlet.confirmed_tokens == [early]
    bench.settle()
    assert bench.outlet.confirmed_tokens == [early, slow, last]
    assert bodies(bench, topic.queues[0]) == [b"slow", b"quick", b"last"]


def test_a_fan_out_is_one_record_with_an_entry_in_every_queue(bench):
    first, second = bench.topic("first"), bench.topic("second")
    route = FanoutRoute((first.queues[0], second.queues[0], first.queues[0]))
    bench.publish(bench.channel(), route, b"once")
    bench.settle()
    places = [topic.queues[0].index.entries(0, 9) for topic in (first, second)]
    assert [len(entries) for entries in places] == [1, 1]
    assert places[0][0][0] == places[1][0][0]


def test_order_per_queue_holds_between_fan_out_and_single_publishes(bench):
    first, second = bench.topic("first"), bench.topic("second")
    both = FanoutRoute((first.queues[0], second.queues[0]))
    channel = bench.channel()
    routes = [DirectRoute(first.queues[0]), both, DirectRoute(second.queues[0]), both]
    channel.publish(
        [
            Publication(neutral_record(b"%d" % number), route=routes[number % 4], token=number)
            for number in range(40)
        ]
    )
    bench.settle()
    for topic in (first, second):
        numbers = [int(body) for body in bodies(bench, topic.queues[0])]
        assert numbers == sorted(numbers)
    assert sorted(bench.outlet.confirmed_tokens) == list(range(40))


def test_an_unroutable_publish_is_confirmed_or_refused_as_its_flag_says(bench):
    channel = bench.channel()
    channel.publish(
        [
            Publication(neutral_record(b"drop"), route=Nowhere(), token=1),
            Publication(neutral_record(b"must"), route=Nowhere(), token=2, is_mandatory=True),
        ]
    )
    bench.turns()
    assert bench.outlet.confirmed_tokens == [1]
    assert kinds(bench.outlet) == [RefusalKind.NO_ROUTE]
    assert bench.engine.statistics().unroutable == 2
    assert channel.connection.bytes_held == 0


def test_a_message_above_the_size_limit_is_refused_and_its_neighbours_are_not():
    bench = Workbench(Settings(topics=TopicSettings(message_bytes_max=100)))
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a", b"x" * 101, b"b")
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 2]
    assert kinds(bench.outlet) == [RefusalKind.TOO_LARGE]
    assert bodies(bench, topic.queues[0]) == [b"a", b"b"]


def test_a_refused_write_refuses_its_frame_and_stores_nothing(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.settle()
    bench.publish(channel, topic, b"a", b"b")
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    bench.turns()
    assert kinds(bench.outlet) == [RefusalKind.WRITE_FAILED] * 2
    assert topic.queues[0].index.next_offset == 0
    assert channel.connection.bytes_held == 0
    assert bench.engine.is_store_busy
    tokens = bench.publish(channel, topic, b"again")
    bench.settle()
    assert bench.outlet.confirmed_tokens == tokens
    assert not bench.engine.is_store_busy


def test_a_failed_sync_refuses_what_it_covered_and_everything_after_it(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.settle()
    bench.publish(channel, topic, b"covered")
    bench.turns()
    bench.storage.plan.fail_next("sync", FaultKind.EIO)
    bench.sync()
    assert kinds(bench.outlet) == [RefusalKind.SYNC_FAILED]
    assert bench.engine.is_failed
    bench.publish(channel, topic, b"after")
    bench.turns()
    assert kinds(bench.outlet) == [RefusalKind.SYNC_FAILED] * 2
    assert bench.engine.refuse_now().kind is RefusalKind.SYNC_FAILED
    assert channel.connection.bytes_held == 0


def test_messages_waiting_in_queues_are_refused_too_when_the_sync_fails(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"covered")
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(bench.settings.storage.sync_hold_ms + 1)
    bench.publish(channel, topic, b"waits in the queue")
    bench.turns()
    assert topic.queues[0].inbox_messages == 1
    bench.engine.synced(job, OSError("the disk is gone"))
    bench.turns()
    assert kinds(bench.outlet) == [RefusalKind.SYNC_FAILED] * 2
    assert topic.queues[0].inbox_messages == 0


def test_nothing_is_written_while_a_sync_is_too_old(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a")
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(bench.settings.storage.sync_hold_ms + 1)
    assert bench.engine.log_is_held
    bench.publish(channel, topic, b"b")
    bench.turns()
    assert topic.queues[0].index.next_offset == 1
    bench.finish(job)
    assert bench.engine.needs_turn
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1]


def test_a_store_that_is_busy_tells_protocols_that_fail_fast(bench):
    topic, channel = bench.topic(), bench.channel()
    assert bench.engine.refuse_now() is None
    bench.publish(channel, topic, b"a")
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(bench.settings.flow.store_busy_ms + 1)
    assert bench.engine.refuse_now().kind is RefusalKind.BUSY
    bench.finish(job)
    assert bench.engine.refuse_now() is None


def test_a_full_queue_rejects_the_new_message_and_admits_again_after_a_settlement(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=2, overflow=Overflow.REJECT))
    subscription = make_reader(bench, topic)
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b", b"c")
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1]
    assert kinds(bench.outlet) == [RefusalKind.LENGTH_LIMIT]
    assert bodies(bench, topic.queues[0]) == [b"a", b"b"]
    subscription.settle_upto(topic.queues[0].queue_id, 1)
    tokens = bench.publish(channel, topic, b"d")
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1, *tokens]


def test_a_full_queue_that_drops_its_head_keeps_the_newest(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=2))
    subscription = make_reader(bench, topic)
    bench.publish(bench.channel(), topic, *[b"%d" % number for number in range(5)])
    bench.settle()
    assert subscription.ready(topic.queues[0].queue_id) == 2
    assert subscription.low_mark(topic.queues[0].queue_id) == 3


def test_a_full_queue_that_holds_lets_the_publisher_wait_and_reads_its_acks(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    subscription = make_reader(bench, topic)
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    connection = channel.connection
    assert list(connection.gate.reasons) == [Reason.HELD]
    assert connection.may_read
    assert bench.outlet.confirmed_tokens == [0]
    subscription.settle_upto(topic.queues[0].queue_id, 1)
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1]
    assert connection.gate.is_open
    assert [event.is_open for event in bench.outlet.gates] == [False, True]


def test_a_hold_is_refused_when_it_lasted_too_long(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    make_reader(bench, topic)
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    bench.advance(bench.settings.flow.hold_ms_max - 1)
    assert bench.outlet.refusals == []
    bench.advance(1)
    assert kinds(bench.outlet) == [RefusalKind.HELD_TOO_LONG]
    assert channel.connection.gate.is_open
    assert channel.connection.bytes_held == 0


def test_a_held_channel_keeps_its_order_and_holds_no_other_channel(bench):
    full = bench.topic("full", TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    free = bench.topic("free")
    make_reader(bench, full)
    held, other = bench.channel(), bench.channel()
    bench.publish(held, full, b"a", b"b")
    bench.publish(held, free, b"behind")
    bench.publish(other, free, b"beside")
    bench.settle()
    assert bodies(bench, free.queues[0]) == [b"beside"]


def test_a_protocol_that_fails_fast_is_refused_instead_of_held(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    make_reader(bench, topic)
    channel = bench.channel(ConnectionOptions(is_fast_failing=True))
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    assert kinds(bench.outlet) == [RefusalKind.LENGTH_LIMIT]


def test_a_publish_rate_pauses_reading_and_lets_go_by_time(bench):
    topic = bench.topic(policy=TopicPolicy(publish_messages_per_s=10))
    channel = bench.channel()
    bench.publish(channel, topic, *[b"x"] * 12)
    bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 10
    assert Reason.RATE in channel.connection.gate.reasons
    assert not channel.connection.may_read
    bench.advance(200)
    bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 12
    assert channel.connection.gate.is_open


@pytest.mark.parametrize(
    ("policy", "kind"), [(QuotaPolicy.EXCEPTION, RefusalKind.QUOTA), (QuotaPolicy.HOLD, None)]
)
def test_a_backlog_quota_refuses_or_holds_at_the_very_publish(bench, policy, kind):
    topic = bench.topic(policy=TopicPolicy(quota_bytes_max=300, quota_policy=policy))
    subscription = make_reader(bench, topic)
    channel = bench.channel()
    for _ in range(4):
        bench.publish(channel, topic, b"x" * 100)
        bench.settle()
    if kind is None:
        assert Reason.QUOTA in channel.connection.gate.reasons
        subscription.settle_upto(topic.queues[0].queue_id, 2)
        bench.settle()
        assert channel.connection.gate.is_open
        assert bench.outlet.refusals == []
    else:
        assert set(kinds(bench.outlet)) == {kind}
    assert bench.outlet.confirmed_tokens


def test_a_backlog_quota_that_evicts_lets_the_oldest_go(bench):
    policy = TopicPolicy(quota_bytes_max=1000, quota_policy=QuotaPolicy.EVICT)
    topic = bench.topic(policy=policy)
    subscription = make_reader(bench, topic)
    channel = bench.channel()
    for _ in range(20):
        bench.publish(channel, topic, b"x" * 100)
        bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 20
    assert subscription.backlog_bytes(topic.queues[0].queue_id) <= 1000


def test_an_alarm_holds_connections_that_publish_and_no_others(bench):
    topic, channel = bench.topic(), bench.channel()
    idle = bench.connect()
    bench.publish(channel, topic, b"before")
    bench.settle()
    bench.engine.set_alarm("memory", 1 << 50)
    assert Reason.MEMORY in channel.connection.gate.reasons
    assert idle.gate.is_open
    bench.publish(channel, topic, b"during")
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0]
    assert channel.connection.may_read
    bench.advance(60_000)
    assert bench.outlet.refusals == []
    bench.engine.set_alarm("memory", 0)
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1]
    assert channel.connection.gate.is_open


def test_an_alarm_concerns_a_connection_from_its_first_publish_on(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.engine.set_alarm("disk", 0)
    assert channel.connection.gate.is_open
    bench.publish(channel, topic, b"a")
    assert list(channel.connection.gate.reasons) == [Reason.DISK]


def test_an_alarm_with_a_time_limit_refuses_what_it_held_too_long():
    bench = flow_bench(alarm_hold_ms_max=500)
    topic, channel = bench.topic(), bench.channel()
    bench.engine.set_alarm("disk", 0)
    bench.publish(channel, topic, b"a")
    bench.advance(499)
    assert bench.outlet.refusals == []
    bench.advance(1)
    assert kinds(bench.outlet) == [RefusalKind.DISK_ALARM]


def test_a_flood_stops_at_the_credit_of_its_hop_and_goes_on_after_the_sync():
    bench = flow_bench(pending_publishes_max=0)
    topic, channel = bench.topic(), bench.channel()
    connection = channel.connection
    lists = 0
    while connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.turns()
        lists += 1
        assert lists < 100
    flow = bench.settings.flow
    limit = flow.queue_log_credit + flow.channel_queue_credit + flow.reader_channel_credit
    assert lists * 100 <= limit + 300
    assert connection.gate.reasons == {Reason.FLOW: "log"}
    assert topic.queues[0].stage.is_blocked
    bench.settle()
    assert connection.gate.is_open
    assert len(bench.outlet.confirmed_tokens) == lists * 100


def test_unconfirmed_publishes_are_limited_and_reading_resumes_at_half():
    bench = flow_bench(pending_publishes_max=10)
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, *[b"x"] * 10)
    bench.turns()
    assert Reason.PENDING in channel.connection.gate.reasons
    assert not channel.connection.may_read
    bench.sync()
    assert channel.connection.gate.is_open


def test_large_messages_count_by_their_bytes():
    bench = flow_bench(connection_bytes_max=10_000, inflight_bytes_max=1_000_000)
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"x" * 4_000, b"x" * 4_000)
    assert channel.connection.may_read
    bench.publish(channel, topic, b"x" * 4_000)
    assert not channel.connection.may_read
    bench.settle()
    assert channel.connection.may_read
    assert len(bench.outlet.confirmed_tokens) == 3


def test_when_the_pool_is_used_up_everybody_who_publishes_waits_for_it():
    bench = flow_bench(connection_bytes_max=10_000, inflight_bytes_max=10_000)
    topic = bench.topic()
    first, second = bench.channel(), bench.channel()
    bench.publish(first, topic, b"x" * 9_000)
    bench.publish(second, topic, b"x" * 2_000)
    assert first.connection.may_read
    assert not second.connection.may_read
    bench.settle()
    assert second.connection.may_read
    assert bench.engine.statistics().inflight_bytes == 0


def test_a_closed_channel_still_stores_what_it_sent_and_is_told_nothing(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"last words")
    channel.connection.close()
    bench.settle()
    assert bodies(bench, topic.queues[0]) == [b"last words"]
    assert bench.outlet.events == []
    stats = bench.engine.statistics()
    assert (stats.connections, stats.channels, stats.inflight_bytes) == (0, 0, 0)
    with pytest.raises(InvariantBroken):
        bench.publish(channel, topic, b"too late")


def test_a_channel_closed_while_held_takes_its_held_publishes_with_it(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    make_reader(bench, topic)
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    channel.connection.close()
    bench.settle()
    assert bodies(bench, topic.queues[0]) == [b"a"]
    assert bench.engine.statistics().inflight_bytes == 0


def test_a_deleted_topic_lets_go_of_everybody_who_waits_for_it(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a")
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(bench.settings.storage.sync_hold_ms + 1)
    bench.publish(channel, topic, *[b"x"] * 500)
    bench.turns()
    assert channel.stage.is_blocked
    bench.engine.delete_topic(topic.name)
    bench.finish(job)
    bench.settle()
    assert not channel.stage.is_blocked
    assert channel.connection.gate.is_open
    assert len(bench.outlet.confirmed_tokens) == 501
    assert bench.engine.statistics().inflight_bytes == 0


def test_priorities_choose_the_queue_and_are_capped(bench):
    topic = bench.topic(policy=TopicPolicy(max_priority=2))
    records = [neutral_record(b"%d" % priority) for priority in (0, 1, 2, 9)]
    for priority, record in zip((0, 1, 2, 9), records, strict=True):
        record.priority = priority
    bench.publish(bench.channel(), topic, *records)
    bench.settle()
    assert [bodies(bench, queue) for queue in topic.queues] == [[b"0"], [b"1"], [b"2", b"9"]]


def test_keys_stay_in_their_queue_and_keyless_messages_go_round(bench):
    topic = bench.topic(queues=3)
    channel = bench.channel()
    bench.publish(channel, topic, *[neutral_record(b"v", key=b"k%d" % (n % 5)) for n in range(50)])
    bench.settle()
    seen = {}
    for queue in topic.queues:
        entries = queue.index.entries(0, 100)
        for record in bench.store.read([(e[0], e[4]) for e in entries]):
            assert seen.setdefault(record.key, queue) is queue
    before = [queue.index.next_offset for queue in topic.queues]
    bench.publish(channel, topic, *[b"v"] * 9)
    bench.settle()
    after = [queue.index.next_offset for queue in topic.queues]
    assert [new - old for new, old in zip(after, before, strict=True)] == [3, 3, 3]
