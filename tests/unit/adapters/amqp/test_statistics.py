"""What clients were given and acknowledged, by the ways they have."""

from typing import NamedTuple

import pytest

from penstock.adapters.amqp import statistics as rates_module
from penstock.adapters.amqp.management.statistics import broker_statistics, vhost_statistics
from penstock.adapters.amqp.statistics import NAMES, Rates
from penstock.wire.amqp.methods.basic import Ack, Consume, Get, Nack
from penstock.wire.amqp.methods.queue import Declare, Delete


def counted(tally):
    return {name: getattr(tally, name) for name in NAMES if getattr(tally, name)}


def filled(peer, name, messages):
    peer.call(1, Declare(0, name))
    for _ in range(messages):
        peer.publish(1, "", name, b"x")
    peer.turn()


def test_every_way_out_is_counted_by_itself_for_channel_and_queue(bench, peer):
    filled(peer, "q", 4)
    peer.call(1, Get(0, "q"))
    peer.call(1, Get(0, "q", is_no_ack=True))
    peer.call(1, Consume(0, "q", "tag"))
    peer.turn()
    peer.send(1, Ack(1))
    peer.turn()
    peer.call(1, Get(0, "q"))
    queue = bench.broker.vhosts["/"].queues.get("q")
    expected = {"ack": 1, "deliver": 2, "get": 1, "get_empty": 1, "get_no_ack": 1}
    assert counted(queue.counters) == expected
    assert counted(peer.session.channels[1].consumers.counters) == expected
    assert queue.counters.deliver_get == 4


def test_what_comes_again_is_counted_as_that_and_what_needs_no_ack_has_none(bench, peer):
    filled(peer, "q", 1)
    peer.call(1, Get(0, "q"))
    peer.send(1, Nack(1, is_multiple=False, is_requeue=True))
    peer.turn()
    peer.call(1, Consume(0, "q", "tag", is_no_ack=True))
    peer.turn()
    queue = bench.broker.vhosts["/"].queues.get("q")
    assert counted(queue.counters) == {"get": 1, "deliver_no_ack": 1, "redeliver": 1}


def test_a_deleted_queue_goes_on_counting_in_its_vhost_and_a_dropped_vhost_in_the_house(bench):
    bench.broker.make_vhost("team")
    peer = bench.client(vhost="team")
    filled(peer, "q", 2)
    peer.call(1, Get(0, "q", is_no_ack=True))
    team = bench.broker.vhosts["team"]
    assert (vhost_statistics(team).get_no_ack, vhost_statistics(team).messages_ready) == (1, 1)
    peer.call(1, Delete(0, "q"))
    assert (vhost_statistics(team).get_no_ack, vhost_statistics(team).messages_ready) == (1, 0)
    bench.broker.drop_vhost("team")
    assert broker_statistics(bench.broker, []).get_no_ack == 1


# ---- rates --------------------------------------------------------------------------------------
# Rates of figures between the last two samples.


class Some(NamedTuple):
    messages: int
    publish: int


def test_a_rate_is_what_was_added_between_the_last_two_samples_whoever_looks() -> None:
    rates = Rates()
    rates.sample("q", Some(0, 100), 0)
    assert rates.per_second("q") is None, "one sample says nothing"
    rates.sample("q", Some(0, 600), 2_000)
    for _ in range(3):
        assert rates.per_second("q") == {"messages": 0.0, "publish": 250.0}
    rates.sample("q", Some(0, 600), 12_000)
    assert rates.per_second("q") == {"messages": 0.0, "publish": 0.0}


def test_a_level_falls_and_a_counter_that_begins_anew_does_not() -> None:
    rates = Rates()
    rates.sample("q", Some(100, 100), 0)
    rates.sample("q", Some(50, 5), 1_000)
    assert rates.per_second("q") == {"messages": -50.0, "publish": 0.0}


def test_two_samples_at_one_moment_are_one() -> None:
    rates = Rates()
    rates.sample("q", Some(1, 1), 5)
    rates.sample("q", Some(2, 2), 5)
    assert rates.per_second("q") is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_module, "OBJECTS_MAX", 10)
    rates = Rates()
    for now_ms in (0, 1_000):
        for number in range(20):
            rates.sample(number, Some(0, now_ms), now_ms)
    assert len(rates._histories) == 10
    assert rates.per_second(15) is None


def test_what_a_sweep_does_not_meet_any_more_is_forgotten() -> None:
    rates = Rates()
    for now_ms, keys in ((0, "ab"), (5_000, "b"), (10_000, "b")):
        for key in keys:
            rates.sample(key, Some(0, now_ms), now_ms)
        rates.swept()
    assert set(rates._histories) == {"b"}


def test_details_have_rabbitmqs_shape() -> None:
    rates = Rates()
    assert rates.details("q", Some(1, 3), ("publish",)) == {
        "publish": 3,
        "publish_details": {"rate": 0.0},
    }
    rates.sample("q", Some(1, 3), 0)
    rates.sample("q", Some(1, 4), 3_000)
    assert rates.details("q", Some(1, 9), ("publish",)) == {
        "publish": 9,
        "publish_details": {"rate": 0.3},
    }
