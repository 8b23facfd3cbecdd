"""The pull loop of one queue: checks before, answers after, all without a network."""

import asyncio

import pytest

from kit.client.parts import MemoryOffsetStore, calm, received_message
from penstock.client.consumer import pulling
from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.process_queue import PULL_IDLE_MS_MAX, AssignedQueue
from penstock.client.consumer.pulling import (
    PULL_CODES,
    PullLoop,
    PullSettings,
    PullStatus,
    pull_header,
)
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.consumer.subscription import Subscriptions
from penstock.client.errors import BrokerRefused, Unreachable
from penstock.client.requests import Pulled
from penstock.client.routes import BrokerAddress
from penstock.flow.thresholds import Thresholds, Throttle
from penstock.model.assignment import QueueRef
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.headers import PullAnswer, PullFlag
from penstock.wire.rocketmq.stored import encode_stored

QUEUE = QueueRef("t", "b", 0)
CODES = {status: code for code, status in PULL_CODES.items()}
MASTER = BrokerAddress("master:1", 0)
SLAVE = BrokerAddress("slave:1", 1)


class Service:
    """Remembers what it was given."""

    def __init__(self):
        self.given = []

    def submit(self, assigned, messages):
        self.given.append([each.offset for each in messages])


class Host:
    """The consumer around a loop and its instance; answers are those of the test."""

    def __init__(self, *answers, **terms):
        self.instance = self.routes = self.requests = self
        self.clock = ManualClock()
        self.group = "g"
        self.pull_settings = PullSettings(**terms)
        self.subscriptions = Subscriptions(self.clock.wall_ms)
        self.subscriptions.add("t")
        self.offsets = OffsetTable(MemoryOffsetStore())
        self.service = Service()
        self.statistics = ConsumerStatistics()
        self.filters = ()
        self.is_paused = False
        self.answers = list(answers)
        self.asked = []
        self.heartbeats = 0
        self.moved = []
        self.brokers = {0: MASTER, 1: SLAVE}

    def readable(self, broker, suggested_id):
        return self.brokers[suggested_id]

    async def pull(self, address, header, *, timeout_ms):
        self.asked.append((address, header))
        if not self.answers:
            await asyncio.get_running_loop().create_future()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def heartbeat(self):
        self.heartbeats += 1

    async def offset_moved(self, assigned, offset):
        assigned.drop()
        self.moved.append(offset)


def found(*offsets, next_offset=None, broker=0):
    stored = [encode_stored(received_message(QUEUE, offset).stored) for offset in offsets]
    after = offsets[-1] + 1 if next_offset is None else next_offset
    return pulled(PullStatus.FOUND, after, broker, b"".join(stored))


def nothing(next_offset, status=PullStatus.NO_NEW_MESSAGE):
    return pulled(status, next_offset)


def pulled(status, next_offset, broker=0, body=b""):
    header = PullAnswer(
        suggest_which_broker_id=broker, next_begin_offset=next_offset, min_offset=0, max_offset=99
    )
    return Pulled(CODES[status], header, body)


class Bench:
    """One loop of one queue."""

    def __init__(self, *answers, gate=None, limits=None, **terms):
        self.host = Host(*answers, **terms)
        self.assigned = AssignedQueue(QUEUE, 5, self.host.clock.monotonic_ms())
        self.throttle = Throttle("q", limits or Thresholds())
        self.pauses = []
        self.loop = PullLoop(self.host, self.assigned, self.throttle, gate=gate, later=self._later)

    def _later(self, delay_ms, call, *args):
        self.pauses.append(delay_ms / 1000)
        return asyncio.get_running_loop().call_soon(call, *args)

    def step(self):
        return asyncio.run(self.loop.step())


def test_found_messages_are_cached_and_consumed_and_the_loop_goes_on_behind_them():
    bench = Bench(found(5, 6, next_offset=9))
    assert bench.step() == 0
    assert bench.assigned.next_offset == 9
    assert bench.assigned.process_queue.count == 2
    assert bench.host.service.given == [[5, 6]]
    assert bench.host.statistics.figures(1_000)["t"].pulled == 2
    (_, header) = bench.host.asked[0]
    assert (header.queue_offset, header.max_msg_nums) == (5, 32)


def test_an_interval_is_waited_between_pulls_that_found_something():
    assert Bench(found(5), interval_ms=70).step() == 70
    assert Bench(nothing(5), interval_ms=70).step() == 0


@pytest.mark.parametrize("status", [PullStatus.NO_NEW_MESSAGE, PullStatus.NO_MATCHED_MESSAGE])
def test_with_an_empty_cache_what_is_not_wanted_may_be_committed(status):
    bench = Bench(nothing(40, status))
    bench.step()
    assert bench.assigned.next_offset == 40
    assert bench.host.offsets.get(QUEUE) == 40


def test_with_messages_in_the_cache_nothing_behind_them_is_committed():
    bench = Bench(found(5), nothing(40))
    bench.step()
    bench.step()
    assert bench.assigned.next_offset == 40
    assert bench.host.offsets.get(QUEUE) is None


def test_an_offset_outside_the_queue_drops_it_and_begins_anew_there():
    bench = Bench(nothing(100, PullStatus.OFFSET_MOVED))
    bench.step()
    assert bench.host.moved == [100]
    assert bench.assigned.is_dropped
    asyncio.run(bench.loop.run())
    assert len(bench.host.asked) == 1


def test_a_reset_by_an_operator_is_not_told_as_an_offset_outside_the_queue(caplog):
    caplog.set_level("INFO")
    bench = Bench(nothing(2, PullStatus.OFFSET_MOVED))
    bench.step()
    assert bench.host.moved == [2]
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("INFO", "offset was reset")
    ]


def test_an_offset_beyond_the_end_of_its_queue_is_warned_of(caplog):
    bench = Bench(nothing(99, PullStatus.OFFSET_MOVED))
    bench.assigned.next_offset = 100
    bench.step()
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("WARNING", "offset is outside the queue")
    ]


def test_an_answer_for_a_queue_dropped_meanwhile_is_ignored():
    bench = Bench(found(5))
    pull = bench.host.pull

    async def drop_then_answer(*asked, **more):
        bench.assigned.drop()
        return await pull(*asked, **more)

    bench.host.pull = drop_then_answer
    bench.step()
    assert bench.host.service.given == []
    assert bench.assigned.process_queue.count == 0


def test_the_next_pull_goes_where_the_broker_suggested():
    bench = Bench(found(5, broker=1), found(6, broker=0), nothing(7))
    for _ in range(3):
        bench.step()
    assert [address for address, _ in bench.host.asked] == ["master:1", "slave:1", "master:1"]


def test_offsets_are_committed_along_with_a_pull_but_never_through_a_slave():
    host, assigned = Host(), AssignedQueue(QUEUE, 5, 0)
    wanted = host.subscriptions.get("t")
    assert pull_header(host, assigned, wanted, MASTER).sys_flag == PullFlag.SUSPEND
    host.offsets.note(QUEUE, 3)
    header = pull_header(host, assigned, wanted, MASTER)
    assert header.sys_flag == PullFlag.SUSPEND | PullFlag.COMMIT_OFFSET
    assert header.commit_offset == 3
    assert not pull_header(host, assigned, wanted, SLAVE).sys_flag & PullFlag.COMMIT_OFFSET


def test_broadcasting_commits_nothing_with_its_pulls():
    host, assigned = Host(is_broadcasting=True), AssignedQueue(QUEUE, 5, 0)
    host.offsets.note(QUEUE, 3)
    header = pull_header(host, assigned, host.subscriptions.get("t"), MASTER)
    assert not header.sys_flag & PullFlag.COMMIT_OFFSET


def test_the_expression_is_posted_only_when_asked_for():
    assigned = AssignedQueue(QUEUE, 5, 0)
    for host, text in ((Host(), None), (Host(is_subscription_posted=True), "a")):
        wanted = host.subscriptions.add("t", tags="a")
        header = pull_header(host, assigned, wanted, MASTER)
        assert header.subscription == text
        assert bool(header.sys_flag & PullFlag.SUBSCRIPTION) == (text is not None)


def test_a_full_cache_is_not_pulled_but_counts_as_alive():
    bench = Bench(limits=Thresholds(messages_max=2))
    bench.assigned.process_queue.put([received_message(QUEUE, n) for n in range(3)])
    for _ in range(10):
        bench.host.clock.advance(PULL_IDLE_MS_MAX // 2)
        assert bench.step() == 0
        assert not bench.assigned.is_idle(bench.host.clock.monotonic_ms())
    assert bench.host.asked == []
    assert bench.pauses == [0.05] * 10
    assert bench.throttle.episodes == 1


def test_a_held_loop_goes_on_at_once_when_the_cache_has_fallen_to_half():
    async def scene():
        bench = Bench(nothing(5), limits=Thresholds(messages_max=4))

        def never(delay_ms, call, *args):
            return asyncio.get_running_loop().create_future()

        bench.loop = PullLoop(bench.host, bench.assigned, bench.throttle, later=never)
        cached = [received_message(QUEUE, n) for n in range(5)]
        bench.assigned.process_queue.put(cached)
        step = asyncio.create_task(bench.loop.step())
        await calm()
        bench.assigned.process_queue.settle(cached[:2])
        bench.assigned.wake()
        await calm()
        assert not step.done()
        bench.assigned.process_queue.settle(cached[2:3])
        bench.assigned.wake()
        await calm()
        assert step.done()
        assert bench.assigned.wake is None
        await bench.loop.step()
        assert len(bench.host.asked) == 1

    asyncio.run(scene())


def test_a_paused_consumer_pulls_nothing_and_looks_again_after_a_second():
    bench = Bench(nothing(5))
    bench.host.is_paused = True
    bench.step()
    assert (bench.host.asked, bench.pauses) == ([], [1.0])
    bench.host.is_paused = False
    bench.step()
    assert len(bench.host.asked) == 1


@pytest.mark.parametrize(
    ("problem", "wait_ms", "heartbeats"),
    [
        (Unreachable("x", "gone"), 1_000, 0),
        (BrokerRefused(215, "busy", "x"), 20, 0),
        (BrokerRefused(1, "error", "x"), 1_000, 0),
        (BrokerRefused(24, "not there", "x"), 20, 1),
        (BrokerRefused(25, "not latest", "x"), 20, 1),
        (BrokerRefused(27, "no filter", "x"), 20, 1),
        (BrokerRefused(28, "old filter", "x"), 20, 1),
    ],
)
def test_what_follows_from_an_error(problem, wait_ms, heartbeats):
    bench = Bench(problem)
    assert bench.step() == wait_ms
    assert bench.host.heartbeats == heartbeats
    assert bench.assigned.next_offset == 5


def test_a_broker_that_is_told_again_and_again_is_an_error(caplog):
    bench = Bench(*[BrokerRefused(25, "not latest", "x")] * 3)
    assert [bench.step() for _ in range(3)] == [20, 1_000, 1_000]
    assert bench.host.heartbeats == 3
    assert len(caplog.records) == 1


def test_errors_in_a_row_are_one_log_line(caplog):
    bench = Bench(*[Unreachable("x", "gone")] * 3, nothing(5), Unreachable("x", "again"))
    for _ in range(5):
        bench.step()
    assert len(caplog.records) == 2


def test_a_closed_gate_or_a_missing_subscription_waits_like_an_error():
    def closed(assigned):
        return False

    bench = Bench(gate=closed)
    assert bench.step() == 1_000
    bench = Bench()
    bench.host.subscriptions.remove("t")
    assert bench.step() == 1_000
    assert bench.host.asked == []


def test_what_the_client_filters_out_counts_as_consumed():
    bench = Bench(found(5, 6, next_offset=7))
    bench.host.subscriptions.add("t", tags="wanted")
    bench.step()
    assert bench.host.service.given == []
    assert bench.host.offsets.get(QUEUE) == 7


def test_the_loop_ends_when_its_queue_is_dropped():
    bench = Bench(found(5), nothing(6))
    submit = bench.host.service.submit

    def drop(assigned, messages):
        submit(assigned, messages)
        assigned.drop()

    bench.host.service.submit = drop
    asyncio.run(bench.loop.run())
    assert bench.host.service.given == [[5]]


def test_the_next_pull_is_sent_before_the_messages_of_the_last_one_are_read(monkeypatch):
    async def scene():
        bench = Bench(found(5, 6))
        seen = []
        read = pulling.received_messages

        def look_and_read(body, queue):
            seen.append([header.queue_offset for _, header in bench.host.asked])
            return read(body, queue)

        monkeypatch.setattr(pulling, "received_messages", look_and_read)
        await bench.loop.step()
        assert seen == [[5, 7]]
        bench.host.answers.append(nothing(7))

    asyncio.run(scene())


@pytest.mark.parametrize("limits", [Thresholds(messages_max=100), Thresholds(span_max=100)])
def test_the_next_pull_is_not_sent_ahead_without_room_for_both(limits):
    bench = Bench(found(5, 6), limits=limits)
    bench.step()
    assert len(bench.host.asked) == 1


def test_a_pull_sent_ahead_that_fails_is_an_error_like_any_other():
    async def scene():
        bench = Bench(found(5), Unreachable("x", "gone"), nothing(9))
        assert await bench.loop.step() == 0
        assert await bench.loop.step() == 1_000
        assert await bench.loop.step() == 0
        assert bench.assigned.next_offset == 9

    asyncio.run(scene())
