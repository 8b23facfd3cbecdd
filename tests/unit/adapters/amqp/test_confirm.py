"""Confirms of a channel: numbers in, as few frames as can say it out."""

from penstock.adapters.amqp.confirm import Confirms
from penstock.wire.amqp.serializer import ack_frame, nack_frame


def test_what_is_complete_is_one_cumulative_ack():
    confirms = Confirms(3)
    assert confirms.expect(5) == 1
    confirms.acked([1, 2, 3])
    confirms.acked([4])
    assert confirms.take() == ack_frame(3, 4, is_multiple=True)
    assert confirms.outstanding == 1


def test_what_lies_behind_an_open_one_is_said_singly():
    confirms = Confirms(1)
    confirms.expect(4)
    confirms.acked([3, 4])
    assert confirms.take() == ack_frame(1, 3) + ack_frame(1, 4)


def test_refused_ones_are_nacks_after_the_acks():
    confirms = Confirms(1)
    confirms.expect(4)
    confirms.nacked([2])
    confirms.acked([1, 3, 4])
    assert confirms.take() == b"".join(
        [ack_frame(1, 1), ack_frame(1, 3), ack_frame(1, 4), nack_frame(1, 2)]
    )


def test_what_was_published_before_the_select_is_nobodys_business():
    confirms = Confirms(1)
    confirms.expect(1)
    confirms.acked([0, 0, 1])
    confirms.nacked([0])
    assert confirms.take() == ack_frame(1, 1)


def test_nothing_to_say_is_no_bytes():
    assert Confirms(1).take() == b""


def test_an_answer_out_of_order_is_the_same_in_any_order():
    confirms = Confirms(1)
    confirms.expect(4)
    confirms.acked([2, 1, 4])
    assert confirms.take() == ack_frame(1, 2, is_multiple=True) + ack_frame(1, 4)
    confirms.acked([3])
    assert confirms.take() == ack_frame(1, 3)
    assert confirms.outstanding == 0
