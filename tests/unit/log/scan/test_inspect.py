import pytest

from kit.log_maker import STORE_MS, LogMaker
from penstock.log.scan import Dump, check, log_bytes
from penstock.model.record import Record, RecordFlag, RecordKind, Shape, Wire, neutral_record
from penstock.testing.storage import MemoryStorage


@pytest.fixture
def maker():
    return LogMaker(MemoryStorage(), segment_bytes_max=2048)


def fill(maker, frames=20):
    for number in range(frames):
        maker.append(f"{number}a".encode(), f"{number}b".encode())


def test_checking_a_good_log_counts_it(maker):
    fill(maker)
    seen = []
    report = check(maker.storage, progress=seen.append)
    assert (report.frames, report.records, report.is_damaged) == (20, 40, False)
    assert seen[-1] == report.bytes_read == log_bytes(maker.storage)


def test_checking_changes_nothing_even_with_a_torn_tail(maker):
    fill(maker)
    del maker.storage.files[maker.segments.last.path][-5:]
    before = {path: bytes(data) for path, data in maker.storage.files.items()}
    report = check(maker.storage)
    assert report.torn_tail is not None
    assert not report.is_damaged
    assert maker.storage.files == before


def test_a_segment_removed_while_checking_is_a_gap(maker, monkeypatch):
    fill(maker, frames=40)
    second = list(maker.segments)[1]
    opened = MemoryStorage.open

    def open_or_miss(self, path, *, create):
        if path == second.path:
            raise FileNotFoundError(path)
        return opened(self, path, create=create)

    monkeypatch.setattr(MemoryStorage, "open", open_or_miss)
    report = check(maker.storage)
    assert report.gaps == [(second.base, second.end)]
    assert not report.is_damaged


def test_a_dump_shows_every_record_in_words(maker):
    record = neutral_record(b"body", key=b"k\xff", tag=b"t")
    record.reshape(flags=int(RecordFlag.TRANSIENT | RecordFlag.COMPRESSED))
    record.reshape(wire=int(Wire.PULSAR))
    maker.append_records(record, Record(b"settled", Shape(kind=int(RecordKind.SETTLE), wire=99)))
    first, second = Dump(maker.storage).records()
    assert (first.kind, first.wire, first.flags) == (
        "message",
        "pulsar",
        ["transient", "compressed"],
    )
    assert (first.key, first.tag, first.body, first.body_bytes) == ("k\\xff", "t", b"body", 4)
    assert (first.targets, first.store_ms) == ([(1, 0)], STORE_MS)
    assert (second.kind, second.wire, second.body) == ("settle", "99", b"settled")


def test_a_dump_begins_with_the_record_around_a_position(maker):
    fill(maker, frames=40)
    made = maker.records
    for number in (0, 1, 37, 79):
        for inside in (0, 13):
            dump = Dump(maker.storage, from_position=made[number].position + inside)
            assert [seen.position for seen in dump.records()] == [m.position for m in made[number:]]
    assert list(Dump(maker.storage, from_position=maker.writer.end_position).records()) == []


def test_a_dump_leaves_damaged_records_out_and_says_so(maker):
    fill(maker, frames=4)
    maker.mark()
    victim = maker.records[3]
    maker.storage.files[maker.segments.find(0).path][victim.position + 95] ^= 4
    dump = Dump(maker.storage)
    assert victim.position not in [seen.position for seen in dump.records()]
    assert len(dump.report.sentences()) == 1
