"""Which tills a shop has."""

import pytest

from penstock.demo.story import publishers
from penstock.demo.story.publishers import open_publishers, open_readers, readers_text, tills_text


class Till:
    def __init__(self, title):
        self.title = title


@pytest.fixture
def only(monkeypatch):
    """These modules are installed and no others."""

    def install(*modules):
        monkeypatch.setattr(publishers, "find_spec", lambda name: name in modules or None)

    return install


def test_without_its_client_amqp_has_no_till_and_nobody_minds(only):
    only()
    assert open_publishers({"amqp": "127.0.0.1:1"}) == []


@pytest.mark.parametrize(
    ("installed", "expected"), [((), "OwnPulsarPublisher"), (("_pulsar",), "PulsarPublisher")]
)
def test_pulsars_till_uses_our_client_where_the_other_one_is_missing(
    only, monkeypatch, installed, expected
):
    only(*installed)
    for name in ("OwnPulsarPublisher", "PulsarPublisher"):
        monkeypatch.setattr(publishers, name, lambda where, name=name: (name, where))
    assert open_publishers({"pulsar": "127.0.0.1:1"}) == [(expected, "127.0.0.1:1")]


def test_a_listener_that_is_not_there_has_no_till():
    assert open_publishers({"http": "127.0.0.1:1"}) == []


def test_it_is_said_which_tills_are_open(only):
    only("pika", "_pulsar")
    assert tills_text([Till("a")]) == "a"
    assert tills_text([Till("a"), Till("b")]) == "a and b"
    assert tills_text([Till("a"), Till("b"), Till("c")]) == "a, b and c"


def test_it_is_said_what_is_missing_for_the_others(only):
    only()
    said = tills_text([Till("a"), Till("b")])
    assert said.startswith("a and b (without pika; pip install 'penstock-broker[demo]'")
    only("pika")
    assert tills_text([Till("a")]) == "a"


def test_large_orders_are_read_back_without_pika_too_and_it_is_said(only):
    only()
    readers = open_readers({"rocketmq": "127.0.0.1:1", "amqp": "127.0.0.1:1"})
    said = readers_text(readers)
    assert said.startswith("RocketMQ (without pika; pip install 'penstock-broker[demo]'")


def test_nobody_misses_pulsars_client_when_large_orders_are_read_back(only):
    only("pika")
    assert readers_text([Till("a"), Till("b")]) == "a and b"
