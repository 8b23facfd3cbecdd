"""How long queues and their messages live, whose topics are queues, and what arguments do."""

import pytest

from kit.amqp.peer import AmqpBench, declared, put, queue_of, ready, refused
from penstock.adapters.amqp.topology.queue import read_arguments
from penstock.engine.host import Mode
from penstock.engine.topic import AT_ONCE_MS, NONE_MAX, Overflow, TopicPolicy
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.basic import Ack, Cancel, Consume, ConsumeOk, Deliver, Get
from penstock.wire.amqp.methods.queue import Bind, Declare, DeclareOk, Delete, DeleteOk
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.table import Timestamp

# Restarts.


def test_what_is_durable_survives_and_the_rest_does_not(bench, client):
    declared(client, is_durable=True, arguments={"x-max-length": 5})
    declared(client, "auto", is_durable=True, is_auto_delete=True)
    declared(client, "transient")
    name = declared(client, "").queue
    client.call(1, Bind(queue="q", exchange="amq.fanout"))
    bench.cut_power()
    client = bench.client()
    declared(client, is_durable=True, arguments={"x-max-length": 5})
    declared(client, "auto", is_durable=True, is_auto_delete=True)
    assert refused(client, Declare(queue="transient", is_passive=True))[0] == 404
    assert refused(client, Declare(queue=name, is_passive=True))[0] == 404
    client.publish(1, "amq.fanout", "", b"x")
    assert ready(client) == 1


def test_declare_ok_waits_for_the_catalog(bench, client):
    client.send(1, Declare(queue="q", is_durable=True))
    bench.turns()
    assert client.methods(1) == []
    bench.settle()
    assert client.methods(1) == [DeclareOk("q", 0, 0)]
    client.take()
    client.send(1, Declare(queue="t"))
    assert client.methods(1) == [DeclareOk("t", 0, 0)]


def test_persistent_messages_survive_in_durable_queues_only(bench, client):
    declared(client, is_durable=True)
    declared(client, "t")
    put(client, "q", b"kept")
    put(client, "q", b"lost", properties=b"\0\0")
    put(client, "t", b"lost")
    bench.kill()
    client = bench.client()
    assert ready(client) == 1
    assert refused(client, Declare(queue="t", is_passive=True))[0] == 404
    client.call(1, Consume(queue="q", is_no_ack=True))
    client.turn()
    assert client.bodies() == [b"kept"]


def test_a_deleted_durable_queue_stays_deleted(bench, client):
    declared(client, is_durable=True)
    client.call(1, Delete(queue="q"))
    bench.cut_power()
    assert queue_of(bench) is None


# Other protocols' topics.


def test_a_topic_of_another_protocol_is_a_queue(bench, client):
    bench.topic("orders", queues=4)
    assert declared(client, "orders", is_passive=True) == DeclareOk("orders", 0, 0)
    assert declared(client, "orders") == DeclareOk("orders", 0, 0)
    assert declared(client, "orders", is_durable=True) == DeclareOk("orders", 0, 0)
    declared(client, "orders", arguments={"x-queue-type": "classic"})


def test_a_topic_of_another_protocol_takes_no_arguments(bench, client):
    bench.topic("orders")
    for arguments in ({"x-max-length": 5}, {"x-foo": 5}):
        code, text = refused(client, Declare(queue="orders", arguments=arguments))
        assert (code, "inequivalent arg" in text) == (406, True)
    assert refused(client, Declare(queue="orders", is_exclusive=True))[0] == 405


def test_a_face_reads_from_the_end_and_only_once_it_is_wanted(bench, client):
    topic = bench.topic("orders")
    bench.publish(bench.channel(), topic, b"before")
    bench.settle()
    client.publish(1, "", "orders", b"also before")
    client.turn()
    assert declared(client, "orders", is_passive=True).messages == 0
    assert topic.subscriptions == {}
    declared(client, "orders")
    bench.publish(bench.channel(), topic, b"after")
    bench.settle()
    assert ready(client, "orders") == 1
    assert list(topic.subscriptions) == ["amqp"]


def test_deleting_what_another_protocol_made_takes_our_part_only(bench, client):
    topic = bench.topic("orders")
    declared(client, "orders")
    client.call(1, Bind(queue="orders", exchange="amq.fanout"))
    put(client, "orders", b"a")
    assert client.call(1, Delete(queue="orders")) == DeleteOk(1)
    assert topic.subscriptions == {}
    assert bench.engine.topic(topic.name) is topic
    assert list(bench.broker.vhosts["/"].bindings) == []


def test_lists_show_topics_and_hide_what_is_hidden(bench, client):
    bench.topic("orders")
    bench.topic("%RETRY%group")
    name = declared(client, "").queue
    listed = [queue.name for queue in bench.broker.vhosts["/"].queues]
    assert listed == ["orders", name]


# What arguments do.


def test_priorities_are_queues_of_the_topic(bench, client):
    declared(client, arguments={"x-max-priority": 3})
    assert len(queue_of(bench).topic.queues) == 4
    for priority, body in ((0, b"low"), (3, b"high"), (9, b"higher"), (1, b"mid")):
        properties = encode_properties(Properties(priority=priority))
        client.publish(1, "", "q", body, properties)
    assert ready(client) == 4
    client.call(1, Consume(queue="q", is_no_ack=True))
    client.turn()
    assert client.bodies() == [b"high", b"higher", b"mid", b"low"]


def test_an_unused_queue_expires(bench, client):
    declared(client, arguments={"x-expires": 1000})
    bench.advance(900)
    declared(client, arguments={"x-expires": 1000})
    bench.advance(900)
    client.call(1, Get(queue="q"))
    bench.advance(900)
    client.call(1, Consume(queue="q", consumer_tag="c"))
    bench.advance(5000)
    assert queue_of(bench) is not None
    client.call(1, Cancel("c"))
    bench.advance(900)
    assert queue_of(bench) is not None
    bench.advance(200)
    assert queue_of(bench) is None


def test_unacked_messages_do_not_keep_a_queue_from_expiring(bench, client):
    declared(client, arguments={"x-expires": 1000})
    put(client, "q", b"a")
    client.call(1, Get(queue="q"))
    bench.advance(1100)
    assert queue_of(bench) is None


def test_single_active_consumer_goes_by_age(client):
    declared(client, arguments={"x-single-active-consumer": True})
    client.call(1, Consume(queue="q", consumer_tag="z"))
    client.call(1, Consume(queue="q", consumer_tag="a", arguments={"x-priority": 5}))
    put(client, "q", b"1", b"2")
    tags = [each.consumer_tag for each in client.methods(1) if isinstance(each, Deliver)]
    assert tags == ["z", "z"]
    client.take()
    client.call(1, Cancel("z"))
    put(client, "q", b"3")
    tags = [each.consumer_tag for each in client.methods(1) if isinstance(each, Deliver)]
    assert tags == ["a"]


def test_too_many_queues_are_refused():
    client = AmqpBench(Settings(topics=TopicSettings(queues_max=1))).client()
    declared(client)
    code, text = refused(client, Declare(queue="r"))
    assert (code, "queues_max" in text) == (406, True)


def test_policy_of_a_queue_is_what_its_arguments_say(bench, client):
    declared(client, arguments={"x-message-ttl": 5, "x-overflow": "hold", "x-max-length": 2})
    policy = queue_of(bench).topic.policy
    assert isinstance(policy, TopicPolicy)
    assert (policy.message_ttl_ms, policy.length_max, policy.overflow.value) == (5, 2, "hold")


def test_acks_count_what_is_left(client):
    declared(client)
    put(client, "q", b"a", b"b")
    assert isinstance(client.call(1, Consume(queue="q")), ConsumeOk)
    client.turn()
    assert ready(client) == 0
    client.send(1, Ack(1))
    client.turn()
    assert client.call(1, Delete(queue="q")) == DeleteOk(0)


# ---- queue arguments ----------------------------------------------------------------------------
# What x-arguments mean, and in which words they are refused.


Q = "queue 'q' in vhost '/'"


def refusal(arguments):
    with pytest.raises(AmqpError) as caught:
        read_arguments(Q, arguments)
    assert caught.value.code is ReplyCode.PRECONDITION_FAILED
    return str(caught.value).removeprefix("PRECONDITION_FAILED - ")


def test_no_arguments_are_a_plain_classic_queue():
    read = read_arguments(Q, {})
    assert (read.kind, read.policy, read.mode) == ("classic", TopicPolicy(), Mode.SHARED)
    assert read.dead_letter_exchange is None


def test_every_limit_has_its_place_in_the_policy():
    read = read_arguments(
        Q,
        {
            "x-message-ttl": 60_000,
            "x-expires": 1000,
            "x-max-length": 5,
            "x-max-length-bytes": 500,
            "x-overflow": "reject-publish",
            "x-max-priority": 10,
        },
    )
    assert read.policy == TopicPolicy(
        message_ttl_ms=60_000,
        expires_ms=1000,
        length_max=5,
        bytes_max=500,
        overflow=Overflow.REJECT,
        max_priority=10,
    )


@pytest.mark.parametrize(
    ("word", "overflow"),
    [
        ("drop-head", Overflow.DROP_HEAD),
        ("reject-publish", Overflow.REJECT),
        ("reject-publish-dlx", Overflow.REJECT_DEAD_LETTER),
        ("hold", Overflow.HOLD),
    ],
)
def test_all_overflow_policies(word, overflow):
    assert read_arguments(Q, {"x-overflow": word}).policy.overflow is overflow


def test_limits_of_zero_are_limits():
    policy = read_arguments(
        Q, {"x-message-ttl": 0, "x-max-length": 0, "x-max-length-bytes": 0}
    ).policy
    assert policy.message_ttl_ms == AT_ONCE_MS
    assert (policy.length_max, policy.bytes_max) == (NONE_MAX, NONE_MAX)


def test_a_priority_of_zero_is_none():
    assert read_arguments(Q, {"x-max-priority": 0}).policy.max_priority == 0


def test_single_active_consumer_is_a_mode():
    assert read_arguments(Q, {"x-single-active-consumer": True}).mode is Mode.SINGLE_ACTIVE
    assert read_arguments(Q, {"x-single-active-consumer": False}).mode is Mode.SHARED


def test_dead_letters_may_go_to_the_default_exchange():
    read = read_arguments(Q, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    assert (read.dead_letter_exchange, read.dead_letter_routing_key) == ("", "dead")


def test_a_quorum_queue_has_a_delivery_limit():
    read = read_arguments(Q, {"x-queue-type": "quorum", "x-delivery-limit": 3})
    assert (read.kind, read.delivery_limit) == ("quorum", 3)
    assert read_arguments(Q, {"x-queue-type": "quorum"}).delivery_limit == 0
    read = read_arguments(Q, {"x-queue-type": "quorum", "x-delivery-limit": 0})
    assert read.delivery_limit == NONE_MAX


def test_what_has_no_meaning_here_is_accepted():
    read_arguments(
        Q,
        {
            "x-queue-mode": "lazy",
            "x-queue-version": 2,
            "x-queue-type": "classic",
            "x-queue-master-locator": "min-masters",
            "x-queue-leader-locator": "balanced",
            "x-foo": {"any": ["thing"]},
            "no-prefix": 1,
        },
    )


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("x-expires", 0, "{value_zero,0}"),
        ("x-expires", -1, "{value_negative,-1}"),
        ("x-expires", 4_294_967_296, "{value_too_big,4294967296}"),
        ("x-expires", "1000", '"expected integer, got longstr"'),
        ("x-message-ttl", -5, "{value_negative,-5}"),
        ("x-message-ttl", 1.5, '"expected integer, got double"'),
        ("x-message-ttl", True, '"expected integer, got bool"'),
        ("x-message-ttl", Timestamp(5), '"expected integer, got timestamp"'),
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length", None, '"expected integer, got void"'),
        ("x-max-length-bytes", [], '"expected integer, got array"'),
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-max-priority", -1, "{value_negative,-1}"),
        ("x-overflow", "drop-tail", "invalid_overflow"),
        ("x-overflow", 1, "{unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
        ("x-single-active-consumer", "yes", "{unacceptable_type,longstr}"),
        ("x-queue-mode", "eager", "\"unsupported queue mode 'eager'\""),
        ("x-queue-version", 3, "\"unsupported queue version '3'\""),
        ("x-queue-type", "magic", "\"unsupported queue type 'magic'\""),
        ("x-queue-type", 1 << 40, "{unacceptable_type,long}"),
    ],
)
def test_bad_values_are_refused_in_rabbitmqs_words(name, value, problem):
    assert refusal({name: value}) == f"invalid arg '{name}' for {Q}: {problem}"


def test_a_dead_letter_exchange_is_text():
    text = f"invalid type 'signedint' for arg 'x-dead-letter-exchange' in {Q}"
    assert refusal({"x-dead-letter-exchange": 7}) == text


def test_streams_are_refused_saying_so():
    assert "streams are not built" in refusal({"x-queue-type": "stream"})


@pytest.mark.parametrize(
    ("arguments", "name", "module"),
    [
        ({"x-delivery-limit": 3}, "x-delivery-limit", "rabbit_classic_queue"),
        ({"x-max-age": "1D"}, "x-max-age", "rabbit_classic_queue"),
        ({"x-queue-type": "quorum", "x-max-priority": 3}, "x-max-priority", "rabbit_quorum_queue"),
        ({"x-queue-type": "quorum", "x-queue-mode": "lazy"}, "x-queue-mode", "rabbit_quorum_queue"),
    ],
)
def test_arguments_of_another_type_of_queue_are_refused(arguments, name, module):
    assert refusal(arguments) == f"invalid arg '{name}' for {Q} of queue type {module}"
