"""Errors as a close needs them."""

from penstock.wire.amqp.codes import AmqpError, ReplyCode


def test_only_the_soft_codes_spare_the_connection():
    soft = {code for code in ReplyCode if not code.is_hard}
    assert soft == {311, 312, 313, 403, 404, 405, 406}


def test_reply_text_names_the_code_and_is_cut_at_a_character():
    assert AmqpError(ReplyCode.NOT_FOUND, "no queue 'q'").reply_text == "NOT_FOUND - no queue 'q'"
    text = AmqpError(ReplyCode.NOT_FOUND, "é" * 200).reply_text
    assert len(text.encode()) == 254
    assert text.endswith("é")


def test_the_place_of_an_error_is_the_first_one_named():
    error = AmqpError(ReplyCode.FRAME_ERROR, "x", channel=3).about(4, 60, 40).about(5, 1, 1)
    assert (error.channel, error.class_id, error.method_id) == (3, 60, 40)
