"""The book of queues by itself: restoring, owners, removal, and what it does when a row is odd."""

import msgspec
import pytest

from penstock.adapters.amqp.topology.queue_registry import QUEUE_KIND, Declaration, QueueRow
from penstock.model.names import TopicName
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import encode_table


class Client:
    def __init__(self, connection_id):
        self.connection_id = connection_id
        self.maker = ""


ANN, BOB = Client(1), Client(2)


def book(bench, vhost="/"):
    return bench.broker.vhosts[vhost].queues


def row_of(bench, name="q", **arguments):
    body = msgspec.msgpack.encode(QueueRow(encode_table(arguments)))
    bench.engine.define(QUEUE_KIND, f"/\0{name}", body)


def test_a_queue_in_another_vhost_is_another_topic(bench):
    bench.broker.make_vhost("team")
    here = book(bench).declare(Declaration("q", is_durable=True), ANN)
    there = book(bench, "team").declare(Declaration("q", is_durable=True), ANN)
    assert here.topic.name == TopicName("", "q")
    assert there.topic.name == TopicName("team", "q")
    book(bench).delete(here)
    assert book(bench, "team").get("q") is there
    bench.settle()
    bench.kill()
    assert book(bench).get("q") is None
    assert book(bench, "team").get("q").resource == "queue 'q' in vhost 'team'"


def test_find_raises_what_the_client_should_hear(bench):
    with pytest.raises(AmqpError) as caught:
        book(bench).find("q", ANN)
    assert caught.value.code is ReplyCode.NOT_FOUND
    queue = book(bench).declare(Declaration("q", is_exclusive=True), ANN)
    assert book(bench).find("q", ANN) is queue
    with pytest.raises(AmqpError) as caught:
        book(bench).find("q", BOB)
    assert caught.value.code is ReplyCode.RESOURCE_LOCKED


def test_only_the_queues_of_a_connection_go_with_it(bench):
    for name, who in (("a", ANN), ("b", BOB)):
        book(bench).declare(Declaration(name, is_exclusive=True), who)
    book(bench).connection_closed(ANN.connection_id)
    book(bench).connection_closed(ANN.connection_id)
    assert [queue.name for queue in book(bench)] == ["b"]


def test_deleting_twice_counts_once(bench):
    queue = book(bench).declare(Declaration("q"), ANN)
    book(bench).delete(queue)
    assert queue.is_deleted
    assert book(bench).delete(queue) == 0
    again = book(bench).declare(Declaration("q"), ANN)
    book(bench).delete(queue)
    assert book(bench).get("q") is again


def test_a_row_without_a_topic_is_dropped(bench):
    row_of(bench)
    bench.settle()
    bench.kill()
    assert book(bench).get("q") is None
    assert bench.engine.definitions(QUEUE_KIND) == {}


def test_a_row_with_arguments_we_would_refuse_is_still_a_queue(bench):
    bench.topic("q")
    row_of(bench, **{"x-max-length": -3})
    bench.settle()
    bench.kill()
    queue = book(bench).get("q")
    assert not queue.is_foreign
    assert queue.arguments == {"x-max-length": -3}


def test_a_dropped_vhost_takes_its_queues(bench):
    bench.broker.make_vhost("team")
    book(bench, "team").declare(Declaration("q", is_durable=True), ANN)
    book(bench).declare(Declaration("q", is_durable=True), ANN)
    bench.settle()
    bench.broker.drop_vhost("team")
    bench.settle()
    assert [topic.name for topic in bench.engine.topics()] == [TopicName("", "q")]


def test_an_auto_delete_queue_outlives_a_restart_and_waits_for_its_first_consumer(bench):
    queue = book(bench).declare(Declaration("q", is_durable=True, is_auto_delete=True), ANN)
    book(bench).consumer_added(queue)
    bench.settle()
    bench.kill()
    queue = book(bench).get("q")
    assert (queue.is_auto_delete, queue.had_consumer) == (True, False)
    book(bench).consumer_added(queue)
    book(bench).consumer_removed(queue)
    assert book(bench).get("q") is None
