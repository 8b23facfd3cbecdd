"""Pages in pieces: fresh when cheap, kept when dear, a fixed share of the time at most."""

import asyncio
import gc
import weakref

import pytest

from penstock.server.view import STEPS_A_PIECE, CachedPage


class Press:
    """Makes pages; its clock goes on with every step of that."""

    def __init__(self, cost, steps=1):
        self.now = 0.0
        self.cost = cost
        self.made = 0
        self.steps = steps

    def make(self):
        for _ in range(self.steps):
            self.now += self.cost / self.steps
            yield 1
        self.made += 1
        return self.made

    def timer(self):
        return self.now


@pytest.mark.parametrize("cost", [0.001, 0.2])
def test_however_often_it_is_asked_making_takes_a_fifth_of_the_time(cost):
    press = Press(cost)

    async def scene():
        page = CachedPage(press.make, press.timer)
        while press.now < 100 * cost:
            await page.get()
            press.now += cost / 10

    asyncio.run(scene())
    assert press.made * cost <= 0.2 * press.now + cost
    assert press.made > 15


def test_a_page_that_is_old_enough_is_made_again():
    press = Press(0.2)

    async def scene():
        page = CachedPage(press.make, press.timer)
        assert await page.get() == 1
        press.now += 0.5
        assert await page.get() == 1
        press.now += 0.31
        assert await page.get() == 2

    asyncio.run(scene())


def test_a_page_of_many_steps_lets_others_run_between_its_pieces_and_is_made_once_for_all():
    press, pieces = Press(0.2, steps=10 * STEPS_A_PIECE), []

    async def watch():
        while not press.made:
            pieces.append(press.now)
            await asyncio.sleep(0)

    async def scene():
        page = CachedPage(press.make, press.timer)
        first, second, _ = await asyncio.gather(page.get(), page.get(), watch())
        assert (first, second, press.made) == (1, 1, 1)

    asyncio.run(scene())
    assert len(set(pieces)) >= 10


def test_who_hangs_up_does_not_take_the_page_away_from_the_others():
    press = Press(0.2, steps=3 * STEPS_A_PIECE)

    async def scene():
        page = CachedPage(press.make, press.timer)
        gone = asyncio.create_task(page.get())
        stays = asyncio.create_task(page.get())
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == 1

    asyncio.run(scene())


def test_a_page_that_nobody_asks_for_any_more_is_given_back(monkeypatch):
    monkeypatch.setattr("penstock.server.view.IDLE_SECONDS", 0.0)

    class Page:
        """Something large."""

    def make():
        yield 1
        return Page()

    async def scene():
        page = CachedPage(make, lambda: 0.0)
        large = weakref.ref(await page.get())
        gc.collect()
        assert large() is not None, "somebody may ask again"
        while large() is not None:
            await asyncio.sleep(0)
            gc.collect()
        assert await page.get()

    asyncio.run(asyncio.wait_for(scene(), 10))


def test_a_page_that_cannot_be_made_is_tried_again():
    failures = ["no"]

    def make():
        yield 1
        if failures:
            raise ValueError(failures.pop())
        return "page"

    async def scene():
        page = CachedPage(make)
        with pytest.raises(ValueError, match="no"):
            await page.get()
        assert await page.get() == "page"

    asyncio.run(scene())
