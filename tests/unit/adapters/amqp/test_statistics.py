"""What clients were given and acknowledged, by the ways they have."""

from typing import NamedTuple

from penstock.adapters.amqp.management.statistics import broker_statistics, vhost_steps
from penstock.adapters.amqp.statistics import NAMES, Rates
from penstock.engine.sampler import Sampler
from penstock.model.steps import finished
from penstock.wire.amqp.methods.basic import Ack, Consume, Get, Nack
from penstock.wire.amqp.methods.queue import Declare, Delete


def whole(vhost):
    return finished(vhost_steps(vhost)).statistics


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
    assert (whole(team).get_no_ack, whole(team).messages_ready) == (1, 1)
    peer.call(1, Delete(0, "q"))
    assert (whole(team).get_no_ack, whole(team).messages_ready) == (1, 0)
    bench.broker.drop_vhost("team")
    assert broker_statistics(bench.broker, []).get_no_ack == 1


# ---- rates --------------------------------------------------------------------------------------
# Rates of figures between the last two samples.


class Some(NamedTuple):
    messages: int
    publish: int


def test_details_have_rabbitmqs_shape() -> None:
    sampler = Sampler(0)
    rates, key = Rates(sampler), ("some", "q")
    assert rates.details(key, Some(1, 3), ("publish",)) == {
        "publish": 3,
        "publish_details": {"rate": 0.0},
    }
    table = sampler.table("some", Some._fields, lambda _: True)
    table.note("q", Some(1, 3), 0)
    table.note("q", Some(1, 4), 3_000)
    assert rates.details(key, Some(1, 9), ("publish",)) == {
        "publish": 9,
        "publish_details": {"rate": 0.3},
    }
