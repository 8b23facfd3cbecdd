"""Deliveries: templates give what methods give; what is kept is bounded."""

from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods import basic
from penstock.wire.amqp.origin import publish_head, publish_record, with_secret_keys
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.serializer import (
    TEMPLATES_KEPT,
    DeliveryEncoder,
    ack_frame,
    confirm_frames,
    nack_frame,
    names_of,
)

HEAD = publish_head(basic.Publish(exchange="é", routing_key="k").encode())
RAW = encode_properties(Properties(content_type="text/plain", delivery_mode=2))


def record(body, raw=RAW):
    return publish_record(HEAD, raw, body, 5)


def one_by_one(records, first_tag, *, flags, frame_max=4096):
    pieces = []
    for number, each in enumerate(records):
        method = basic.Deliver("c1", first_tag + number, flags[number], "é", "k")
        pieces.append(method_frame(2, method))
        pieces.append(content_frames(2, each.properties, each.body, frame_max))
    return b"".join(pieces)


def test_a_list_of_alike_deliveries_is_what_methods_would_be():
    records = [record(b"body%04d" % n) for n in range(20)]
    flags = [n % 2 == 0 for n in range(20)]
    expected = one_by_one(records, 7, flags=flags)
    assert DeliveryEncoder(2, "c1", 4096).encode(records, 7, flags) == expected


def test_shapes_may_change_within_a_list_and_tags_go_on():
    bodies = [b"a", b"b", b"", b"x" * 5000, b"c", b"d" * 4088, b"e" * 4089]
    records = [record(body) for body in bodies]
    expected = one_by_one(records, 1, flags=[False] * 7)
    assert DeliveryEncoder(2, "c1", 4096).encode(records, 1) == expected


def test_equal_shapes_with_other_properties_keep_their_own():
    other = encode_properties(Properties(content_type="text/other", delivery_mode=2))
    records = [record(b"body", RAW), record(b"body", other)] * 4
    expected = one_by_one(records, 1, flags=[False] * 8)
    assert DeliveryEncoder(2, "c1", 4096).encode(records, 1) == expected


def test_keys_behind_the_body_are_not_delivered():
    """Among alike ones, among those that begin differently, alone, empty and in several frames."""
    for bodies in ([b"body"] * 8, [b"body"] * 2, [b"body"], [b""], [b"x" * 5000]):
        plain = [record(body) for body in bodies]
        keyed = [with_secret_keys(each, ("secret", "keys")) for each in plain]
        for flags in ([False] * len(bodies), [True] * len(bodies)):
            expected = one_by_one(plain, 3, flags=flags)
            assert DeliveryEncoder(2, "c1", 4096).encode(keyed, 3, flags) == expected
            mixed = DeliveryEncoder(2, "c1", 4096).encode(plain + keyed, 3, flags + flags)
            assert mixed == one_by_one(plain + plain, 3, flags=flags + flags)


def test_templates_are_bounded():
    deliveries = DeliveryEncoder(1, "c", 4096)
    for size in range(TEMPLATES_KEPT * 2):
        deliveries.encode([record(bytes(size))], 1)
    assert len(deliveries._templates) <= TEMPLATES_KEPT


def test_names_of_a_record():
    assert names_of(record(b"")) == ("é", "k")


def test_a_single_delivery_is_the_same_as_in_a_list():
    for body in (b"a", b"", b"x" * 5000):
        for flag in (False, True):
            expected = one_by_one([record(body)], 3, flags=[flag])
            assert DeliveryEncoder(2, "c1", 4096).encode([record(body)], 3, [flag]) == expected


# ---- answers ------------------------------------------------------------------------------------
# Confirms in as few frames as may be.


def test_the_golden_frames():
    assert ack_frame(1, 7, is_multiple=True).hex() == "0100010000000d003c0050000000000000000701ce"
    nack = nack_frame(1, 7, is_multiple=True, is_requeue=True)
    assert nack.hex() == "0100010000000d003c0078000000000000000703ce"


def test_one_cumulative_answer_goes_before_single_ones():
    assert confirm_frames(1, 5, [8, 9]) == (
        ack_frame(1, 5, is_multiple=True) + ack_frame(1, 8) + ack_frame(1, 9)
    )
    assert confirm_frames(1, None, [3], is_ack=False) == nack_frame(1, 3)
    assert confirm_frames(1, None, []) == b""
