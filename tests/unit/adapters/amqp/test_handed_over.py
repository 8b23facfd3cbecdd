"""What a socket has taken of the deliveries."""

from penstock.adapters.amqp.answer_line import AnswerLine
from penstock.adapters.amqp.handed_over import HandedOver
from penstock.flow.budgets import UnsentLimit


def test_only_what_was_handed_over_is_taken():
    unsent = UnsentLimit(10, 1000)
    handed = HandedOver(unsent)
    unsent.queued(3, 30)
    handed.count([])
    unsent.queued(2, 20)
    assert not handed.taken()
    assert (unsent.messages, unsent.bytes) == (2, 20)
    assert not handed.taken()
    assert unsent.messages == 2


def test_what_waits_in_a_line_is_not_handed_over():
    unsent = UnsentLimit(10, 1000)
    handed = HandedOver(unsent)
    line = AnswerLine(lambda data: None, lambda: None)
    line.reserve()
    unsent.queued(5, 50)
    line.note_deliveries(2, 20)
    handed.count([line])
    handed.taken()
    assert (unsent.messages, unsent.bytes) == (2, 20)


def test_deliveries_go_on_when_half_of_the_limit_is_free():
    unsent = UnsentLimit(4, 1000)
    handed = HandedOver(unsent)
    assert unsent.queued(4, 40)
    handed.count([])
    assert handed.taken()
    assert not unsent.is_held
