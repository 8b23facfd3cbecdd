"""Room for transactions: a part of the pool, each connection its share, nobody waits."""

from penstock.adapters.amqp.tx_room import TxRoom
from penstock.flow.budgets import BytesPool
from penstock.model.ids import ConnectionId

ONE, OTHER = ConnectionId(1), ConnectionId(2)


def test_a_connection_has_its_share_and_all_together_a_quarter_of_the_pool():
    pool = BytesPool(400)
    room = TxRoom(pool, 60)
    assert room.take(ONE, 60)
    assert not room.take(ONE, 1), "its share"
    assert not room.take(OTHER, 41), "a quarter"
    assert room.take(OTHER, 40)
    assert (room.bytes, pool.used) == (100, 100)


def test_what_is_refused_holds_nothing_and_stands_in_no_line():
    pool = BytesPool(400)
    room = TxRoom(pool, 1000)
    assert not room.take(ONE, 101)
    assert (room.bytes, pool.refusals, pool._waiting) == (0, 0, {})


def test_given_back_is_there_for_others():
    room = TxRoom(BytesPool(400), 100)
    assert room.take(ONE, 100)
    room.give(ONE, 100)
    room.give(ONE, 0)
    assert room.take(OTHER, 100)


def test_a_pool_that_publishers_have_filled_has_no_room():
    pool = BytesPool(400)
    pool.take(pool.share("publisher", 400), 390)
    assert not TxRoom(pool, 100).take(ONE, 11)
