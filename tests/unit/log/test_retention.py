import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.retention import NOTHING_NEEDED, Retention, SegmentRow, SegmentUse
from penstock.log.segment import SegmentSet

SIZE = 1000


class Queue:
    """As much of an index as retention looks at."""

    def __init__(self, queue_id, next_offset=0, last_position=-1):
        self.queue_id = queue_id
        self.next_offset = self.staged_offset = next_offset
        self.last_position = last_position


class World:
    def __init__(self, keep_ms=0, keep_bytes_max=1 << 40):
        self.segments = SegmentSet()
        self.retention = Retention(self.segments, keep_ms=keep_ms, keep_bytes_max=keep_bytes_max)
        self.now_ms = 0

    def segment(self, **ends):
        """A full segment with entries of queues up to these offsets: q1=5."""
        self.segments.add(len(self.segments) * SIZE, SIZE)
        self.now_ms += 10
        queues = [Queue(int(name[1:]), end) for name, end in ends.items()]
        self.retention.note(queues, self.now_ms)

    def swept(self, needs, *, now_ms=10**9, covered=10**9):
        going = self.going(needs, now_ms, covered)
        trims = {}

        def trim(queue_id, offset):
            trims[queue_id] = max(offset, trims.get(queue_id, 0))

        free = ended(self.retention.let_go(going, needed(needs), trim))
        assert free == going
        return [segment.base // SIZE for segment in free], trims

    def going(self, needs, now_ms, covered=10**9, shortage_bytes=0):
        return ended(self.retention.sweep(needed(needs), now_ms, covered, shortage_bytes))


def needed(needs):
    return lambda queue_id: needs.get(queue_id, NOTHING_NEEDED)


def ended(steps):
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.fixture
def world():
    world = World()
    world.segment(q1=10)
    world.segment(q1=20, q2=5)
    world.segment(q1=30)
    world.segment(q1=40)
    return world


def test_a_segment_goes_when_no_queue_needs_anything_in_it(world):
    assert world.swept({1: 0, 2: 0})[0] == []
    assert world.swept({1: 9, 2: 5})[0] == []
    assert world.swept({1: 10, 2: 0})[0] == [0]
    assert world.swept({1: 25, 2: 5})[0] == [0, 1]
    assert world.swept({1: 40, 2: 5})[0] == [0, 1, 2]


def test_one_stuck_queue_pins_only_its_own_segment(world):
    removed, trims = world.swept({1: 40, 2: 4})
    assert removed == [0, 2]
    # Queue 1 has entries in segment 1, too: behind those that are gone nobody is to find a gap.
    assert trims == {1: 30}


def test_a_queue_that_does_not_exist_any_more_needs_nothing(world):
    removed, trims = world.swept({2: 5})
    assert removed == [0, 1, 2]
    assert trims == {1: 30, 2: 5}


def test_nothing_goes_that_the_last_durable_snapshot_does_not_cover(world):
    assert world.swept({}, covered=2 * SIZE)[0] == [0, 1]
    assert world.swept({}, covered=2 * SIZE - 8)[0] == [0]


@given(st.data())
def test_a_need_that_comes_back_between_two_steps_never_loses_its_segment(data):
    """Whoever comes to a queue finds what is readable then, and keeps it."""
    world = World()
    for _ in range(4):
        world.segment(**{f"q{queue}": (len(world.segments) + 1) * 10 for queue in range(1, 5)})
    lowest = {queue: data.draw(st.integers(0, 40)) for queue in range(1, 5)}
    readable = dict.fromkeys(lowest, 0)

    def trim(queue_id, offset):
        readable[queue_id] = max(readable[queue_id], offset)

    def steps():
        going = yield from world.retention.sweep(needed(lowest), 10**9, 10**9)
        return (yield from world.retention.let_go(going, needed(lowest), trim))

    running = steps()
    while True:
        if data.draw(st.booleans()):
            queue = data.draw(st.sampled_from(sorted(lowest)))
            lowest[queue] = readable[queue]
        try:
            next(running)
        except StopIteration as end:
            free = end.value
            break
    ends = [(segment.base // SIZE + 1) * 10 for segment in free]
    assert all(need >= end for need in lowest.values() for end in ends)


def test_a_pending_delay_pins_its_segment(world):
    world.retention.note_delayed(SIZE + 8, 1)
    assert world.swept({})[0] == [0, 2]
    world.retention.note_delayed(SIZE + 8, -1)
    assert world.swept({})[0] == [0, 1, 2]


def test_a_release_makes_its_original_needed(world):
    world.retention.note_delayed(8, 1)
    world.retention.note_released(8, 8, [(3, 7)])
    assert world.swept({3: 6})[0] == [1, 2]
    assert world.swept({3: 7})[0] == [0, 1, 2]


def test_a_release_stays_as_long_as_its_original(world):
    world.retention.note_delayed(8, 1)
    world.retention.note_released(8, SIZE + 8, [])
    # Segment 0 is pinned by queue 1; without segment 1 a rebuild would find the delay pending.
    assert world.swept({1: 9})[0] == []
    assert world.swept({1: 9, 2: 5})[0] == []
    # Unlinked together, a power cut could bring back the one and not the other.
    assert world.swept({1: 40})[0] == [0, 2]


def test_settled_data_stays_for_a_while():
    world = World(keep_ms=100)
    for _ in range(4):
        world.segment()
    assert world.swept({}, now_ms=109)[0] == []
    assert world.swept({}, now_ms=110)[0] == [0]
    assert world.swept({}, now_ms=125)[0] == [0, 1]


def test_settled_data_stays_only_up_to_a_size_oldest_first():
    world = World(keep_ms=10**6, keep_bytes_max=SIZE)
    for _ in range(4):
        world.segment()
    assert world.swept({}, now_ms=50)[0] == [0, 1]


def test_a_short_disk_gets_what_it_is_short_of_oldest_first_and_counts_what_is_leaving():
    world = World(keep_ms=10**6)
    for _ in range(4):
        world.segment()
    short = world.going({}, 50, shortage_bytes=SIZE + 1)
    assert [segment.base // SIZE for segment in short] == [0, 1]
    for segment in short:
        world.segments.discard(segment)
        world.retention.forget(segment)
    assert world.going({}, 50, shortage_bytes=2 * SIZE) == [], "as much is on its way"
    world.retention.left(segment.path for segment in short)
    assert len(world.going({}, 50, shortage_bytes=2 * SIZE)) == 1


def test_uses_are_found_again_in_rows_and_indexes(world):
    world.retention.note_delayed(8, 1)
    rows = {
        int(key): msgspec.json.decode(body, type=SegmentRow)
        for _, key, body in world.retention.capture()
    }
    again = Retention(world.segments, keep_ms=0, keep_bytes_max=0)
    indexes = [Queue(1, 40, last_position=3 * SIZE + 8), Queue(2, 5, last_position=SIZE + 8)]
    assert again.restore(rows, indexes, 4 * SIZE)
    world.retention = again
    assert world.swept({1: 30, 2: 5})[0] == [1, 2]
    world.segment(q1=50)
    assert world.swept({1: 39, 2: 5})[0] == [1, 2]
    assert world.swept({1: 40, 2: 5})[0] == [1, 2, 3]


def test_a_full_segment_without_a_row_is_noticed(world):
    rows = {
        int(key): msgspec.json.decode(body, type=SegmentRow)
        for _, key, body in world.retention.capture()
    }
    del rows[SIZE]
    again = Retention(world.segments, keep_ms=0, keep_bytes_max=0)
    assert not again.restore(rows, [], 4 * SIZE)


def test_the_row_of_a_removed_segment_goes(world):
    world.retention.capture()
    (first, *_) = world.segments
    world.segments.discard(first)
    world.retention.forget(first)
    assert ("segment", "0", None) in world.retention.capture()


def test_transient_queues_are_not_written_down():
    use = SegmentUse(0)
    use.fresh = {1: 5, 1 << 31: 6}
    row = msgspec.json.decode(use.row(has_ends=True)[2], type=SegmentRow)
    again = SegmentUse(0)
    again.restore(row)
    assert dict(again.ends()) == {1: 5}
    assert ended(again.is_needed(needed({1: 4})))
    assert not ended(again.is_needed(needed({})))
