"""Confirms in as few frames as may be."""

from penstock.wire.amqp.answers import ack_frame, confirms, nack_frame


def test_the_golden_frames():
    assert ack_frame(1, 7, is_multiple=True).hex() == "0100010000000d003c0050000000000000000701ce"
    nack = nack_frame(1, 7, is_multiple=True, is_requeue=True)
    assert nack.hex() == "0100010000000d003c0078000000000000000703ce"


def test_one_cumulative_answer_goes_before_single_ones():
    assert confirms(1, 5, [8, 9]) == (
        ack_frame(1, 5, is_multiple=True) + ack_frame(1, 8) + ack_frame(1, 9)
    )
    assert confirms(1, None, [3], is_ack=False) == nack_frame(1, 3)
    assert confirms(1, None, []) == b""
