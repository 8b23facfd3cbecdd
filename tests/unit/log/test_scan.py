from itertools import chain

import pytest
from google_crc32c import value as crc32c

from kit.log_maker import STORE_MS, LogMaker, content_at, fill, flip, positions_of, recover
from penstock.log.format import VERSION, encode_batch, encode_head
from penstock.log.reader import LogReader
from penstock.log.scan import DAMAGES_KEPT_MAX, WINDOW_BYTES, Damage, LogScan, ScanReport
from penstock.log.segment import SegmentSet, segment_path
from penstock.log.writer import LogWriter
from penstock.model.errors import FormatTooNew, InvariantBroken
from penstock.model.record import Record, RecordFlag, RecordKind, Shape, neutral_record, tag_hash
from penstock.testing.storage import MemoryFile, MemoryStorage


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def maker(storage):
    return LogMaker(storage, segment_bytes_max=4096)


def test_an_empty_log_scans_to_nothing(storage):
    positions, report = recover(storage)
    assert (positions, report.end_position, report.sentences()) == ([], 0, [])
    assert not report.is_damaged


def test_every_record_is_given_frame_by_frame_in_order(storage, maker):
    fill(maker)
    scan = LogScan(storage, SegmentSet.load(storage))
    batches = list(scan.batches())
    assert [[r[0] for r in batch] for batch in batches] == [
        positions_of(frame) for frame in maker.frames
    ]
    report = scan.finish()
    assert (report.frames, report.records) == (12, 36)
    assert report.segments == len(maker.segments) > 1
    assert report.end_position == maker.writer.end_position
    assert report.last_head_crc == maker.writer.prev_head_crc
    assert report.sentences() == []


def test_a_scan_tells_what_indexes_and_recovery_need(storage, maker):
    message = neutral_record(b"body", key=b"k", tag=b"red")
    message.reshape(flags=int(RecordFlag.DELAYED), messages=7)
    message.reshape(expire_ms=55, deliver_ms=66)
    settle = Record(b"payload", Shape(kind=int(RecordKind.SETTLE)))
    targets = (((3, 30), (4, 40)), ())
    position = maker.writer.first_record_position
    parts, lengths = encode_batch((message, settle), targets, position, STORE_MS)
    maker.writer.append(parts, 2, durable_upto=0)
    assert list(LogScan(storage, SegmentSet.load(storage)).records()) == [
        (
            position, lengths[0], RecordKind.MESSAGE, RecordFlag.DELAYED, 7, STORE_MS, 55, 66,
            tag_hash(b"red"), ((3, 30), (4, 40)), b"",
        ),
        (
            position + lengths[0], lengths[1], RecordKind.SETTLE, 0, 1, STORE_MS, 0, 0, 0, (),
            b"payload",
        ),
    ]  # fmt: skip


def test_a_scan_can_begin_at_any_frame(storage, maker):
    fill(maker)
    for number, position in enumerate(maker.frame_positions):
        found, report = recover(storage, from_position=position)
        assert found == positions_of(chain(*maker.frames[number:]))
        assert not report.is_damaged
    found, report = recover(storage, from_position=maker.writer.end_position)
    assert (found, report.end_position) == ([], maker.writer.end_position)
    assert not report.is_damaged


def test_frames_that_cross_windows_are_read_whole(storage):
    maker = LogMaker(storage, segment_bytes_max=1 << 30)
    for size in (WINDOW_BYTES - 300, 100, 60, 30, WINDOW_BYTES * 2, 10):
        maker.append(bytes(size))
    assert recover(storage)[0] == positions_of(maker.records)


def test_memory_is_a_window_not_a_segment(storage, monkeypatch):
    maker = LogMaker(storage, segment_bytes_max=1 << 30)
    for _ in range(40):
        maker.append(bytes(WINDOW_BYTES // 10))
    sizes = []
    read = MemoryFile.read
    monkeypatch.setattr(
        MemoryFile, "read", lambda self, at, size: sizes.append(size) or read(self, at, size)
    )
    recover(storage)
    assert max(sizes) <= WINDOW_BYTES


def test_the_mark_is_the_largest_any_head_carries(storage, maker):
    fill(maker, frames=3)
    mark = maker.mark()
    maker.append(b"later", durable_upto=mark)
    assert recover(storage)[1].durable_mark == mark
    assert recover(storage, known_mark=mark + 8)[1].durable_mark == mark + 8


def test_the_largest_epoch_is_reported(storage):
    writer = LogWriter(storage, SegmentSet(), end_position=0, segment_bytes_max=1 << 20, epoch=3)
    writer.append_mark(durable_upto=0)
    assert recover(storage)[1].epoch == 3


def test_progress_counts_every_byte(storage, maker):
    fill(maker)
    seen = []
    scan = LogScan(storage, SegmentSet.load(storage), progress=seen.append)
    assert list(scan.records())
    assert seen == sorted(seen)
    assert seen[-1] == maker.segments.size_bytes


def test_a_scan_is_finished_only_when_it_was_read(storage, maker):
    fill(maker)
    with pytest.raises(InvariantBroken):
        LogScan(storage, SegmentSet.load(storage)).finish()


def test_a_torn_tail_is_cut_kept_and_reported(storage, maker):
    fill(maker, frames=3)
    torn = maker.append(b"torn")[0]
    content, at = content_at(storage, maker, torn.position + 20)
    lost = bytes(content[maker.frame_positions[-1] - maker.segments.last.base : at])
    del content[at:]
    found, report = recover(storage)
    assert found == positions_of(chain(*maker.frames[:3]))
    assert report.end_position == maker.frame_positions[3]
    assert not report.is_damaged
    kept = f"cut/{maker.frame_positions[3]:020d}"
    assert storage.files[kept] == lost
    assert kept in report.sentences()[0]
    assert recover(storage)[1].sentences() == []


def test_a_scan_that_is_not_finished_changes_nothing(storage, maker):
    fill(maker, frames=3)
    content, at = content_at(storage, maker, maker.frame_positions[-1])
    del content[at + 60 :]
    before = {path: bytes(data) for path, data in storage.files.items()}
    scan = LogScan(storage, SegmentSet.load(storage))
    assert len(list(scan.records())) == 6
    assert scan.report.torn_tail.length == 60
    assert storage.files == before


def test_a_torn_tail_takes_later_segments_without_a_whole_frame(storage, maker):
    fill(maker, frames=30)
    segments = list(maker.segments)
    torn = segments[-2]
    first_torn = next(p for p in maker.frame_positions if p >= torn.base) - torn.base
    storage.files[torn.path][first_torn + 10 :] = b"garbage!"
    storage.files[segments[-1].path][:] = bytes(100)
    found, report = recover(storage)
    assert found == [p for p in positions_of(maker.records) if p < torn.base]
    assert report.end_position == torn.base
    assert SegmentSet.load(storage).last.end == torn.base
    assert [storage.exists(f"cut/{s.base:020d}") for s in segments[-2:]] == [True, True]
    assert not report.is_damaged


def test_an_empty_last_segment_behind_a_torn_one_goes_too(storage, maker):
    fill(maker, frames=2)
    content, at = content_at(storage, maker, maker.frame_positions[-1])
    del content[at + 60 :]
    storage.open(segment_path(maker.writer.end_position), create=True)
    found, report = recover(storage)
    assert found == positions_of(maker.frames[0])
    assert [s.end for s in SegmentSet.load(storage)] == [maker.frame_positions[1]]
    assert report.end_position == maker.frame_positions[1]


def test_a_tail_that_begins_with_a_segment_ends_where_the_one_before_it_does(storage, maker):
    fill(maker, frames=30)
    *_, before, torn = maker.segments
    last = max(p for p in maker.frame_positions if p < torn.base)
    del storage.files[before.path][last - before.base :]
    del storage.files[torn.path][40:]
    found, report = recover(storage)
    assert found == [p for p in positions_of(maker.records) if p < last]
    assert report.end_position == last
    assert report.gaps == []
    assert recover(storage)[1].end_position == last


def test_a_torn_first_segment_keeps_its_name_so_that_positions_are_not_reused(storage, maker):
    fill(maker, frames=30)
    *earlier, torn = maker.segments
    for segment in earlier:
        storage.remove(segment.path)
    del storage.files[torn.path][40:]
    for _ in range(2):
        found, report = recover(storage)
        assert (found, report.end_position) == ([], torn.base)


def test_the_first_segment_of_all_may_be_torn(storage, maker):
    maker.append(b"torn")
    del storage.files[segment_path(0)][30:]
    found, report = recover(storage)
    assert (found, report.end_position) == ([], 0)
    again = LogMaker(storage)
    again.append(b"fresh")
    assert recover(storage)[0] == [48]


def test_a_torn_frame_before_whole_ones_is_dropped_as_a_unit(storage, maker):
    made = fill(maker, frames=6)
    mark = maker.frame_positions[2]
    flip(storage, maker, maker.frames[3][1].position + 70)
    found, report = recover(storage, known_mark=mark)
    whole = made[:9] + made[12:]
    assert found == positions_of(whole)
    assert not report.is_damaged
    assert storage.exists(f"cut/{maker.frame_positions[3]:020d}")
    # It stays dropped when the mark has moved on, and whoever reads the rest finds it in place.
    assert recover(storage, known_mark=maker.writer.end_position)[0] == positions_of(whole)
    reader = LogReader(storage, SegmentSet.load(storage))
    assert [r.origin for r in reader.read_many([m[:2] for m in whole])] == [m.origin for m in whole]
    assert reader.locate(maker.frames[3][0].position) is None


def test_a_torn_frame_at_the_end_of_a_full_segment_is_cut_off(storage, maker):
    made = fill(maker, frames=12)
    first, second = list(maker.segments)[:2]
    last_frame = max(p for p in maker.frame_positions if p < second.base)
    del storage.files[first.path][last_frame + 50 :]
    found, report = recover(storage)
    assert found == [p for p in positions_of(made) if not last_frame < p < second.base]
    assert not report.is_damaged
    again, second_report = recover(storage, known_mark=maker.writer.end_position)
    assert again == found
    assert second_report.gaps == [(last_frame, second.base)]
    assert not second_report.is_damaged


def test_what_was_found_above_the_mark_is_synced(storage, maker, monkeypatch):
    fill(maker, frames=3)
    synced = []
    monkeypatch.setattr(MemoryFile, "sync", lambda self: synced.append(id(self)))
    monkeypatch.setattr(MemoryStorage, "sync_dir", lambda self, path: synced.append(path))
    recover(storage)
    assert len(synced) == 2
    assert synced[-1] == "log"


def test_a_newer_format_is_refused_and_nothing_is_changed(storage, maker):
    fill(maker, frames=2)
    head, _ = encode_head(48, 0, maker.writer.end_position, durable_upto=0)
    raw = bytearray(head)
    raw[4:6] = (VERSION + 1).to_bytes(2, "little")
    raw[40:44] = bytes(4)
    raw[40:44] = crc32c(bytes(raw)).to_bytes(4, "little")
    content, _ = content_at(storage, maker, maker.frame_positions[-1])
    content += raw
    before = bytes(content)
    with pytest.raises(FormatTooNew):
        recover(storage)
    assert content == before


# ---- scan report --------------------------------------------------------------------------------


DAMAGE = Damage("log/x.seg", 16, 1016, 104, "record")


def test_a_clean_report_says_nothing():
    assert ScanReport().sentences() == []
    assert not ScanReport().is_damaged


def test_damages_are_described_up_to_a_limit_and_counted_beyond():
    report = ScanReport()
    for _ in range(DAMAGES_KEPT_MAX + 5):
        report.add_damage(DAMAGE)
    lines = report.sentences()
    assert lines[0] == "log/x.seg byte 16: damaged record (104 bytes)"
    assert lines[-1] == "and 5 more damaged stretches"
    assert len(lines) == DAMAGES_KEPT_MAX + 1
    assert report.is_damaged


def test_gaps_torn_frames_and_tails_are_told_and_are_no_damage():
    report = ScanReport(torn_tail=DAMAGE, dropped=[DAMAGE], kept_as=["cut/1"])
    report.add_gap(5, 9)
    lines = report.sentences()
    assert lines[0] == "no segment holds positions 5 to 9"
    assert "104 bytes of unfinished writes, dropped" in lines[1]
    assert lines[2].endswith("unfinished write of 104 bytes, cut and kept in cut/1")
    assert not report.is_damaged


def test_missing_synced_bytes_and_broken_chains_are_damage():
    assert ScanReport(missing_tail=(10, 30)).is_damaged
    assert "20 bytes are missing" in ScanReport(missing_tail=(10, 30)).sentences()[0]
    assert ScanReport(chain_breaks=2).is_damaged
