"""Laws of importing definitions: all or nothing, the same again changes nothing, a crash is either.

Documents are made of few names, so that parts of them meet: the same queue twice, a binding of what
is not there, a type that differs from what an import before it made.
"""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.amqp.definitions import exported
from kit.amqp.peer import AmqpBench
from penstock.adapters.amqp.management.definitions import (
    Definitions,
    import_definitions,
)
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import AmqpSettings

# What is possible is named more often than what is not: one bad part refuses all.
VHOSTS = st.sampled_from(("/",) * 8 + ("a", "b"))
NAMES = st.sampled_from(("x", "y", "z") * 5 + ("amq.topic", "amq.match", ""))
ENDS = st.sampled_from(("x",) * 8 + ("y", "z", "amq.topic", "amq.match", ""))
KINDS = st.sampled_from(("topic",) * 8 + ("direct", "headers", "none"))
FLAGS = st.sampled_from((True,) * 7 + (False,))
QUEUE_ARGUMENTS = st.sampled_from(
    (
        *[{}] * 12, {"x-max-length": 5}, {"x-max-length": -1}, {"x-max-priority": 2},
        {"x-queue-type": "quorum"}, {"x": 1 << 70}, {"x-dead-letter-routing-key": "k"},
    )
)  # fmt: skip
BINDING_ARGUMENTS = st.sampled_from((*[{}] * 6, {"x-match": "any", "n": 1}, {"x-match": "some"}))
EXCHANGE_ARGUMENTS = st.sampled_from(
    (*[{}] * 8, {"alternate-exchange": "x"}, {"alternate-exchange": 1})
)

BASE: dict[str, list[Any]] = {
    "exchanges": [{"name": name, "vhost": "/", "type": "topic"} for name in ("x", "y")],
    "queues": [{"name": name, "vhost": "/"} for name in ("x", "y", "z")],
}


def on_base(document: dict[str, Any]) -> dict[str, Any]:
    """Behind something that a binding can be between."""
    return document | {kind: [*parts, *document[kind]] for kind, parts in BASE.items()}


PARTS = st.fixed_dictionaries(
    {
        "vhosts": st.lists(st.fixed_dictionaries({"name": VHOSTS}), max_size=3),
        "exchanges": st.lists(
            st.fixed_dictionaries(
                {"name": NAMES, "vhost": VHOSTS, "type": KINDS, "durable": FLAGS,
                 "arguments": EXCHANGE_ARGUMENTS}
            ),
            max_size=3,
        ),
        "queues": st.lists(
            st.fixed_dictionaries(
                {"name": NAMES, "vhost": VHOSTS, "durable": FLAGS, "arguments": QUEUE_ARGUMENTS}
            ),
            max_size=3,
        ),
        "bindings": st.lists(
            st.fixed_dictionaries(
                {"source": ENDS, "destination": ENDS, "vhost": VHOSTS,
                 "destination_type": st.sampled_from(("queue", "exchange")),
                 "routing_key": st.sampled_from(("x", "k")),
                 "arguments": BINDING_ARGUMENTS}
            ),
            max_size=3,
        ),
    }
)  # fmt: skip

DOCUMENTS = PARTS | PARTS.map(on_base)

TIGHT = Settings(
    amqp=AmqpSettings(vhosts_max=2, exchanges_max=14, bindings_max=2),
    topics=TopicSettings(queues_max=5),
)


def attempted(bench: AmqpBench, document: dict[str, Any]) -> bool:
    """Import it; True when it was taken, and in any case nothing between all and nothing."""
    before, sequence = exported(bench.broker), bench.store.definitions.sequence
    try:
        list(import_definitions(bench.broker, msgspec.convert(document, Definitions)))
    except ValueError:
        assert exported(bench.broker) == before
        assert bench.store.definitions.sequence == sequence
        return False
    return True


@settings(max_examples=150, deadline=None)
@given(st.lists(DOCUMENTS, min_size=1, max_size=3), st.booleans())
def test_an_import_is_all_or_nothing_and_the_same_again_changes_nothing(
    documents: list[dict[str, Any]], is_tight: bool
) -> None:
    bench = AmqpBench(TIGHT if is_tight else None)
    for document in documents:
        if attempted(bench, document):
            bench.settle()
            whole, sequence = exported(bench.broker), bench.store.definitions.sequence
            assert attempted(bench, document)
            assert attempted(bench, whole | {"users": []})
            assert exported(bench.broker) == whole
            assert bench.store.definitions.sequence == sequence


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.booleans())
def test_a_crash_leaves_all_that_is_durable_or_nothing(
    document: dict[str, Any], is_settled: bool
) -> None:
    bench = AmqpBench()
    if not attempted(bench, document):
        return
    if is_settled:
        bench.settle()
    expected = lasting(exported(bench.broker)) if is_settled else lasting(exported(bench.broker), 0)
    bench.cut_power()
    assert lasting(exported(bench.broker)) == expected


def lasting(document: dict[str, Any], count: int | None = None) -> dict[str, list[Any]]:
    """What outlives the process; with ``count`` 0 what there was before any import."""
    if count == 0:
        return {"vhosts": ["/"], "exchanges": [], "queues": [], "bindings": []}
    ends = {
        kind: {(each["vhost"], each["name"]) for each in document[kind] if each["durable"]}
        for kind in ("exchanges", "queues")
    }

    def is_lasting(binding: dict[str, Any]) -> bool:
        vhost, kind = binding["vhost"], f"{binding['destination_type']}s"
        pairs = ((binding["source"], "exchanges"), (binding["destination"], kind))
        return all(
            (vhost, name) in ends[each] or (each == "exchanges" and name.startswith("amq."))
            for name, each in pairs
        )

    return {
        "vhosts": sorted(each["name"] for each in document["vhosts"]),
        "exchanges": sorted(ends["exchanges"]),
        "queues": sorted(ends["queues"]),
        "bindings": sorted(repr(each) for each in document["bindings"] if is_lasting(each)),
    }
