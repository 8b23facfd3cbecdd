"""Law 4 for held pulls: none sleeps while there is data for it, none is answered twice."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.flow.long_poll import HeldPulls

KEYS = st.sampled_from("abc")
TOTAL_MAX, PER_KEY_MAX = 8, 4


class Pull:
    """Asks for what lies at ``offset`` of a queue and carries ``tag``, or anything without one."""

    def __init__(self, key, offset, tag, deadline_ms, owner):
        self.key, self.offset, self.tag = key, offset, tag
        self.deadline_ms, self.owner = deadline_ms, owner


class LongPolling(RuleBasedStateMachine):
    """Queues that grow, readers that wait, clocks that run and peers that die."""

    @initialize()
    def start(self):
        self.pulls = HeldPulls(TOTAL_MAX, PER_KEY_MAX)
        self.queues = {key: [] for key in "abc"}
        self.waiting = []
        self.now_ms = 0

    def has_data(self, pull):
        return any(pull.tag in ("", tag) for tag in self.queues[pull.key][pull.offset :])

    @rule(
        key=KEYS,
        tag=st.sampled_from(["", "x", "y"]),
        wait_ms=st.integers(0, 50),
        owner=st.integers(1, 3),
    )
    def pull(self, key, tag, wait_ms, owner):
        offset = len(self.queues[key])
        pull = Pull(key, offset, tag, self.now_ms + wait_ms, owner)
        same = sum(each.key == key for each in self.waiting)
        is_held = self.pulls.hold(key, pull, pull.deadline_ms, owner=owner)
        assert is_held == (len(self.waiting) < TOTAL_MAX and same < PER_KEY_MAX)
        if is_held:
            self.waiting.append(pull)

    @rule(key=KEYS, tags=st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=3))
    def publish(self, key, tags):
        self.queues[key] += tags
        woken = self.pulls.arrived(key, self.has_data)
        expected = [pull for pull in self.waiting if pull.key == key and self.has_data(pull)]
        assert woken == expected
        self.left(woken)

    @rule(ms=st.integers(0, 30))
    def time_passes(self, ms):
        self.now_ms += ms
        due = self.pulls.due(self.now_ms)
        assert set(due) == {pull for pull in self.waiting if pull.deadline_ms <= self.now_ms}
        assert [pull.deadline_ms for pull in due] == sorted(pull.deadline_ms for pull in due)
        self.left(due)

    @rule(data=st.data())
    def cancel(self, data):
        if self.waiting:
            pull = data.draw(st.sampled_from(self.waiting))
            assert self.pulls.cancel(pull)
            self.left([pull])
            assert not self.pulls.cancel(pull)

    @rule(owner=st.integers(1, 3))
    def a_peer_dies(self, owner):
        gone = self.pulls.cancel_owner(owner)
        assert set(gone) == {pull for pull in self.waiting if pull.owner == owner}
        self.left(gone)

    @rule(key=KEYS)
    def a_queue_is_dropped(self, key):
        gone = self.pulls.cancel_key(key)
        assert gone == [pull for pull in self.waiting if pull.key == key]
        self.left(gone)

    def left(self, gone):
        self.waiting = [pull for pull in self.waiting if pull not in gone]

    @invariant()
    def the_table_is_what_waits(self):
        if not hasattr(self, "pulls"):
            return
        assert len(self.pulls) == len(self.waiting) <= TOTAL_MAX
        assert all(pull in self.pulls for pull in self.waiting)
        deadlines = [pull.deadline_ms for pull in self.waiting]
        assert self.pulls.next_deadline_ms == min(deadlines, default=None)

    @invariant()
    def none_waits_for_data_that_is_there(self):
        assert not any(self.has_data(pull) for pull in getattr(self, "waiting", ()))


TestLongPolling = LongPolling.TestCase
TestLongPolling.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
