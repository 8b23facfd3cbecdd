"""Times to live, lengths and what happens above them, as a client sees it."""

import pytest

from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods.basic import Ack, Consume, Get, GetEmpty, GetOk, Nack, Publish, Qos
from penstock.wire.amqp.methods.channel import ConfirmSelect
from penstock.wire.amqp.methods.queue import Bind, Declare, DeclareOk
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties

LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture
def client(bench):
    client = bench.client()
    client.call(1, ConfirmSelect())
    assert isinstance(client.call(1, Declare(queue="dead")), DeclareOk)
    return client


def limited(client, **arguments):
    table = {name.replace("_", "-"): value for name, value in arguments.items()}
    answer = client.call(1, Declare(queue="q", arguments={**LETTERS, **table}))
    assert isinstance(answer, DeclareOk), answer


def put(client, *bodies, lives_ms=None):
    expiration = None if lives_ms is None else str(lives_ms)
    properties = encode_properties(Properties(expiration=expiration))
    for body in bodies:
        client.publish(1, "", "q", body, properties)
    client.turn()
    heard = [each.method for each in client.take()]
    acked = [each.delivery_tag for each in heard if isinstance(each, Ack)]
    nacked = [each.delivery_tag for each in heard if isinstance(each, Nack)]
    return acked, nacked


def drained(client, name):
    """Bodies of a queue, and why they died last."""
    found = []
    while True:
        client.send(1, Get(queue=name, is_no_ack=True))
        client.turn()
        _, properties, body = client.answer_with_content(1)
        if not properties:
            return found
        deaths = (decode_properties(properties).headers or {}).get("x-death", [])
        found.append((body, deaths[0]["reason"] if deaths else ""))


def ready(bench, name="q"):
    return bench.broker.vhosts["/"].queues.get(name).ready


@pytest.mark.parametrize(("own_ms", "dies_ms"), [(None, 1000), (100, 100), (5000, 1000)])
def test_the_shorter_time_to_live_wins(bench, client, own_ms, dies_ms):
    limited(client, x_message_ttl=1000)
    put(client, b"x", lives_ms=own_ms)
    bench.advance(dies_ms)
    assert ready(bench) == 1
    bench.advance(1)
    assert ready(bench) == 0
    client.turn()
    assert drained(client, "dead") == [(b"x", "expired")]


def test_what_is_out_of_time_behind_a_living_head_waits(bench, client):
    limited(client)
    put(client, b"long", lives_ms=1000)
    put(client, b"short", lives_ms=10)
    bench.advance(500)
    assert ready(bench) == 2
    bench.advance(501)
    client.turn()
    assert drained(client, "dead") == [(b"long", "expired"), (b"short", "expired")]


def test_expired_messages_are_never_delivered(bench, client):
    limited(client)
    put(client, b"a", lives_ms=1000)
    put(client, b"b", lives_ms=10)
    put(client, b"c")
    bench.advance(500)
    assert [body for body, _ in drained(client, "q")] == [b"a", b"c"]
    assert drained(client, "dead") == [(b"b", "expired")]


@pytest.mark.parametrize("is_by_queue", [True, False])
def test_no_time_to_live_is_enough_for_a_consumer_that_waits(bench, client, is_by_queue):
    if is_by_queue:
        limited(client, x_message_ttl=0)
    else:
        limited(client)
    client.open(2)
    client.call(2, Qos(prefetch_count=1))
    client.call(2, Consume(queue="q"))
    for body in (b"taken", b"late"):
        properties = encode_properties(Properties(expiration=None if is_by_queue else "0"))
        client.publish(1, "", "q", body, properties)
        bench.clock.advance(7)
        client.turn()
    assert client.bodies() == [b"taken"]
    bench.advance(2)
    client.turn()
    assert ready(bench) == 0
    client.take()
    assert drained(client, "dead") == [(b"late", "expired")]


@pytest.mark.parametrize("is_by_queue", [True, False])
@pytest.mark.parametrize("has_consumer", [True, False])
def test_no_time_to_live_is_not_enough_for_a_get(bench, client, is_by_queue, has_consumer):
    if is_by_queue:
        limited(client, x_message_ttl=0)
    else:
        limited(client)
    if has_consumer:
        # One that has what it can take: whoever asks is not given what it could not have.
        client.open(2)
        client.call(2, Qos(prefetch_count=1))
        client.call(2, Consume(queue="q"))
        put(client, b"taken")
    properties = encode_properties(Properties(expiration=None if is_by_queue else "0"))
    # In one piece, and within a millisecond.
    publish = method_frame(1, Publish(0, "", "q")) + content_frames(1, properties, b"x", 4096)
    client.raw(publish + method_frame(1, Get(queue="q")))
    client.turn()
    assert isinstance(client.answer(1), GetEmpty)
    client.take()
    assert drained(client, "dead") == [(b"x", "expired")]


@pytest.mark.parametrize("is_by_queue", [True, False])
def test_no_time_to_live_is_over_when_it_comes_back(client, is_by_queue):
    if is_by_queue:
        limited(client, x_message_ttl=0)
    else:
        limited(client)
    client.open(2)
    client.call(2, Consume(queue="q"))
    properties = encode_properties(Properties(expiration=None if is_by_queue else "0"))
    client.publish(1, "", "q", b"x", properties)
    client.turn()
    assert client.bodies() == [b"x"]
    client.take()
    # Within the millisecond, to a consumer that waits.
    client.send(2, Nack(1, is_requeue=True))
    client.turn()
    assert client.bodies() == []
    client.take()
    assert drained(client, "dead") == [(b"x", "expired")]


def test_the_oldest_make_room_and_are_dead_letters_in_order(client):
    limited(client, x_max_length=2)
    assert put(client, b"a", b"b", b"c", b"d")[1] == []
    assert drained(client, "dead") == [(b"a", "maxlen"), (b"b", "maxlen")]
    assert [body for body, _ in drained(client, "q")] == [b"c", b"d"]


@pytest.mark.parametrize("is_durable", [True, False])
def test_the_limit_holds_right_after_a_requeue_and_the_letter_is_there(bench, is_durable):
    client = bench.client()
    client.call(1, Declare(queue="dead", is_durable=is_durable))
    table = {**LETTERS, "x-max-length": 2}
    client.call(1, Declare(queue="q", is_durable=is_durable, arguments=table))
    properties = encode_properties(Properties(delivery_mode=2 if is_durable else 1))
    for body in (b"a", b"b"):
        client.publish(1, "", "q", body, properties)
    client.turn()
    assert isinstance(client.call(1, Get(queue="q")), GetOk)
    client.publish(1, "", "q", b"c", properties)
    client.turn()
    assert ready(bench) == 2
    # One piece: nothing lets the broker come to rest between them.
    client.send(1, Nack(1, False, True), Declare(queue="q", is_passive=True), Get(queue="dead"))
    client.turn()
    assert client.answer(1).messages == 2
    method, properties, body = client.answer_with_content(1)
    assert (type(method), body) == (GetOk, b"a")
    assert decode_properties(properties).headers["x-death"][0]["reason"] == "maxlen"


def test_bytes_of_bodies_are_what_counts(client):
    limited(client, x_max_length_bytes=10)
    put(client, b"12345", b"67890")
    assert drained(client, "dead") == []
    put(client, b"x")
    assert drained(client, "dead") == [(b"12345", "maxlen")]


def test_reject_publish_says_no_and_keeps_what_is_there(client):
    limited(client, x_max_length=1, x_overflow="reject-publish")
    assert put(client, b"a", b"b") == ([1], [2])
    assert drained(client, "dead") == []
    assert drained(client, "q") == [(b"a", "")]


def test_reject_publish_dlx_buries_what_it_refuses(client):
    limited(client, x_max_length=1, x_overflow="reject-publish-dlx")
    assert put(client, b"a", b"b") == ([1], [2])
    assert drained(client, "dead") == [(b"b", "maxlen")]


def test_hold_waits_for_room_and_confirms_then(client):
    limited(client, x_max_length=1, x_overflow="hold")
    assert put(client, b"a", b"b") == ([1], [])
    client.send(1, Get(queue="q", is_no_ack=True))
    client.turn()
    heard = [each.method for each in client.take()]
    assert [each.delivery_tag for each in heard if isinstance(each, Ack)] == [2]


def test_a_hold_ends_in_a_nack(bench, client):
    limited(client, x_max_length=1, x_overflow="hold")
    put(client, b"a", b"b")
    bench.advance(bench.settings.flow.hold_ms_max + 1)
    client.turn()
    heard = [each.method for each in client.take()]
    assert [each.delivery_tag for each in heard if isinstance(each, Nack)] == [2]


def test_of_a_fan_out_only_the_full_queue_has_a_dead_letter(client):
    """Refused by one, stored in the others: those with room have nothing to bury."""
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    roomy = {"x-max-length": 5, "x-overflow": "reject-publish-dlx", **LETTERS}
    client.call(1, Declare(queue="full", arguments=full))
    client.call(1, Declare(queue="roomy", arguments=roomy))
    for name in ("full", "roomy"):
        client.call(1, Bind(0, name, "amq.fanout"))
    for body in (b"1", b"2", b"3"):
        client.publish(1, "amq.fanout", "", body)
    client.turn()
    assert drained(client, "dead") == []
    assert [body for body, _ in drained(client, "roomy")] == [b"1", b"2", b"3"]


def test_a_fan_out_with_one_full_queue_is_nacked_and_stored_in_the_others_in_order(client):
    client.call(1, Declare(queue="plain", is_durable=True))
    client.call(1, Declare(queue="short", is_durable=True, arguments={"x-max-length": 3}))
    strict = {"x-max-length-bytes": 3, "x-overflow": "reject-publish-dlx", **LETTERS}
    client.call(1, Declare(queue="strict", is_durable=True, arguments=strict))
    for name in ("plain", "short", "strict"):
        client.call(1, Bind(0, name, "amq.fanout"))
    for body in (b"a", b"too much", b"b", b"cc", b"c", b"d"):
        client.publish(1, "amq.fanout", "", body, encode_properties(Properties(delivery_mode=2)))
    client.turn()
    is_acked = {}
    for method in [each.method for each in client.take()]:
        tag = method.delivery_tag
        for each in range(1, tag + 1) if method.is_multiple else (tag,):
            is_acked.setdefault(each, isinstance(method, Ack))
    assert is_acked == {1: True, 2: False, 3: True, 4: False, 5: True, 6: False}
    assert [body for body, _ in drained(client, "plain")] == [
        b"a", b"too much", b"b", b"cc", b"c", b"d",
    ]  # fmt: skip
    assert [body for body, _ in drained(client, "short")] == [b"cc", b"c", b"d"]
    assert [body for body, _ in drained(client, "strict")] == [b"a", b"b", b"c"]
    assert [body for body, _ in drained(client, "dead")] == [b"too much", b"cc", b"d"]
