"""T4: whatever byte the last write was cut at, the log recovers to its longest whole prefix."""

import pytest

from kit.log_maker import LogMaker, recover
from penstock.log.segment import SegmentSet
from penstock.log.storage import DiskStorage
from penstock.testing.storage import MemoryStorage

BODIES = (
    (b"a" * 40, b"b" * 7, b"c"),
    (b"d" * 120,),
    (b"e" * 16, b"f" * 33, b"g" * 3, b""),
    (b"h" * 90, b"i" * 64),
    (b"j" * 25, b"k" * 50, b"l"),
    (b"m" * 77,),
)
TORN_FRAMES = 3


@pytest.fixture
def whole():
    """A log of six frames whose last three are not known to be synced."""
    maker = LogMaker(MemoryStorage(), segment_bytes_max=1500)
    synced = 0
    for number, bodies in enumerate(BODIES):
        if number == len(BODIES) - TORN_FRAMES:
            synced = maker.writer.end_position
        maker.append(*bodies, durable_upto=synced)
    return maker


def copy_of(storage: MemoryStorage) -> MemoryStorage:
    twin = MemoryStorage()
    twin.dirs = set(storage.dirs)
    twin.files = {path: bytearray(data) for path, data in storage.files.items()}
    return twin


def cut_at(storage: MemoryStorage, position: int) -> None:
    """Everything from ``position`` on never reached the disk."""
    for segment in SegmentSet.load(storage):
        del storage.files[segment.path][max(0, position - segment.base) :]


def check_recovery(storage, maker, cut: int, *, is_torn: bool | None = None) -> None:
    """Exactly the frames that end before the cut come back, and the log goes on behind them."""
    ends = [*maker.frame_positions[1:], maker.writer.end_position]
    kept = [frame for frame, end in zip(maker.frames, ends, strict=True) if end <= cut]
    end = max((e for e in ends if e <= cut), default=0)
    expected = [made.position for frame in kept for made in frame]

    positions, report = recover(storage)
    assert positions == expected, f"cut at {cut}"
    assert report.end_position == end
    assert not report.is_damaged
    if is_torn is not None:
        assert (report.torn_tail is not None) == is_torn

    again = LogMaker(
        storage,
        segment_bytes_max=1500,
        end_position=report.end_position,
        prev_head_crc=report.last_head_crc,
    )
    (fresh,) = again.append(b"after the crash", durable_upto=report.end_position)
    again.close()
    positions, report = recover(storage)
    assert positions == [*expected, fresh.position], f"appended after a cut at {cut}"
    assert report.sentences() == []


def cut_points(maker) -> range:
    return range(maker.frame_positions[-TORN_FRAMES], maker.writer.end_position + 1)


def test_a_cut_at_every_byte_of_the_last_three_frames_recovers_the_longest_prefix(whole):
    for cut in cut_points(whole):
        storage = copy_of(whole.storage)
        cut_at(storage, cut)
        ends = {*whole.frame_positions, whole.writer.end_position}
        check_recovery(storage, whole, cut, is_torn=cut not in ends)


def test_the_same_on_a_real_disk(whole, tmp_path):
    for cut in cut_points(whole)[::61]:
        root = tmp_path / str(cut)
        storage = copy_of(whole.storage)
        cut_at(storage, cut)
        for path, data in storage.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        check_recovery(DiskStorage(root), whole, cut)


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"PNST"])
def test_a_file_that_grew_without_its_bytes_recovers_the_same_prefix(whole, filler):
    """The size reached the disk, the bytes did not: what follows the cut is filler."""
    last = whole.segments.last
    original = whole.storage.files[last.path]
    ends = [e - last.base for e in (*whole.frame_positions, whole.writer.end_position)]
    for at in range(1, last.size_bytes):
        storage = copy_of(whole.storage)
        content = storage.files[last.path]
        content[at:] = (filler * len(content))[: len(content) - at]
        # Filler may equal the padding that was there; then the frame is whole after all.
        end = max(e for e in ends if e >= 0 and content[:e] == original[:e])
        positions, report = recover(storage)
        assert positions == [m.position for m in whole.records if m.position < last.base + end]
        assert report.end_position == last.base + end
        assert not report.is_damaged


def test_repair_itself_may_be_cut_short_and_is_simply_done_again(whole):
    class PowerLost(Exception):
        pass

    calls = ("open", "rename", "remove", "sync_dir", "make_dir")
    cut = whole.frame_positions[-1] + 60
    for limit in range(1, 40):
        storage = copy_of(whole.storage)
        cut_at(storage, cut)
        left = [limit]

        def guarded(name, storage=storage, left=left):
            real = getattr(MemoryStorage, name)

            def call(*arguments, **named):
                left[0] -= 1
                if not left[0]:
                    raise PowerLost
                return real(storage, *arguments, **named)

            return call

        for name in calls:
            setattr(storage, name, guarded(name))
        try:
            recover(storage)
        except PowerLost:
            for name in calls:
                delattr(storage, name)
            check_recovery(storage, whole, cut)
        else:
            break
    else:
        pytest.fail("recovery makes more calls than expected")
    assert limit > 5
