"""Whatever is put, deleted and declared in whatever order, what is in effect is what a model says.

The model knows nothing of slices, memories or what was before: for every object it asks all
policies that there are, and takes arguments and definitions apart key by key.
"""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.amqp.peer import AmqpBench
from penstock.adapters.amqp.topology.policies import Policy
from penstock.engine.topic import AT_ONCE_MS, NONE_MAX, Overflow
from penstock.wire.amqp.methods.exchange import Declare as DeclareExchange
from penstock.wire.amqp.methods.queue import Declare

NAMES = ("a", "ab", "b.a", "orders.b")
PATTERNS = ("", ".*", "^a", "a$", "b", "^orders\\.", "^(?!a).*", "x")
APPLIES = {
    "all": {"classic", "quorum", "exchange"},
    "queues": {"classic", "quorum"},
    "exchanges": {"exchange"},
    "classic_queues": {"classic"},
    "quorum_queues": {"quorum"},
    "streams": set(),
}
NOT_FOR = {"classic": {"delivery-limit"}, "quorum": {"queue-mode"}, "exchange": set()}
NUMBERS = ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit")
OVERFLOWS = {
    "drop-head": Overflow.DROP_HEAD,
    "reject-publish": Overflow.REJECT,
    "reject-publish-dlx": Overflow.REJECT_DEAD_LETTER,
    "hold": Overflow.HOLD,
}

number = st.integers(0, 4)
long_ms = st.integers(1_000_000, 1_000_004)
limits = {
    "message-ttl": number,
    "expires": long_ms,
    "max-length": number,
    "max-length-bytes": number,
    "overflow": st.sampled_from(sorted(OVERFLOWS)),
}
words = {
    "dead-letter-exchange": st.sampled_from(NAMES),
    "dead-letter-routing-key": st.sampled_from(NAMES),
    "alternate-exchange": st.sampled_from(NAMES),
    "queue-mode": st.sampled_from(("default", "lazy")),
}
of_users = st.fixed_dictionaries({}, optional={**limits, **words, "delivery-limit": number})
of_operators = st.fixed_dictionaries({}, optional={**limits, "delivery-limit": number})


def policies(definitions):
    return st.builds(
        Policy,
        name=st.sampled_from("pqr"),
        pattern=st.sampled_from(PATTERNS),
        definition=definitions.filter(bool),
        priority=st.integers(-1, 1),
        apply_to=st.sampled_from(sorted(APPLIES)),
    )


@st.composite
def declared(draw):
    kind = draw(st.sampled_from(("classic", "quorum", "exchange")))
    name = draw(st.sampled_from(NAMES))
    if kind == "exchange":
        alternate = draw(st.sampled_from((None, "b")))
        return kind, name, {} if alternate is None else {"alternate-exchange": alternate}
    keys = {
        f"x-{key}": value for key, value in {**limits, "dead-letter-exchange": st.just("a")}.items()
    }
    table = draw(st.fixed_dictionaries({}, optional=keys))
    if kind == "quorum":
        table |= draw(st.fixed_dictionaries({}, optional={"x-delivery-limit": number}))
        table["x-queue-type"] = "quorum"
    return kind, name, table


steps = st.one_of(
    st.tuples(st.just("put"), st.just(False), policies(of_users)),
    st.tuples(st.just("put"), st.just(True), policies(of_operators)),
    st.tuples(st.just("delete"), st.booleans(), st.sampled_from("pqr")),
    st.tuples(st.just("declare"), st.just(None), declared()),
    st.tuples(st.just("restart"), st.just(None), st.none()),
)


def chosen(there, kind, name):
    """The policy that is in effect for an object, of those that there are."""
    found = [
        each
        for each in there.values()
        if kind in APPLIES[each.apply_to]
        and NOT_FOR[kind].isdisjoint(each.definition)
        and re.search(each.pattern, name)
    ]
    return min(found, key=lambda each: (-each.priority, each.name), default=None)


def expected(there, kind, name):
    user, operator = (chosen(there[who], kind, name) for who in (False, True))
    both = [each.definition for each in (user, operator) if each is not None]
    merged = {}
    for key in {key for each in both for key in each}:
        values = [each[key] for each in both if key in each]
        merged[key] = min(values) if key in NUMBERS else values[-1]
    return user and user.name, operator and operator.name, merged


def in_effect(table, merged, key):
    """Of an argument of a queue."""
    values = [each[name] for each, name in ((table, f"x-{key}"), (merged, key)) if name in each]
    if not values:
        return None
    return min(values) if key in NUMBERS else values[0]


def limit(value, nothing):
    return 0 if value is None else value or nothing


def check(bench, there, objects):
    vhost = bench.broker.vhosts["/"]
    for (is_exchange, name), (kind, table) in objects.items():
        found = vhost.exchanges[name] if is_exchange else vhost.queues.get(name)
        user, operator, merged = expected(there, kind, name)
        assert (found.policy.name, found.policy.operator) == (user, operator)
        assert found.policy.definition == merged
        if is_exchange:
            alternate = table.get("alternate-exchange", merged.get("alternate-exchange"))
            assert found.alternate == alternate
            continue
        policy = found.topic.policy
        wanted = {key: in_effect(table, merged, key) for key in (*NUMBERS, "overflow")}
        assert policy.message_ttl_ms == limit(wanted["message-ttl"], AT_ONCE_MS)
        assert policy.expires_ms == limit(wanted["expires"], 0)
        assert policy.length_max == limit(wanted["max-length"], NONE_MAX)
        assert policy.bytes_max == limit(wanted["max-length-bytes"], NONE_MAX)
        assert policy.overflow is OVERFLOWS[wanted["overflow"] or "drop-head"]
        own = found.subscription.options.delivery_limit
        both = [each for each in (own, policy.delivery_limit) if each]
        assert min(both, default=0) == limit(wanted["delivery-limit"], NONE_MAX)
        is_lettered = in_effect(table, merged, "dead-letter-exchange") is not None
        assert (found.topic.dead_letter_router is not None) == is_lettered


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=14))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_is_in_effect_is_what_the_model_says(history):
    bench = AmqpBench()
    peer = bench.client()
    there = {False: {}, True: {}}
    objects = {}
    for verb, is_operator, what in history:
        vhost = bench.broker.vhosts["/"]
        if verb == "put":
            bench.broker.put_policies(vhost, [(is_operator, what)])
            there[is_operator][what.name] = what
        elif verb == "delete":
            is_there = bench.broker.delete_policy(vhost, what, is_operator=is_operator)
            assert is_there == (there[is_operator].pop(what, None) is not None)
        elif verb == "restart":
            bench.settle()
            bench.kill()
            peer = bench.client()
        else:
            kind, name, table = what
            key = (kind == "exchange", name)
            if key not in objects:
                objects[key] = (kind, table)
                peer.call(1, command(kind, name, table))
        check(bench, there, objects)


def command(kind, name, table):
    if kind == "exchange":
        return DeclareExchange(exchange=name, is_durable=True, arguments=table)
    return Declare(queue=name, is_durable=True, arguments=table)
