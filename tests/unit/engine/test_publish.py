"""The journey in, as a publisher sees it: confirmed or refused; never both, never neither."""

import pytest

from kit.workbench import Workbench
from penstock.engine.connection import ConnectionOptions
from penstock.engine.ports import Publication
from penstock.engine.topic import DirectRoute, FanoutRoute, Overflow, TopicPolicy
from penstock.model.errors import InvariantBroken
from penstock.model.record import RecordFlag, neutral_record
from penstock.model.refusal import RefusalKind
from penstock.settings.broker import TopicSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.testing.storage import FaultKind


@pytest.fixture
def bench():
    return Workbench()


def flow_bench(**flow):
    return Workbench(Settings(flow=FlowSettings(**flow)))


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
    record.reshape(flags=record.flags | RecordFlag.TRANSIENT if is_durable else 0)
    tokens = bench.publish(channel, topic, record)
    bench.engine.turn()
    assert bench.outlet.confirmed_tokens == tokens
    bench.settle()
    assert bench.outlet.confirmed_tokens == tokens


def test_a_mixed_list_confirms_the_transient_part_first(bench):
    topic, channel = bench.topic(), bench.channel()
    quick = neutral_record(b"quick")
    quick.reshape(flags=quick.flags | RecordFlag.TRANSIENT)
    slow, early, last = bench.publish(channel, topic, b"slow", quick, b"last")
    bench.engine.turn()
    assert bench.outlet.confirmed_tokens == [early]
    bench.settle()
    assert bench.outlet.confirmed_tokens == [early, slow, last]
    assert bench.bodies(topic) == [b"slow", b"quick", b"last"]


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
        numbers = [int(body) for body in bench.bodies(topic)]
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
    assert bench.refusal_kinds == [RefusalKind.NO_ROUTE]
    seen = bench.engine.statistics()
    assert (seen.unroutable_dropped, seen.refused) == (1, {}), "what is told its protocol counts"
    assert channel.connection.bytes_held == 0


def test_a_message_above_the_size_limit_is_refused_and_its_neighbours_are_not():
    bench = Workbench(Settings(topics=TopicSettings(message_bytes_max=100)))
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a", b"x" * 101, b"b")
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 2]
    assert bench.refusal_kinds == [RefusalKind.TOO_LARGE]
    assert bench.bodies(topic) == [b"a", b"b"]


def test_a_refused_write_refuses_its_frame_and_stores_nothing(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.settle()
    bench.publish(channel, topic, b"a", b"b")
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    bench.turns()
    assert bench.refusal_kinds == [RefusalKind.WRITE_FAILED] * 2
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
    assert bench.refusal_kinds == [RefusalKind.SYNC_FAILED]
    assert bench.engine.is_failed
    bench.publish(channel, topic, b"after")
    bench.turns()
    assert bench.refusal_kinds == [RefusalKind.SYNC_FAILED] * 2
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
    assert topic.queues[0].inbox.messages == 1
    bench.engine.synced(job, OSError("the disk is gone"))
    bench.turns()
    assert bench.refusal_kinds == [RefusalKind.SYNC_FAILED] * 2
    assert topic.queues[0].inbox.messages == 0


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


def test_a_closed_channel_still_stores_what_it_sent_and_is_told_nothing(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"last words")
    channel.connection.close()
    bench.settle()
    assert bench.bodies(topic) == [b"last words"]
    assert bench.outlet.events == []
    stats = bench.engine.statistics()
    assert (stats.connections, stats.channels, stats.inflight_bytes) == (0, 0, 0)
    with pytest.raises(InvariantBroken):
        bench.publish(channel, topic, b"too late")


def test_priorities_choose_the_queue_and_are_capped(bench):
    topic = bench.topic(policy=TopicPolicy(max_priority=2))
    records = [neutral_record(b"%d" % priority) for priority in (0, 1, 2, 9)]
    for priority, record in zip((0, 1, 2, 9), records, strict=True):
        record.reshape(priority=priority)
    bench.publish(bench.channel(), topic, *records)
    bench.settle()
    assert [bench.bodies(topic, number) for number in range(3)] == [[b"0"], [b"1"], [b"2", b"9"]]


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


def test_messages_published_with_keys_can_be_looked_up(bench):
    topic, channel = bench.topic(), bench.channel()
    route = DirectRoute(topic.queues[0])
    channel.publish(
        [
            Publication(neutral_record(b"a"), route=route, token=1, keys=(b"k1", b"k2")),
            Publication(neutral_record(b"b"), route=route, token=2, keys=(b"k2",)),
            Publication(neutral_record(b"c"), route=route, token=3),
        ]
    )
    bench.settle()
    now_ms = bench.clock.wall_ms()

    def found(key):
        places = bench.engine.positions_of(topic, key, begin_ms=0, end_ms=now_ms, count_max=9)
        return {bench.store.locate(place).record.body for place in places}

    assert found(b"k1") == {b"a"}
    assert found(b"k2") == {b"a", b"b"}
    assert found(b"k3") == set()


# Nothing behind a refused publish

STOPS = ConnectionOptions(stops_at_refusal=True)


def test_behind_a_refused_publish_nothing_of_its_channel_is_stored(bench):
    topic = bench.topic(policy=TopicPolicy(message_bytes_max=100))
    channel, other = bench.channel(STOPS), bench.channel(STOPS)
    bench.publish(channel, topic, b"a", b"x" * 101, b"b")
    bench.publish(other, topic, b"c")
    bench.settle()
    bench.publish(channel, topic, b"d")
    bench.settle()
    assert bench.bodies(topic) == [b"a", b"c"]
    assert [token for token, _ in bench.outlet.refusals] == [1, 2, 4]
    assert bench.refusal_kinds == [RefusalKind.TOO_LARGE] * 3
    assert channel.connection.bytes_held == 0
    again = channel.connection.open_channel()
    bench.publish(again, topic, b"e")
    bench.settle()
    assert bench.bodies(topic) == [b"a", b"c", b"e"]


def test_what_was_held_behind_a_refused_publish_is_refused_although_there_is_room_now():
    bench = Workbench(Settings(flow=FlowSettings(hold_ms_max=100)))
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    reader = bench.reader(topic)
    channel = bench.channel(STOPS)
    bench.publish(channel, topic, b"a")
    bench.settle()
    bench.publish(channel, topic, b"b")
    bench.advance(50)
    bench.publish(channel, topic, b"c")
    bench.advance(50)
    assert bench.refusal_kinds[:1] == [RefusalKind.HELD_TOO_LONG]
    reader.purge(topic.queues[0].queue_id)
    bench.settle()
    assert bench.refusal_kinds == [RefusalKind.HELD_TOO_LONG] * 2
    assert bench.bodies(topic) == [b"a"]


@pytest.mark.parametrize("options", [STOPS, ConnectionOptions()])
def test_behind_a_refused_write_nothing_of_its_channel_is_stored(options):
    bench = Workbench(Settings(flow=FlowSettings(queue_log_credit=1, queue_log_more=1)))
    topic, channel = bench.topic(), bench.channel(options)
    bench.settle()
    for body in (b"a", b"b", b"c"):
        bench.publish(channel, topic, body)
        bench.turns()
    assert topic.queues[0].inbox.messages == 2, "they wait for the log"
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    bench.settle()
    refused = [token for token, _ in bench.outlet.refusals]
    if options is STOPS:
        assert (refused, bench.bodies(topic)) == ([1, 2], [b"a"])
    else:
        assert (refused, bench.bodies(topic)) == ([1], [b"a", b"c"])
    assert channel.connection.bytes_held == 0
