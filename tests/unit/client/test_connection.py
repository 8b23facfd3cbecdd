"""One connection: writes joined, answers matched, deadlines, bounds, the end."""

import asyncio

import pytest

from penstock.client import connection as module
from penstock.client.connection import SILENT_MS_MAX, Connection
from penstock.client.errors import TimedOut, Unreachable, WouldBlock
from penstock.testing.clock import ManualClock
from penstock.testing.remoting_peer import PeerTransport, RemotingPeer
from penstock.wire.rocketmq.command import FLAG_RESPONSE, Command
from penstock.wire.rocketmq.frames import encode


class Bench:
    """A connection on a transport that only remembers."""

    def __init__(self):
        self.clock = ManualClock()
        self.requests, self.lost, self.ended = [], [], {}
        self.connection = Connection(
            "b:1",
            self.clock,
            lambda _, command: self.requests.append(command),
            lambda _, why: self.lost.append(why),
        )
        peer = RemotingPeer()
        peer.hear = lambda *_: None
        self.transport = PeerTransport(peer, "b:1", self.connection)

    def send(self, opaque, timeout_ms=3000):
        frame = encode(Command(10, opaque=opaque))
        self.connection.send(
            opaque, frame, timeout_ms, lambda end: self.ended.setdefault(opaque, []).append(end)
        )

    def answer(self, *opaques):
        answers = [encode(Command(0, opaque=each, flag=FLAG_RESPONSE)) for each in opaques]
        self.connection.data_received(b"".join(answers))


def on_loop(test):
    def run():
        async def inside():
            await test(Bench())

        asyncio.run(inside())

    run.__name__ = test.__name__
    return run


@on_loop
async def test_requests_before_the_socket_is_there_are_written_when_it_is(bench):
    bench.send(1)
    bench.send(2)
    assert bench.transport.writes == []
    bench.connection.connection_made(bench.transport)
    assert len(bench.transport.writes) == 1


@on_loop
async def test_requests_of_one_turn_are_written_at_once(bench):
    bench.connection.connection_made(bench.transport)
    for opaque in range(1, 6):
        bench.send(opaque)
    assert bench.transport.writes == []
    await asyncio.sleep(0)
    assert len(bench.transport.writes) == 1


@on_loop
async def test_answers_reach_their_requests_in_any_order_and_once(bench):
    bench.connection.connection_made(bench.transport)
    bench.send(1)
    bench.send(2)
    bench.answer(2, 1, 2, 77)
    assert [len(bench.ended[each]) for each in (1, 2)] == [1, 1]
    assert bench.ended[2][0].opaque == 2


@on_loop
async def test_a_failing_callback_does_not_keep_others_from_their_answers(bench):
    bench.connection.connection_made(bench.transport)
    bench.connection.send(1, b"", 3000, lambda _: 1 / 0)
    bench.send(2)
    bench.answer(1, 2)
    assert len(bench.ended[2]) == 1


@on_loop
async def test_a_request_without_an_answer_times_out_and_a_late_answer_is_ignored(bench):
    bench.connection.connection_made(bench.transport)
    bench.send(1, timeout_ms=100)
    bench.send(2, timeout_ms=5000)
    bench.clock.advance(100)
    bench.connection.look()
    assert isinstance(bench.ended[1][0], TimedOut)
    assert 2 not in bench.ended
    bench.answer(1)
    assert len(bench.ended[1]) == 1
    assert not bench.connection.is_over


@on_loop
async def test_a_silent_connection_on_which_a_request_timed_out_is_given_up(bench):
    bench.connection.connection_made(bench.transport)
    bench.send(1, timeout_ms=SILENT_MS_MAX)
    bench.send(2, timeout_ms=SILENT_MS_MAX * 2)
    bench.clock.advance(SILENT_MS_MAX)
    bench.connection.look()
    assert isinstance(bench.ended[2][0], Unreachable)
    assert bench.connection.is_over
    assert "nothing came" in bench.lost[0]


@on_loop
async def test_the_end_of_the_connection_ends_all_requests_once(bench):
    bench.connection.connection_made(bench.transport)
    bench.send(1)
    bench.transport.break_off()
    bench.connection.close("again")
    assert [type(each) for each in bench.ended[1]] == [Unreachable]
    assert len(bench.lost) == 1
    bench.send(2)
    assert 2 not in bench.ended
    await asyncio.sleep(0)
    assert isinstance(bench.ended[2][0], Unreachable)


@on_loop
async def test_past_the_bound_of_requests_one_more_would_block(bench):
    bench.connection.pending.requests_max = 1
    bench.send(1)
    bench.send(2)
    await asyncio.sleep(0)
    assert isinstance(bench.ended[2][0], WouldBlock)
    assert 1 not in bench.ended


@on_loop
async def test_while_the_socket_takes_nothing_bytes_are_kept_up_to_a_bound(bench):
    bench.connection.connection_made(bench.transport)
    bench.connection.pause_writing()
    bench.send(1)
    await asyncio.sleep(0)
    assert bench.transport.writes == []
    assert bench.connection.unsent_bytes > 0
    kept = module.UNSENT_BYTES_MAX
    module.UNSENT_BYTES_MAX = 1
    try:
        bench.send(2)
        await asyncio.sleep(0)
    finally:
        module.UNSENT_BYTES_MAX = kept
    assert isinstance(bench.ended[2][0], WouldBlock)
    bench.connection.resume_writing()
    assert len(bench.transport.writes) == 1


@on_loop
async def test_requests_of_the_peer_go_to_the_handler(bench):
    bench.connection.connection_made(bench.transport)
    bench.connection.data_received(encode(Command(40, {"consumerGroup": "g"})))
    assert [each.code for each in bench.requests] == [40]


@on_loop
async def test_bytes_that_are_no_frames_end_the_connection(bench):
    bench.connection.connection_made(bench.transport)
    bench.send(1)
    bench.connection.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert bench.connection.is_over
    assert "protocol" in str(bench.ended[1][0])


@pytest.mark.parametrize("count", [1, 3])
def test_a_last_word_is_written_before_hanging_up(count):
    @on_loop
    async def run(bench):
        bench.connection.connection_made(bench.transport)
        for _ in range(count):
            bench.connection.write(encode(Command(35)))
        bench.connection.close("bye")
        assert len(bench.transport.writes) == 1

    run()
