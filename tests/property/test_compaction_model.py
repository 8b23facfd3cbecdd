"""A compacted topic against a dictionary: random keys, deletions, batches, restarts, appends."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.pulsar.bench import PulsarBench
from kit.pulsar.compacted import NAME, Shelf, Till, compact, compacted, finish, keyed
from kit.pulsar_payload import COMPRESSIONS, batch_tail
from penstock.adapters.pulsar import compaction as room

KEYS = ["", "a", "b", "c", "d"]
"""The first: none."""


class Model:
    """Everything that was sent, and how far it was compacted."""

    def __init__(self):
        self.sent = []
        self.horizon = 0
        self.starting = None

    def expected(self):
        """What a reader gets: of each key the newest below the horizon, then the tail."""
        newest = {}
        for offset, (key, body) in enumerate(self.sent[: self.horizon]):
            if key:
                newest.pop(key, None)
                if body:
                    newest[key] = offset
        view = [self.sent[offset] for offset in sorted(newest.values())]
        return view + self.sent[self.horizon :]

    def table(self):
        """What is alive."""
        return alive(self.sent)


def alive(messages):
    table = {}
    for key, body in messages:
        if key and body:
            table[key] = body
        elif key:
            table.pop(key, None)
    return table


messages = st.tuples(st.sampled_from(KEYS), st.booleans())
"""(key, whether it has a value)."""
steps = st.one_of(
    st.tuples(st.just("send"), messages),
    st.tuples(
        st.just("batch"),
        st.lists(messages, min_size=1, max_size=6),
        st.sampled_from(COMPRESSIONS),
    ),
    st.tuples(st.just("compact")),
    st.tuples(st.just("begin"), st.integers(0, 6)),
    st.tuples(st.just("restart"), st.sampled_from(["stop", "kill", "cut_power"])),
    st.tuples(st.just("read")),
    st.tuples(st.just("consume"), st.integers(1, 5)),
)


class Run:
    """A broker and its model, step by step."""

    def __init__(self):
        self.bench = PulsarBench()
        self.model = Model()
        self.till = Till(self.bench)
        self.consumed = []
        self.number = 0

    def made(self, key, has_value):
        self.number += 1
        return keyed(key, b"%d" % self.number if has_value else b"")

    def send(self, message):
        self.till.send(each := self.made(*message))
        self.model.sent.append((each.key, each.body))

    def batch(self, several, compression):
        made = [self.made(*each) for each in several]
        self.till.raw(batch_tail(*made, compression=compression))
        self.model.sent += [(each.key, each.body) for each in made]

    def begin(self, pieces):
        """It runs, and does not end here."""
        compaction = self.bench.broker.compaction
        if self.model.starting is None:
            self.model.starting = len(self.model.sent)
            compaction.start(NAME)
        for _ in range(pieces):
            self.bench.clock.advance(room.PAUSE_MS)
            compaction.due(self.bench.clock.monotonic_ms())
            self.bench.settle()
        self.note_end()

    def note_end(self):
        if self.bench.broker.compaction.status(NAME).status == "SUCCESS" and self.model.starting:
            self.model.horizon = self.model.starting
        if self.bench.broker.compaction.status(NAME).status != "RUNNING":
            self.model.starting = None

    def compact(self):
        if self.model.starting is None:
            self.model.starting = len(self.model.sent)
            compact(self.bench)
        else:
            finish(self.bench)
        self.model.horizon = self.model.starting
        self.model.starting = None

    def restart(self, how):
        getattr(self.bench, how)()
        # A run that was not over is forgotten, or was over and only not told.
        views = self.bench.broker.compaction._views
        if views:
            self.model.horizon = views[NAME].horizon
        self.model.starting = None
        self.till = Till(self.bench)

    def read(self):
        assert compacted(self.bench) == self.model.expected()

    def consume(self, permits):
        """A durable subscription takes and acks some, and is gone again."""
        shelf = Shelf(self.bench, "durable", permits=permits)
        entries = shelf.entries()
        shelf.ack(*[entry for entry, _ in entries])
        self.consumed += [each for _, several in entries for each in several]
        shelf.client.vanish()

    def end(self):
        self.bench.pass_time(200)
        self.note_end()
        self.read()
        assert Shelf(self.bench, "fresh").got() == self.model.expected()
        self.consume(10_000)
        found = alive(self.consumed)
        for key, body in self.model.table().items():
            assert found.get(key) == body


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25))
def test_readers_see_the_newest_of_each_key_and_then_the_tail(script):
    run = Run()
    room_steps, room.PIECE_STEPS = room.PIECE_STEPS, 20
    try:
        for name, *arguments in script:
            getattr(run, name)(*arguments)
        run.end()
    finally:
        room.PIECE_STEPS = room_steps
