"""Acks, nacks and rejects next to each other are read together, whichever they are."""

import pytest

from penstock.wire.amqp.codes import ReplyCode
from penstock.wire.amqp.frames import AckRun, Command, SettleRun, method_frame
from penstock.wire.amqp.methods.basic import Ack, Get, Nack, Reject
from penstock.wire.amqp.parser import FRAME_WORK, RUN_TAGS_MAX, WORK_AT_ONCE, AmqpParser
from penstock.wire.amqp.serializer import ack_frame, nack_frame

NOW_MS = 1_700_000_000_000


@pytest.fixture
def inflow():
    inflow = AmqpParser(is_greeted=True)
    inflow.tune(131_072, 2047)
    return inflow


def said(channel, *methods):
    return b"".join([method_frame(channel, method) for method in methods])


@pytest.mark.parametrize(
    ("kind", "is_requeue", "word"),
    [(Nack, False, 120), (Nack, True, 121), (Reject, False, 90), (Reject, True, 91)],
)
def test_a_row_of_one_kind_is_one_run(inflow, kind, is_requeue, word):
    stream = said(1, *[kind(tag, is_requeue=is_requeue) for tag in range(1, 101)])
    assert inflow.feed(stream, NOW_MS) == [SettleRun(1, list(range(1, 101)), bytes([word] * 100))]


def test_a_row_of_all_kinds_is_one_run_in_the_order_they_came(inflow):
    stream = said(1, Ack(1), Nack(2, is_requeue=True), Reject(3), Ack(5), Nack(4))
    assert inflow.feed(stream, NOW_MS) == [
        SettleRun(1, [1, 2, 3, 5, 4], bytes((80, 121, 90, 80, 120)))
    ]


def test_those_that_speak_of_several_messages_are_by_themselves(inflow):
    stream = said(1, Nack(1), Nack(3, is_multiple=True), Nack(4), Ack(9, is_multiple=True), Ack(10))
    assert inflow.feed(stream, NOW_MS) == [
        SettleRun(1, [1], b"\x78"),
        Command(1, Nack(3, is_multiple=True)),
        SettleRun(1, [4], b"\x78"),
        AckRun(1, [9], True),
        AckRun(1, [10], False),
    ]


def test_a_run_ends_where_the_channel_changes_or_something_else_is_said(inflow):
    stream = said(1, Nack(1)) + said(2, Nack(1)) + said(2, Get(queue="q")) + said(2, Reject(2))
    assert inflow.feed(stream, NOW_MS) == [
        SettleRun(1, [1], b"\x78"),
        SettleRun(2, [1], b"\x78"),
        Command(2, Get(queue="q")),
        SettleRun(2, [2], b"\x5a"),
    ]


def test_what_is_cut_in_the_middle_is_read_when_the_rest_has_come(inflow):
    stream = said(1, Nack(1), Nack(2))
    assert inflow.feed(stream[:-5], NOW_MS) == [SettleRun(1, [1], b"\x78")]
    assert inflow.feed(stream[-5:], NOW_MS) == [SettleRun(1, [2], b"\x78")]


def test_a_wrong_end_is_found_behind_what_was_right(inflow):
    stream = ack_frame(1, 1) + nack_frame(1, 2)[:-1] + b"\0"
    assert inflow.feed(stream, NOW_MS) == [AckRun(1, [1], False)]
    assert inflow.failure is not None
    assert inflow.failure.code is ReplyCode.FRAME_ERROR


def test_a_run_has_a_bound(inflow):
    stream = said(1, *[Reject(tag) for tag in range(1, RUN_TAGS_MAX + 8)])
    assert [len(run.tags) for run in inflow.feed(stream, NOW_MS)] == [RUN_TAGS_MAX, 7]


def test_a_lot_of_work_is_done_in_parts_and_in_order(inflow):
    many = 2 * WORK_AT_ONCE // FRAME_WORK + 3
    commands = [Nack(tag, is_multiple=True) for tag in range(many)]
    stream = said(1, *commands)
    parts = [inflow.feed(stream[:-1], NOW_MS)]
    assert inflow.has_more
    parts.append(inflow.feed(stream[-1:], NOW_MS))
    while inflow.has_more:
        parts.append(inflow.feed(b"", NOW_MS))
    assert max(map(len, parts)) <= WORK_AT_ONCE // FRAME_WORK
    assert [event.method for part in parts for event in part] == commands
    assert inflow.held_bytes == 0


def test_an_error_ends_what_is_read_in_parts_as_well(inflow):
    many = WORK_AT_ONCE // FRAME_WORK + 3
    inflow.feed(said(1, *[Nack(1, is_multiple=True)] * many) + bytes(8), NOW_MS)
    assert inflow.has_more
    assert inflow.failure is None
    assert len(inflow.feed(b"", NOW_MS)) == 3
    assert inflow.failure is not None
    assert not inflow.has_more
