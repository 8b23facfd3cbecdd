"""An import of definitions is all or nothing: what cannot be is found before anything is made."""

from typing import Any

import msgspec
import pytest

from kit.amqp.definitions import exported
from kit.amqp.peer import AmqpBench
from penstock.adapters.amqp.management.definitions import (
    Definitions,
    import_definitions,
)
from penstock.model.names import TopicName
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import AmqpSettings
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.methods.queue import Declare

GOOD: dict[str, Any] = {
    "users": [{"name": "ada", "password": "x", "tags": "management"}],
    "vhosts": [{"name": "team"}],
    "exchanges": [
        {"name": "in", "vhost": "team", "type": "topic"},
        {"name": "passing", "vhost": "/", "type": "fanout", "durable": False},
    ],
    "queues": [
        {"name": "orders", "vhost": "team", "arguments": {"x-max-priority": 2}},
        {"name": "plain", "vhost": "/"},
    ],
    "bindings": [
        {"source": "in", "vhost": "team", "destination": "orders", "routing_key": "a.#"},
        {"source": "amq.headers", "vhost": "team", "destination": "orders",
         "arguments": {"x-match": "any", "colour": "red"}},
        {"source": "in", "vhost": "team", "destination": "amq.fanout",
         "destination_type": "exchange"},
    ],
}  # fmt: skip


def imported(bench: AmqpBench, document: dict[str, Any]) -> None:
    list(import_definitions(bench.broker, msgspec.convert(document, Definitions)))


def with_part(kind: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """The good document and something at the end of one of its lists."""
    return {**GOOD, kind: [*GOOD.get(kind, []), *parts]}


def queue(**more: Any) -> dict[str, Any]:
    return {"name": "orders", "vhost": "team", **more}


IMPOSSIBLE = [
    (with_part("users", {"name": ""}), "needs a name"),
    (with_part("users", {"name": "u", "hashing_algorithm": "md5"}), "is not known"),
    (with_part("users", {"name": "u", "password_hash": "!"}), "not base64"),
    (with_part("vhosts", {"name": "\n"}), "vhost name"),
    (with_part("exchanges", {"name": "e", "vhost": "none"}), "no vhost 'none'"),
    (with_part("exchanges", {"name": "e", "vhost": "/", "type": "none"}), "unknown exchange type"),
    (
        with_part("exchanges", {"name": "in", "vhost": "team", "type": "direct"}),
        "inequivalent arg 'type' for exchange 'in' in vhost 'team'",
    ),
    (
        with_part("exchanges", {"name": "amq.topic", "vhost": "team"}),
        "inequivalent arg 'type' for exchange 'amq.topic'",
    ),
    (with_part("exchanges", {"name": "amq.mine", "vhost": "/"}), "reserved prefix"),
    (with_part("exchanges", {"name": "", "vhost": "/"}), "default exchange"),
    (with_part("exchanges", {"name": "e" * 256, "vhost": "/"}), "short string"),
    (
        with_part(
            "exchanges", {"name": "e", "vhost": "/", "arguments": {"alternate-exchange": 1}}
        ),
        "invalid type",
    ),
    (with_part("queues", queue(name="", vhost="/")), "needs a name"),
    (with_part("queues", queue(name="b", arguments={"x-max-length": -1})), "value_negative"),
    (with_part("queues", queue(name="b", arguments={"x": 1 << 70})), "field value"),
    (with_part("queues", queue(arguments={"x-max-priority": 3})), "inequivalent arg"),
    (with_part("queues", queue(durable=False)), "inequivalent arg"),
    (with_part("queues", queue(name="there", vhost="/", durable=False)), "inequivalent arg"),
    (with_part("queues", queue(name="mine", vhost="/")), "exclusive access"),
    (
        with_part("queues", queue(name="foreign", vhost="/", arguments={"x-max-length": 1})),
        "inequivalent arg 'x-max-length' for queue 'foreign'",
    ),
    (
        with_part("queues", queue(name="alien", vhost="team", arguments={"x-custom": 1})),
        "another protocol",
    ),
    (
        with_part("queues", queue(name="b", durable=False, arguments={"x-queue-type": "quorum"})),
        "non-durable",
    ),
    (
        with_part("bindings", {"source": "in", "vhost": "team", "destination": "none"}),
        "no queue 'none' in vhost 'team'",
    ),
    (
        with_part("bindings", {"source": "none", "vhost": "team", "destination": "orders"}),
        "no exchange 'none' in vhost 'team'",
    ),
    (
        with_part(
            "bindings",
            {"source": "in", "vhost": "team", "destination": "none", "destination_type": "e"},
        ),
        "no exchange 'none'",
    ),
    (
        with_part(
            "bindings",
            {"source": "", "vhost": "team", "destination": "orders", "routing_key": "k"},
        ),
        "default exchange",
    ),
    (
        with_part(
            "bindings",
            {"source": "", "vhost": "team", "destination": "no", "routing_key": "no"},
        ),
        "no queue 'no'",
    ),
    (
        with_part(
            "bindings",
            {"source": "amq.match", "vhost": "team", "destination": "orders",
             "arguments": {"x-match": "some"}},
        ),
        "x-match",
    ),
    (
        with_part(
            "bindings",
            {"source": "in", "vhost": "team", "destination": "orders", "routing_key": "k" * 256},
        ),
        "short string",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("document", "text"), IMPOSSIBLE, ids=[each[1] for each in IMPOSSIBLE])
def test_one_impossible_part_refuses_all_of_it(document: dict[str, Any], text: str) -> None:
    bench = AmqpBench()
    peer = bench.client()
    peer.call(1, Declare(0, "there", is_durable=True))
    peer.call(1, Declare(0, "mine", is_exclusive=True))
    bench.topic("foreign")
    bench.engine.create_topic(TopicName("team", "alien"))
    before = exported(bench.broker)
    sequence = bench.store.definitions.sequence
    with pytest.raises((AmqpError, ValueError), match=text):
        imported(bench, document)
    assert exported(bench.broker) == before
    assert "team" not in bench.broker.vhosts
    assert bench.store.definitions.sequence == sequence, "nothing waits to be written"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(amqp=AmqpSettings(vhosts_max=1)), "vhosts_max"),
        (Settings(amqp=AmqpSettings(exchanges_max=13)), "exchanges_max"),
        (Settings(amqp=AmqpSettings(bindings_max=2)), "bindings_max"),
        (Settings(topics=TopicSettings(queues_max=3)), "queues_max"),
    ],
)
def test_limits_hold_for_the_document_as_a_whole(settings: Settings, text: str) -> None:
    bench = AmqpBench(settings)
    with pytest.raises(AmqpError, match=text):
        imported(bench, GOOD)
    assert list(bench.broker.vhosts) == ["/"]


def test_limits_that_are_just_reached_are_no_refusal() -> None:
    amqp = AmqpSettings(vhosts_max=2, exchanges_max=14, bindings_max=3)
    bench = AmqpBench(Settings(amqp=amqp, topics=TopicSettings(queues_max=4)))
    imported(bench, GOOD)
    imported(bench, GOOD)


def test_a_second_import_changes_nothing() -> None:
    bench = AmqpBench()
    imported(bench, with_part("queues", queue(arguments={"x-max-priority": 2})))
    bench.settle()
    document, sequence = exported(bench.broker), bench.store.definitions.sequence
    again = {**document, "users": []}
    imported(bench, again)
    imported(bench, again)
    assert exported(bench.broker) == document
    assert bench.store.definitions.sequence == sequence
    assert bench.broker.vhosts["team"].bindings.count == 3


def test_a_crash_before_the_transaction_leaves_nothing_and_after_it_all() -> None:
    bench = AmqpBench()
    before = exported(bench.broker)
    imported(bench, GOOD)
    bench.cut_power()
    assert exported(bench.broker)["queues"] == before["queues"] == []
    assert list(bench.broker.vhosts) == ["/"]
    assert bench.broker.users.get("ada") is None
    imported(bench, GOOD)
    bench.settle()
    whole = exported(bench.broker)
    bench.cut_power()
    kept = exported(bench.broker)
    assert kept["bindings"] == whole["bindings"]
    assert len(kept["bindings"]) == 3
    assert {each["name"] for each in kept["queues"]} == {"orders", "plain"}
    assert {each["name"] for each in kept["exchanges"]} == {"in"}, "the other was transient"
    assert bench.broker.users.get("ada") is not None


def test_a_topic_of_another_protocol_may_be_named_by_a_document_and_is_bound() -> None:
    bench = AmqpBench()
    bench.topic("foreign")
    document = {
        "queues": [{"name": "foreign", "vhost": "/"}],
        "bindings": [{"source": "amq.fanout", "vhost": "/", "destination": "foreign"}],
    }
    imported(bench, document)
    assert bench.broker.vhosts["/"].bindings.count == 1
