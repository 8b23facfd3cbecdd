"""How connections end in words."""

from penstock.adapters.amqp.closing import CLOSE_OK, Farewell, close_frame, shutdown
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.frames import method_frame
from penstock.wire.amqp.methods.connection import Close


def test_a_close_names_code_text_class_and_method():
    error = AmqpError(ReplyCode.NOT_ALLOWED, "no", class_id=10, method_id=40)
    assert close_frame(error) == method_frame(0, Close(530, "NOT_ALLOWED - no", 10, 40))


def test_shutdown_is_told_in_rabbitmqs_words():
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    assert str(shutdown()) == text


def test_close_ok_is_heard_however_it_is_cut():
    for cut in range(len(CLOSE_OK) + 1):
        farewell = Farewell(0)
        first = farewell.is_heard(b"rubbish" + CLOSE_OK[:cut])
        assert first is (cut == len(CLOSE_OK))
        assert first or farewell.is_heard(CLOSE_OK[cut:])


def test_close_ok_byte_by_byte_is_heard_with_the_last():
    farewell = Farewell(0)
    heard = [farewell.is_heard(bytes((octet,))) for octet in CLOSE_OK]
    assert heard == [False] * (len(CLOSE_OK) - 1) + [True]
