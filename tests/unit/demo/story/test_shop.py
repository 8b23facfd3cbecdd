"""The shop's book, with a till that answers as it is told."""

import json
import threading

from penstock.demo.story import shop as shops
from penstock.demo.story.shop import SendOutcome, Shop

ANSWER_S_MAX = 10


class OrderPublisher:
    name = "test"
    has_room = True

    def __init__(self, fates):
        self.fates = iter(fates)
        self.sent = []
        self.is_out = threading.Event()
        self.is_closed = False

    def send(self, key, body, on_fate):
        fate = next(self.fates, None)
        if fate is None:
            self.is_out.set()
            return
        self.sent.append((key, json.loads(body)))
        on_fate(fate, "busy" if fate is SendOutcome.REFUSED else "")

    def close(self):
        self.is_closed = True


def sold(monkeypatch, fates):
    monkeypatch.setattr(shops, "TICK_S", 0.0001)
    monkeypatch.setattr(shops, "PAUSE_S", 0.0)
    publisher = OrderPublisher(fates)
    shop = Shop([publisher], per_second=100_000)
    shop.open()
    assert publisher.is_out.wait(ANSWER_S_MAX)
    shop.close()
    return shop, publisher


def test_every_order_has_its_own_number_and_is_booked_by_its_answer(monkeypatch):
    fates = [SendOutcome.CONFIRMED, SendOutcome.REFUSED, SendOutcome.UNKNOWN, SendOutcome.CONFIRMED]
    shop, publisher = sold(monkeypatch, fates)
    assert [order["id"] for _, order in publisher.sent] == [0, 1, 2, 3]
    assert (shop.confirmed, shop.unknown, shop.refused) == ({0, 3}, {2}, 1)
    assert shop.outstanding == shop.placed - 4
    assert publisher.is_closed


def test_what_each_order_comes_to_is_in_the_book(monkeypatch):
    shop, publisher = sold(monkeypatch, [SendOutcome.CONFIRMED] * 5)
    sent = [order["cents"] * order["quantity"] for _, order in publisher.sent]
    assert shop.amounts[:5] == sent


def test_the_last_refusal_keeps_its_reason(monkeypatch):
    assert sold(monkeypatch, [SendOutcome.REFUSED, SendOutcome.CONFIRMED])[0].last_reason == "busy"


def test_a_shop_that_never_opened_can_be_closed():
    publisher = OrderPublisher([])
    Shop([publisher], per_second=1).close()
    assert publisher.is_closed


def test_a_till_without_room_is_passed_over(monkeypatch):
    monkeypatch.setattr(shops, "TICK_S", 0.0001)
    full, free = OrderPublisher([]), OrderPublisher([SendOutcome.CONFIRMED] * 6)
    full.has_room, full.name = False, "full"
    shop = Shop([full, free], per_second=100_000)
    shop.open()
    assert free.is_out.wait(ANSWER_S_MAX)
    shop.close()
    assert len(free.sent) == 6
    assert full.sent == []
    assert set(shop.sent_by) == {"test"}


def test_without_room_anywhere_no_order_is_placed(monkeypatch):
    monkeypatch.setattr(shops, "TICK_S", 0.0001)
    full = OrderPublisher([SendOutcome.CONFIRMED])
    full.has_room = False
    shop = Shop([full], per_second=100_000)
    shop.open()
    shop.close()
    assert (shop.placed, full.sent) == (0, [])
