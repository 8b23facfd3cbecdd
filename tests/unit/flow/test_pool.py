"""The pool of in-flight bytes (D22)."""

import pytest

from penstock.flow.pool import BytesPool


def test_shares_are_parts_of_the_pool_never_additions():
    pool = BytesPool(100)
    shares = [pool.share(f"c{n}", 60) for n in range(3)]
    assert pool.take(shares[0], 60)
    assert not pool.take(shares[0], 1)
    assert pool.take(shares[1], 40)
    assert not pool.take(shares[2], 1)
    assert (pool.used, pool.peak, pool.refusals) == (100, 100, 2)


def test_a_share_is_never_larger_than_the_pool():
    assert BytesPool(100).share("c", 1000).bytes_max == 100
    with pytest.raises(ValueError, match="at least 1"):
        BytesPool(0)


def test_an_empty_share_takes_one_piece_larger_than_itself():
    pool = BytesPool(100)
    share = pool.share("c", 10)
    assert pool.take(share, 50)
    assert not pool.take(share, 1)


def test_a_refused_owner_is_woken_when_its_own_share_has_room():
    pool = BytesPool(100)
    share, woken = pool.share("c", 10), []
    share.wake = lambda: woken.append("c")
    pool.take(share, 8)
    assert not pool.take(share, 5)
    pool.give(share, 2)
    assert woken == []
    pool.give(share, 2)
    assert woken == ["c"]
    assert pool.take(share, 5)
    pool.give(share, 5)
    assert woken == ["c"]


def test_owners_refused_by_the_pool_are_woken_in_the_order_they_asked():
    pool, woken = BytesPool(10), []
    rich = pool.share("rich", 10)
    pool.take(rich, 10)
    for name, size in (("first", 4), ("large", 8), ("small", 1)):
        share = pool.share(name, 10)
        share.wake = lambda name=name: woken.append(name)
        assert not pool.take(share, size)
    pool.give(rich, 4)
    # The large one is next: the small one behind it must not eat its room for ever.
    assert woken == ["first"]
    pool.give(rich, 6)
    assert woken == ["first", "large", "small"]


def test_a_full_share_does_not_stand_in_the_way_of_others():
    pool, woken = BytesPool(10), []
    stuck, other = pool.share("stuck", 5), pool.share("other", 5)
    rich = pool.share("rich", 10)
    other.wake = lambda: woken.append("other")
    pool.take(stuck, 5)
    pool.take(rich, 5)
    assert not pool.take(stuck, 5)
    assert not pool.take(other, 2)
    pool.give(rich, 2)
    assert woken == ["other"]


def test_more_than_the_whole_pool_is_refused_without_blocking_the_queue():
    pool, woken = BytesPool(10), []
    giant, other, rich = pool.share("g", 10), pool.share("o", 10), pool.share("r", 10)
    other.wake = lambda: woken.append("other")
    pool.take(rich, 10)
    assert not pool.take(giant, 11)
    assert not pool.take(other, 1)
    pool.give(rich, 10)
    assert woken == ["other"]


def test_a_dead_owner_gives_everything_back_and_is_not_woken():
    pool, woken = BytesPool(10), []
    dead, other = pool.share("dead", 10), pool.share("other", 10)
    dead.wake = lambda: woken.append("dead")
    other.wake = lambda: woken.append("other")
    pool.take(dead, 10)
    pool.take(dead, 1)
    pool.take(other, 3)
    pool.close(dead)
    assert (pool.used, woken) == (0, ["other"])
    with pytest.raises(AssertionError, match="more given back"):
        pool.give(other, 1)
