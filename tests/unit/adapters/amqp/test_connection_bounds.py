"""What a connection may keep: answers, deliveries, contents, held publishes (D6, F14, D22, D23)."""

from dataclasses import replace

from kit.amqp.peer import AmqpBench, alarm, cut_off, declared
from penstock.settings.load import Settings
from penstock.wire.amqp.codes import FRAME_HEADER
from penstock.wire.amqp.frames import CONTENT_HEAD, content_frames, encode_frame, method_frame
from penstock.wire.amqp.methods.basic import Consume, Deliver, Get, GetEmpty, GetOk, Publish
from penstock.wire.amqp.methods.channel import OpenOk as ChannelOpenOk
from penstock.wire.amqp.methods.queue import Declare, DeclareOk


def test_answers_that_wait_for_the_disk_stop_the_reading_at_their_limit():
    settings = Settings()
    settings = replace(settings, amqp=replace(settings.amqp, answers_held_bytes_max=4096))
    bench = AmqpBench(settings)
    peer = bench.client()
    for number in range(10):
        peer.send(1, Declare(0, f"q{number}", is_durable=True))
    assert peer.session.is_reading
    for number in range(10, 20):
        peer.send(1, Declare(0, f"q{number}", is_durable=True))
    assert not peer.session.is_reading
    peer.turn()
    assert peer.session.is_reading
    assert len(peer.take()) == 20


def test_deliveries_the_socket_does_not_take_stop_at_the_limit_of_the_connection(bench):
    peer = bench.client()
    declared(peer)
    limit = bench.settings.flow.unsent_messages_max
    for _ in range(limit + 50):
        peer.publish(1, "", "q", b"x")
    peer.unsent_bytes = 1
    peer.call(1, Consume(0, "q", "c", is_no_ack=True))
    peer.turn()
    assert len(peer.bodies()) == limit
    peer.unsent_bytes = 0
    peer.session.flushed(0)
    peer.turn()
    assert len(peer.bodies()) == limit + 50
    assert bench.engine.unsent_pool.bytes == 0


def test_deliveries_behind_an_answer_that_waits_are_not_taken_for_sent(bench):
    peer = bench.client()
    declared(peer)
    peer.call(1, Consume(0, "q", "c", is_no_ack=True))
    other = bench.client()
    other.publish(1, "", "q", b"x")
    peer.send(1, Declare(0, "durable", is_durable=True))
    bench.turns()
    peer.hear()
    assert peer.bodies() == []
    assert peer.session.unsent.messages == 1
    peer.turn()
    assert [type(heard.method) for heard in peer.received] == [DeclareOk, Deliver]
    assert peer.session.unsent.messages == 0


def test_a_content_on_a_channel_that_is_not_open_ends_the_connection_at_once(bench):
    peer = bench.client()
    peer.send(9, Publish(0, "", "q"))
    assert cut_off(peer.answer(0))[0] == 504


def test_a_header_that_announces_too_much_costs_the_channel_and_its_body_is_dropped():
    settings = Settings()
    settings = replace(settings, amqp=replace(settings.amqp, message_bytes_max=1000))
    bench = AmqpBench(settings)
    peer = bench.client()
    peer.publish(1, "", "q", b"x" * 1001)
    peer.turn()
    close = peer.answer(1)
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    assert (close.reply_code, close.reply_text) == (406, text)
    assert isinstance(peer.open(2), ChannelOpenOk)
    assert peer.call(2, Get(0, "q")).reply_code == 404


def test_a_body_of_a_terabyte_is_answered_with_its_size(bench):
    peer = bench.client()
    header = CONTENT_HEAD.pack(60, 0, 1 << 40) + bytes(2)
    peer.raw(method_frame(1, Publish(0, "", "q")) + encode_frame(FRAME_HEADER, 1, header))
    peer.turn()
    close = peer.answer(1)
    assert close.reply_code == 406
    assert "message size 1099511627776 is larger than configured max size" in close.reply_text


def test_a_method_within_a_content_is_an_unexpected_frame(bench):
    peer = bench.client()
    header = encode_frame(FRAME_HEADER, 1, CONTENT_HEAD.pack(60, 0, 10) + b"\0\0")
    peer.raw(method_frame(1, Publish(0, "", "q")) + header + method_frame(1, Get(0, "q")))
    assert cut_off(peer.answer(0))[0] == 505


def test_contents_of_two_channels_may_come_mixed(bench):
    peer = bench.client()
    peer.open(2)
    declared(peer)
    header = CONTENT_HEAD.pack(60, 0, 4) + b"\0\0"
    for channel in (1, 2):
        peer.send(channel, Publish(0, "", "q"))
    for channel in (2, 1):
        peer.raw(encode_frame(FRAME_HEADER, channel, header))
    for channel in (1, 2):
        peer.raw(encode_frame(3, channel, b"a" * channel))
    peer.raw(encode_frame(3, 2, b"bb"))
    peer.raw(encode_frame(3, 1, b"bbb"))
    peer.turn()
    bodies = [peer.call(1, Get(0, "q", is_no_ack=True)) for _ in range(3)]
    assert [type(each) for each in bodies] == [GetOk, GetOk, GetEmpty]


def test_contents_of_many_channels_that_are_not_complete_end_the_connection_with_506():
    settings = Settings()
    settings = replace(settings, amqp=replace(settings.amqp, message_bytes_max=64 << 10))
    bench = AmqpBench(settings)
    peer = bench.client()
    size = 60 << 10
    for channel in (1, 2, 3):
        if channel > 1:
            peer.open(channel)
        peer.send(channel, Publish(0, "", "q"))
        peer.raw(encode_frame(FRAME_HEADER, channel, CONTENT_HEAD.pack(60, 0, size) + b"\0\0"))
        peer.raw(encode_frame(3, channel, bytes(size - 1)))
    code, text = cut_off(peer.answer(0))
    assert code == 506
    assert text.startswith("RESOURCE_ERROR - contents that are not complete have ")


def test_held_publishes_stop_the_reading_when_the_share_of_the_connection_is_full():
    settings = Settings()
    settings = replace(settings, flow=replace(settings.flow, connection_bytes_max=64 << 10))
    bench = AmqpBench(settings)
    peer = bench.client()
    declared(peer)
    alarm(bench, True)
    sent = 0
    while peer.session.is_reading:
        peer.publish(1, "", "q", bytes(8 << 10))
        bench.turns()
        sent += 1
        assert sent < 20
    assert sent > 4
    alarm(bench, False)
    assert peer.session.is_reading
    assert declared(peer).messages == sent


def test_a_content_larger_than_the_share_is_taken_in_all_the_same():
    settings = Settings()
    settings = replace(settings, flow=replace(settings.flow, connection_bytes_max=64 << 10))
    bench = AmqpBench(settings)
    peer = bench.client()
    declared(peer)
    data = method_frame(1, Publish(0, "", "q")) + content_frames(
        1, b"\0\0", bytes(1 << 20), peer.frame_max
    )
    for at in range(0, len(data), 10_000):
        assert peer.session.is_reading
        peer.raw(data[at : at + 10_000])
    peer.turn()
    assert declared(peer).messages == 1
    assert bench.engine.contents.drawn_bytes == 0


def test_large_contents_of_many_connections_take_turns_when_the_pool_is_full():
    settings = Settings()
    settings = replace(
        settings,
        flow=replace(settings.flow, inflight_bytes_max=4 << 20, connection_bytes_max=1 << 20),
    )
    bench = AmqpBench(settings)
    home = bench.client()
    declared(home)
    size = 1 << 20
    waiting = {}
    for _ in range(8):
        peer = bench.client()
        waiting[peer] = method_frame(1, Publish(0, "", "q")) + content_frames(
            1, b"\0\0", bytes(size), peer.frame_max
        )
    for _ in range(10_000):
        moved = False
        for peer, data in list(waiting.items()):
            if peer.session.is_reading:
                moved = True
                peer.raw(data[:50_000])
                waiting[peer] = data[50_000:]
                if not waiting[peer]:
                    del waiting[peer]
        bench.settle()
        if not waiting:
            break
        assert moved, "nobody may read, for ever"
    assert declared(home).messages == 8
    assert bench.engine.contents.drawn_bytes == 0
    assert bench.engine.inflight_pool.peak <= bench.engine.inflight_pool.bytes_max
