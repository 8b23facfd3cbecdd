"""Rationed pages: fresh when cheap, kept when dear, a fixed share of the time at most."""

import pytest

from penstock.server.view import CachedPage


class Press:
    def __init__(self, cost):
        self.now = 0.0
        self.cost = cost
        self.made = 0

    def make(self):
        self.now += self.cost
        self.made += 1
        return self.made

    def timer(self):
        return self.now


@pytest.mark.parametrize("cost", [0.001, 0.2])
def test_however_often_it_is_asked_making_takes_a_fifth_of_the_time(cost):
    press = Press(cost)
    page = CachedPage(press.make, press.timer)
    while press.now < 100 * cost:
        page.get()
        press.now += cost / 10
    assert press.made * cost <= 0.2 * press.now + cost
    assert press.made > 15


def test_a_page_that_is_old_enough_is_made_again():
    press = Press(0.2)
    page = CachedPage(press.make, press.timer)
    assert page.get() == 1
    press.now += 0.5
    assert page.get() == 1
    press.now += 0.31
    assert page.get() == 2
