"""Demand (F10, F11) and the limits that resume at half: conserved, exact, and never asleep."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.flow.budgets import PendingLimit, UnsentLimit
from penstock.flow.demand import UNLIMITED, ChannelWindow, InflightLimit, Permits, Window


class Consumers(RuleBasedStateMachine):
    """Consumers of one channel: those that asked and got nothing must hear when they may take."""

    @initialize(
        counts=st.lists(st.integers(0, 5), min_size=1, max_size=4), shared=st.integers(0, 6)
    )
    def start(self, counts, shared):
        self.channel = ChannelWindow(shared)
        self.windows = [Window(count, self.channel) for count in counts]
        self.unsettled = [0] * len(counts)
        self.asleep = set()
        for number, window in enumerate(self.windows):
            window.wake = lambda number=number: self.asleep.discard(number)

    def pick(self, data):
        return data.draw(st.integers(0, len(self.windows) - 1))

    @rule(data=st.data())
    def take_what_is_available(self, data):
        number = self.pick(data)
        room = self.windows[number].available_messages()
        if room == 0:
            self.asleep.add(number)
            return
        n = data.draw(st.integers(1, min(room, 10)))
        # A batch is never split: it may be larger than what was left.
        n += data.draw(st.integers(0, 2))
        self.windows[number].taken(n, n)
        self.unsettled[number] += n

    @rule(data=st.data())
    def settle(self, data):
        number = self.pick(data)
        n = data.draw(st.integers(0, self.unsettled[number]))
        self.unsettled[number] -= n
        self.windows[number].returned(n, n)

    @rule(data=st.data(), count=st.integers(0, 5))
    def resize_a_window(self, data, count):
        self.windows[self.pick(data)].resize(count)

    @rule(count=st.integers(0, 6))
    def resize_the_channel(self, count):
        self.channel.resize(count)

    @invariant()
    def nobody_sleeps_who_could_take(self):
        for number in getattr(self, "asleep", ()):
            assert self.expected(number) == 0

    @invariant()
    def availability_is_exact(self):
        for number, window in enumerate(getattr(self, "windows", ())):
            own = self.unsettled[number]
            assert window.unsettled == own
            if number not in self.asleep:
                assert window.available_messages() == self.expected(number)

    def expected(self, number):
        def room(count, used):
            return max(0, count - used) if count else UNLIMITED

        own = room(self.windows[number].count, self.unsettled[number])
        return min(own, room(self.channel.count, sum(self.unsettled)))


class PulsarConsumer(RuleBasedStateMachine):
    """Permits are conserved: granted = taken + left + kept aside."""

    @initialize()
    def start(self):
        self.permits = Permits()
        self.granted = self.taken = 0
        self.is_asleep = True
        self.permits.wake = self.woken

    def woken(self):
        self.is_asleep = False

    @rule(n=st.integers(1, 100))
    def flow(self, n):
        self.permits.add(n)
        self.granted += n

    @rule(batch=st.integers(1, 50))
    def dispatch(self, batch):
        if self.permits.available_messages() == 0:
            self.is_asleep = True
            return
        self.permits.taken(batch, 0)
        self.taken += batch

    @rule()
    def block(self):
        self.permits.block()

    @rule()
    def unblock(self):
        self.permits.unblock()

    @invariant()
    def permits_are_conserved(self):
        permits = self.permits
        assert permits.permits + permits.aside == self.granted - self.taken
        assert permits.aside == 0 or permits.is_blocked
        available = permits.available_messages()
        assert available == (0 if permits.is_blocked else max(0, self.granted - self.taken))
        assert available == 0 or not self.is_asleep


TestConsumers = Consumers.TestCase
TestConsumers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPulsarConsumer = PulsarConsumer.TestCase
TestPulsarConsumer.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

STEPS = st.lists(st.integers(-20, 20), max_size=60)


def walk(steps):
    """Turn numbers into (change, level), never below zero."""
    level = 0
    for step in steps:
        change = max(step, -level)
        level += change
        yield change, level


@settings(max_examples=100, deadline=None)
@given(limit=st.integers(1, 30), steps=STEPS)
def test_a_limit_holds_from_its_maximum_to_its_half(limit, steps):
    pending, messages = PendingLimit(limit), InflightLimit(limit, 0)
    sizes, unsent = InflightLimit(0, limit), UnsentLimit(0, limit)
    is_held = False
    for change, level in walk(steps):
        was_held = is_held
        is_held = level > limit // 2 if is_held else level >= limit
        if change >= 0:
            seen = (
                pending.add(change),
                messages.add(change),
                sizes.add(0, change),
                unsent.queued(0, change),
            )
            assert set(seen) == {is_held}
        else:
            seen = (
                pending.done(-change),
                messages.remove(-change),
                sizes.remove(0, -change),
                unsent.sent(0, -change),
            )
            assert set(seen) == {was_held and not is_held}
        states = (pending.is_held, messages.is_blocked, sizes.is_blocked, unsent.is_held)
        assert set(states) == {is_held}
        assert messages.available()[0] == (0 if is_held else limit - level)
