"""What a scan does about damage below the synced mark (P7)."""

from itertools import chain

import pytest

from kit.log_maker import LogMaker, content_at, fill, flip, positions_of, recover
from penstock.log.format import HEAD_BYTES, encode_batch, encode_head
from penstock.log.segment import SegmentSet, make_log_dir, segment_path
from penstock.log.writer import LogWriter
from penstock.model.record import neutral_record
from penstock.testing.storage import MemoryStorage


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def maker(storage):
    return LogMaker(storage, segment_bytes_max=4096)


def test_a_bad_last_frame_below_the_mark_is_damage_and_is_not_cut(storage, maker):
    made = fill(maker, frames=3)
    flip(storage, maker, made[-1].position + 90)
    found, report = recover(storage, known_mark=maker.writer.end_position)
    assert found == positions_of(made[:-1])
    assert report.is_damaged
    assert report.torn_tail is None
    assert report.records_lost == 1
    assert report.end_position == maker.writer.end_position


def test_a_torn_frame_tells_how_far_the_log_was_synced(storage, maker):
    first = maker.append(b"first", b"second")
    maker.append(b"third", durable_upto=maker.writer.end_position)
    flip(storage, maker, first[0].position + 90)
    flip(storage, maker, maker.records[-1].position + 90)
    found, report = recover(storage)
    assert found == [first[1].position]
    assert report.damage_count == 1
    assert report.torn_tail.position == maker.frame_positions[1]


def test_damage_names_file_and_byte_and_later_frames_stay(storage, maker):
    made = fill(maker)
    maker.mark()
    victim = made[20]
    flip(storage, maker, victim.position + 100)
    found, report = recover(storage)
    assert found == [p for p in positions_of(made) if p != victim.position]
    segment = maker.segments.find(victim.position)
    (damage,) = report.damages
    assert damage[:4] == (
        segment.path,
        victim.position - segment.base,
        victim.position,
        victim.length,
    )
    assert report.sentences() == [
        f"{segment.path} byte {damage.offset}: damaged record ({victim.length} bytes)"
    ]


def test_a_damaged_head_loses_no_record(storage, maker):
    made = fill(maker)
    maker.mark()
    for bit in range(8):
        flip(storage, maker, maker.frame_positions[4] + 9, bit)
        found, report = recover(storage)
        assert found == positions_of(made)
        assert [d.what for d in report.damages] == ["frame head"]
        flip(storage, maker, maker.frame_positions[4] + 9, bit)


def test_a_length_that_leads_to_another_good_record_loses_only_its_own(storage):
    maker = LogMaker(storage, segment_bytes_max=1 << 20)
    bodies = [bytes([i]) * (256 - 100) for i in range(8)]
    made = maker.append(*bodies)
    assert {m.length for m in made} == {256}
    maker.mark()
    flip(storage, maker, made[0].position + 5, 1)  # 256 -> 768: two records further
    found, report = recover(storage)
    assert found == positions_of(made[1:])
    assert report.records_lost == 1


def test_what_a_damaged_payload_contains_is_not_taken_for_a_record(storage, maker):
    inner_position = HEAD_BYTES + 104
    parts, _ = encode_batch((neutral_record(b"forged"),), (((1, 0),),), inner_position, 0)
    made = maker.append(bytes(4) + b"".join(parts) + bytes(50), b"next")
    maker.mark()
    flip(storage, maker, made[0].position + made[0].length - 20)
    found, report = recover(storage)
    assert found == [made[1].position]
    assert report.damage_count == 1


def test_several_damages_are_each_contained(storage, maker):
    made = fill(maker)
    maker.mark()
    victims = {made[2].position, made[3].position, made[10].position, made[30].position}
    for position in victims:
        flip(storage, maker, position + 60)
    found, report = recover(storage)
    assert found == [p for p in positions_of(made) if p not in victims]
    assert report.damage_count == report.records_lost == 4


def test_a_wiped_stretch_is_reported_and_survived(storage, maker):
    made = fill(maker)
    maker.mark()
    content, at = content_at(storage, maker, made[5].position)
    content[at : at + 700] = bytes(700)
    found, report = recover(storage)
    lost = [m for m in made if m.position not in found]
    assert {m.position for m in lost} == {
        m.position
        for m in made
        if m.position + m.length > made[5].position and m.position < made[5].position + 700
    }
    assert report.is_damaged


def test_a_crc_and_length_of_zero_do_not_stall_the_scan(storage, maker):
    made = fill(maker, frames=2)
    maker.mark()
    content, at = content_at(storage, maker, made[1].position)
    content[at : at + 8] = bytes(8)
    assert recover(storage)[0] == positions_of(made[:1] + made[2:])


def test_a_missing_segment_is_a_gap_and_the_rest_is_read(storage, maker):
    made = fill(maker, frames=40)
    second = list(maker.segments)[1]
    storage.remove(second.path)
    found, report = recover(storage)
    assert found == [p for p in positions_of(made) if not second.base <= p < second.end]
    assert report.gaps == [(second.base, second.end)]
    assert not report.is_damaged
    assert "no segment holds positions" in report.sentences()[0]


def test_a_log_shorter_than_its_mark_says_so_and_never_reuses_positions(storage, maker):
    fill(maker, frames=3)
    end = maker.writer.end_position
    content, at = content_at(storage, maker, maker.frame_positions[-1])
    del content[at + 61 :]
    found, report = recover(storage, known_mark=end)
    assert found == positions_of(chain(*maker.frames[:2]))
    assert report.missing_tail == (maker.frame_positions[-1] + 61, end)
    assert report.end_position == end
    writer = LogWriter(
        storage,
        SegmentSet.load(storage),
        end_position=report.end_position,
        segment_bytes_max=1 << 20,
    )
    assert writer.append_mark(durable_upto=end)[0] == end


def test_a_cut_between_two_records_below_the_mark_is_still_noticed(storage, maker):
    made = fill(maker, frames=1)
    content, _ = content_at(storage, maker, 0)
    del content[made[2].position :]
    found, report = recover(storage, known_mark=maker.writer.end_position)
    assert found == positions_of(made[:2])
    assert (report.damage_count, report.records_lost) == (1, 1)


def test_frames_that_do_not_follow_each_other_are_reported(storage):
    make_log_dir(storage)
    file = storage.open(segment_path(0), create=True)
    first, _ = encode_head(48, 0, 0, durable_upto=0)
    stranger, _ = encode_head(48, 0, 48, durable_upto=0, prev_head_crc=12345)
    file.write(first + stranger)
    report = recover(storage)[1]
    assert report.chain_breaks == 1
    assert "do not follow" in report.sentences()[0]
