"""Bindings: idempotent, durable when both ends are, and the end of auto-delete exchanges."""

import pytest

from kit.amqp.topology import Topology
from penstock.adapters.amqp.topology.matching import Binding, to_exchange, to_queue
from penstock.wire.amqp.codes import AmqpError


def test_binding_twice_is_binding_once() -> None:
    topology = Topology()
    topology.queue("q")
    for _ in range(2):
        topology.bind("amq.direct", "q", "k", {"b": 1, "a": 2})
    topology.bind("amq.direct", "q", "k", {"a": 2, "b": 1})
    assert len(list(topology.vhost.bindings)) == 1
    topology.vhost.bindings.unbind("amq.direct", to_queue("q"), "k", {"a": 2, "b": 1})
    assert not list(topology.vhost.bindings)
    assert topology.vhost.bindings.unbind("amq.direct", to_queue("q"), "k") is None
    assert topology.vhost.bindings.unbind("none", to_queue("q"), "k") is None


def test_both_ends_must_exist() -> None:
    topology = Topology()
    topology.queue("q")
    for source, destination, text in (
        ("none", to_queue("q"), "no exchange 'none' in vhost '/'"),
        ("amq.direct", to_queue("none"), "no queue 'none' in vhost '/'"),
        ("amq.direct", to_exchange("none"), "no exchange 'none' in vhost '/'"),
    ):
        with pytest.raises(AmqpError, match=f"NOT_FOUND - {text}"):
            topology.vhost.bindings.bind(source, destination)


def test_a_senseless_binding_leaves_no_trace() -> None:
    topology = Topology()
    topology.queue("q")
    with pytest.raises(AmqpError, match="Invalid x-match"):
        topology.bind("amq.headers", "q", "", {"x-match": "none"})
    assert not list(topology.vhost.bindings)


def test_an_auto_delete_exchange_goes_with_its_last_binding_and_not_before_its_first() -> None:
    topology = Topology()
    topology.queue("q")
    topology.exchange("auto", "fanout", is_auto_delete=True)
    topology.exchange("before", "fanout", is_auto_delete=True)
    topology.link("before", "auto")
    topology.bind("auto", "q", "1")
    topology.bind("auto", "q", "2")
    topology.vhost.bindings.unbind("auto", to_queue("q"), "1")
    assert "auto" in topology.vhost.exchanges
    topology.vhost.bindings.unbind("auto", to_queue("q"), "2")
    # The one that led to it has lost its only binding, too.
    assert {"auto", "before"}.isdisjoint(topology.vhost.exchanges)
    assert not list(topology.vhost.bindings)


def test_auto_delete_exchanges_in_a_circle_go_together() -> None:
    topology = Topology()
    for name in ("a", "b"):
        topology.exchange(name, "fanout", is_auto_delete=True)
    topology.link("a", "b")
    topology.link("b", "a")
    topology.vhost.bindings.drop_exchange(topology.vhost.exchanges["a"])
    assert {"a", "b"}.isdisjoint(topology.vhost.exchanges)
    assert not list(topology.vhost.bindings)


def test_a_queue_takes_its_bindings_along() -> None:
    topology = Topology()
    queue = topology.queue("q")
    topology.exchange("auto", "direct", is_auto_delete=True)
    topology.bind("auto", "q", "k")
    topology.bind("amq.topic", "q", "#")
    topology.vhost.queues.delete(queue)
    assert "auto" not in topology.vhost.exchanges
    assert topology.vhost.bindings.to(to_queue("q")) == []


def test_only_what_is_between_durable_things_is_there_after_a_restart() -> None:
    topology = Topology("team")
    topology.queue("kept")
    topology.queue("lost", is_durable=False)
    topology.exchange("kept", "topic", is_durable=True, arguments={"alternate-exchange": "lost"})
    topology.exchange("lost", "topic")
    topology.bind("kept", "kept", "a.#", {"n": 1, "bytes": b"\x00\xff"})
    topology.bind("kept", "lost", "b")
    topology.bind("lost", "kept", "c")
    topology.link("kept", "amq.fanout", "d")
    topology.bind("amq.fanout", "kept")
    topology.bind("amq.direct", "kept", "gone")
    topology.vhost.bindings.unbind("amq.direct", to_queue("kept"), "gone")
    topology.restart()
    assert sorted((each.source, each.routing_key) for each in topology.vhost.bindings) == [
        ("amq.fanout", ""),
        ("kept", "a.#"),
        ("kept", "d"),
    ]
    exchange = topology.vhost.exchanges["kept"]
    assert (exchange.kind, exchange.is_durable, exchange.alternate) == ("topic", True, "lost")
    assert "lost" not in topology.vhost.exchanges
    bound = next(each for each in topology.vhost.bindings if each.routing_key == "a.#")
    assert bound.arguments == {"n": 1, "bytes": b"\x00\xff"}
    assert topology.where("kept", "a.b") == ["kept"]


def test_a_deleted_exchange_does_not_come_back() -> None:
    topology = Topology()
    topology.queue("q")
    exchange = topology.exchange("e", "direct", is_durable=True)
    topology.bind("e", "q", "k")
    topology.vhost.bindings.drop_exchange(exchange)
    topology.restart()
    assert "e" not in topology.vhost.exchanges
    assert not list(topology.vhost.bindings)


def test_a_dropped_vhost_leaves_nothing_for_the_next_of_its_name() -> None:
    topology = Topology("v")
    topology.queue("q")
    topology.exchange("e", "direct", is_durable=True)
    topology.bind("amq.direct", "q", "k")
    topology.vhost.drop()
    topology.restart()
    assert "e" not in topology.vhost.exchanges
    assert not list(topology.vhost.bindings)
    assert topology.vhost.queues.get("q") is None


def test_management_names_a_binding_by_key_and_arguments() -> None:
    assert Binding("e", to_queue("q")).properties_key == "~"
    assert Binding("e", to_queue("q"), "k.# ~").properties_key == "k.%23+%7E"
    assert Binding("e", to_queue("q"), "k", {"a": 1}).properties_key.startswith("k~")
