"""The handler by itself: states, deadlines, what it says; no connection at all."""

import asyncio

import pytest

from kit.client.pulsar_consumer import TYPES, scene, until
from penstock.client.pulsar.errors import Refused, StateError, TimedOut, Unreachable
from penstock.client.pulsar.handler import Handler, HandlerState
from penstock.client.pulsar.topics import parse_topic
from penstock.wire.pulsar.frames import ServerError


class Thing:
    """Something that is opened; a test says how that ends."""

    holds_reading = awaits_answer = False

    def __init__(self, bench):
        self.problems = []
        self.gate = None
        self.opens = self.forgets = 0
        self.lost_why = []
        self.error = None
        self.finals = ()
        self.handler = Handler(self, bench.client._cluster, parse_topic("t"), "thing")

    async def opened(self, connection):
        self.opens += 1
        if self.gate is not None:
            await self.gate
        if self.problems:
            raise self.problems.pop(0)

    def forget(self, connection):
        self.forgets += 1

    def lost(self, why):
        self.lost_why.append(why)

    def failed(self, error):
        self.error = error

    def is_final(self, error):
        return isinstance(error, self.finals)

    def received(self, frames): ...

    def connection_lost(self, connection, why):
        self.handler.connection_lost(connection, why)


@scene
async def test_opened_means_ready_and_not_away(bench):
    thing = Thing(bench)
    assert thing.handler.ready_connection is None
    await thing.handler.open()
    assert thing.handler.state is HandlerState.READY
    assert thing.handler.ready_connection is thing.handler.connection
    thing.handler.check_usable()
    thing.handler.closed()


@scene
async def test_an_error_of_the_program_is_told_and_not_tried_again(bench):
    thing = Thing(bench)
    thing.problems = [ZeroDivisionError("oops")]
    with pytest.raises(Exception, match="oops"):
        await thing.handler.open()
    assert (thing.handler.state, thing.opens) == (HandlerState.FAILED, 1)
    with pytest.raises(StateError, match="make a new one"):
        thing.handler.check_usable()


@scene
async def test_first_attempts_end_with_the_time_of_an_operation(bench):
    thing = Thing(bench)
    thing.problems = [Unreachable("b", "away")] * 1000
    task = asyncio.ensure_future(thing.handler.open())
    await until(lambda: thing.opens >= 3)
    bench.clock.advance(30_001)
    with pytest.raises(TimedOut, match="away"):
        await task
    assert isinstance(thing.error, TimedOut)


@scene
async def test_who_waits_in_line_has_no_deadline(bench):
    thing = Thing(bench)
    thing.handler.has_deadline = False
    thing.problems = [Unreachable("b", "away")] * 5
    bench.clock.advance(100_000)
    await thing.handler.open()
    assert thing.opens == 6
    thing.handler.closed()


@scene
async def test_who_was_ready_gives_up_only_for_what_is_final(bench):
    thing = Thing(bench)
    await thing.handler.open()
    busy = Refused(ServerError.ConsumerBusy, "busy", "thing")
    fenced = Refused(ServerError.ProducerFenced, "fenced", "thing")
    thing.problems = [busy, busy]
    thing.handler.closed_by_broker()
    await until(lambda: thing.handler.state is HandlerState.READY)
    assert (thing.opens, thing.lost_why) == (4, ["the broker closed it"])
    thing.problems, thing.finals = [fenced], Refused
    thing.handler.closed_by_broker()
    await until(lambda: thing.handler.state is HandlerState.FAILED)
    assert thing.error is fenced


@scene
async def test_closed_while_it_connects_it_says_so_and_leaves_nothing(bench):
    thing = Thing(bench)
    thing.gate = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(thing.handler.open())
    await until(lambda: thing.opens == 1)
    assert thing.handler.begin_close() is None
    thing.handler.closed()
    with pytest.raises(StateError, match="closed while"):
        await task
    assert thing.forgets == 0
    thing.gate.set_result(None)
    await until(lambda: thing.forgets == 1)
    assert bench.broker.transports[-1].is_closed


@scene
async def test_closed_while_it_looks_for_its_broker_it_is_never_opened(bench):
    thing = Thing(bench)
    bench.broker.held.add(TYPES.LOOKUP)
    task = asyncio.ensure_future(thing.handler.open())
    await until(lambda: bench.broker.waiting)
    thing.handler.begin_close()
    thing.handler.closed()
    with pytest.raises(StateError, match="closed while"):
        await task
    bench.broker.release(TYPES.LOOKUP)
    await bench.settle(30)
    assert thing.opens == 0


@scene
async def test_a_connection_that_breaks_with_the_answer_is_no_success(bench):
    thing = Thing(bench)
    opened = thing.opened

    async def broken_once(connection):
        await opened(connection)
        if thing.opens == 1:
            connection.close("broken")

    thing.opened = broken_once
    await thing.handler.open()
    assert (thing.opens, thing.forgets) == (2, 1)
    assert not thing.handler.ready_connection.is_closed
    thing.handler.closed()


@scene
async def test_closed_by_the_broker_before_it_knows_that_it_is_open_it_comes_back(bench):
    thing = Thing(bench)
    opened = thing.opened

    async def closed_once(connection):
        await opened(connection)
        if thing.opens == 1:
            thing.handler.closed_by_broker()

    thing.opened = closed_once
    await thing.handler.open()
    assert (thing.opens, thing.forgets) == (2, 1)
    thing.handler.closed()


@scene
async def test_who_stood_in_line_has_the_whole_time_again(bench):
    thing = Thing(bench)
    thing.handler.stand_in_line(True)
    bench.clock.advance(100_000)
    thing.handler.stand_in_line(False)
    thing.problems = [Unreachable("b", "away")] * 5
    await thing.handler.open()
    assert thing.opens == 6
    thing.handler.closed()


@scene
async def test_why_says_since_when_and_what_went_wrong(bench):
    thing = Thing(bench)
    assert "not connected yet" in thing.handler.why()
    bench.broker.is_away = True
    task = asyncio.ensure_future(thing.handler.open())
    await until(lambda: thing.handler.last_error)
    bench.clock.advance(2_500)
    assert "connecting since 2.5 s" in thing.handler.why()
    assert "nobody is there" in thing.handler.why()
    bench.broker.is_away = False
    await task
    thing.handler.closed()
    assert thing.handler.why() == "it is closed"
