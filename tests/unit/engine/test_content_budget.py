"""Contents that are still arriving: what they draw, who waits, who goes on."""

import pytest

from penstock.engine.content_budget import FREE_BYTES, ContentBudget, ContentShare
from penstock.flow.budgets import BytesPool

MIB = 1 << 20


class Bench:
    def __init__(self):
        self.pool = BytesPool(4 * MIB)
        self.line = ContentBudget(self.pool)
        self.woken = []

    def share(self, name, bytes_max=8 * MIB):
        def wake():
            self.woken.append(name)

        return ContentShare(name, self.line, bytes_max=bytes_max, ms_max=500, wake=wake)


@pytest.fixture
def bench():
    return Bench()


def test_a_little_is_free(bench):
    share = bench.share("a")
    share.keep(FREE_BYTES, 0)
    assert bench.pool.used == 0
    assert share.may_read(0)


def test_more_is_drawn_from_the_pool_and_given_back(bench):
    share = bench.share("a")
    share.keep(MIB, 0)
    share.keep(2 * MIB, 0)
    assert bench.pool.used == bench.line.drawn_bytes == 2 * MIB
    share.keep(100, 0)
    assert bench.pool.used == bench.line.drawn_bytes == 0


def test_a_closed_connection_gives_everything_back(bench):
    share = bench.share("a")
    share.keep(2 * MIB, 0)
    share.close()
    assert bench.pool.used == bench.line.drawn_bytes == 0


def test_who_has_to_stop_is_counted_once_each_time(bench):
    share = bench.share("a")
    share.keep(4 * MIB, 0)
    for _ in range(3):
        share.keep(5 * MIB, 0)
    assert bench.line.waits == {"in-flight pool": 1}


def test_when_contents_fill_the_pool_the_first_goes_on_and_the_others_wait(bench):
    first, second = bench.share("a"), bench.share("b")
    first.keep(2 * MIB, 0)
    second.keep(2 * MIB, 0)
    first.keep(3 * MIB, 0)
    second.keep(3 * MIB, 0)
    assert first.may_read(0)
    assert not second.may_read(0)
    first.keep(0, 0)
    assert bench.woken[-1] == "b"
    assert second.may_read(0)
    assert not second.is_waiting


def test_when_publishes_fill_the_pool_everybody_waits(bench):
    publishes = bench.pool.share("publishes", 4 * MIB)
    assert bench.pool.take(publishes, 4 * MIB)
    share = bench.share("a")
    share.keep(MIB, 0)
    assert not share.may_read(0)
    bench.pool.give(publishes, 2 * MIB)
    assert bench.woken == ["a"]
    assert share.may_read(0)
    assert bench.pool.used == 3 * MIB


def test_the_first_in_line_is_told_when_it_is_contents_that_fill_the_pool_by_now(bench):
    publishes = bench.pool.share("publishes", 4 * MIB)
    assert bench.pool.take(publishes, 3 * MIB)
    first, second, third = bench.share("a"), bench.share("b"), bench.share("c")
    first.keep(3 * MIB, 0)
    assert not first.may_read(0)
    bench.pool.give(publishes, MIB + MIB // 2)
    second.keep(2 * MIB, 0)
    bench.woken.clear()
    third.keep(MIB, 0)
    assert bench.woken == ["a"]
    assert first.may_read(0)
    assert not third.may_read(0)


def test_who_is_let_through_must_be_done_in_time(bench):
    first, second = bench.share("a"), bench.share("b")
    first.keep(3 * MIB, 0)
    first.keep(5 * MIB, 1_000)
    second.keep(MIB * 2, 1_000)
    assert first.deadline_ms == 1_500
    assert first.overdue(1_499) is None
    assert second.overdue(1_600) is None
    assert first.overdue(1_500) == (
        "a content is not complete after 500 ms, others wait for its room"
    )
    first.close()
    assert second.may_read(1_600)
    assert second.deadline_ms is None


def test_whoever_keeps_more_than_one_message_hoards(bench):
    share = bench.share("a", MIB)
    assert share.keep(MIB, 0) is None
    assert share.keep(MIB + FREE_BYTES + 1, 0) == (
        f"contents that are not complete have {MIB + FREE_BYTES + 1} bytes"
    )
