"""Sends that wait for a permit (F16), and the end of a producer; without a network."""

import asyncio

from kit.client.producer_bench import ProducerBench
from penstock.client.errors import (
    StateError,
    Unreachable,
    WouldBlock,
)
from penstock.client.message import Message
from penstock.client.producer.sender import RetryPolicy
from penstock.client.routes import Route
from penstock.wire.rocketmq.bodies import TopicRouteData


def on_loop(test):
    """Run a coroutine test."""

    def run():
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@on_loop
async def test_a_send_without_a_permit_begins_when_an_answer_frees_one():
    bench = ProducerBench(messages_max=1)
    bench.enter(Message("t", b"1"))
    bench.enter(Message("t", b"2"))
    bench.enter(Message("t", b"3"))
    assert [each.send.body for each in bench.held.requests] == [b"1"]
    bench.held.next().answer()
    assert [each.send.body for each in bench.held.requests] == [b"2"]
    bench.held.next().answer()
    bench.held.next().answer()
    assert (len(bench.ended), bench.in_flight.messages, bench.in_flight.bytes) == (3, 0, 0)
    bench.sender.close()


@on_loop
async def test_a_failed_send_gives_its_permit_back_too():
    bench = ProducerBench(messages_max=1, rule=RetryPolicy(retries=0))
    bench.enter()
    bench.held.next().fail(Unreachable("a:1", "gone"))
    assert bench.in_flight.messages == 0
    await bench.settle()
    bench.sender.close()


@on_loop
async def test_whoever_gets_no_permit_in_time_is_told_and_nothing_was_sent():
    bench = ProducerBench(messages_max=1)
    bench.enter(timeout_ms=60_000)
    bench.enter(timeout_ms=100)
    bench.clock.advance(100)
    bench.sender._on_timer()
    (error,) = bench.ended
    assert type(error) is WouldBlock
    assert "waited 100 ms" in str(error)
    assert len(bench.held.requests) == 1
    bench.sender.close()


@on_loop
async def test_a_send_nobody_waits_for_leaves_the_queue():
    bench = ProducerBench(messages_max=1)
    bench.enter()
    send = bench.enter()
    send.is_cancelled = True
    bench.sender._on_timer()
    assert bench.in_flight.waiting == 0
    bench.sender.close()


@on_loop
async def test_stopping_waits_for_what_is_under_way_and_turns_away_the_rest():
    bench = ProducerBench(messages_max=1)
    bench.enter()
    bench.enter()
    stopping = asyncio.create_task(bench.sender.stop(10_000))
    await bench.settle()
    assert type(bench.ended[0]) is StateError
    assert not stopping.done()
    bench.held.next().answer()
    await stopping
    assert bench.ended[1].is_ok
    bench.send()
    assert type(bench.ended[2]) is StateError
    bench.sender.close()


@on_loop
async def test_thousands_who_fail_as_soon_as_they_are_admitted_do_not_nest():
    bench = ProducerBench(messages_max=1)
    bench.enter()
    bench.hand_routes.known["bare"] = Route("bare", TopicRouteData())
    for _ in range(3000):
        bench.enter(Message("bare", b"x"))
    bench.held.next().answer()
    assert len(bench.ended) == 3001
    assert (bench.in_flight.messages, bench.in_flight.waiting) == (0, 0)
    bench.sender.close()


@on_loop
async def test_one_whose_awaiter_went_away_passes_its_permit_on():
    bench = ProducerBench(messages_max=1)
    bench.enter()
    for _ in range(2000):
        bench.enter().is_cancelled = True
    bench.enter(Message("t", b"last"))
    bench.held.next().answer()
    assert [each.send.body for each in bench.held.requests] == [b"last"]
    bench.sender.close()
