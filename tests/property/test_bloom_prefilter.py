"""With and without bit maps a reader gets the same messages, whatever happened when."""

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.workbench import Workbench
from penstock.engine.filter.bit_maps import BitMaps, BloomShape
from penstock.engine.filter.sql92 import SqlFilter, compile_selector
from penstock.engine.pull import Pull, PullStatus
from penstock.model.record import neutral_record

SELECTORS = [compile_selector(text) for text in ("n = 1", "n > 1", "n IS NOT NULL AND n <> 2", "m")]
READERS = ["g0#t", "g1#t", "g2#t"]

PUBLISH = st.tuples(st.just("publish"), st.lists(st.integers(-1, 4), min_size=2, max_size=6))
REGISTER = st.tuples(st.just("register"), st.sampled_from(READERS), st.sampled_from(SELECTORS))
SELDOM = st.sampled_from(
    [()] * 8 + [(("unregister", reader),) for reader in READERS] + [(("restart",),)]
)
# Phases, because what can go wrong is between a registration and the next message.
PHASE = st.tuples(st.lists(REGISTER, max_size=2), PUBLISH, SELDOM).map(
    lambda phase: [*phase[0], phase[1], *phase[2]]
)
STEPS = st.lists(PHASE, min_size=2, max_size=6).map(lambda phases: list(chain(*phases)))


def properties(record):
    """-1 has no property; 4 is no number."""
    text = record.body.decode()
    return {} if text == "-1" else {"n": "four" if text == "4" else text}


class World:
    """An engine whose appends are mapped, and readers with selectors."""

    def __init__(self, shape, maps_per_queue_max):
        self.make = lambda: BitMaps(properties, shape, maps_per_queue_max=maps_per_queue_max)
        self.bench = Workbench()
        self.topic = self.bench.topic()
        self.selectors = {}
        self.start()

    def start(self):
        self.maps = self.make()
        self.bench.engine.watch_appends(self.maps.appended)
        self.channel = self.bench.channel()
        self.topic = self.bench.engine.topic(self.topic.name)

    def publish(self, numbers):
        records = [neutral_record(str(number).encode()) for number in numbers]
        self.bench.publish(self.channel, self.topic, *records)
        self.bench.settle()

    def register(self, reader, selector):
        self.selectors[reader] = selector
        self.maps.register(reader, selector, [self.topic.queues[0].queue_id])

    def unregister(self, reader):
        self.maps.unregister(reader)

    def restart(self):
        self.bench.stop()
        self.start()

    def read(self, reader, prefilter):
        """Everything, by pulls that go on where the last one ended."""
        found, offset = [], 0
        selector = SqlFilter(self.selectors[reader], properties)
        while True:
            pull = Pull(self.bench.outlet, self.topic.queues[0], offset, messages_max=3)
            pull.filter, pull.prefilter = selector, prefilter
            result = self.bench.engine.pulls.read(pull)
            if result.status is PullStatus.NO_NEW:
                return found
            found += [record.body for record in result.records]
            offset = result.next_offset


@settings(max_examples=100, deadline=None)
@given(STEPS, st.sampled_from([BloomShape(), BloomShape(50, 1)]), st.sampled_from([4, 100]))
def test_the_same_messages_with_and_without_maps(steps, shape, maps_per_queue_max):
    world = World(shape, maps_per_queue_max)
    for verb, *arguments in steps:
        getattr(world, verb)(*arguments)
    queue_id = world.topic.queues[0].queue_id
    for reader in world.selectors:
        judge = world.maps.prefilter(reader, queue_id)
        assert world.read(reader, judge) == world.read(reader, None)


def test_maps_spare_the_reading_of_what_is_refused():
    world = World(BloomShape(), 100)
    world.register("g0#t", SELECTORS[0])
    world.publish([1, 2, 3, 2, 1])
    asked = []
    judge = world.maps.prefilter("g0#t", world.topic.queues[0].queue_id)

    def may_match(offset):
        asked.append((offset, judge.may_match(offset)))
        return asked[-1][1]

    found = world.read("g0#t", type("Judge", (), {"may_match": staticmethod(may_match)}))
    assert found == [b"1", b"1"]
    assert asked == [(0, True), (1, False), (2, False), (3, False), (4, True)]
