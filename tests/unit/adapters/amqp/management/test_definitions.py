"""Definitions out of one broker and into another."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kit.amqp.definitions import exported
from kit.amqp.peer import AmqpBench
from penstock.adapters.amqp.management.definitions import (
    IGNORED_NAMES_MAX,
    MAKE_STEPS,
    STEPS_MAX,
    Definitions,
    export_definitions,
    ignored_parts,
    import_definitions,
    read_definitions,
)
from penstock.adapters.amqp.topology import policies
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.methods.queue import Declare

DOCUMENT: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "users": [
        {
            "name": "ada",
            # "test12", as RabbitMQ's documentation hashes it with salt 908dc60a.
            "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": "management, monitoring",
            "limits": {},
        }
    ],
    "vhosts": [{"name": "/"}, {"name": "team", "metadata": {}}],
    "permissions": [{"user": "ada", "vhost": "/", "configure": "", "write": "", "read": ""}],
    "policies": [
        {"name": "p", "vhost": "team", "pattern": "^o", "definition": {"max-length": 5}}
    ],
    "parameters": [
        {"component": "operator_policy", "name": "op", "vhost": "team",
         "value": {"pattern": ".*", "priority": 3, "apply-to": "queues",
                   "definition": {"message-ttl": 60000}}},
    ],
    "queues": [
        {"name": "orders", "vhost": "team", "arguments": {"x-max-length": 10}},
        {"name": "passing", "vhost": "/", "durable": False, "auto_delete": True},
    ],
    "exchanges": [
        {"name": "in", "vhost": "team", "type": "topic", "arguments": {}},
        {"name": "out", "vhost": "team", "type": "headers", "internal": True},
    ],
    "bindings": [
        {"source": "in", "vhost": "team", "destination": "out", "destination_type": "exchange",
         "routing_key": "a.#", "arguments": {}},
        {"source": "out", "vhost": "team", "destination": "orders", "destination_type": "queue",
         "routing_key": "", "arguments": {"x-match": "any", "colour": "red"}},
        {"source": "", "vhost": "team", "destination": "orders", "destination_type": "queue",
         "routing_key": "orders", "arguments": {}},
    ],
}  # fmt: skip


def imported(bench: AmqpBench, document: dict[str, Any]) -> None:
    list(import_definitions(bench.broker, msgspec.convert(document, Definitions)))
    bench.settle()


def test_what_was_imported_is_there_after_a_crash_and_is_exported_again() -> None:
    bench = AmqpBench()
    imported(bench, DOCUMENT)
    bench.cut_power()
    team = bench.broker.vhosts["team"]
    assert team.exchanges["out"].is_internal
    orders = team.queues.get("orders")
    assert orders is not None
    assert orders.arguments == {"x-max-length": 10}
    assert bench.broker.users.login("ada", "test12", "10.0.0.1")
    assert [queue.name for queue in team.router.route_dead("out", ("k",)).queues or ()] == []
    document = exported(bench.broker)
    assert [each["name"] for each in document["users"]] == ["ada", "guest"]
    assert document["bindings"] == DOCUMENT["bindings"][:2]
    assert document["policies"] == [{**DOCUMENT["policies"][0], "priority": 0, "apply-to": "all"}]
    assert document["parameters"] == DOCUMENT["parameters"]
    assert (orders.policy.name, orders.policy.operator) == ("p", "op")
    assert (orders.topic.policy.length_max, orders.topic.policy.message_ttl_ms) == (5, 60_000)
    assert {each["name"] for each in document["exchanges"]} == {"in", "out"}
    again = AmqpBench()
    imported(again, document)
    assert exported(again.broker) == document


def test_one_vhost_is_exported_without_its_name_and_imported_under_another() -> None:
    bench = AmqpBench()
    imported(bench, DOCUMENT)
    document = exported(bench.broker, bench.broker.vhosts["team"])
    assert "users" not in document
    assert not any("vhost" in each for each in document["bindings"])
    target = bench.broker.make_vhost("copy")
    list(import_definitions(bench.broker, msgspec.convert(document, Definitions), target))
    assert {each.source for each in target.bindings} == {"in", "out"}
    assert len(target.policies) == 2
    copied = target.queues.get("orders")
    assert copied is not None
    assert (copied.policy.name, copied.policy.operator) == ("p", "op")


def test_what_ends_with_a_connection_is_not_exported() -> None:
    bench = AmqpBench()
    peer = bench.client()
    peer.call(1, Declare(0, "mine", is_exclusive=True))
    bench.topic("foreign")
    assert exported(bench.broker)["queues"] == []


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"queues": [{"name": "q", "vhost": "none"}]}, "no vhost 'none'"),
        ({"exchanges": [{"name": "amq.topic", "vhost": "/", "type": "direct"}]}, "inequivalent"),
        ({"exchanges": [{"name": "x", "vhost": "/", "type": "none"}]}, "unknown exchange type"),
        (
            {"bindings": [{"source": "amq.topic", "vhost": "/", "destination": "none"}]},
            "no queue 'none'",
        ),
        (
            {"bindings": [{"source": "", "vhost": "/", "destination": "a", "routing_key": "b"}]},
            "default exchange",
        ),
        ({"vhosts": [{"name": ""}]}, "vhost name"),
        (
            {
                "policies": [
                    {"name": "p", "vhost": "/", "pattern": "(", "definition": {"expires": 1}}
                ]
            },
            "no regular expression",
        ),
        (
            {
                "policies": [
                    {"name": "p", "vhost": "x", "pattern": "", "definition": {"expires": 1}}
                ]
            },
            "no vhost",
        ),
        ({"parameters": [{"component": "operator_policy", "name": "p", "value": {}}]}, "pattern"),
        ({"users": [{"name": "u", "hashing_algorithm": "md5"}]}, "is not known"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(document: dict[str, Any], text: str) -> None:
    with pytest.raises((AmqpError, ValueError), match=text):
        imported(AmqpBench(), document)


def ignored(document: dict[str, Any], vhost: Any = None) -> dict[str, tuple[int, list[str]]]:
    found = ignored_parts(msgspec.convert(document, Definitions), vhost)
    return {each.kind: (each.count, each.names) for each in found}


def test_what_a_document_has_and_we_have_not_is_told_by_number_and_name() -> None:
    everything = {"user": "ada", "vhost": "team", "configure": ".*", "write": ".*", "read": ".*"}
    more = {
        "permissions": [*DOCUMENT["permissions"], everything],
        "parameters": [*DOCUMENT["parameters"], {"component": "shovel", "name": "s"}],
        "policies": [
            {"name": "ha", "pattern": ".*", "definition": {"ha-mode": "all", "expires": 1}}
        ],
        "global_parameters": [{"name": "cluster_name", "value": "rabbit"}],
        "topic_permissions": [{"user": "ada", "vhost": "/", "exchange": "e"}],
        "vhosts": [{"name": "/", "limits": []}, {"name": "team", "limits": {"max-queues": 1}}],
    }
    assert ignored(DOCUMENT | more) == {
        "policy_keys": (1, ["ha ha-mode"]),
        "permissions": (1, ["ada /"]),
        "topic_permissions": (1, ["ada /"]),
        "parameters": (1, ["shovel s"]),
        "global_parameters": (1, ["cluster_name"]),
        "vhost_limits": (1, ["team"]),
    }
    bench = AmqpBench()
    assert ignored(DOCUMENT, bench.broker.vhosts["/"])["users"] == (1, ["ada"])
    imported(bench, DOCUMENT)
    assert ignored(exported(bench.broker)) == {}


@pytest.mark.parametrize("part", [None, [], {}, 7, "p", [None], [[1]], {"name": "p"}])
def test_parts_we_have_no_use_for_may_have_any_shape(part: Any) -> None:
    parts = {"parameters", "permissions"}
    assert set(ignored(dict.fromkeys(parts, part))) <= parts


def test_of_thousands_only_some_are_named() -> None:
    parameters = [{"name": "n" * 300} for _ in range(5_000)]
    ((count, names),) = ignored({"parameters": parameters}).values()
    assert (count, len(names)) == (5_000, IGNORED_NAMES_MAX)
    assert max(map(len, names)) < 100


# ---- pieces -------------------------------------------------------------------------------------

MANY = {"queues": [{"name": f"q{number:04d}", "vhost": "/"} for number in range(500)]}


def pieces(steps: Iterator[int]) -> list[int]:
    """How many steps are done before others have their turn."""
    found, done = [], 0
    for step in steps:
        done += step
        if done >= STEPS_MAX:
            found.append(done)
            done = 0
    return [*found, done]


def test_a_long_document_is_read_checked_and_made_in_pieces() -> None:
    bench = AmqpBench()
    read = pieces(read_definitions(msgspec.json.encode(MANY)))
    assert (sum(read), max(read)) == (500, STEPS_MAX)
    done = pieces(import_definitions(bench.broker, msgspec.convert(MANY, Definitions)))
    assert sum(done) == 500 * (1 + MAKE_STEPS)
    assert max(done) < STEPS_MAX + MAKE_STEPS
    assert len(exported(bench.broker)["queues"]) == 500


def test_an_export_is_made_row_by_row_and_lives_with_what_changes_meanwhile() -> None:
    bench = AmqpBench()
    imported(bench, MANY)
    steps = export_definitions(bench.broker)
    taken = 0
    for step in steps:
        taken += step
        if taken == 250:
            bench.client().call(1, Declare(0, "late"))
    assert taken >= 500  # a step for each queue


def test_policies_are_prepared_one_a_step_and_come_into_effect_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, calls = AmqpBench(), 0
    table = bench.broker.vhosts["/"].policies
    check = policies._check_policy

    def counted(*args: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        check(*args, **named)

    monkeypatch.setattr(policies, "_check_policy", counted)
    rows = [
        {"vhost": "/", "name": f"p{each}", "pattern": f"^q{each}", "definition": {"max-length": 1}}
        for each in range(1000)
    ]
    document = msgspec.convert({"policies": rows}, Definitions)
    seen, most, before = set(), 0, 0
    for _ in import_definitions(bench.broker, document):
        most, before = max(most, calls - before), calls
        seen.add(len(table))
    assert calls == 1000
    assert most == 1
    assert seen == {0, 1000}


def test_a_policy_that_cannot_be_is_refused_before_any_is_made() -> None:
    bench = AmqpBench()
    rows = [
        {"vhost": "/", "name": f"p{each}", "pattern": "^q", "definition": {"max-length": each}}
        for each in (1, 2, -1)
    ]
    with pytest.raises(ValueError, match="'p-1': max-length"):
        imported(bench, {"policies": rows})
    assert len(bench.broker.vhosts["/"].policies) == 0


def test_a_crash_in_the_middle_leaves_the_parts_made_so_far_and_the_same_document_the_rest() -> (
    None
):
    bench = AmqpBench()
    steps = import_definitions(bench.broker, msgspec.convert(MANY, Definitions))
    for _ in range(500 + 200):  # all are checked, 200 made
        next(steps)
    bench.settle()
    bench.cut_power()
    there = [each["name"] for each in exported(bench.broker)["queues"]]
    assert there == [f"q{number:04d}" for number in range(200)]
    imported(bench, MANY)
    assert len(exported(bench.broker)["queues"]) == 500


def test_what_others_change_in_the_middle_of_an_import_is_told_with_what_was_made() -> None:
    bench = AmqpBench()
    steps = import_definitions(bench.broker, msgspec.convert(MANY, Definitions))
    for _ in range(600):
        next(steps)
    bench.client().call(1, Declare(0, "q0400", is_durable=False))
    with pytest.raises(ValueError, match=r"inequivalent.* 400 of its 500 parts are made"):
        list(steps)


def read(document: bytes) -> Definitions:
    steps = read_definitions(document)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Definitions = end.value
            return found


def test_a_document_read_row_by_row_is_the_same_as_in_one_go() -> None:
    body = msgspec.json.encode(DOCUMENT)
    assert read(body) == msgspec.json.decode(body, type=Definitions, strict=False)
    assert read(b'{"parameters": {"name": "p"}, "x": 1}').parameters == {"name": "p"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"queues": [{"name": "q"}, {"name": 7}]}', r"queues\[1\]: Expected `str`"),
        (b'{"queues": 7}', "Expected `array`"),
        (b"[]", "Expected `object`"),
        (b'{"queues": [{"name": "%s"}]}' % (b"x" * 300_000), r"queues\[0\] has 300012 bytes"),
    ],
)
def test_what_cannot_be_read_is_named(body: bytes, text: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=text):
        read(body)
