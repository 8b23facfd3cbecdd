"""Commands that wait for a turn are shown at their connection while they do."""

import pytest

from kit.amqp.peer import NO_PROPERTIES
from penstock.adapters.amqp.commands import COMMANDS_AT_ONCE
from penstock.engine.subscription.settle import REJECTS_PER_TURN
from penstock.flow.views import COMMANDS, UndoneView
from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods.basic import Consume, Get, Nack, Publish
from penstock.wire.amqp.methods.queue import Declare, Delete

GETS = 5


@pytest.fixture
def client(bench):
    client = bench.client()
    client.call(1, Declare(queue="q"))
    bench.clock.advance(100)
    return client


def published(client):
    frames = content_frames(1, NO_PROPERTIES, b"x", client.frame_max)
    return method_frame(1, Publish(0, "", "q")) + frames


def undone(client):
    now_ms = client.bench.clock.monotonic_ms()
    views = client.bench.engine.flow_map(now_ms, 0).views
    label = client.session.engine_connection.stage.label
    found = [view.undone for view in views if view.label == label and view.undone is not None]
    return found[0] if found else None


def test_commands_behind_a_publish_say_for_which_channel_they_wait(client):
    began_ms = client.bench.clock.monotonic_ms()
    client.raw(published(client) + method_frame(1, Get(queue="q")) * GETS)
    client.bench.clock.advance(30)
    channel = client.session.channels[1].engine_channel.stage.label
    assert undone(client) == UndoneView(COMMANDS, GETS, began_ms, channel)
    client.turn()
    assert undone(client) is None


def test_too_many_at_once_wait_for_nobody_but_since_the_first_of_their_turns(client):
    began_ms = client.bench.clock.monotonic_ms()
    client.raw(method_frame(1, Declare(queue="q", is_passive=True)) * (2 * COMMANDS_AT_ONCE + 7))
    assert undone(client) == UndoneView(COMMANDS, COMMANDS_AT_ONCE + 7, began_ms)
    client.bench.clock.advance(30)
    client.hear()
    assert undone(client) == UndoneView(COMMANDS, 7, began_ms)
    client.turn()
    assert undone(client) is None


def test_the_next_time_is_another_time(client):
    for _ in range(2):
        began_ms = client.bench.clock.monotonic_ms()
        client.raw(published(client) + method_frame(1, Get(queue="q")))
        assert undone(client).since_ms == began_ms
        client.turn()
        client.bench.clock.advance(30)


def test_a_connection_that_goes_takes_it_along(client):
    client.raw(published(client) + method_frame(1, Get(queue="q")))
    connection = client.session.engine_connection
    assert connection.undone is not None
    client.leave()
    assert connection.undone is None


def test_who_deletes_a_queue_with_dead_to_bury_says_that_it_waits_for_that_queue(client):
    many = 3 * REJECTS_PER_TURN
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    client.call(1, Declare(queue="leaving", arguments=letters))
    client.call(1, Consume(queue="leaving", consumer_tag="c"))
    for _ in range(many):
        client.publish(1, "", "leaving", b"x")
    while client.session.channels[1].consumers.unacked.count < many:
        client.turn()
    began_ms = client.bench.clock.monotonic_ms()
    client.send(1, Nack(0, is_multiple=True, is_requeue=False), Delete(queue="leaving"))
    client.bench.clock.advance(30)
    assert undone(client) == UndoneView(COMMANDS, 1, began_ms, "queue leaving")
    client.turn()
    assert undone(client) is None
    assert client.bench.broker.vhosts["/"].queues.get("leaving") is None
