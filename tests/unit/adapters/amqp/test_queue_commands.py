"""The queue family as a client hears it: what is made, found, counted, refused and deleted."""

import re

import pytest

from kit.amqp.peer import AmqpBench, declared, put, queue_of, ready, refused
from penstock.model.names import TopicName
from penstock.wire.amqp.methods.basic import Cancel, Consume, Get, GetEmpty
from penstock.wire.amqp.methods.channel import Close
from penstock.wire.amqp.methods.queue import (
    Bind,
    BindOk,
    Declare,
    DeclareOk,
    Delete,
    DeleteOk,
    Purge,
    PurgeOk,
    Unbind,
    UnbindOk,
)

# Making.


def test_declare_answers_name_messages_and_consumers(client):
    assert declared(client) == DeclareOk("q", 0, 0)
    put(client, "q", b"a", b"b")
    client.call(1, Consume(queue="q", consumer_tag="c", is_exclusive=False))
    client.call(1, Cancel("c"))
    put(client, "q", b"c")
    client.open(2)
    client.call(2, Consume(queue="q"))
    assert declared(client).consumers == 1


def test_counts_include_what_was_published_just_before(client):
    declared(client)
    client.publish(1, "", "q", b"a")
    client.publish(1, "", "q", b"b")
    assert declared(client).messages == 2
    client.publish(1, "", "q", b"c")
    assert client.call(1, Purge(queue="q")) == PurgeOk(3)
    client.publish(1, "", "q", b"d")
    assert client.call(1, Delete(queue="q")) == DeleteOk(1)


def test_the_server_makes_up_a_name(client):
    name = declared(client, "").queue
    assert re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", name)
    assert declared(client, "").queue != name
    assert declared(client, name, is_passive=True).queue == name


def test_an_empty_name_is_the_queue_declared_last(client):
    name = declared(client, "").queue
    assert isinstance(client.call(1, Bind(exchange="amq.fanout")), BindOk)
    client.publish(1, "amq.fanout", "", b"x")
    assert client.call(1, Purge()) == PurgeOk(1)
    assert isinstance(client.call(1, Get(is_no_ack=True)), GetEmpty)
    assert client.call(1, Delete()) == DeleteOk(0)
    assert refused(client, Declare(queue=name, is_passive=True))[0] == 404


def test_an_empty_name_in_a_bind_is_the_key_too_if_none_is_given(client):
    name = declared(client, "").queue
    client.call(1, Bind(exchange="amq.direct"))
    client.publish(1, "amq.direct", name, b"x")
    client.turn()
    assert ready(client, name) == 1


@pytest.mark.parametrize(
    "method", [Purge(), Delete(), Bind(exchange="amq.fanout"), Unbind(exchange="amq.fanout"), Get()]
)
def test_an_empty_name_with_nothing_declared_is_404(client, method):
    assert refused(client, method) == (404, "NOT_FOUND - no previously declared queue")


def test_reserved_names_are_403(client):
    text = "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"
    assert refused(client, Declare(queue="amq.mine")) == (403, text)


def test_line_ends_are_stripped_from_names(client):
    assert declared(client, "a\r\nb").queue == "ab"
    assert declared(client, "ab\n", is_passive=True).queue == "ab"


def test_other_control_characters_are_refused(client):
    code, text = refused(client, Declare(queue="a\tb"))
    assert code == 406
    assert "control character" in text


def test_nowait_is_answered_by_silence(bench, client):
    client.send(1, Declare(queue="q", is_nowait=True))
    client.send(1, Bind(queue="q", exchange="amq.fanout", is_nowait=True))
    client.send(1, Purge(queue="q", is_nowait=True))
    client.turn()
    assert client.methods(1) == []
    assert ready(client) == 0
    client.send(1, Delete(queue="q", is_nowait=True))
    client.turn()
    assert client.methods(1) == []
    assert queue_of(bench) is None


def test_passive_declare_of_nothing_is_404(client):
    answer = (404, "NOT_FOUND - no queue 'q' in vhost '/'")
    assert refused(client, Declare(queue="q", is_passive=True)) == answer


def test_direct_reply_to_is_looked_for_not_made(bench, client):
    assert declared(client, "amq.rabbitmq.reply-to") == DeclareOk("amq.rabbitmq.reply-to", 0, 1)
    assert refused(client, Declare(queue="amq.rabbitmq.reply-to.nobody"))[0] == 404
    assert bench.engine.topic(TopicName("", "amq.rabbitmq.reply-to")) is None


# Declaring again.


def test_the_same_declaration_is_welcome(client):
    declared(client, is_durable=True, arguments={"x-max-length": 5, "x-foo": 1})
    declared(client, is_durable=True, arguments={"x-max-length": 5, "x-foo": 2})


def test_another_durability_is_406(client):
    declared(client)
    assert refused(client, Declare(queue="q", is_durable=True)) == (
        406,
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': "
        "received 'true' but current is 'false'",
    )


def test_another_auto_delete_is_406(client):
    declared(client)
    code, text = refused(client, Declare(queue="q", is_auto_delete=True))
    assert (code, "inequivalent arg 'auto_delete'" in text) == (406, True)


def test_other_arguments_are_406(client):
    declared(client)
    code, text = refused(client, Declare(queue="q", arguments={"x-expires": 1000}))
    assert code == 406
    assert "received the value '1000' of type 'signedint' but current is none" in text


def test_bad_arguments_are_406_and_make_nothing(bench, client):
    answer = (
        406,
        "PRECONDITION_FAILED - invalid arg 'x-expires' for queue 'q' in vhost '/': {value_zero,0}",
    )
    assert refused(client, Declare(queue="q", arguments={"x-expires": 0})) == answer
    assert queue_of(bench) is None


def test_quorum_queues_are_durable_and_shared(client):
    quorum = {"x-queue-type": "quorum"}
    declared(client, is_durable=True, arguments=quorum)
    wishes = [
        ({"is_durable": True, "is_auto_delete": True}, "auto-delete"),
        ({"is_durable": True, "is_exclusive": True}, "exclusive-owner"),
        ({}, "non-durable"),
    ]
    for bits, problem in wishes:
        code, text = refused(client, Declare(queue="r", arguments=quorum, **bits))
        expected = f"PRECONDITION_FAILED - invalid property '{problem}' for queue 'r' in vhost '/'"
        assert (code, text) == (406, expected)
    code, text = refused(client, Declare(queue="", is_durable=True, arguments=quorum))
    assert (code, text.endswith("Cannot declare a server-named queue for type quorum")) == (
        406,
        True,
    )


# Exclusive and auto-delete.


def test_an_exclusive_queue_is_its_connections_own(bench, client):
    declared(client, is_exclusive=True)
    declared(client, is_exclusive=True)
    other = bench.client()
    for method in (
        Declare(queue="q", is_passive=True),
        Declare(queue="q"),
        Declare(queue="q", is_exclusive=True),
        Purge(queue="q"),
        Delete(queue="q"),
        Bind(queue="q", exchange="amq.fanout"),
        Get(queue="q"),
        Consume(queue="q"),
    ):
        code, text = refused(other, method)
        assert code == 405, method
        assert text.startswith(
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. "
        )


def test_exclusiveness_that_differs_is_405_for_the_owner_too(client):
    declared(client, is_exclusive=True)
    assert refused(client, Declare(queue="q"))[0] == 405
    declared(client, "shared")
    assert refused(client, Declare(queue="shared", is_exclusive=True))[0] == 405


def test_an_exclusive_queue_goes_with_its_connection(bench, client):
    declared(client, is_exclusive=True)
    declared(client, "kept")
    client.leave()
    bench.settle()
    assert queue_of(bench) is None
    assert queue_of(bench, "kept") is not None


def test_an_exclusive_queue_is_never_in_the_catalog(bench, client):
    declared(client, is_exclusive=True, is_durable=True)
    bench.kill()
    assert bench.engine.topics() == []


def test_an_auto_delete_queue_goes_with_its_last_consumer(bench, client):
    declared(client, is_auto_delete=True)
    for tag in ("a", "b"):
        client.call(1, Consume(queue="q", consumer_tag=tag))
    client.call(1, Cancel("a"))
    assert queue_of(bench) is not None
    client.call(1, Cancel("b"))
    assert queue_of(bench) is None


def test_an_auto_delete_queue_without_consumers_waits_for_its_first(bench, client):
    declared(client, is_auto_delete=True)
    client.call(1, Get(queue="q"))
    bench.advance(1_000_000)
    assert queue_of(bench) is not None


def test_an_auto_delete_queue_goes_when_the_connection_of_its_consumer_does(bench, client):
    declared(client, is_auto_delete=True)
    other = bench.client()
    other.call(1, Consume(queue="q"))
    other.leave()
    bench.settle()
    assert queue_of(bench) is None


# Deleting.


def test_delete_answers_the_ready_messages(client):
    declared(client)
    put(client, "q", b"a", b"b")
    assert client.call(1, Delete(queue="q")) == DeleteOk(2)


def test_deleting_nothing_is_fine(client):
    assert client.call(1, Delete(queue="nothing")) == DeleteOk(0)


def test_if_unused_and_if_empty(client):
    declared(client)
    client.call(1, Consume(queue="q", consumer_tag="c"))
    text = "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"
    assert refused(client, Delete(queue="q", if_unused=True)) == (406, text)
    put(client, "q", b"a")
    text = "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"
    assert refused(client, Delete(queue="q", if_empty=True)) == (406, text)
    client.call(1, Purge(queue="q"))
    assert client.call(1, Delete(queue="q", if_empty=True, if_unused=True)) == DeleteOk(0)


def test_delete_tells_consumers_and_forgets_bindings(bench, client):
    declared(client)
    client.call(1, Bind(queue="q", exchange="amq.fanout"))
    other = bench.client()
    other.call(1, Consume(queue="q", consumer_tag="c"))
    client.call(1, Delete(queue="q"))
    other.turn()
    assert [type(method) for method in other.methods(1)] == [Cancel]
    assert list(bench.broker.vhosts["/"].bindings) == []
    declared(client)
    client.publish(1, "amq.fanout", "", b"x")
    assert ready(client) == 0


def test_a_topic_deleted_by_others_is_a_queue_no_more(bench, client):
    declared(client, is_durable=True)
    client.call(1, Bind(queue="q", exchange="amq.fanout"))
    bench.engine.delete_topic(TopicName("", "q"))
    assert queue_of(bench) is None
    assert list(bench.broker.vhosts["/"].bindings) == []
    bench.settle()
    bench.kill()
    assert queue_of(bench) is None


def test_purge_leaves_what_is_unacked(client):
    declared(client)
    put(client, "q", b"a", b"b", b"c")
    client.call(1, Get(queue="q"))
    assert client.call(1, Purge(queue="q")) == PurgeOk(2)
    client.send(1, Close())
    client.turn()
    client.take()
    client.open(1)
    assert ready(client) == 1


def test_purge_of_nothing_is_404(client):
    assert refused(client, Purge(queue="q")) == (404, "NOT_FOUND - no queue 'q' in vhost '/'")


# Bindings.


def test_bind_names_what_is_missing(client):
    declared(client)
    text = "NOT_FOUND - no exchange 'e' in vhost '/'"
    assert refused(client, Bind(queue="q", exchange="e")) == (404, text)
    text = "NOT_FOUND - no queue 'p' in vhost '/'"
    assert refused(client, Bind(queue="p", exchange="amq.fanout")) == (404, text)


def test_the_default_exchange_cannot_be_bound(client):
    declared(client)
    text = "ACCESS_REFUSED - operation not permitted on the default exchange"
    assert refused(client, Bind(queue="q", exchange="")) == (403, text)
    assert refused(client, Unbind(queue="q", exchange="")) == (403, text)


def test_unbinding_what_is_not_there_is_fine(client):
    declared(client)
    for queue, exchange in (("q", "amq.fanout"), ("q", "nothing"), ("nothing", "amq.fanout")):
        assert isinstance(client.call(1, Unbind(queue=queue, exchange=exchange)), UnbindOk)


def test_unbind_undoes_bind(client):
    declared(client)
    client.call(1, Bind(queue="q", exchange="amq.direct", routing_key="k"))
    client.call(1, Unbind(queue="q", exchange="amq.direct", routing_key="k"))
    client.publish(1, "amq.direct", "k", b"x")
    assert ready(client) == 0


def test_a_look_at_a_durable_queue_waits_for_no_disk() -> None:
    client = AmqpBench().client()
    client.call(1, Declare(queue="q", is_durable=True))
    client.publish(1, "", "q", b"x")
    client.bench.engine.turn()
    client.send(1, Declare(queue="q", is_passive=True))
    assert client.methods(1) == [DeclareOk("q", 1, 0)]
    client.send(1, Declare(queue="q", is_durable=True))
    assert client.methods(1) == [DeclareOk("q", 1, 0)], "only one of them is answered yet"
