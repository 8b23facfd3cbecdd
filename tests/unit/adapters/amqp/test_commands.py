"""Commands come after the publishes before them, as far as these can come in."""

from itertools import pairwise

import pytest

from kit.amqp.peer import NO_PROPERTIES, AmqpBench
from penstock.adapters.amqp.commands import (
    COMMANDS_AT_ONCE,
    HANDLERS,
    TAGS_AT_ONCE,
    TURNS_MAX,
    is_publishing,
)
from penstock.model.errors import NotFound
from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods import channel as channel_methods
from penstock.wire.amqp.methods import connection
from penstock.wire.amqp.methods.basic import (
    Ack,
    Consume,
    Get,
    GetEmpty,
    GetOk,
    Nack,
    Publish,
    Qos,
    Reject,
)
from penstock.wire.amqp.methods.channel import CloseOk, Flow
from penstock.wire.amqp.methods.connection import Close
from penstock.wire.amqp.methods.method import METHODS
from penstock.wire.amqp.methods.queue import Declare, DeclareOk, Delete, DeleteOk, Purge, PurgeOk
from penstock.wire.amqp.parser import FRAME_WORK, WORK_AT_ONCE

HOLD = {"x-max-length": 1, "x-overflow": "hold"}


@pytest.fixture
def client():
    client = AmqpBench().client()
    client.open(2)
    client.call(1, Declare(queue="q"))
    return client


def turns(client):
    return client.bench.engine._turns.turns


def published(client, channel=1):
    frames = content_frames(channel, NO_PROPERTIES, b"x", client.frame_max)
    return method_frame(channel, Publish(0, "", "q")) + frames


@pytest.mark.parametrize(
    ("command", "answer", "count"),
    [
        (Declare(queue="q"), DeclareOk, "messages"),
        (Purge(queue="q"), PurgeOk, "messages"),
        (Delete(queue="q"), DeleteOk, "messages"),
        (Get(queue="q"), GetOk, None),
    ],
)
def test_publishes_of_any_channel_of_the_connection_are_waited_for(client, command, answer, count):
    client.raw(published(client, 2) + method_frame(1, command))
    assert is_publishing(client.session)
    assert not client.session.is_reading
    client.turn()
    heard = client.answer(1)
    assert isinstance(heard, answer)
    assert count is None or getattr(heard, count) == 1
    assert client.session.is_reading


def test_nobody_else_waits_for_turns_that_one_peer_asks_for(client):
    before = turns(client)
    client.raw(b"".join([published(client) + method_frame(1, Get(queue="q"))] * 50))
    assert turns(client) == before, "a turn is the server's to make"
    client.turn()
    assert [type(method) for method in client.methods(1)] == [GetOk] * 50


def test_what_came_behind_a_command_that_waits_comes_behind_it(client):
    client.raw(published(client) + method_frame(1, Get(queue="q")) + method_frame(2, Purge(0, "q")))
    client.raw(method_frame(2, Declare(queue="r")))
    assert client.bench.broker.vhosts["/"].queues.get("r") is None
    client.turn()
    assert isinstance(client.answer(1), GetOk)
    assert client.bench.broker.vhosts["/"].queues.get("r") is not None


def test_what_is_held_is_not_waited_for(client):
    client.call(1, Declare(queue="h", arguments=HOLD))
    for _ in range(3):
        client.publish(1, "", "h", b"x")
    client.turn()
    assert not is_publishing(client.session)
    answer = client.call(1, Declare(queue="h", arguments=HOLD))
    assert answer.messages == 1


def test_with_nothing_published_nothing_is_waited_for(client):
    client.send(1, Get(queue="q"))
    assert client.session.is_reading
    assert client.methods(1) != []


def test_it_is_not_waited_for_ever(client, monkeypatch):
    monkeypatch.setattr("penstock.adapters.amqp.commands.is_publishing", lambda session: True)
    client.send(1, Declare(queue="q"))
    for _ in range(TURNS_MAX - 1):
        assert client.methods(1) == []
    wakes = client.wakes
    assert [type(method) for method in client.methods(1)] == [DeclareOk]
    assert client.wakes > wakes


def test_thousands_of_commands_are_done_some_in_every_turn(client):
    many = 3 * COMMANDS_AT_ONCE + 5
    client.raw(method_frame(1, Get(queue="q")) * many)
    assert not client.session.is_reading
    answered = [len(client.methods(1))]
    while not client.session.is_reading:
        answered.append(len(client.methods(1)))
    assert answered == [2 * COMMANDS_AT_ONCE, 3 * COMMANDS_AT_ONCE, many]


def holding(client, count):
    """A client that was given so many."""
    client.raw(published(client, 2) * count)
    client.turn()
    client.call(1, Consume(queue="q"))
    held = client.session.channels[1].consumers.unacked
    while held.count < count:
        client.turn()
    client.take()
    return held


@pytest.mark.parametrize("kind", [Ack, Nack, Reject])
def test_one_read_of_words_about_neighbours_is_done_at_once(client, kind):
    many = 5 * TAGS_AT_ONCE
    held = holding(client, many)
    client.send(1, *map(kind, range(1, many + 1)))
    assert held.count == 0


@pytest.mark.parametrize("step", [2, 3])
def test_words_about_messages_here_and_there_are_done_some_in_every_turn(client, step):
    many = 3 * TAGS_AT_ONCE
    held = holding(client, step * many)
    client.send(1, *[Nack(tag) for tag in range(1, step * many, step)])
    left = [held.count]
    while not client.session.is_reading:
        client.hear()
        left.append(held.count)
    assert [before - after for before, after in pairwise([step * many, *left])] == [
        TAGS_AT_ONCE
    ] * 3


def test_so_are_words_of_all_kinds_and_what_is_behind_them_stays_there(client):
    many = 2 * TAGS_AT_ONCE
    client.call(1, Declare(queue="other"))
    held = holding(client, many)
    words = [(Ack, Nack, Reject)[tag % 3](tag) for tag in range(1, many + 1)]
    said = b"".join([method_frame(1, word) for word in words])
    frames = content_frames(1, NO_PROPERTIES, b"x", client.frame_max)
    client.raw(said + method_frame(1, Publish(0, "", "other")) + frames)
    assert held.count == many - TAGS_AT_ONCE
    assert not is_publishing(client.session)
    client.turn()
    assert held.count == 0
    assert client.call(1, Declare(queue="other")).messages == 1


def test_what_is_too_much_to_be_read_at_once_is_read_in_the_turns_that_follow(client):
    many = WORK_AT_ONCE // FRAME_WORK + 5
    client.raw(method_frame(1, Get(queue="q")) * many + method_frame(1, Declare(queue="last")))
    while not client.session.is_reading:
        client.hear()
    kinds = [type(method) for method in client.methods(1)]
    assert kinds == [GetEmpty] * many + [DeclareOk]


def test_whoever_hangs_up_is_heard_to_the_end(client):
    many = WORK_AT_ONCE // FRAME_WORK + 5
    client.raw(method_frame(1, Qos(0, 1, False)) * many + published(client))
    client.session.eof()
    assert not client.session.wants_close
    client.turn()
    assert client.session.wants_close
    queue = client.bench.broker.vhosts["/"].queues.get("q")
    assert queue.ready == 1


@pytest.mark.parametrize("is_close", [True, False])
def test_a_connection_that_ends_does_nothing_more(client, is_close):
    client.raw(published(client) + method_frame(1, Declare(queue="late")))
    if is_close:
        client.leave()
    else:
        client.session.stopping("shutdown")
    client.turn()
    assert client.bench.broker.vhosts["/"].queues.get("late") is None


def test_closes_wait_as_well(client):
    close = method_frame(1, channel_methods.Close(200, "", 0, 0))
    client.raw(published(client) + method_frame(1, Declare(queue="q")) + close)
    client.raw(method_frame(0, connection.Close(200, "", 0, 0)))
    client.turn()
    kinds = [type(method) for method in client.methods()]
    assert kinds == [DeclareOk, channel_methods.CloseOk, connection.CloseOk]


def test_nothing_waits_any_more_when_the_connection_is_over(client):
    opening = method_frame(1, Declare(queue="q"))
    client.session.receive(opening * (COMMANDS_AT_ONCE + 1))
    assert client.session.commands.is_waiting
    client.session.closed("gone")
    assert not client.session.commands.is_waiting


# ---- dispatch -----------------------------------------------------------------------------------
# Every method of the protocol is either heard or refused, in the right words.


FROM_SERVERS = """
    OpenOk FlowOk AccessRequestOk DeclareOk DeleteOk BindOk UnbindOk PurgeOk QosOk ConsumeOk
    Return Deliver GetOk GetEmpty RecoverOk ConfirmSelectOk TxSelectOk TxCommitOk TxRollbackOk
"""
ELSEWHERE = {Ack, Publish, CloseOk}
"""Acks and publishes come as runs; close-ok is heard when a close was said."""


def test_every_method_a_client_may_say_on_a_channel_has_a_handler():
    wanted = {
        method
        for method in METHODS.values()
        if method.class_id != 10 and method.__name__ not in FROM_SERVERS.split()
    }
    assert wanted - ELSEWHERE == set(HANDLERS)


@pytest.mark.parametrize(
    "method",
    [
        each
        for each in METHODS.values()
        if each.class_id != 10 and each not in HANDLERS and each not in ELSEWHERE
    ],
    ids=lambda each: f"{each.class_id}-{each.method_id}",
)
def test_what_only_servers_say_is_an_invalid_command(method):
    peer = AmqpBench().client()
    peer.send(1, method())
    close = peer.answer(0)
    assert (close.reply_code, close.failing_class, close.failing_method) == (
        503,
        method.class_id,
        method.method_id,
    )


@pytest.mark.parametrize(
    "method",
    [
        each
        for each in METHODS.values()
        if each.class_id == 10 and each not in (connection.Close, connection.UpdateSecret)
    ],
    ids=lambda each: each.__name__,
)
def test_methods_of_a_handshake_have_no_meaning_afterwards(method):
    peer = AmqpBench().client()
    close = peer.call(0, method())
    assert (close.reply_code, close.failing_class) == (504, 10)


def test_methods_of_the_connection_do_not_belong_on_a_channel():
    peer = AmqpBench().client()
    peer.send(1, connection.UpdateSecret())
    assert peer.answer(0).reply_code == 503


def test_a_mistake_of_ours_is_told_as_an_internal_error(monkeypatch):
    def wrong(channel, method):
        raise NotFound("nothing there")

    monkeypatch.setitem(HANDLERS, Flow, wrong)
    peer = AmqpBench().client()
    peer.send(1, Flow(True))
    close = peer.answer(0)
    assert isinstance(close, Close)
    assert (close.reply_code, close.reply_text) == (541, "INTERNAL_ERROR - nothing there")


def credits_left(client):
    """Of every channel of its connection, towards the reader and towards queues."""
    found = []
    for each in client.bench.engine._connections.values():
        for channel in each.channels.values():
            found += [channel.credit, *channel.queue_credits.values()]
    return [(credit.available, credit.initial) for credit in found]


def test_commands_cost_no_credit(client):
    client.raw(published(client))
    client.turn()
    before = credits_left(client)
    assert before
    many = 2 * max(initial for _, initial in before)
    for tag in range(1, many // 3):
        client.send(1, Qos(0, 10, False), Get(queue="q"), Nack(tag, False, True))
    client.turn()
    assert [type(each) for each in client.methods(1)].count(GetOk) == many // 3 - 1
    assert credits_left(client) == before
    assert client.session.is_reading
