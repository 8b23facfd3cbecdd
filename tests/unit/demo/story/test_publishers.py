"""Which tills a shop has."""

import pytest

from penstock.demo.story import publishers
from penstock.demo.story.publishers import open_publishers, open_readers, readers_text, tills_text

EVERYWHERE = {"amqp": "127.0.0.1:1", "pulsar": "127.0.0.1:1"}


class Till:
    def __init__(self, title):
        self.title = title


@pytest.fixture
def only(monkeypatch):
    """These modules are installed and no others."""

    def install(*modules):
        monkeypatch.setattr(publishers, "find_spec", lambda name: name in modules or None)

    return install


def test_without_its_client_a_protocol_has_no_till_and_nobody_minds(only):
    only()
    assert open_publishers(EVERYWHERE) == []


def test_a_listener_that_is_not_there_has_no_till():
    assert open_publishers({"http": "127.0.0.1:1"}) == []


def test_it_is_said_which_tills_are_open(only):
    only("pika", "_pulsar")
    assert tills_text([Till("a")]) == "a"
    assert tills_text([Till("a"), Till("b")]) == "a and b"
    assert tills_text([Till("a"), Till("b"), Till("c")]) == "a, b and c"


def test_it_is_said_what_is_missing_for_the_others(only):
    only("pika")
    said = tills_text([Till("a"), Till("b")])
    assert said.startswith("a and b (without pulsar-client; pip install 'penstock-broker[demo]'")
    only()
    assert "(without pika and pulsar-client; " in tills_text([Till("a")])


def test_large_orders_are_read_back_without_pika_too_and_it_is_said(only):
    only()
    readers = open_readers({"rocketmq": "127.0.0.1:1", "amqp": "127.0.0.1:1"})
    said = readers_text(readers)
    assert said.startswith("RocketMQ (without pika; pip install 'penstock-broker[demo]'")


def test_nobody_misses_pulsars_client_when_large_orders_are_read_back(only):
    only("pika")
    assert readers_text([Till("a"), Till("b")]) == "a and b"
