"""How long queues and their messages live, whose topics are queues, and what arguments do."""

from penstock.engine.topic import TopicPolicy
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings
from penstock.testing.amqp_deeds import declared, put, queue_of, ready, refused
from penstock.testing.amqp_peer import AmqpBench
from penstock.wire.amqp.methods.basic import Ack, Cancel, Consume, ConsumeOk, Deliver, Get
from penstock.wire.amqp.methods.queue import Bind, Declare, DeclareOk, Delete, DeleteOk
from penstock.wire.amqp.properties import Properties, encode_properties

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
    assert list(bench.house.vhosts["/"].bindings) == []


def test_lists_show_topics_and_hide_what_is_hidden(bench, client):
    bench.topic("orders")
    bench.topic("%RETRY%group")
    name = declared(client, "").queue
    listed = [queue.name for queue in bench.house.vhosts["/"].queues]
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
