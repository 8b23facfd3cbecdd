"""What clients were given and acknowledged, by the ways they have."""

from penstock.adapters.amqp.figures import house_figures, vhost_figures
from penstock.adapters.amqp.tally import NAMES
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
    queue = bench.house.vhosts["/"].queues.get("q")
    expected = {"ack": 1, "deliver": 2, "get": 1, "get_empty": 1, "get_no_ack": 1}
    assert counted(queue.tally) == expected
    assert counted(peer.session.channels[1].consuming.tally) == expected
    assert queue.tally.deliver_get == 4


def test_what_comes_again_is_counted_as_that_and_what_needs_no_ack_has_none(bench, peer):
    filled(peer, "q", 1)
    peer.call(1, Get(0, "q"))
    peer.send(1, Nack(1, is_multiple=False, is_requeue=True))
    peer.turn()
    peer.call(1, Consume(0, "q", "tag", is_no_ack=True))
    peer.turn()
    queue = bench.house.vhosts["/"].queues.get("q")
    assert counted(queue.tally) == {"get": 1, "deliver_no_ack": 1, "redeliver": 1}


def test_a_deleted_queue_goes_on_counting_in_its_vhost_and_a_dropped_vhost_in_the_house(bench):
    bench.house.make_vhost("team")
    peer = bench.client(vhost="team")
    filled(peer, "q", 2)
    peer.call(1, Get(0, "q", is_no_ack=True))
    team = bench.house.vhosts["team"]
    assert (vhost_figures(team).get_no_ack, vhost_figures(team).messages_ready) == (1, 1)
    peer.call(1, Delete(0, "q"))
    assert (vhost_figures(team).get_no_ack, vhost_figures(team).messages_ready) == (1, 0)
    bench.house.drop_vhost("team")
    assert house_figures(bench.house, []).get_no_ack == 1
