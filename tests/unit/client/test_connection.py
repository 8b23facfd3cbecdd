"""One connection: writes joined, answers matched, deadlines, bounds, the end."""

import asyncio
import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.rocketmq.remoting_peer import SILENT, PeerTransport, RemotingPeer
from penstock.client import connection as module
from penstock.client.connection import (
    NEVER_MS,
    SILENT_MS_MAX,
    Backoff,
    Connection,
    Network,
    PendingRequests,
    Signer,
    split_address,
)
from penstock.client.errors import ClientError, TimedOut, Unreachable, WouldBlock
from penstock.client.options import InstanceOptions, resolve
from penstock.client.routes import make_command
from penstock.testing.clock import ManualClock
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
    bench.connection.expire_requests()
    assert isinstance(bench.ended[1][0], TimedOut)
    assert 2 not in bench.ended
    bench.answer(1)
    assert len(bench.ended[1]) == 1
    assert not bench.connection.is_closed


@on_loop
async def test_a_silent_connection_on_which_a_request_timed_out_is_given_up(bench):
    bench.connection.connection_made(bench.transport)
    bench.send(1, timeout_ms=SILENT_MS_MAX)
    bench.send(2, timeout_ms=SILENT_MS_MAX * 2)
    bench.clock.advance(SILENT_MS_MAX)
    bench.connection.expire_requests()
    assert isinstance(bench.ended[2][0], Unreachable)
    assert bench.connection.is_closed
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
    assert bench.connection.is_closed
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


# ---- pending ------------------------------------------------------------------------------------
# The table of requests under way: opaques, deadlines, exactly once.


def test_an_answer_finds_its_request_once():
    pending = PendingRequests()
    pending.add(7, 0, 100, print)
    assert pending.take(7) is print
    assert pending.take(7) is None
    assert pending.take(8) is None


def test_only_the_first_deadline_sets_the_timer():
    pending = PendingRequests()
    assert pending.add(1, 0, 3000, print)
    assert not pending.add(2, 5, 3000, print)
    assert pending.add(3, 10, 100, print)
    assert pending.next_expiry_ms == 110


def test_a_look_ends_what_is_over_and_finds_the_next_time():
    pending = PendingRequests()
    pending.add(1, 0, 100, print)
    pending.add(2, 0, 200, len)
    assert pending.expire(99) == []
    assert pending.expire(100) == [(100, print)]
    assert pending.next_expiry_ms == 200
    assert pending.expire(200) == [(200, len)]
    assert pending.next_expiry_ms == NEVER_MS


def test_the_table_is_full_at_its_bound():
    pending = PendingRequests(2)
    pending.add(1, 0, 1, print)
    assert not pending.is_full
    pending.add(2, 0, 1, print)
    assert pending.is_full


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 50), st.integers(1, 300)),
        st.tuples(st.just("take"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("expire"), st.integers(0, 200), st.just(0)),
    )
)


@given(steps)
def test_each_request_ends_exactly_once_and_never_before_its_deadline(script):
    pending, now, model, ended = PendingRequests(), 0, {}, []
    for number, (kind, key, timeout) in enumerate(script):
        if kind == "add" and key not in model:
            model[key] = (now + timeout, number)
            pending.add(key, now, timeout, lambda _, n=number: n)
        elif kind == "take":
            done = pending.take(key)
            assert (done is None) == (key not in model)
            if done is not None:
                ended.append(done(None))
                assert model.pop(key)[1] == ended[-1]
        elif kind == "expire":
            now += key
            over = {n for deadline, n in model.values() if deadline <= now}
            assert {done(None) for _, done in pending.expire(now)} == over
            model = {key: each for key, each in model.items() if each[1] not in over}
            assert all(pending.next_expiry_ms <= deadline for deadline, _ in model.values())
    assert {done(None) for done in pending.drain()} == {n for _, n in model.values()}
    assert len(pending) == 0


# ---- network ------------------------------------------------------------------------------------
# Requests to addresses: dialling on demand, back-off, bounds, signatures.


PING = 34


def bench(answers=None, **options):
    peer, clock = RemotingPeer(answers), ManualClock()
    chosen = resolve(InstanceOptions, options)
    network = Network(chosen, clock, lambda *_: None, connect=peer.connect)
    return network, peer, clock


async def turns():
    for _ in range(10):
        await asyncio.sleep(0)


def ask(network, address="b:1", timeout_ms=3000):
    return network.request(address, make_command(PING), timeout_ms=timeout_ms)


def test_many_requests_to_one_address_share_one_connection():
    async def run():
        network, peer, _ = bench({PING: {"x": "1"}})
        answers = await asyncio.gather(*(ask(network) for _ in range(5)))
        assert [each.ext for each in answers] == [{"x": "1"}] * 5
        assert peer.dials == ["b:1"]
        assert len(peer.transports[0].writes) == 1
        await ask(network, "c:2")
        assert peer.dials == ["b:1", "c:2"]
        assert sorted(network.connected()) == ["b:1", "c:2"]

    asyncio.run(run())


def test_a_dead_address_costs_one_dial_and_is_put_off():
    async def run():
        network, peer, clock = bench(reconnect_wait_min_ms=100)
        peer.dead.add("b:1")
        for _ in range(3):
            with pytest.raises(Unreachable, match="nobody listens"):
                await ask(network)
        assert peer.dials == ["b:1"]
        clock.advance(100)
        with pytest.raises(Unreachable):
            await ask(network)
        assert peer.dials == ["b:1", "b:1"]

    asyncio.run(run())


def test_after_the_wait_an_address_that_is_back_is_reached_and_the_row_of_failures_ends():
    async def run():
        network, peer, clock = bench(reconnect_wait_min_ms=100)
        peer.dead.add("b:1")
        for wait_ms in (100, 200, 400):
            with pytest.raises(Unreachable):
                await ask(network)
            clock.advance(wait_ms)
        peer.dead.clear()
        assert (await ask(network)).code == 0
        peer.transports[0].break_off()
        peer.dead.add("b:1")
        with pytest.raises(Unreachable):
            await ask(network)
        clock.advance(100)
        peer.dead.clear()
        assert (await ask(network)).code == 0

    asyncio.run(run())


def test_a_broken_connection_is_told_to_listeners_and_dialled_anew():
    async def run():
        network, peer, _ = bench({PING: SILENT})
        lost = []
        network.on_lost(lost.append)
        waiting = asyncio.ensure_future(ask(network))
        await turns()
        peer.transports[0].break_off()
        with pytest.raises(Unreachable, match="closed"):
            await waiting
        assert lost == ["b:1"]
        peer.answers[PING] = {}
        assert (await ask(network)).code == 0

    asyncio.run(run())


def test_a_request_times_out_on_the_clock_of_the_client():
    async def run():
        network, _, _ = bench({PING: SILENT})
        with pytest.raises(TimedOut, match="within 1 ms"):
            await impatient(network)

    async def impatient(network):
        # ManualClock stands still; the sweep is driven by hand.
        waiting = asyncio.ensure_future(ask(network, timeout_ms=1))
        await turns()
        connection = network._connections["b:1"]
        network._clock.advance(1)
        connection.expire_requests()
        return await waiting

    asyncio.run(run())


def test_an_address_that_makes_no_sense_is_unreachable():
    async def run():
        network, _, _ = bench()
        with pytest.raises(Unreachable, match="not host:port"):
            await ask(network, "nonsense")

    asyncio.run(run())


def test_too_many_addresses_would_block(monkeypatch):
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 1)

    async def run():
        network, _, _ = bench()
        await ask(network)
        with pytest.raises(WouldBlock, match="limits 1 and"):
            await ask(network, "c:2")

    asyncio.run(run())


def test_a_closed_network_refuses_and_ends_what_waits():
    async def run():
        network, _, _ = bench({PING: SILENT})
        waiting = asyncio.ensure_future(ask(network))
        await turns()
        await network.close()
        with pytest.raises(Unreachable, match="stopped"):
            await waiting
        with pytest.raises(Unreachable, match="stopped"):
            await ask(network)

    asyncio.run(run())


def test_a_oneway_request_is_marked_and_awaits_nothing():
    async def run():
        network, peer, _ = bench()
        network.oneway("b:1", make_command(PING))
        await turns()
        assert [command.is_oneway for _, command in peer.asked] == [True]

    asyncio.run(run())


def test_a_frame_made_by_the_caller_is_answered_under_its_opaque():
    async def run():
        network, _, _ = bench({PING: {"x": "2"}})
        opaque, done = network.next_opaque(), asyncio.get_running_loop().create_future()
        frame = module.encode(Command(PING, opaque=opaque))
        network.start_frame("b:1", opaque, frame, 3000, done.set_result)
        assert (await done).opaque == opaque
        assert network.next_opaque() != opaque

    asyncio.run(run())


def test_a_request_that_cannot_be_written_fails_alone():
    async def run():
        network, _, _ = bench()
        with pytest.raises(ClientError, match="cannot be written"):
            await network.request("b:1", Command(PING, {"x": "\ud800"}), timeout_ms=1)

    asyncio.run(run())


def test_requests_are_signed_when_there_are_keys():
    async def run():
        peer = RemotingPeer()
        options, signer = resolve(InstanceOptions, {}), Signer("me", "secret")
        network = Network(
            options, ManualClock(), lambda *_: None, signer=signer, connect=peer.connect
        )
        await network.request("b:1", make_command(PING, {"b": "2"}), timeout_ms=3000)
        ext = peer.asked[0][1].ext
        assert ext["AccessKey"] == "me"
        assert ext["Signature"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "parts"), [("a:1", ("a", 1)), ("[::1]:9876", ("::1", 9876)), ("h.x:80", ("h.x", 80))]
)
def test_addresses_are_host_and_port(text, parts):
    assert split_address(text) == parts


# ---- backoff ------------------------------------------------------------------------------------
# Waits after failures to connect.


def test_the_wait_doubles_up_to_its_limit():
    backoff, waits = Backoff(), []
    for _ in range(7):
        backoff.failed(1000, "refused", least_ms=100, most_ms=3000)
        waits.append(backoff.until_ms - 1000)
    assert waits == [100, 200, 400, 800, 1600, 3000, 3000]


def test_only_the_first_failure_in_a_row_is_news():
    backoff = Backoff()
    assert backoff.failed(0, "refused", least_ms=1, most_ms=2)
    assert not backoff.failed(9, "refused", least_ms=1, most_ms=2)


def test_a_thousand_failures_do_not_overflow():
    backoff = Backoff()
    for _ in range(1000):
        backoff.failed(0, "refused", least_ms=100, most_ms=3000)
    assert backoff.until_ms == 3000


# ---- signing ------------------------------------------------------------------------------------
# Signatures as RocketMQ's access control checks them.


def expected(secret, content):
    return base64.b64encode(hmac.new(secret, content, hashlib.sha1).digest()).decode()


def test_values_are_signed_in_the_order_of_their_names_with_the_body_behind():
    command = Command(10, {"topic": "t", "group": "g"}, b"body")
    Signer("ak", "sk").sign(command)
    assert command.ext["Signature"] == expected(b"sk", b"akgtbody")


def test_a_token_is_signed_too_and_signing_again_changes_nothing():
    command = Command(10, {"a": "1"})
    signer = Signer("ak", "sk", "token")
    signer.sign(command)
    first = dict(command.ext)
    signer.sign(command)
    assert command.ext == first
    assert first["Signature"] == expected(b"sk", b"aktoken1")


def test_the_map_of_the_caller_is_not_touched():
    ext = {"a": "1"}
    Signer("ak", "sk").sign(Command(10, ext))
    assert ext == {"a": "1"}
