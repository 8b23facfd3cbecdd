"""Name servers: how they are written, and which one is asked."""

import asyncio

import pytest

from kit.rocketmq.remoting_peer import RemotingPeer
from penstock.client.connection import Network
from penstock.client.errors import StateError, Unreachable
from penstock.client.options import InstanceOptions, resolve
from penstock.client.routes import NameServers, make_command, parse_name_servers
from penstock.testing.clock import ManualClock


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a:1", ("a:1",)),
        ("a:1;b:2", ("a:1", "b:2")),
        (" a:1 ; b ;; a:1", ("a:1", "b:9876")),
        ("a:1,b:2", ("a:1", "b:2")),
        (["a", "b:2"], ("a:9876", "b:2")),
        ("[::1]:7", ("[::1]:7",)),
        ("::1", ("[::1]:9876",)),
        ("[::1]", ("[::1]:9876",)),
    ],
)
def test_lists_of_name_servers(given, found):
    assert parse_name_servers(given) == found


def test_without_any_the_environment_is_asked_then_the_user(monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "e:1")
    assert parse_name_servers(None) == ("e:1",)
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(StateError, match="NAMESRV_ADDR"):
        parse_name_servers(None)


def test_a_port_that_is_none_is_refused():
    with pytest.raises(StateError, match="host:port"):
        parse_name_servers("a:http")


def bench(*addresses):
    peer = RemotingPeer()
    options = resolve(InstanceOptions, {})
    network = Network(options, ManualClock(), lambda *_: None, connect=peer.connect)
    return NameServers(addresses, network, start_at=0), peer


def test_one_is_asked_until_it_fails_and_then_the_next():
    async def run():
        servers, peer = bench("a:1", "b:2")
        await servers.request(make_command(105), timeout_ms=100)
        await servers.request(make_command(105), timeout_ms=100)
        assert peer.codes("b:2") == []
        peer.dead.add("a:1")
        peer.transports[0].break_off()
        await servers.request(make_command(105), timeout_ms=100)
        assert servers.current == "b:2"
        peer.dead.clear()
        await servers.request(make_command(105), timeout_ms=100)
        assert peer.codes("b:2") == [105, 105]

    asyncio.run(run())


def test_when_all_are_dead_the_last_error_is_told():
    async def run():
        servers, peer = bench("a:1", "b:2")
        peer.dead |= {"a:1", "b:2"}
        with pytest.raises(Unreachable):
            await servers.request(make_command(105), timeout_ms=100)
        assert peer.dials == ["a:1", "b:2"]

    asyncio.run(run())
