"""Subscriptions of a push consumer: tags, SQL92, filters, and changes while it runs."""

import pytest

from penstock.client import BrokerRefused, Message, Producer, PushConsumer, State


@pytest.fixture
def send(cluster, unique):
    with Producer(cluster.name_server, unique("senders")) as producer:

        def make(topic, body, **message):
            return producer.send(Message(topic, body, **message))

        yield make


@pytest.fixture
def consumer(cluster, group):
    """A consumer that remembers bodies in ``got``; stopped at the end."""
    got = []
    made = PushConsumer(
        cluster.name_server, group, lambda message: got.append(message.body),
        consume_from="first", instance_name=group, rebalance_spacing_ms=100,
    )  # fmt: skip
    made.got = got
    yield made
    made.stop()


def test_only_wanted_tags_come(topic, send, consumer, eventually):
    consumer.subscribe(topic, tags="red || blue")
    consumer.start()
    for tag in ("red", "green", "blue", None):
        send(topic, (tag or "none").encode(), tag=tag)
    send(topic, b"end", tag="red")
    eventually(lambda: b"end" in consumer.got and len(consumer.got) >= 3, what="the wanted came")
    assert sorted(consumer.got) == [b"blue", b"end", b"red"]


def test_tags_with_equal_hashes_are_told_apart(cluster, unique, send, consumer, eventually):
    """By the client, where the broker compares hashes only."""
    topic = unique("single")
    cluster.create_topic(topic, 1)
    consumer.subscribe(topic, tags="Aa")
    consumer.start()
    send(topic, b"collision", tag="BB")
    send(topic, b"right", tag="Aa")
    eventually(lambda: consumer.got, what="the right one came")
    assert consumer.got == [b"right"]


def test_sql_is_evaluated_by_the_broker(topic, send, consumer, eventually):
    consumer.subscribe(topic, sql="price > 5 AND kind = 'book'")
    consumer.start()
    send(topic, b"cheap", properties={"price": "3", "kind": "book"})
    send(topic, b"dear", properties={"price": "9", "kind": "book"})
    send(topic, b"other", properties={"price": "9", "kind": "toy"})
    send(topic, b"end", properties={"price": "99", "kind": "book"})
    eventually(lambda: len(consumer.got) >= 2, what="the dear ones came")
    assert sorted(consumer.got) == [b"dear", b"end"]


def test_a_bad_expression_fails_at_the_start(topic, consumer):
    consumer.subscribe(topic, sql="price > (")
    with pytest.raises(BrokerRefused):
        consumer.start()
    assert consumer.state is State.FAILED


def test_a_bad_expression_changes_nothing_while_it_runs(topic, send, consumer, eventually):
    consumer.subscribe(topic, tags="a")
    consumer.start()
    with pytest.raises(BrokerRefused):
        consumer.subscribe(topic, sql="price > (")
    send(topic, b"still", tag="a")
    eventually(lambda: consumer.got == [b"still"], what="the old subscription holds")


def test_topics_come_and_go_while_it_runs(*, cluster, topic, unique, send, consumer, eventually):
    other = unique("other")
    cluster.create_topic(other, 2)
    consumer.subscribe(topic)
    consumer.start()
    consumer.subscribe(other)
    send(other, b"other")
    eventually(lambda: consumer.got == [b"other"], what="the new topic is consumed")
    consumer.unsubscribe(other)
    assert other not in {queue.topic for queue in consumer.queues()}
    send(other, b"unseen")
    send(topic, b"end")
    eventually(lambda: b"end" in consumer.got, what="the first topic is still consumed")
    assert sorted(consumer.got) == [b"end", b"other"]


def test_a_filter_hook_chooses_what_is_consumed_and_the_rest_is_done(
    cluster, topic, group, send, eventually
):
    got = []

    def without_secrets(messages):
        return [message for message in messages if message.body != b"secret"]

    def make():
        consumer = PushConsumer(
            cluster.name_server, group, lambda message: got.append(message.body),
            filters=[without_secrets], consume_from="first",
        )  # fmt: skip
        consumer.subscribe(topic)
        return consumer

    with make() as consumer:
        send(topic, b"secret")
        send(topic, b"public")
        eventually(lambda: got, what="the public one came")
        eventually(lambda: consumer.statistics().topics[topic].pulled == 2, what="both were pulled")
        eventually(
            lambda: sum(each.committed or 0 for each in consumer.statistics().queues
                        if each.queue.topic == topic) == 2,
            what="both are done",
        )  # fmt: skip
    assert got == [b"public"]
