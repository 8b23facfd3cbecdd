"""Policies: which is in effect for whom, what it does to what lives, and what is refused."""

import pytest

from penstock.adapters.amqp.topology.policies import (
    OBJECTS_AT_A_TIME,
    Policy,
    check_patterns,
    merged_definition,
    prepare_policy,
    read_pattern,
    with_policy,
)
from penstock.engine.topic import AT_ONCE_MS, NONE_MAX, Overflow
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.methods.basic import Get, Nack
from penstock.wire.amqp.methods.channel import ConfirmSelect
from penstock.wire.amqp.methods.exchange import Declare as DeclareExchange
from penstock.wire.amqp.methods.queue import Bind, Declare, Delete


def policy(name="p", pattern=".*", priority=0, apply_to="all", **definition):
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    return Policy(name=name, pattern=pattern, definition=keys, priority=priority, apply_to=apply_to)


def checked(policies: list[tuple[bool, Policy]]) -> None:
    check_patterns(
        [prepare_policy(each, is_operator=kind, bytes_max=1024) for kind, each in policies], None
    )


def put(bench, *policies, is_operator=False, vhost="/"):
    host = bench.broker.vhosts[vhost]
    bench.broker.put_policies(host, [(is_operator, each) for each in policies])
    bench.settle()


def clear(bench, name, *, is_operator=False):
    assert bench.broker.delete_policy(bench.broker.vhosts["/"], name, is_operator=is_operator)
    bench.settle()


def queue(bench, name="q"):
    return bench.broker.vhosts["/"].queues.get(name)


def declare(peer, name="q", **arguments):
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    peer.call(1, Declare(queue=name, arguments=table, is_durable=True))


def publish(peer, count, name="q", exchange=""):
    for number in range(count):
        peer.publish(1, exchange, name, b"%d" % number)
    peer.turn()


def get(peer, name="q"):
    """The body of the next message, or None."""
    peer.send(1, Get(queue=name, is_no_ack=True))
    peer.turn()
    _, properties, body = peer.answer_with_content(1)
    return body if properties else None


# Which one.


def test_the_highest_priority_is_in_effect_and_of_equals_the_first_by_name(bench, peer):
    declare(peer, "orders.new")
    put(
        bench,
        *[policy(*each, expires=9000) for each in (("b", "^o", 1), ("a", "o", 1), ("c", "x", 9))],
    )
    found = queue(bench, "orders.new")
    assert (found.policy.name, found.policy.operator) == ("a", None)
    put(bench, policy("z", "new$", 2, expires=9000))
    assert found.policy.name == "z"
    clear(bench, "z")
    assert found.policy.name == "a"


@pytest.mark.parametrize(
    ("apply_to", "kinds"),
    [
        ("all", {"classic", "quorum", "exchange"}),
        ("queues", {"classic", "quorum"}),
        ("exchanges", {"exchange"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", set()),
    ],
)
def test_what_a_policy_applies_to(bench, peer, apply_to, kinds):
    put(bench, policy(apply_to=apply_to, max_length=1))
    declare(peer, "classic")
    declare(peer, "quorum", x_queue_type="quorum")
    peer.call(1, DeclareExchange(exchange="exchange"))
    found = {
        "classic": queue(bench, "classic").policy.name,
        "quorum": queue(bench, "quorum").policy.name,
        "exchange": bench.broker.vhosts["/"].exchanges["exchange"].policy.name,
    }
    assert {kind for kind, name in found.items() if name} == kinds


def test_a_policy_with_a_key_of_another_type_is_not_for_queues_of_this_one(bench, peer):
    put(bench, policy("quorum", priority=2, delivery_limit=3, max_length=7))
    put(
        bench,
        policy("lazy", priority=1, queue_mode="lazy", max_length=8),
        policy("rest", expires=9),
    )
    declare(peer, "c")
    declare(peer, "q", x_queue_type="quorum")
    assert queue(bench, "c").policy.name == "lazy"
    assert queue(bench, "q").policy.name == "quorum"
    clear(bench, "quorum")
    assert queue(bench, "q").policy.name == "rest"


def test_policies_of_another_vhost_and_foreign_topics_are_left_alone(bench, peer):
    bench.broker.make_vhost("other")
    put(bench, policy(max_length=1), vhost="other")
    declare(peer)
    assert queue(bench).policy.name is None
    topic = bench.topic("theirs")
    put(bench, policy(expires=1, max_length=1))
    assert queue(bench, "theirs").policy.name is None
    assert topic.policy.expires_ms == topic.policy.length_max == 0


# What is in effect.


def test_an_operator_restricts_and_has_the_last_word():
    user = {"max-length": 5, "expires": 100, "overflow": "drop-head", "message-ttl": 7}
    operator = {"max-length": 9, "expires": 50, "overflow": "reject-publish", "delivery-limit": 2}
    assert merged_definition(user, operator) == {
        "max-length": 5,
        "expires": 50,
        "overflow": "reject-publish",
        "message-ttl": 7,
        "delivery-limit": 2,
    }


def test_a_declared_argument_wins_unless_the_number_of_the_policy_is_smaller():
    declared = {"x-max-length": 5, "x-message-ttl": 100, "x-overflow": "reject-publish"}
    definition = {"max-length": 9, "message-ttl": 0, "overflow": "drop-head", "expires": 60}
    assert with_policy(declared, definition) == {**declared, "x-message-ttl": 0, "x-expires": 60}
    assert with_policy(declared, {"max-length": 9, "alternate-exchange": "x"}) is declared


def test_the_engine_gets_what_is_in_effect_and_back_what_was_declared(bench, peer):
    declare(peer, x_max_length=10, x_message_ttl=5)
    before = queue(bench).topic.policy
    put(
        bench,
        policy(message_ttl=0, max_length=0, max_length_bytes=99, expires=3, overflow="hold"),
    )
    now = queue(bench).topic.policy
    assert (now.message_ttl_ms, now.length_max) == (AT_ONCE_MS, NONE_MAX)
    assert (now.bytes_max, now.expires_ms, now.overflow) == (99, 3, Overflow.HOLD)
    clear(bench, "p")
    assert queue(bench).topic.policy == before


# On what lives.


def test_a_length_limit_shortens_a_queue_that_lives(bench, peer):
    declare(peer)
    publish(peer, 10)
    put(bench, policy(max_length=3))
    assert queue(bench).ready == 3
    assert get(peer) == b"7"


def test_refusing_begins_and_ends_with_the_policy(bench, peer):
    declare(peer)
    peer.call(1, ConfirmSelect())
    publish(peer, 2)
    put(bench, policy(max_length=1, overflow="reject-publish"))
    peer.take()
    publish(peer, 1)
    assert [type(each.method) for each in peer.take()] == [Nack]
    put(bench, policy(max_length=1))
    publish(peer, 1)
    assert Nack not in [type(each.method) for each in peer.take()]
    assert queue(bench).ready == 1


def test_a_time_to_live_holds_for_messages_that_wait_already(bench, peer):
    declare(peer)
    publish(peer, 2)
    put(bench, policy(message_ttl=1000))
    bench.advance(900)
    assert queue(bench).ready == 2
    bench.advance(200)
    assert queue(bench).ready == 0


def test_a_time_to_live_that_is_taken_back_takes_nobody(bench, peer):
    declare(peer)
    publish(peer, 2)
    put(bench, policy(message_ttl=1000))
    clear(bench, "p")
    bench.advance(5000)
    assert queue(bench).ready == 2


def test_an_expiry_counts_from_the_moment_it_is_in_effect(bench, peer):
    declare(peer)
    bench.advance(60_000)
    put(bench, policy(expires=1000))
    bench.advance(900)
    assert queue(bench) is not None
    bench.advance(200)
    assert queue(bench) is None


def test_dead_letters_go_where_the_policy_says_at_the_time(bench, peer):
    declare(peer, "dead")
    declare(peer, x_max_length=1)
    publish(peer, 2)
    assert queue(bench, "dead").ready == 0
    put(
        bench,
        policy(pattern="^q$", dead_letter_exchange="", dead_letter_routing_key="dead"),
    )
    publish(peer, 1)
    assert queue(bench, "dead").ready == 1
    clear(bench, "p")
    publish(peer, 1)
    assert queue(bench, "dead").ready == 1


def test_an_alternate_exchange_comes_and_goes_with_its_policy(bench, peer):
    peer.call(1, DeclareExchange(exchange="main", kind="direct"))
    peer.call(1, DeclareExchange(exchange="rest", kind="fanout"))
    declare(peer)
    peer.call(1, Bind(queue="q", exchange="rest"))
    publish(peer, 1, "nowhere", "main")
    put(bench, policy(pattern="^main$", apply_to="exchanges", alternate_exchange="rest"))
    publish(peer, 1, "nowhere", "main")
    assert queue(bench).ready == 1
    clear(bench, "p")
    publish(peer, 1, "nowhere", "main")
    assert queue(bench).ready == 1


def test_the_smaller_delivery_limit_holds(bench, peer):
    put(bench, policy(delivery_limit=1))
    declare(peer, x_queue_type="quorum", x_delivery_limit=5)
    publish(peer, 1)
    given = 0
    while queue(bench).ready and given < 10:
        peer.send(1, Get(queue="q"))
        peer.turn()
        method, _, _ = peer.answer_with_content(1)
        peer.send(1, Nack(delivery_tag=method.delivery_tag, is_requeue=True))
        peer.turn()
        given += 1
    assert given == 2


def test_policies_are_there_after_a_crash_and_in_effect(bench, peer):
    put(bench, policy(max_length=2, dead_letter_exchange="x"), policy("e", "amq", 5, expires=1))
    put(bench, policy("limits", message_ttl=9), is_operator=True)
    declare(peer)
    bench.settle()
    bench.cut_power()
    found = queue(bench)
    assert (found.policy.name, found.policy.operator) == ("p", "limits")
    assert found.topic.policy.length_max == 2
    assert found.topic.policy.message_ttl_ms == 9
    assert found.topic.dead_letter_router is not None
    clear(bench, "p")
    bench.cut_power()
    assert queue(bench).policy.name is None
    assert queue(bench).topic.policy.length_max == 0


def test_thousands_of_queues_are_looked_at_a_slice_at_a_time(bench, peer):
    count = 3 * OBJECTS_AT_A_TIME
    for number in range(count):
        peer.send(1, Declare(queue=f"q{number}"))
    peer.turn()
    bench.broker.put_policies(bench.broker.vhosts["/"], [(False, policy(max_length=1))])
    done = []
    bench.broker.vhosts["/"].sweep.after(lambda: done.append(True))
    looked = [sum(queue(bench, f"q{number}").policy.name == "p" for number in range(count))]
    while bench.broker.timers.next_deadline_ms() == 0:
        assert not done
        bench.broker.timers.due(bench.clock.monotonic_ms())
        looked.append(sum(queue(bench, f"q{number}").policy.name == "p" for number in range(count)))
    assert done == [True]
    assert looked[-1] == count
    assert max(b - a for a, b in zip([0, *looked], looked, strict=False)) <= OBJECTS_AT_A_TIME


def test_a_queue_deleted_while_it_waits_to_be_looked_at_is_passed_over(bench, peer):
    for number in range(2 * OBJECTS_AT_A_TIME):
        peer.send(1, Declare(queue=f"q{number}"))
    peer.turn()
    bench.broker.put_policies(bench.broker.vhosts["/"], [(False, policy(max_length=1))])
    peer.call(1, Delete(queue=f"q{2 * OBJECTS_AT_A_TIME - 1}"))
    bench.broker.make_vhost("other")
    while bench.broker.timers.next_deadline_ms() == 0:
        bench.broker.timers.due(bench.clock.monotonic_ms())
    assert queue(bench, "q0").policy.name == "p"


# What is refused.


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (policy(), "definition is empty"),
        (policy(no_such_key=1), "'no-such-key' is not known"),
        (policy(max_length="9"), "max-length is '9'; it must be a number"),
        (policy(max_length=True), "must be a number"),
        (policy(max_length=-1), "from 0"),
        (policy(expires=0), "from 1"),
        (policy(message_ttl=1 << 33), "message-ttl"),
        (policy(overflow="explode"), "drop-head"),
        (policy(queue_mode="odd"), "default, lazy"),
        (policy(dead_letter_exchange=7), "text"),
        (policy(name="", expires=1), "a name has"),
        (policy(apply_to="everything", expires=1), "use one of all, queues"),
        (policy(pattern="(", expires=1), "no regular expression"),
        (policy(pattern="(a+)+b", expires=1), "may take too long"),
        (policy(pattern="a" * 2000, expires=1), "characters"),
        (policy(priority=1 << 40, expires=1), "priority"),
        (policy(dead_letter_routing_key="x" * 256), "255"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_a_sentence(wrong, told):
    with pytest.raises(ValueError, match=told):
        checked([(False, wrong)])


def test_an_operator_says_nothing_about_names():
    fine = policy(expires=1, overflow="drop-head", delivery_limit=1)
    checked([(True, fine)])
    for key in ("dead_letter_exchange", "alternate_exchange", "queue_mode"):
        with pytest.raises(ValueError, match="is not known"):
            checked([(True, policy(**{key: "lazy"}))])


def test_what_rabbitmq_knows_and_nothing_here_has_is_taken_and_told():
    known = policy(queue_mode="lazy", ha_mode="all", max_length=1)
    checked([(False, known)])
    assert known.ignored == ["queue-mode", "ha-mode"]


def test_patterns_of_one_vhost_have_a_bound_together():
    many = [(False, policy(f"p{number}", "a.*b", expires=1)) for number in range(17)]
    with pytest.raises(ValueError, match="together may take too long"):
        checked(many)
    checked(many[:16])
    anchored = [(False, policy(f"p{number}", "^a.*b$", expires=1)) for number in range(1000)]
    checked(anchored)


@pytest.mark.parametrize(
    "text", ["", ".*", "^", "^.*$", r"^orders\.", "^(?!amq\\.).*", "a|b", "[[a]", "^(a|b).*c$"]
)
def test_usual_patterns_are_taken(text):
    read_pattern(text)


def test_the_number_of_policies_has_a_bound_with_a_name(bench):
    limit = bench.broker.settings.policies_max
    put(bench, *[policy(f"p{number}", f"^{number}$", expires=1) for number in range(limit)])
    put(bench, policy("p0", expires=2))
    with pytest.raises(AmqpError, match=r"amqp\.policies_max"):
        put(bench, policy("more", expires=1), is_operator=True)


def test_a_vhost_takes_its_policies_with_it(bench):
    bench.broker.make_vhost("other")
    put(bench, policy(max_length=1), vhost="other")
    bench.broker.drop_vhost("other")
    assert len(bench.broker.make_vhost("other").policies) == 0
