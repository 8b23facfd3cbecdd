"""Pop mode: what is popped, consumed and settled."""

import asyncio
import functools

import pytest

from kit.client.pop_bench import PLACE, PopBench, found, nothing, turns
from penstock.client.consumer.executor import ConsumeResult, Later, Suspend
from penstock.client.consumer.pop import BrokerAllocator, PopLoop
from penstock.client.consumer.pop_settling import PopProcessQueue
from penstock.client.consumer.rebalance import Allocation
from penstock.client.errors import BrokerRefused, StateError, TimedOut
from penstock.client.message import ReceivedMessage
from penstock.flow.thresholds import Thresholds, Throttle
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import MessageQueue, QueueAssignment, RequestMode
from penstock.wire.rocketmq.stored import StoredMessage


def run(test):
    """Run a coroutine test."""

    @functools.wraps(test)
    def sync():
        asyncio.run(test())

    return sync


@run
async def test_messages_are_popped_consumed_and_acknowledged_together():
    bench = PopBench()
    await bench.pop(found(b"a", b"b", b"c"))
    assert bench.place.unacked == 3
    assert bench.executor.consume() == [b"a", b"b", b"c"]
    await turns()
    assert bench.broker.settled == [10, 11, 12]
    assert len(bench.broker.batches) == 1
    assert bench.place.unacked == 0
    header = bench.broker.pops[0]
    assert (header.queue_id, header.max_msg_nums, header.invisible_time) == (-1, 32, 60_000)
    assert (header.poll_time, header.init_mode, header.order) == (15_000, 1, False)


@run
async def test_one_message_is_acknowledged_by_a_request_of_its_own():
    bench = PopBench()
    await bench.pop(found(b"a"))
    bench.executor.consume()
    await turns()
    assert [each.extra_info for each in bench.broker.acks] == ["10 1000 60000 3 0 b 0 10"]


@run
async def test_a_broker_that_knows_no_shared_acknowledgements_gets_single_ones_from_then_on():
    bench = PopBench()
    bench.broker.refuses_batches = True
    await bench.pop(found(b"a", b"b"))
    bench.executor.consume()
    await turns()
    bench.broker.refuses_batches = False
    await bench.pop(found(b"c", b"d", start=12))
    bench.executor.consume()
    await turns()
    assert bench.broker.settled == [10, 11, 12, 13]
    assert not bench.broker.batches


@run
async def test_a_failure_is_invisible_for_the_time_of_its_deliveries():
    bench = PopBench()
    await bench.pop(found(b"a", b"b", reconsume_times=2))
    bench.executor.consume(error=ValueError("no"))
    await turns()
    assert [each.invisible_time for each in bench.broker.changes] == [60_000, 60_000]
    assert bench.place.unacked == 0
    assert bench.broker.settled == []


@run
async def test_a_level_chooses_the_wait_and_what_is_done_of_a_batch_is_acknowledged():
    bench = PopBench(consume_batch=3)
    await bench.pop(found(b"a", b"b", b"c"))
    bench.executor.consume(Later(delay_level=1, done=2))
    await turns()
    assert bench.broker.settled == [10, 11]
    assert [(each.offset, each.invisible_time) for each in bench.broker.changes] == [(12, 30_000)]


@run
async def test_a_level_below_zero_makes_a_dead_letter():
    bench = PopBench()
    await bench.pop(found(b"a", commit_log_offset=77))
    bench.executor.consume(Later(delay_level=-1))
    await turns()
    assert [(each.offset, each.delay_level) for each in bench.broker.sent_back] == [(77, -1)]
    assert bench.broker.settled == [10]


@run
async def test_what_failed_sixteen_times_and_is_four_hours_old_is_given_up():
    bench = PopBench()
    born_ms = bench.clock.wall_ms() - 4 * 3_600_000 - 1
    await bench.pop(found(b"a", reconsume_times=16, born_ms=born_ms))
    bench.executor.consume(ConsumeResult.LATER)
    await turns()
    assert bench.broker.settled == [10]
    assert bench.broker.changes == []


@run
async def test_a_result_after_the_invisible_time_is_ignored():
    bench = PopBench()
    await bench.pop(found(b"a", b"b", invisible_ms=5_000))
    bench.clock.advance(5_000)
    bench.executor.consume()
    await turns()
    assert bench.broker.settled == []
    assert (bench.place.unacked, bench.mode.figures().too_late) == (0, 2)


@run
async def test_what_waits_too_long_for_a_worker_is_not_consumed_at_all():
    bench = PopBench()
    await bench.pop(found(b"old", invisible_ms=5_000))
    await bench.pop(found(b"new", start=20))
    bench.clock.advance(5_000)
    bench.mode.service.sweep()
    assert bench.executor.consume() == [b"new"]
    assert bench.place.unacked == 0


@run
async def test_more_time_gives_a_new_receipt_which_is_the_one_acknowledged():
    bench = PopBench()
    await bench.pop(found(b"a", invisible_ms=5_000))
    (work,) = bench.executor.works
    message = work.batches[0][0]
    await bench.mode.extend(message, 90_000)
    assert message.pop_handle == "10 2000 90000 7 0 b 0 10"
    bench.clock.advance(60_000)
    bench.executor.consume()
    await turns()
    assert [each.extra_info for each in bench.broker.acks] == ["10 2000 90000 7 0 b 0 10"]


@run
async def test_only_popped_messages_have_an_invisible_time():
    with pytest.raises(StateError, match="was not popped"):
        await PopBench().mode.extend(ReceivedMessage(StoredMessage(topic="t"), PLACE), 1)


@run
async def test_a_message_that_came_back_is_acknowledged_where_it_lies():
    bench = PopBench()
    await bench.pop(found(b"a", topic="%RETRY%g_t", queue=0))
    (work,) = bench.executor.works
    assert (work.batches[0][0].topic, work.batches[0][0].queue.topic) == ("t", "%RETRY%g_t")
    bench.executor.consume()
    await turns()
    assert [each.topic for each in bench.broker.acks] == ["%RETRY%g_t"]


@run
async def test_above_the_limit_nothing_is_popped_until_half_of_it_is_settled():
    bench = PopBench(terms={"unacked_max": 2})
    await bench.pop(found(b"a", b"b", b"c"))
    assert len(bench.broker.pops) == 1
    (held,) = bench.mode.figures().held
    assert (held.queue, held.threshold, held.limit) == (PLACE, "messages", 2)
    bench.executor.consume(batches=1)
    await turns()
    assert len(bench.broker.pops) == 1
    bench.executor.consume(batches=1)
    await turns()
    assert len(bench.broker.pops) == 2


@run
async def test_a_broker_is_told_what_waits_for_an_acknowledgement():
    bench = PopBench()
    await bench.pop(found(b"a", b"b"))
    assert bench.mode.table() == {
        PLACE: {"waitAckCount": 2, "droped": False, "lastPopTimestamp": bench.clock.wall_ms()}
    }


@run
async def test_at_the_limit_pops_go_on():
    bench = PopBench(terms={"unacked_max": 2})
    await bench.pop(found(b"a", b"b"))
    assert len(bench.broker.pops) == 2


@pytest.mark.parametrize(
    ("answer", "wait_ms"),
    [
        (nothing(19), 0),
        (nothing(210), 0),
        (nothing(209), 1_000),
        (BrokerRefused(215, "slow down", "b"), 20),
        (BrokerRefused(1, "no", "b"), 1_000),
        (TimedOut("b", 1), 1_000),
    ],
)
def test_what_an_answer_is_followed_by(answer, wait_ms):
    async def look():
        bench = PopBench()
        bench.mode.retain("t", [PLACE])
        bench.broker.answers.append(answer)
        assert await bench.mode._loops[PLACE].step() == wait_ms

    asyncio.run(look())


@run
async def test_a_paused_consumer_pops_nothing_and_wakes_when_resumed():
    bench = PopBench()
    bench.consumer.is_paused = True
    await bench.pop()
    assert bench.broker.pops == []
    bench.consumer.is_paused = False
    bench.mode.wake()
    await turns()
    assert len(bench.broker.pops) == 1


@run
async def test_nothing_is_popped_while_the_same_queues_are_still_pulled():
    pulled = {PLACE}
    bench = PopBench(is_pulled=pulled.__contains__)
    await bench.pop()
    assert bench.broker.pops == []
    pulled.clear()
    bench.mode.wake()
    await turns()
    assert len(bench.broker.pops) == 1


@run
async def test_messages_of_another_tag_are_acknowledged_unseen():
    bench = PopBench(tags="A")
    await bench.pop(found(b"a", properties=b"TAGS\x01A\x02"))
    await bench.pop(found(b"b", start=11, properties=b"TAGS\x01B\x02"))
    assert bench.executor.consume() == [b"a"]
    await turns()
    assert bench.broker.settled == [10, 11]


@run
async def test_messages_that_a_filter_hook_does_not_want_are_acknowledged_unseen():
    bench = PopBench()
    bench.consumer.filters = [lambda messages: [each for each in messages if each.offset != 11]]
    await bench.pop(found(b"a", b"b", b"c"))
    assert bench.executor.consume() == [b"a", b"c"]
    await turns()
    assert sorted(bench.broker.settled) == [10, 11, 12]


@run
async def test_a_dropped_place_hands_back_what_no_worker_has_taken():
    bench = PopBench()
    await bench.pop(found(b"a", b"b", b"c"))
    assert bench.executor.consume(batches=1) == [b"a"]
    bench.mode.retain("t", [])
    await turns()
    assert bench.broker.settled == [10]
    assert [(each.offset, each.invisible_time) for each in bench.broker.changes] == [
        (11, 1),
        (12, 1),
    ]


@run
async def test_what_comes_after_a_place_was_dropped_is_handed_back():
    bench = PopBench()
    await bench.pop()
    bench.mode.retain("t", [])
    bench.broker.held.set_result(found(b"late"))
    await turns()
    assert [each.offset for each in bench.broker.changes] == [10]
    assert bench.executor.works == []


@run
async def test_stopping_tells_brokers_of_everything_that_is_done():
    bench = PopBench()
    await bench.pop(found(b"a"))
    bench.executor.consume()
    await bench.mode.stop(1000)
    assert bench.broker.settled == [10]
    assert bench.mode.queues() == {}


@run
async def test_an_ordered_queue_is_consumed_message_after_message():
    bench = PopBench(terms={"is_ordered": True})
    await bench.pop(found(b"a", b"b", revive=999))
    assert bench.broker.pops[0].order
    assert bench.executor.consume(batches=1) == [b"a"]
    await turns()
    assert bench.broker.settled == [10]
    assert bench.executor.consume() == [b"b"]
    await turns()
    assert bench.broker.settled == [10, 11]


@run
async def test_an_ordered_failure_holds_back_all_that_is_behind_it():
    bench = PopBench(terms={"is_ordered": True})
    await bench.pop(found(b"a", b"b", b"c", revive=999))
    bench.executor.consume(batches=1)
    bench.executor.consume(Suspend(500))
    await turns()
    assert bench.broker.settled == [10]
    assert [(each.offset, each.invisible_time) for each in bench.broker.changes] == [
        (11, 500),
        (12, 500),
    ]
    assert bench.place.unacked == 0


@run
async def test_an_ordered_message_is_buried_after_its_last_try_and_the_queue_goes_on():
    bench = PopBench(terms={"is_ordered": True}, reconsume_times_max=2)
    await bench.pop(found(b"a", b"b", revive=999, reconsume_times=2))
    bench.executor.consume(error=ValueError("no"), batches=1)
    assert bench.executor.consume() == [b"b"]
    await turns()
    assert len(bench.broker.sent_back) == 1
    assert bench.broker.settled == [10, 11]


@run
async def test_an_ordered_pop_that_was_lost_is_asked_for_with_the_same_attempt():
    bench = PopBench(terms={"is_ordered": True})
    bench.broker.answers = [TimedOut("b", 1), nothing(), nothing()]
    loop = PopLoop(bench.mode, PopProcessQueue(PLACE, 0), Throttle("x", Thresholds(96, 0, 0)))
    for _ in range(3):
        await loop.step()
    first, second, third = [each.attempt_id for each in bench.broker.pops]
    assert first == second != third


@run
async def test_while_a_group_pulls_it_pulls_what_its_pops_left_behind():
    known = set()

    async def has_route(topic):
        return topic in known

    bench = PopBench(has_route=has_route)
    subscriptions = bench.consumer.subscriptions
    await bench.mode.mode_seen("t", RequestMode.PULL)
    assert subscriptions.topics() == {"t"}
    known.add("%RETRY%g_t")
    await bench.mode.mode_seen("t", RequestMode.PULL)
    await bench.mode.mode_seen("%RETRY%g_t", RequestMode.PULL)
    assert subscriptions.topics() == {"t", "%RETRY%g_t"}
    await bench.mode.mode_seen("t", RequestMode.POP)
    assert subscriptions.topics() == {"t"}


# ---- broker allocator ---------------------------------------------------------------------------
# Queues allocated by a broker.


QUEUES = [QueueRef("t", "b", number) for number in range(4)]
DIVIDED = Allocation(QUEUES, QUEUES[:1])


class Divided:
    async def allocate(self, topic):
        return DIVIDED


class Popping:
    def __init__(self):
        self.now = None
        self.mode = None

    def retain(self, topic, queues):
        self.now = set(queues)

    async def mode_seen(self, topic, mode):
        self.mode = mode


def shared(answer, places=None):
    """(what rebalancing gets, the places to pop from, how often the broker was asked)."""
    places = places or Popping()
    asked = []

    async def ask(topic):
        asked.append(topic)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def twice():
        sharing = BrokerAllocator(ask, places, lambda _: QUEUES, Divided())
        await sharing.allocate("t")
        return await sharing.allocate("t")

    return asyncio.run(twice()), places.now, len(asked)


def told(*queues, mode):
    return [
        QueueAssignment(
            message_queue=MessageQueue(topic="t", broker_name="b", queue_id=queue), mode=mode
        )
        for queue in queues
    ]


def test_queues_to_pull_are_the_share_and_places_to_pop_go_to_pop_mode():
    answer = [*told(2, mode=RequestMode.PULL), *told(-1, mode=RequestMode.POP)]
    assert shared(answer) == (Allocation(QUEUES, [QUEUES[2]]), {QueueRef("t", "b", -1)}, 2)


def test_pop_mode_hears_how_a_topic_is_read():
    places = Popping()
    shared(told(1, 2, mode=RequestMode.PULL), places)
    assert places.mode is RequestMode.PULL


def test_an_empty_answer_leaves_everything_and_none_keeps_it():
    assert shared([]) == (Allocation(QUEUES, []), set(), 2)
    assert shared(None) == (None, None, 2)


def test_a_broker_that_cannot_be_asked_keeps_everything():
    assert shared(TimedOut("b", 3000)) == (None, None, 2)
    assert shared(BrokerRefused(1, "no", "b")) == (None, None, 2)


def test_where_brokers_do_not_assign_the_members_divide():
    assert shared(BrokerRefused(3, "not supported", "b")) == (DIVIDED, None, 1)
