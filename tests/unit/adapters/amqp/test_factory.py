"""The house of a listener: opened once, found by everybody."""

import pytest

from kit.workbench import Workbench
from penstock.adapters.amqp.factory import AmqpFactory
from penstock.adapters.contract import Peer
from penstock.model.errors import InvariantBroken
from penstock.model.ids import ConnectionId


def make(factory, bench):
    peer = Peer("127.0.0.1", 4000, "127.0.0.1", 5672)
    return factory.make(ConnectionId(1), peer, bench.engine, bench.clock, lambda: None)


def test_nobody_comes_before_the_house_is_open():
    bench = Workbench()
    with pytest.raises(InvariantBroken):
        make(AmqpFactory(bench.settings), bench)


def test_all_connections_of_a_listener_share_a_broker():
    bench = Workbench()
    factory = AmqpFactory(bench.settings)
    timers = factory.open(bench.engine, bench.clock, {})
    assert timers is factory.broker.timers
    session = make(factory, bench)
    assert session.context is factory.broker.context
    assert session.name == "127.0.0.1:4000 -> 127.0.0.1:5672"
    assert not session.is_established


def test_a_connection_over_ipv6_has_its_addresses_in_brackets():
    bench = Workbench()
    factory = AmqpFactory(bench.settings)
    factory.open(bench.engine, bench.clock, {})
    peer = Peer("::1", 4000, "::1", 5672)
    session = factory.make(ConnectionId(1), peer, bench.engine, bench.clock, lambda: None)
    assert session.name == "[::1]:4000 -> [::1]:5672"
