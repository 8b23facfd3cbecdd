"""The programs ``examples/pulsar_*.py`` run as they are, and show what they say."""

import signal

import pytest

from kit.example_programs import ended, example_programs


@pytest.fixture
def example(pulsar, tmp_path):
    """Starts an example with the server's URL."""
    with example_programs(tmp_path, pulsar.url) as start:
        yield start


def test_the_producer_sends_and_the_consumer_gets_it_all(pulsar, example):
    topic = pulsar.name("orders")
    consumer = example("pulsar_consumer.py", topic, "billing")
    said = ended(example("pulsar_producer.py", topic))
    assert "stored: " in said
    assert "1000 stored in " in said
    assert ", 0 failed" in said
    assert "100 stored, awaited" in said
    wanted = ["order-1: hello", "None: and now?", "order-9: 999", "None: 99"]
    pulsar.eventually(lambda: all(each in consumer.said() for each in wanted))
    consumer.send_signal(signal.SIGINT)
    assert "bye" in ended(consumer)


def test_the_reader_reads_all_and_the_table_has_the_newest(pulsar, example):
    said = ended(example("pulsar_reader.py", pulsar.name("prices")))
    assert [line.split("  ")[1] for line in said.splitlines()[:3]] == [
        "pen: 120", "teapot: 4900", "pen: 110",
    ]  # fmt: skip
    assert "{'pen': 110, 'teapot': 4900}" in said
