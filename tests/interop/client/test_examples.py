"""Every program in ``examples/`` runs as it is, and shows what it says."""

import signal

import pytest

from kit.example_programs import SECONDS_MAX, ended, example_programs


@pytest.fixture
def example(cluster, tmp_path):
    """Starts an example with the cluster's name server."""
    with example_programs(tmp_path, cluster.name_server) as start:
        yield start


def test_the_producer_sends_and_the_push_consumer_gets_it_all(example, unique, cluster, eventually):
    topic, group = unique("orders"), unique("example")
    cluster.create_topic(topic, 4)
    consumer = example("push_consumer.py", topic, group)
    said = ended(example("producer.py", topic))
    assert "stored: " in said
    assert "1000 stored, 0 refused (broker busy), 0 failed" in said
    wanted = ["greeting: hello", "created: created", "shipped: shipped", "a reminder: later"]
    eventually(lambda: all(each in consumer.said() for each in wanted), SECONDS_MAX)
    eventually(lambda: consumer.said().count("number: ") == 1000, SECONDS_MAX)
    consumer.send_signal(signal.SIGINT)
    assert "bye" in ended(consumer)


def test_the_ordered_consumer_sees_every_order_in_order(example, unique, cluster):
    topic = unique("steps")
    cluster.create_topic(topic, 4)
    said = ended(example("ordered_consumer.py", topic, unique("example")))
    assert "order-3 cannot be paid yet" in said
    assert said.count("created, paid, shipped") == 10


def test_the_transaction_is_seen_only_if_it_commits(example, unique, cluster, eventually):
    topic = unique("payments")
    cluster.create_topic(topic, 1)
    said = ended(example("transaction.py", topic))
    assert said.splitlines() == [
        "ann pays 40: COMMIT",
        "ann pays 50: COMMIT",
        "ann pays 60: ROLLBACK",
    ]

    def seen():
        with cluster.connect() as client:
            answer = client.pull(topic)
            return [each.body for each in answer.messages] if answer.is_ok else []

    # Two commits may overtake each other: nobody waits for their answers.
    eventually(lambda: sorted(seen()) == [b"ann pays 40", b"ann pays 50"])
