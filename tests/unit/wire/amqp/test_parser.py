"""The way in: runs, what ends them, and what is not learnt twice."""

import pytest

from penstock.wire.amqp.codes import PROTOCOL_HEADER, ReplyCode, WrongProtocol
from penstock.wire.amqp.frames import (
    HEARTBEAT,
    AckRun,
    Command,
    PublishRun,
    content_frames,
    encode_frame,
    method_frame,
)
from penstock.wire.amqp.methods import basic
from penstock.wire.amqp.methods import channel as channel_methods
from penstock.wire.amqp.parser import LAYOUTS_MAX, AmqpParser, MessageLayout
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.serializer import ack_frame

NOW_MS = 1_700_000_000_000


def publish(number=0, *, channel=1, routing_key="k", body=b"body", **basics):
    basics = {"delivery_mode": 2, "message_id": f"{number:08}", **basics}
    raw = encode_properties(Properties(**basics))
    front = method_frame(channel, basic.Publish(exchange="e", routing_key=routing_key))
    return front + content_frames(channel, raw, body, 131_072)


def tuned():
    inflow = AmqpParser(is_greeted=True)
    inflow.tune(131_072, 2047)
    return inflow


def test_a_row_of_publishes_is_one_run_with_one_shape():
    (run,) = tuned().feed(b"".join(map(publish, range(100))), NOW_MS)
    assert isinstance(run, PublishRun)
    assert (run.channel, run.head.exchange, run.head.routing_key) == (1, "e", "k")
    assert len({id(record.shape) for record in run.records}) == 1
    ids = [record.origin[-12:-4] for record in run.records]
    assert ids == [b"%08d" % number for number in range(100)]


def test_a_run_ends_where_channel_names_or_claims_change():
    stream = b"".join(
        (
            publish(1), publish(2), publish(3, channel=2), publish(4, routing_key="x"),
            publish(5, routing_key="x", reply_to="r"), publish(6, routing_key="x", reply_to="s"),
        )
    )  # fmt: skip
    events = tuned().feed(stream, NOW_MS)
    assert [len(event.records) for event in events] == [2, 1, 1, 1, 1]
    assert [event.claims.reply_to for event in events] == [None, None, None, b"r", b"s"]


def test_a_run_goes_on_when_only_sizes_and_delivery_mode_change():
    stream = publish(1) + publish(2, body=b"longer body") + publish(3, delivery_mode=1)
    (run,) = tuned().feed(stream, NOW_MS)
    assert [record.is_transient for record in run.records] == [False, False, True]


def test_a_message_that_differs_in_the_middle_of_a_long_row_is_read_for_what_it_is():
    rows = [publish(number) for number in range(60)]
    rows[30] = publish(30, delivery_mode=1)
    (run,) = tuned().feed(b"".join(rows), NOW_MS)
    assert [n for n, record in enumerate(run.records) if record.is_transient] == [30]
    assert len(run.records) == 60


def test_what_expires_has_the_shape_of_its_millisecond():
    inflow = tuned()
    data = b"".join(publish(number, expiration="10") for number in range(20))
    for now_ms in (NOW_MS, NOW_MS + 5):
        (run,) = inflow.feed(data, now_ms)
        assert {record.expire_ms for record in run.records} == {now_ms + 10}


def test_one_publish_per_read_is_read_for_what_it_is_whatever_was_usual():
    inflow = tuned()
    bodies = [b"body", b"body", b"next", b"a longer one", b"last", b"", b"more", b"a longer two"]
    sent = [publish(number, body=body) for number, body in enumerate(bodies)]
    sent.insert(5, publish(5, delivery_mode=1))
    runs = [run for data in sent for run in inflow.feed(data, NOW_MS)]
    bodies.insert(5, b"body")
    assert [run.records[0].body for run in runs] == bodies
    assert [run.records[0].is_transient for run in runs].index(True) == 5


@pytest.mark.parametrize("at_once", [1, 3, 40])
def test_publishes_without_any_text_are_told_apart_as_well(at_once):
    inflow = tuned()
    rows = [publish(message_id=None, body=b"%04d" % number) for number in range(80)]
    rows[50] = publish(message_id=None, body=b"0050", delivery_mode=1)
    reads = [b"".join(rows[at : at + at_once]) for at in range(0, 80, at_once)]
    records = [each for read in reads for run in inflow.feed(read, NOW_MS) for each in run.records]
    assert [record.body for record in records] == [b"%04d" % number for number in range(80)]
    assert [n for n, record in enumerate(records) if record.is_transient] == [50]
    (run,) = inflow.feed(rows[0] + rows[1][:-1] + b"x", NOW_MS)
    assert len(run.records) == 1
    assert inflow.failure is not None


def test_what_is_usual_expires_by_the_time_of_its_own_read():
    inflow = tuned()
    reads = [inflow.feed(publish(expiration="50") * 2, NOW_MS + late) for late in (0, 0, 7)]
    expiries = [{record.expire_ms for record in run.records} for (run,) in reads]
    assert expiries == [{NOW_MS + 50}, {NOW_MS + 50}, {NOW_MS + 57}]
    assert all(record.born_ms == NOW_MS + 7 for record in reads[-1][0].records)


def test_runs_keep_their_place_among_other_commands():
    stream = publish(1) + HEARTBEAT + method_frame(1, basic.Get(queue="q")) + publish(2)
    kinds = [type(event) for event in tuned().feed(stream, NOW_MS)]
    assert kinds == [PublishRun, Command, PublishRun]


def test_acks_are_runs_that_end_where_multiple_changes():
    stream = b"".join(ack_frame(1, tag) for tag in range(5)) + ack_frame(1, 9, is_multiple=True)
    stream += ack_frame(2, 1)
    assert tuned().feed(stream, NOW_MS) == [
        AckRun(1, [0, 1, 2, 3, 4], False),
        AckRun(1, [9], True),
        AckRun(2, [1], False),
    ]


@pytest.mark.parametrize("is_multiple", [False, True])
def test_an_ack_without_its_end_is_no_ack_but_a_failure(is_multiple):
    inflow = tuned()
    good = ack_frame(1, 7, is_multiple=is_multiple)
    assert inflow.feed(good, NOW_MS) == [AckRun(1, [7], is_multiple)]
    assert inflow.feed(good[:-1] + b"x", NOW_MS) == []
    assert inflow.failure is not None
    assert inflow.feed(good, NOW_MS) == []


def test_what_usually_begins_a_read_is_read_for_what_it_is_behind_a_piece_of_something():
    inflow = tuned()
    whole = publish(1)
    for _ in range(3):
        inflow.feed(whole, NOW_MS)
    assert inflow.feed(whole + whole[:30], NOW_MS)[0].records[0].body == b"body"
    # These bytes would be a publish by themselves; here they are in the midst of one.
    (run,) = inflow.feed(whole[30:] + whole, NOW_MS)
    assert [record.body for record in run.records] == [b"body", b"body"]
    assert inflow.held_bytes == 0


def test_the_greeting_comes_first():
    inflow = AmqpParser()
    assert inflow.feed(PROTOCOL_HEADER[:5], NOW_MS) == []
    assert not inflow.is_greeted
    opening = method_frame(1, channel_methods.Open())
    assert inflow.feed(PROTOCOL_HEADER[5:] + opening, NOW_MS) == [
        Command(1, channel_methods.Open())
    ]
    assert inflow.is_greeted


def test_nothing_is_heard_before_the_greeting_not_even_behind_nothing():
    inflow = AmqpParser()
    assert inflow.feed(b"", NOW_MS) == []
    assert inflow.feed(ack_frame(1, 7, is_multiple=True), NOW_MS) == []
    assert isinstance(inflow.failure, WrongProtocol)


def test_what_is_kept_of_a_frame_is_counted_while_it_comes_in_pieces():
    inflow = tuned()
    opening = method_frame(1, channel_methods.Open())
    kept = []
    for at in range(len(opening)):
        inflow.feed(opening[at : at + 1], NOW_MS)
        kept.append(inflow.held_bytes)
    assert kept == [*range(1, len(opening)), 0]


def test_another_protocol_is_a_failure_of_its_own():
    inflow = AmqpParser()
    inflow.feed(b"GET / HTTP/1.1\r\n", NOW_MS)
    assert isinstance(inflow.failure, WrongProtocol)


def test_events_before_an_error_are_given_and_nothing_after_it():
    inflow = tuned()
    bad = encode_frame(9, 1, b"")
    events = inflow.feed(publish(1) + bad + publish(2), NOW_MS)
    assert [len(event.records) for event in events] == [1]
    assert inflow.failure.code is ReplyCode.FRAME_ERROR
    assert inflow.feed(publish(3), NOW_MS) == []


def test_before_tune_frames_are_small():
    inflow = AmqpParser(is_greeted=True)
    inflow.feed(publish(1, body=bytes(4097)), NOW_MS)
    assert inflow.failure.code is ReplyCode.FRAME_ERROR


def test_a_row_of_bodies_larger_than_negotiated_is_refused_although_it_is_known():
    inflow = tuned()
    inflow.feed(b"".join(publish(n, body=bytes(5000)) for n in range(20)), NOW_MS)
    inflow.tune(4096)
    assert inflow.feed(publish(1, body=bytes(5000)), NOW_MS) == []
    assert inflow.failure.code is ReplyCode.FRAME_ERROR


def test_kinds_of_messages_without_end_are_not_remembered_without_end():
    inflow = tuned()
    for number in range(LAYOUTS_MAX * 3):
        inflow.feed(publish(1, routing_key=f"key.{number}") * 2, NOW_MS)
        assert len(inflow._layouts) <= LAYOUTS_MAX


def test_messages_that_look_alike_and_are_not_are_not_learnt_again_and_again(monkeypatch):
    learnt = []
    original = MessageLayout.__init__

    def counting(self, *args):
        learnt.append(args)
        original(self, *args)

    monkeypatch.setattr(MessageLayout, "__init__", counting)
    inflow = tuned()
    for number in range(100):
        (run,) = inflow.feed(publish(timestamp=number + 1), NOW_MS)
        assert run.records[0].born_ms == (number + 1) * 1000
    assert len(learnt) <= 20


@pytest.mark.parametrize("texts", [31, 40])
def test_messages_with_many_texts_are_read_all_the_same(texts):
    headers = {f"h{n}": "text" for n in range(texts)}
    (run,) = tuned().feed(b"".join(publish(n, headers=headers) for n in range(9)), NOW_MS)
    assert len(run.records) == 9


@pytest.mark.parametrize("cut", [20, 45, 52, 56, 60])
def test_a_known_publish_that_is_cut_is_one_run_with_those_behind_it(cut):
    inflow = tuned()
    assert len(inflow.feed(b"".join(map(publish, range(9))), NOW_MS)) == 1
    stream = b"".join(map(publish, range(30)))
    assert inflow.feed(stream[:cut], NOW_MS) == []
    (run,) = inflow.feed(stream[cut:], NOW_MS)
    assert len(run.records) == 30
    assert inflow.held_bytes == 0


def test_a_known_publish_with_a_body_in_two_frames_is_read_all_the_same():
    inflow = tuned()
    inflow.feed(b"".join(map(publish, range(9))), NOW_MS)
    data = publish(1)
    halves = data[:-12] + encode_frame(3, 1, b"bo") + encode_frame(3, 1, b"dy")
    for cut in range(len(halves)):
        events = inflow.feed(halves[:cut], NOW_MS) + inflow.feed(halves[cut:], NOW_MS)
        assert [record.body for event in events for record in event.records] == [b"body"]


def test_something_else_than_the_body_of_a_known_publish_is_found_at_once():
    inflow = tuned()
    inflow.feed(b"".join(map(publish, range(9))), NOW_MS)
    inflow.feed(publish(1, body=bytes(9000))[:-9008] + HEARTBEAT, NOW_MS)
    assert inflow.failure is None
    inflow.feed(ack_frame(1, 1), NOW_MS)
    assert inflow.failure.code is ReplyCode.UNEXPECTED_FRAME


@pytest.mark.parametrize("extra", range(9))
def test_a_client_that_sends_frame_by_frame_is_read_and_nothing_false_is_learnt(extra):
    inflow = tuned()
    method_bytes = len(method_frame(1, basic.Publish(exchange="e", routing_key="k")))
    found = []
    for number in range(20):
        data = publish(number)
        found += inflow.feed(data[: method_bytes + extra], NOW_MS)
        found += inflow.feed(data[method_bytes + extra :], NOW_MS)
    assert [len(event.records) for event in found] == [1] * 20
    assert all(isinstance(known, int) for known in inflow._layouts.values())
