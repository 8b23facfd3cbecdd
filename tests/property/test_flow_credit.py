"""Laws 1, 3, 4 and 7 for credit: bounded, never stuck, never asleep with work, always balanced."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.flow.credit import Credit, Stage
from penstock.flow.episodes import Journal

LIST_MAX = 30


class OneHop(RuleBasedStateMachine):
    """A sender that stops when told to, a receiver that works and is blocked at random."""

    @initialize(initial=st.integers(1, 40), data=st.data())
    def start(self, initial, data):
        self.sender, self.receiver = Stage("channel", "1"), Stage("queue", "q")
        self.elsewhere = Stage("log", "log")
        more = data.draw(st.integers(1, initial))
        self.credit = Credit(self.sender, self.receiver, initial=initial, more=more)
        self.in_flight = 0
        self.sent_max = initial

    @precondition(lambda self: not self.sender.is_blocked)
    @rule(n=st.integers(1, LIST_MAX))
    def send_a_list(self, n):
        self.credit.spend(n)
        self.in_flight += n

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def process(self, data):
        n = data.draw(st.integers(1, self.in_flight))
        self.in_flight -= n
        before = self.credit.available
        self.credit.processed(n)
        if self.receiver.is_blocked:
            # This alone carries pressure upstream.
            assert self.credit.available == before

    @rule()
    def the_receiver_is_held(self):
        self.receiver.block(self.elsewhere)

    @rule()
    def the_receiver_is_free(self):
        self.receiver.unblock(self.elsewhere)

    @rule(initial=st.integers(1, 40), data=st.data())
    def resize(self, initial, data):
        self.credit.resize(initial=initial, more=data.draw(st.integers(1, initial)))
        self.sent_max = max(self.sent_max, initial)

    @invariant()
    def credit_is_bounded(self):
        assert self.credit.available <= self.credit.initial
        assert self.credit.in_flight == self.in_flight <= self.sent_max + LIST_MAX

    @invariant()
    def the_sender_is_blocked_exactly_when_its_credit_is_spent(self):
        assert self.sender.is_blocked == (self.credit.available <= 0)

    @invariant()
    def a_free_receiver_owes_nothing_it_could_grant(self):
        if not self.receiver.is_blocked and self.in_flight == 0:
            assert not self.sender.is_blocked


class Node:
    """A stage with an inbox, run only when something marked it as runnable."""

    def __init__(self, name, journal, runnable):
        self.stage = Stage("stage", name, journal)
        self.stage.wake = lambda: runnable.add(self)
        self.runnable = runnable
        self.inbox = []
        self.is_dead = False
        self.outbound = {}

    def has_work(self):
        return bool(self.inbox) and not self.stage.is_blocked and not self.is_dead


class Layers(RuleBasedStateMachine):
    """Three to five layers of one or two stages; every message takes some path through them.

    A stage runs only while it is in ``runnable``, which arrivals and ``wake`` fill: a wake-up that
    gets lost shows at once as work nobody will do.
    """

    @initialize(data=st.data(), sizes=st.lists(st.integers(1, 2), min_size=3, max_size=5))
    def start(self, data, sizes):
        self.journal = Journal(0, memory_ms=0)
        self.runnable = set()
        self.layers = [
            [Node(f"{depth}{n}", self.journal, self.runnable) for n in range(size)]
            for depth, size in enumerate(sizes)
        ]
        for upper, lower in zip(self.layers, self.layers[1:], strict=False):
            for node in upper:
                for target in lower:
                    initial = data.draw(st.integers(1, 12))
                    more = data.draw(st.integers(1, initial))
                    node.outbound[target] = Credit(
                        node.stage, target.stage, initial=initial, more=more
                    )
        self.nodes = [node for layer in self.layers for node in layer]
        self.entered = dict.fromkeys((node.stage.name for node in self.nodes), 0)

    @rule(data=st.data(), n=st.integers(1, LIST_MAX))
    def publish(self, data, n):
        source = data.draw(st.sampled_from(self.layers[0]))
        if not source.is_dead and not source.stage.is_blocked:
            source.inbox.extend([None] * n)
            self.runnable.add(source)

    @rule(data=st.data())
    def run_one(self, data):
        ready = sorted((node for node in self.runnable), key=lambda node: node.stage.name)
        if ready:
            node = data.draw(st.sampled_from(ready))
            self.run(node, data.draw(st.integers(1, LIST_MAX)), data.draw(st.integers(0, 3)))

    @precondition(lambda self: sum(node.is_dead for node in self.nodes) < 2)
    @rule(data=st.data(), luck=st.integers(0, 3))
    def die(self, data, luck):
        if luck:
            # Death is rarer than work, or the chains would be dead before they fill up.
            return
        node = data.draw(st.sampled_from(self.nodes))
        node.is_dead = True
        node.inbox.clear()
        self.runnable.discard(node)
        for other in self.nodes:
            for target, credit in other.outbound.items():
                if node in (other, target):
                    credit.close()
        node.stage.close()

    @rule(ms=st.integers(1, 500))
    def time_passes(self, ms):
        self.journal.tick(self.journal.now_ms + ms)

    def run(self, node, n, choice):
        """One stage handles a list: spends downstream first, then reports it processed."""
        if not node.has_work():
            self.runnable.discard(node)
            return
        done, node.inbox = node.inbox[:n], node.inbox[n:]
        targets = [target for target in node.outbound if not target.is_dead]
        if targets:
            target = targets[choice % len(targets)]
            node.outbound[target].spend(len(done))
            target.inbox.extend([node] * len(done))
            self.runnable.add(target)
        for origin in {origin for origin in done if origin is not None}:
            origin.outbound[node].processed(done.count(origin))
        if not node.has_work():
            self.runnable.discard(node)

    @invariant()
    def every_hop_is_bounded(self):
        for node in getattr(self, "nodes", ()):
            for target, credit in node.outbound.items():
                assert target.inbox.count(node) <= credit.initial + LIST_MAX

    @invariant()
    def no_wake_up_is_lost(self):
        for node in getattr(self, "nodes", ()):
            assert node in self.runnable or not node.has_work(), node.stage

    @invariant()
    def reasons_are_balanced(self):
        for edge in self.journal.take_edges() if hasattr(self, "journal") else ():
            self.entered[edge.name] += 1 if edge.episode is None else -1
        for node in getattr(self, "nodes", ()):
            assert self.entered[node.stage.name] == node.stage.is_blocked

    def teardown(self):
        """Law 3: from wherever the machine stopped, running what is runnable frees everything."""
        if not hasattr(self, "nodes"):
            return
        rounds = 0
        while self.runnable:
            rounds += 1
            assert rounds <= len(self.layers) ** 2 + len(self.layers)
            for node in sorted(self.runnable, key=lambda node: node.stage.name):
                self.run(node, len(node.inbox) or 1, 0)
        assert not any(node.inbox for node in self.nodes)
        assert not any(node.stage.is_blocked for node in self.nodes)
        self.reasons_are_balanced()


TestOneHop = OneHop.TestCase
TestOneHop.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLayers = Layers.TestCase
TestLayers.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
