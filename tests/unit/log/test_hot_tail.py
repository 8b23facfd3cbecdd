from hypothesis import given
from hypothesis import strategies as st

from penstock.log.hot_tail import HotTail
from penstock.model.record import Record


def records(start, count):
    return [Record(b"", position=position) for position in range(start, start + count)]


def keep(tail, kept, size_bytes):
    tail.add(kept, [record.position for record in kept], size_bytes)


def test_the_newest_records_are_found_and_unknown_ones_are_not():
    tail = HotTail(bytes_max=1000, records_max=100)
    kept = records(0, 3)
    keep(tail, kept, 30)
    assert tail.get_many([(0, 10), (2, 10), (9, 10)]) == [kept[0], kept[2], None]
    assert tail.get(1) is kept[1]


def test_a_frame_larger_than_half_the_tail_is_not_kept_and_drives_nothing_out():
    tail = HotTail(bytes_max=1000, records_max=100)
    keep(tail, records(0, 3), 30)
    keep(tail, records(100, 1), 501)
    keep(tail, records(200, 51), 51)
    assert (tail.get(100), tail.get(200)) == (None, None)
    assert tail.get(0) is not None


def test_a_stretch_as_it_was_written_is_found_across_both_generations():
    tail = HotTail(bytes_max=1000, records_max=20)
    kept = records(0, 8) + records(10, 8)
    keep(tail, kept[:8], 8)
    keep(tail, kept[8:], 8)
    positions = [record.position for record in kept]
    assert tail.run(positions) == kept
    assert tail.run(positions[3:12]) == kept[3:12]
    assert tail.run(positions[12:]) == kept[12:]
    assert tail.run([]) == []
    for other in (positions[::2], [*positions, 18], [8, *positions[8:]], [*positions[:3], 99]):
        assert tail.run(other) is None


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 300))))
def test_the_bounds_hold_and_the_last_frame_that_fits_is_always_there(frames):
    tail = HotTail(bytes_max=400, records_max=40)
    sizes = {}
    position = 0
    for count, size_bytes in frames:
        keep(tail, records(position, count), size_bytes)
        for each in range(position, position + count):
            sizes[each] = size_bytes / count
        fits = size_bytes <= 200
        assert (tail.get(position) is not None) == fits
        position += count
        there = [each for each in sizes if tail.get(each) is not None]
        assert len(there) == len(tail) <= 40
        assert sum(sizes[each] for each in there) <= 400.001
