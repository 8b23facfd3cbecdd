"""Limits of rows and bytes over queues."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.bulk.shares import Stretch, divide, ends_within


class Entries:
    """An index of single messages with these sizes."""

    def __init__(self, *sizes, store_ms=0):
        self.sizes = sizes
        self.store_ms = store_ms

    def bytes_between(self, start, end):
        return sum(self.sizes[start:end])

    def entries(self, start, _count):
        return [(0, start, 0, self.store_ms, self.sizes[start], 1, 0, 0)]


def stretch(*sizes, store_ms=0):
    return Stretch(Entries(*sizes, store_ms=store_ms), 0, len(sizes))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(0, 4000))
def test_shares_use_all_there_is_and_nobody_is_envied(wanted, total):
    shares = divide(wanted, total)
    assert sum(shares) == min(total, sum(wanted))
    for share, want in zip(shares, wanted, strict=True):
        assert share <= want
        # Who got less than it wants got at least as much as anybody, but for the rounding.
        assert share == want or share >= max(shares) - len(wanted)


@given(
    st.lists(st.lists(st.integers(1, 50), max_size=30), min_size=1, max_size=5),
    st.integers(0, 60),
    st.integers(0, 600),
)
def test_ends_keep_both_limits_and_always_move_on(queues, rows_max, bytes_max):
    stretches = [stretch(*sizes) for sizes in queues]
    ends = ends_within(stretches, rows_max, bytes_max)
    rows = sum(ends)
    size = sum(each._replace(end=end).size_bytes for each, end in zip(stretches, ends, strict=True))
    assert not rows_max or rows <= rows_max
    assert not bytes_max or size <= bytes_max or rows == 1
    assert rows > 0 or not any(queues)
    if not rows_max and not bytes_max:
        assert ends == [len(each) for each in queues]


def test_when_nothing_fits_the_oldest_message_goes():
    stretches = [stretch(500, store_ms=9), stretch(500, store_ms=5)]
    assert ends_within(stretches, 0, 10) == [0, 1]
