"""T5: one flipped bit below the synced mark is always noticed and costs at most one record."""

import random

import pytest

from kit.log_maker import LogMaker
from penstock.log.format import HEAD_BYTES
from penstock.log.reader import LogReader
from penstock.log.scan import LogScan
from penstock.log.segment import SegmentSet
from penstock.testing.storage import MemoryStorage

FLIPS = 1_000
FLIPS_LONG = 10_000


@pytest.fixture(scope="module")
def synced():
    """A log of several segments with records of many sizes, all of it below the mark."""
    rng = random.Random(5)
    maker = LogMaker(MemoryStorage(), segment_bytes_max=8192)
    for _ in range(30):
        # Lengths that are powers of two apart: a flipped length may lead to another good record.
        sizes = [rng.choice((0, 20, 28, 156, 156, 412, 90)) for _ in range(rng.randint(1, 6))]
        maker.append(*(rng.randbytes(size) for size in sizes))
        if rng.random() < 0.2:
            maker.mark()
    mark = maker.mark()
    return maker, mark


def flips(request, mark: int):
    """(position, bit) pairs, evenly over all bytes below the mark."""
    seed = request.config.getoption("--seed", default=None) or 20_240
    count = FLIPS_LONG if request.config.getoption("--long", default=False) else FLIPS
    print(f"seed {seed}")
    rng = random.Random(seed)
    return [(rng.randrange(mark), rng.randrange(8)) for _ in range(count)]


def test_every_flip_is_noticed_and_costs_at_most_one_record(request, synced):
    maker, mark = synced
    storage, made = maker.storage, maker.records
    wanted = [(m.position, m.length) for m in made]
    head_bytes = {
        position + byte for position in maker.frame_positions for byte in range(HEAD_BYTES)
    }
    for position, bit in flips(request, mark):
        segment = maker.segments.find(position)
        content = storage.files[segment.path]
        content[position - segment.base] ^= 1 << bit
        try:
            segments = SegmentSet.load(storage)
            scan = LogScan(storage, segments)
            found = [record[0] for record in scan.records()]
            report = scan.report
            read = LogReader(storage, segments).read_many(wanted)
        finally:
            content[position - segment.base] ^= 1 << bit
        place = f"bit {bit} at position {position}"

        assert report.is_damaged, f"{place}: not noticed"
        assert report.torn_tail is None, place
        assert not report.dropped, place
        lost = [m.position for m in made if m.position not in set(found)]
        hit = [m.position for m in made if m.position <= position < m.position + m.length]
        assert lost == hit, f"{place}: lost {lost}"
        assert (position in head_bytes) == (not hit), place
        assert len(found) == len(made) - len(hit), f"{place}: invented a record"
        for m, record in zip(made, read, strict=True):
            if m.position in hit:
                assert record is None, f"{place}: a damaged record was believed"
            else:
                assert record is not None, f"{place}: a good record was refused"
                assert record.origin == m.origin, f"{place}: wrong payload"


def test_damage_does_not_stop_recovery_from_going_on(request, synced):
    maker, mark = synced
    for position, bit in flips(request, mark)[:40]:
        storage = MemoryStorage()
        storage.dirs = set(maker.storage.dirs)
        storage.files = {path: bytearray(data) for path, data in maker.storage.files.items()}
        segment = maker.segments.find(position)
        storage.files[segment.path][position - segment.base] ^= 1 << bit
        scan = LogScan(storage, SegmentSet.load(storage))
        before = [record[0] for record in scan.records()]
        scan.finish()
        again = LogMaker(storage, segment_bytes_max=8192)
        fresh = again.append(b"after the damage", durable_upto=mark)
        after = [record[0] for record in LogScan(storage, SegmentSet.load(storage)).records()]
        assert after == [*before, fresh[0].position]
