"""The way of a send: queue, try, verdict, next try; on a bench without a network."""

import asyncio
import gc
import logging
import weakref

import pytest

from kit.client.producer_bench import ProducerBench
from penstock.client.errors import (
    Attempt,
    BrokerBusy,
    BrokerRefused,
    ClientError,
    NoRoute,
    SendFailed,
    TimedOut,
    Unreachable,
)
from penstock.client.message import Message, SendStatus
from penstock.client.producer.hooks import SendHook, SendKind
from penstock.client.producer.selection import LatencyFaultTolerance
from penstock.client.producer.sender import InFlight, RetryDecision, RetryPolicy, failure
from penstock.client.routes import Route
from penstock.flow.reason import Reason
from penstock.model.assignment import QueueRef
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.bodies import TopicRouteData


def on_loop(test):
    """Run a coroutine test."""

    def run():
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@on_loop
async def test_a_stored_message_ends_with_its_result():
    bench = ProducerBench()
    send = bench.send()
    bench.held.next().answer()
    (result,) = bench.ended
    assert result.is_ok
    assert result.message_id == send.encoded.unique_key
    assert result.queue == QueueRef("t", "a", 0)
    assert result.queue_offset == 4
    assert bench.sender.counters.sent == 1


class Tag(str):
    """A string that can be watched."""


@on_loop
async def test_a_send_that_is_over_needs_no_garbage_collector():
    bench = ProducerBench()
    message = Message("t", b"x", tag=Tag("seen"))
    is_gone = weakref.finalize(message.tag, lambda: None)
    bench.send(message)
    del message
    assert is_gone.alive
    gc.disable()
    try:
        bench.held.next().answer()
        assert bench.ended[0].is_ok
        assert not is_gone.alive
    finally:
        gc.enable()


@on_loop
async def test_a_broker_that_chose_another_queue_is_believed():
    bench = ProducerBench()
    bench.send()
    bench.held.next().answer(ext={"msgId": "x", "queueId": "7", "queueOffset": "4"})
    assert bench.ended[0].queue == QueueRef("t", "a", 7)


@on_loop
async def test_a_failed_try_goes_to_another_broker_with_what_is_left_of_the_time():
    bench = ProducerBench()
    bench.send()
    first = bench.held.next()
    bench.clock.advance(1200)
    first.fail(Unreachable(first.address, "refused"))
    second = bench.held.next()
    assert (first.address, second.address) == ("a:1", "b:1")
    assert (first.timeout_ms, second.timeout_ms) == (3000, 1800)
    assert first.send.header.properties == second.send.header.properties
    second.answer()
    assert bench.ended[0].queue.broker == "b"
    assert bench.sender.counters.retried == 1


@on_loop
async def test_after_three_tries_the_send_fails_and_tells_them_all():
    bench = ProducerBench()
    bench.send()
    for code in (1, 14, 17):
        bench.clock.advance(10)
        bench.held.next().answer(code, "no")
    (error,) = bench.ended
    assert type(error) is SendFailed
    assert [each.broker for each in error.attempts] == ["a", "b", "a"]
    assert [each.error.code for each in error.attempts] == [1, 14, 17]
    assert not bench.held.requests


@on_loop
async def test_no_try_begins_when_the_time_is_up():
    bench = ProducerBench()
    bench.send()
    bench.clock.advance(3000)
    bench.held.next().fail(TimedOut("a:1", 3000))
    assert type(bench.ended[0]) is SendFailed
    assert not bench.held.requests


@on_loop
async def test_a_limited_try_leaves_time_for_the_next_one_and_the_last_may_use_it_up():
    bench = ProducerBench(try_timeout_ms=500)
    bench.send()
    timeouts = []
    for _ in range(3):
        request = bench.held.next()
        timeouts.append(request.timeout_ms)
        bench.clock.advance(request.timeout_ms)
        request.fail(TimedOut(request.address, request.timeout_ms))
    assert timeouts == [500, 500, 2000]


@on_loop
async def test_busy_ends_the_send_at_once_with_the_brokers_words():
    bench = ProducerBench()
    bench.send()
    bench.held.next().answer(2, "[TIMEOUT_CLEAN_QUEUE]broker busy")
    (error,) = bench.ended
    assert type(error) is BrokerBusy
    assert (error.broker, error.reason) == ("a", "[TIMEOUT_CLEAN_QUEUE]broker busy")
    assert bench.sender.counters.busy == 1


@on_loop
async def test_busy_is_tried_elsewhere_when_asked_for():
    bench = ProducerBench(rule=RetryPolicy(retries=2, retry_on_busy=True))
    bench.send()
    bench.held.next().answer(2, "busy")
    request = bench.held.next()
    assert request.address == "b:1"
    request.answer()
    assert bench.ended[0].is_ok


@on_loop
async def test_stored_but_late_is_a_result():
    bench = ProducerBench()
    bench.send()
    bench.held.next().answer(10)
    assert bench.ended[0].status is SendStatus.FLUSH_DISK_TIMEOUT
    assert bench.sender.counters.degraded == 1


@on_loop
async def test_stored_but_late_is_tried_elsewhere_on_request_and_kept_if_nothing_better_comes():
    bench = ProducerBench(rule=RetryPolicy(retries=2, retry_when_not_store_ok=True))
    bench.send()
    bench.held.next().answer(11)
    bench.held.next().answer(13, "illegal")
    assert bench.ended[0].status is SendStatus.SLAVE_NOT_AVAILABLE
    bench.send()
    bench.held.next().answer(12)
    bench.held.next().answer(0)
    assert bench.ended[1].status is SendStatus.SEND_OK


@on_loop
async def test_an_answer_without_sense_is_an_error_of_that_broker():
    bench = ProducerBench(rule=RetryPolicy(retries=0))
    bench.send()
    bench.held.next().answer(ext={"msgId": "x"})
    assert "without sense" in str(bench.ended[0])


@on_loop
async def test_one_ordering_key_goes_to_one_queue_and_is_tried_once():
    bench = ProducerBench()
    for _ in range(3):
        bench.send(Message("t", b"x", ordering_key="hello"))
    places = {(each.address, each.queue) for each in bench.held.requests}
    assert places == {("b:1", 0)}
    bench.held.next().answer(1, "no")
    assert type(bench.ended[0]) is SendFailed


@on_loop
async def test_a_selector_and_a_given_queue_decide():
    bench = ProducerBench()
    send = bench.made()
    send.selector = lambda queues, message: queues[-1]
    bench.sender.begin(send)
    assert (bench.held.requests[0].address, bench.held.requests[0].queue) == ("b:1", 1)
    send = bench.made()
    send.pinned = QueueRef("t", "a", 1)
    bench.sender.begin(send)
    assert bench.held.requests[1].queue == 1


@on_loop
async def test_sends_to_an_unknown_topic_wait_for_one_look_up_with_the_default_topic():
    bench = ProducerBench(auto_create_queues=6)
    bench.send(Message("new", b"x"))
    bench.send(Message("new", b"x"))
    assert not bench.held.requests
    await bench.settle()
    assert bench.hand_routes.asked == [("new", 6)]
    assert len(bench.held.requests) == 2
    assert bench.sender.topics.keys() == {"new"}
    bench.sender.close()


@on_loop
async def test_a_topic_that_no_name_server_knows_fails_its_sends():
    bench = ProducerBench()
    bench.send(Message("nowhere", b"x"))
    await bench.settle()
    assert type(bench.ended[0]) is NoRoute
    bench.sender.close()


@on_loop
async def test_a_look_up_that_takes_too_long_ends_with_the_deadline():
    bench = ProducerBench()
    bench.hand_routes.can_answer.clear()
    bench.send(Message("slow", b"x"))
    await bench.settle()
    bench.clock.advance(3000)
    bench.sender._on_timer()
    assert type(bench.ended[0]) is TimedOut
    bench.hand_routes.can_answer.set()
    await bench.settle()
    assert len(bench.ended) == 1
    bench.sender.close()


@on_loop
async def test_a_topic_without_a_queue_to_write_to_has_no_route():
    bench = ProducerBench()
    bench.hand_routes.known["t"] = Route("t", TopicRouteData())
    bench.send()
    assert type(bench.ended[0]) is NoRoute


@on_loop
async def test_a_route_that_may_be_old_is_asked_for_once_a_second():
    bench = ProducerBench()
    for _ in range(3):
        bench.send()
        bench.held.next().answer(16, "not writable")
        bench.held.next().answer()
    await bench.settle()
    assert bench.hand_routes.refreshed == ["t"]
    bench.clock.advance(1000)
    bench.send()
    bench.held.next().fail(Unreachable("a:1", "gone"))
    await bench.settle()
    assert bench.hand_routes.refreshed == ["t", "t"]
    bench.sender.close()


@on_loop
async def test_a_broker_hears_of_the_producer_before_its_first_message():
    bench = ProducerBench("a")
    bench.send()
    bench.send()
    assert bench.heartbeats == 1


@on_loop
async def test_a_failed_broker_is_avoided_by_the_next_send():
    faults = LatencyFaultTolerance()
    bench = ProducerBench(faults=faults)
    bench.send()
    bench.held.next().fail(Unreachable("a:1", "gone"))
    bench.held.next().answer()
    for _ in range(4):
        bench.send()
        request = bench.held.next()
        assert request.address == "b:1"
        request.answer()


@on_loop
async def test_a_slow_broker_is_avoided_and_busy_counts_by_its_time_only():
    faults = LatencyFaultTolerance()
    bench = ProducerBench(faults=faults)
    bench.send()
    bench.clock.advance(600)
    bench.held.next().answer()
    assert faults.isolated(bench.clock.monotonic_ms()) == {"a": 2000}
    bench.send()
    bench.held.next().answer(2, "busy")
    assert faults.isolated(bench.clock.monotonic_ms()) == {"a": 2000}


@on_loop
async def test_oneway_goes_out_marked_and_ends_without_a_word():
    bench = ProducerBench()
    send = bench.made()
    send.is_oneway = True
    bench.sender.begin(send)
    ((address, command),) = bench.held.oneways
    assert (address, command.is_oneway, command.code) == ("a:1", True, 310)
    assert bench.ended == []
    assert (bench.sender.counters.oneway, bench.sender.under_way) == (1, 0)


class Watching(SendHook):
    """Writes down what it is shown."""

    def __init__(self, fails=False):
        self.seen = []
        self.fails = fails

    def before(self, context):
        self.seen.append(("before", context.kind, context.address, context.result))
        assert not self.fails

    def after(self, context):
        error = type(context.error) if context.error else None
        self.seen.append(("after", context.address, context.cost_ms, bool(context.result), error))
        assert not self.fails


@on_loop
async def test_hooks_see_each_send_once_before_and_after():
    hook = Watching()
    bench = ProducerBench(hooks=(hook,))
    bench.send(Message("t", b"x", delay_level=1))
    bench.clock.advance(20)
    bench.held.next().answer(1, "no")
    bench.clock.advance(10)
    bench.held.next().answer()
    assert hook.seen == [
        ("before", SendKind.DELAYED, "a:1", None),
        ("after", "b:1", 30, True, None),
    ]


@on_loop
async def test_a_hook_that_fails_changes_nothing():
    bench = ProducerBench(hooks=(Watching(fails=True),))
    bench.send()
    bench.held.next().answer(2, "busy")
    assert type(bench.ended[0]) is BrokerBusy


@on_loop
async def test_a_message_that_cannot_be_written_fails_alone():
    bench = ProducerBench()
    send = bench.made()
    send.encoded.flag = "no number"
    bench.sender.begin(send)
    assert type(bench.ended[0]) is ClientError
    assert bench.sender.under_way == 0


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, SendKind.NORMAL),
        ({"ordering_key": "k"}, SendKind.ORDERED),
        ({"delay_ms": 5}, SendKind.DELAYED),
    ],
)
def test_a_send_knows_its_kind(fields, kind):
    async def look():
        assert ProducerBench().made(Message("t", b"x", **fields)).kind is kind

    asyncio.run(look())


# ---- in flight ----------------------------------------------------------------------------------
# Permits of a producer, and the episodes of waiting for them.


class Waiting:
    """Stands for a send."""

    def __init__(self, deadline_ms=1 << 40, is_cancelled=False):
        self.deadline_ms = deadline_ms
        self.is_cancelled = is_cancelled
        self.topic = "t"
        self.timeout_ms = 50


def window(messages_max=1, clock=None):
    return InFlight("g", messages_max, 1000, clock or ManualClock())


def test_one_who_gets_no_permit_is_named_by_the_answer_that_frees_one():
    permits = window()
    first, second = Waiting(), Waiting()
    assert permits.take_or_wait(first, 10)
    assert not permits.take_or_wait(second, 10)
    assert (permits.waiting, permits.full) == (1, "messages")
    assert permits.give(10) == [second]
    assert (permits.waiting, permits.messages, permits.bytes) == (0, 1, 10)


def test_those_whose_time_is_up_and_those_nobody_waits_for_leave():
    permits = window()
    permits.take_or_wait(Waiting(), 10)
    late, gone, patient = Waiting(deadline_ms=5), Waiting(is_cancelled=True), Waiting()
    for each in (late, gone, patient):
        permits.take_or_wait(each, 10)
    assert permits.expire(5) == ([late, gone], [])
    assert permits.waiting == 1


def test_a_large_one_that_leaves_makes_way_for_small_ones():
    permits = window(messages_max=5)
    permits.take_or_wait(Waiting(), 600)
    large, small = Waiting(deadline_ms=1), Waiting()
    permits.take_or_wait(large, 500)
    permits.take_or_wait(small, 100)
    assert permits.expire(1) == ([large], [small])


def test_since_when_somebody_waits_can_be_seen():
    clock = ManualClock()
    permits = window(clock=clock)
    permits.take_or_wait(Waiting(), 1)
    assert permits.waits_since_ms is None
    since_ms = clock.monotonic_ms()
    permits.take_or_wait(Waiting(), 1)
    clock.advance(40)
    permits.take_or_wait(Waiting(), 1)
    assert permits.waits_since_ms == since_ms


def test_held_and_released_within_a_second_is_one_episode_and_two_lines(caplog):
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    permits = window(clock=clock)
    permits.take_or_wait(Waiting(), 1)
    for _ in range(50):
        permits.take_or_wait(Waiting(), 1)
        clock.advance(10)
        permits.give(1)
    assert permits.episodes.count(Reason.PENDING) == 1
    assert [each.message for each in caplog.records] == ["sends wait for permits"]
    clock.advance(1000)
    permits.settle()
    assert [each.message for each in caplog.records][1:] == ["sends wait no more"]
    assert caplog.records[1].stalls == 50


def test_when_the_producer_stops_all_who_wait_are_sent_away():
    permits = window()
    permits.take_or_wait(Waiting(), 1)
    second = Waiting()
    permits.take_or_wait(second, 1)
    assert permits.drain() == [second]
    assert not permits.episodes.is_lingering


def test_the_refusal_names_the_limits():
    permits = window()
    permits.take_or_wait(Waiting(), 7)
    text = str(permits.refusal(Waiting()))
    for part in (
        "'t'",
        "1 of 1 sends",
        "7 of 1000 bytes",
        "waited 50 ms",
        "in_flight_messages_max",
    ):
        assert part in text


# ---- attempts -----------------------------------------------------------------------------------
# When a send is tried again.


RETRIED = (17, 14, 1, 16, 204, 205, 1500)
NOT_RETRIED = (2, 3, 13, 15, 26, 29, 215, 501)


def judge(code, *, tries=1, is_pinned=False, left_ms=1000, **options):
    rule = RetryPolicy(retries=options.pop("retries", 2), **options)
    return rule.decide(code, tries=tries, is_pinned=is_pinned, left_ms=left_ms)


@pytest.mark.parametrize("code", RETRIED)
def test_what_another_broker_may_answer_differently_is_tried_again(code):
    assert judge(code) is RetryDecision.RETRY


@pytest.mark.parametrize("code", NOT_RETRIED)
def test_every_other_error_is_final(code):
    assert judge(code) is RetryDecision.FAILED


def test_no_answer_is_tried_again():
    assert judge(None) is RetryDecision.RETRY


def test_busy_is_tried_again_only_when_asked_for():
    assert judge(2) is RetryDecision.FAILED
    assert judge(2, retry_on_busy=True) is RetryDecision.RETRY


@pytest.mark.parametrize("code", [None, 1, 17])
def test_there_are_three_tries(code):
    assert [judge(code, tries=tries) for tries in (1, 2, 3)] == [
        RetryDecision.RETRY,
        RetryDecision.RETRY,
        RetryDecision.FAILED,
    ]


@pytest.mark.parametrize("code", [None, 1])
def test_no_try_begins_after_the_deadline(code):
    assert judge(code, left_ms=0) is RetryDecision.FAILED
    assert judge(code, left_ms=1) is RetryDecision.RETRY


@pytest.mark.parametrize("code", [None, 1, 17])
def test_a_message_for_one_queue_is_tried_once(code):
    assert judge(code, is_pinned=True) is RetryDecision.FAILED


@pytest.mark.parametrize("code", [10, 11, 12])
def test_stored_with_a_delay_is_a_result(code):
    assert judge(code) is RetryDecision.STORED
    assert judge(code, retry_when_not_store_ok=True) is RetryDecision.RETRY
    assert judge(code, retry_when_not_store_ok=True, tries=3) is RetryDecision.STORED
    assert judge(code, retry_when_not_store_ok=True, is_pinned=True) is RetryDecision.STORED


def test_success_is_the_end():
    assert judge(0, retry_when_not_store_ok=True) is RetryDecision.STORED


def test_a_failure_tells_every_try():
    tries = [
        Attempt("a", 0, 3, Unreachable("h:1", "refused")),
        Attempt("b", 2, 4, BrokerRefused(14, "disk full", "h:2")),
    ]
    error = failure("orders", tries, 3000)
    assert type(error) is SendFailed
    assert error.attempts == tries
    assert error.__cause__ is tries[1].error
    for part in ("'orders'", "2 tries", "3000 ms", "a after 3 ms", "SERVICE_NOT_AVAILABLE (14)"):
        assert part in str(error)


def test_busy_is_a_kind_of_its_own_with_reason_and_broker():
    error = failure("t", [Attempt("a", 0, 3, BrokerRefused(2, "[REJECTREQUEST]", "h:1"))], 3000)
    assert type(error) is BrokerBusy
    assert (error.broker, error.reason) == ("a", "[REJECTREQUEST]")


def test_a_send_that_was_never_tried_fails_with_words_too():
    assert "0 tries within 5 ms" in str(failure("t", (), 5))
