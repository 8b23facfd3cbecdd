"""Which tills a shop has."""

from penstock.demo.story import publishers
from penstock.demo.story.publishers import NO_PIKA, open_publishers


def test_without_pika_there_is_no_amqp_till_and_nobody_minds(monkeypatch):
    monkeypatch.setattr(publishers, "find_spec", lambda _name: None)
    assert open_publishers({"amqp": "127.0.0.1:1"}) == []
    assert "penstock-broker[demo]" in NO_PIKA


def test_a_listener_that_is_not_there_has_no_till():
    assert open_publishers({"http": "127.0.0.1:1"}) == []
