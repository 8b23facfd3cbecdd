"""Which tills a shop has."""

from penstock.demo.story import tills
from penstock.demo.story.tills import NO_PIKA, open_tills


def test_without_pika_there_is_no_amqp_till_and_nobody_minds(monkeypatch):
    monkeypatch.setattr(tills, "find_spec", lambda _name: None)
    assert open_tills({"amqp": "127.0.0.1:1"}) == []
    assert "penstock-broker[demo]" in NO_PIKA


def test_a_listener_that_is_not_there_has_no_till():
    assert open_tills({"http": "127.0.0.1:1"}) == []
