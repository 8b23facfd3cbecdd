"""Law 2 for the pool, in bytes: never above its maximum, whatever its owners do."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.flow.budgets import BytesPool


class Owners(RuleBasedStateMachine):
    """Owners that take, give, come and go; a refused one sleeps until it is woken."""

    @initialize(
        bytes_max=st.integers(1, 100),
        shares=st.lists(st.integers(1, 150), min_size=1, max_size=6),
    )
    def start(self, bytes_max, shares):
        self.pool = BytesPool(bytes_max)
        self.shares = []
        self.used = {}
        self.asleep = {}
        for size in shares:
            self.join(size)

    def join(self, size):
        share = self.pool.share(f"owner {len(self.shares)}", size)
        share.wake = lambda: self.asleep.pop(share, None)
        self.shares.append(share)
        self.used[share] = 0

    @rule(data=st.data(), size=st.integers(1, 120))
    def take(self, data, size):
        share = data.draw(st.sampled_from(self.shares))
        could = self.pool.can_take(share, size)
        assert self.pool.take(share, size) == could
        self.asleep.pop(share, None)
        if could:
            self.used[share] += size
        elif size <= self.pool.bytes_max:
            self.asleep[share] = size

    @rule(data=st.data())
    def give(self, data):
        share = data.draw(st.sampled_from(self.shares))
        size = data.draw(st.integers(0, self.used[share]))
        self.used[share] -= size
        self.pool.give(share, size)

    @rule(data=st.data(), size=st.integers(1, 150))
    def one_dies_and_another_comes(self, data, size):
        share = data.draw(st.sampled_from(self.shares))
        self.shares.remove(share)
        self.used.pop(share)
        self.asleep.pop(share, None)
        self.pool.close(share)
        self.join(size)

    @invariant()
    def the_pool_is_never_overdrawn(self):
        if hasattr(self, "pool"):
            assert self.pool.used == sum(self.used.values()) <= self.pool.bytes_max
            assert all(share.used == used for share, used in self.used.items())

    @invariant()
    def a_share_is_overdrawn_by_one_piece_at_most(self):
        for share in getattr(self, "shares", ()):
            if share.used > share.bytes_max:
                assert not share.fits(1)

    def teardown(self):
        """No lost wake-up: when everything came back, nobody is left asleep."""
        for share in getattr(self, "shares", ()):
            self.pool.give(share, self.used[share])
        assert getattr(self, "asleep", {}) == {}


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
