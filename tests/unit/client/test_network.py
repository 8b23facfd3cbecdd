"""Requests to addresses: dialling on demand, back-off, bounds, signatures."""

import asyncio

import pytest

from penstock.client import network as module
from penstock.client.commands import make_command
from penstock.client.errors import ClientError, TimedOut, Unreachable, WouldBlock
from penstock.client.network import Network, split_address
from penstock.client.options import InstanceOptions, resolve
from penstock.client.signing import Signer
from penstock.testing.clock import ManualClock
from penstock.testing.remoting_peer import SILENT, RemotingPeer
from penstock.wire.rocketmq.command import Command

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
        connection.look()
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
