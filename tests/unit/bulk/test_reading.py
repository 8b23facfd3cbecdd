"""Every offset of a range is read, lost or dropped, and told so."""

import shutil
import zlib

import pytest

from kit.bulk_data import BulkData
from kit.pulsar_payload import PulsarMessage, single_tail
from penstock.bulk import columns, reading
from penstock.bulk.layout import arrow_schema
from penstock.bulk.offline import OfflineBulk
from penstock.bulk.tickets import BulkError, RowFilter, Ticket
from penstock.model.record import RecordFlag, neutral_record
from penstock.settings.broker import StorageSettings
from penstock.wire.pulsar.metadata import make_record
from penstock.wire.rocketmq.stored import stored_record

KIB = 1024


def filled(directory, count=10, *, body_bytes=4, per_frame=2, **settings):
    """A stopped directory with ``count`` messages in topic orders."""
    data = BulkData(directory, StorageSettings(**settings))
    [queue] = data.topic("orders")
    made = []
    for at in range(0, count, per_frame):
        records = [
            neutral_record(b"%0*d" % (body_bytes, number), tag=b"odd" if number % 2 else b"even")
            for number in range(at, min(at + per_frame, count))
        ]
        made += data.append(*((record, (queue,)) for record in records))
    data.close()
    return [appending.record.position for appending in made]


def segments(directory):
    return sorted((directory / "log").glob("*.seg"))


def damage(directory, position, *, at):
    """Flip a byte of a record."""
    for path in reversed(segments(directory)):
        base = int(path.stem)
        if base <= position:
            content = bytearray(path.read_bytes())
            content[position - base + at] ^= 0xFF
            path.write_bytes(content)
            return


def test_columns_come_in_the_order_asked_for_and_no_others(tmp_path):
    filled(tmp_path / "d")
    with OfflineBulk(tmp_path / "d") as bulk:
        names = ["body", "offset"]
        [batch] = bulk.read(Ticket(topic="orders", queue=0, start=2, end=4, columns=names))

    assert batch.schema == arrow_schema(names)
    assert batch.to_pylist() == [{"body": b"0002", "offset": 2}, {"body": b"0003", "offset": 3}]


def test_message_ids_are_those_of_each_protocol_for_who_asks_for_them(tmp_path):
    data = BulkData(tmp_path / "d")
    [queue] = data.topic("orders")
    unique = b"UNIQ_KEY\x01C0A80001\x02a\x011\x02"
    pulsar = single_tail(PulsarMessage(b"3", "k", {"message_id": "p-3"}))
    records = [
        stored_record("orders", 0, b"0", unique),
        stored_record("orders", 0, zlib.compress(b"1"), unique, sys_flag=1),
        neutral_record(b"2"),
        make_record(pulsar, 5),
        stored_record("orders", 0, b"4", b"a\x011\x02"),
    ]
    data.append(*((record, (queue,)) for record in records))
    data.close()
    with OfflineBulk(tmp_path / "d") as bulk:
        names = ["message_id", "properties"]
        [batch] = bulk.read(Ticket(topic="orders", queue=0, start=0, end=5, columns=names))
        [plain] = bulk.read(Ticket(topic="orders", queue=0, start=0, end=1))
    found = batch.column("message_id").to_pylist()
    assert found == ["C0A80001", "C0A80001", None, "p-3", None]
    assert batch.column("properties").to_pylist()[0] == [("a", "1")]
    assert "message_id" not in plain.schema.names


def test_batches_keep_to_rows_and_bytes(tmp_path, monkeypatch):
    filled(tmp_path / "d", 20)
    with OfflineBulk(tmp_path / "d") as bulk:
        ticket = Ticket(topic="orders", queue=0, start=0, end=20, rows_per_batch=6)
        assert [batch.num_rows for batch in bulk.read(ticket)] == [6, 6, 6, 2]
        monkeypatch.setattr(reading, "BATCH_BYTES_MAX", 250)
        assert {batch.num_rows for batch in bulk.read(ticket)} == {2}


def test_bodies_that_inflate_to_much_are_cut_into_more_batches(tmp_path, monkeypatch):
    data = BulkData(tmp_path / "d")
    [queue] = data.topic("orders")
    packed = zlib.compress(b"x" * KIB)
    records = [stored_record("orders", 0, packed, sys_flag=1) for _ in range(9)]
    data.append(*((record, (queue,)) for record in records))
    data.close()
    monkeypatch.setattr(columns, "OWN_BYTES_MAX", 4 * KIB)
    with OfflineBulk(tmp_path / "d") as bulk:
        batches = list(bulk.read(Ticket(topic="orders", queue=0, start=0, end=9)))

        assert [batch.num_rows for batch in batches] == [4, 4, 1]
        assert {row["body"] for batch in batches for row in batch.to_pylist()} == {b"x" * KIB}
        assert bulk.summary.read == bulk.summary.rows == 9


def test_a_removed_segment_is_data_loss_and_not_a_crash(tmp_path, rows):
    filled(tmp_path / "d", 100, body_bytes=3000, segment_bytes_max=64 * KIB)
    gone = segments(tmp_path / "d")[1]
    gone.unlink()
    with OfflineBulk(tmp_path / "d") as bulk:
        with pytest.raises(BulkError, match=r"are lost.*failOnDataLoss") as caught:
            rows(bulk, columns=["offset"])
        assert caught.value.kind == "data-loss"

        left = rows(bulk, columns=["offset"], fail_on_data_loss=False)
        summary = bulk.summary
    assert 0 < summary.lost < 50
    assert (summary.read, summary.rows) == (100 - summary.lost, len(left))
    assert summary.next_offset == 100


def test_a_damaged_header_loses_its_record_only(tmp_path, rows):
    positions = filled(tmp_path / "d")
    damage(tmp_path / "d", positions[3], at=21)
    with OfflineBulk(tmp_path / "d") as bulk:
        left = rows(bulk, columns=["offset"], fail_on_data_loss=False)

    assert [row["offset"] for row in left] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_damaged_body_is_found_when_checksums_are_asked_for(tmp_path, rows):
    positions = filled(tmp_path / "d")
    damage(tmp_path / "d", positions[3], at=88 + 12 + 5)
    with OfflineBulk(tmp_path / "d") as bulk:
        assert len(rows(bulk)) == 10
        with pytest.raises(BulkError, match="damaged"):
            rows(bulk, check=True)
        assert len(rows(bulk, check=True, fail_on_data_loss=False)) == 9


def test_a_damaged_record_that_is_read_as_a_whole_is_lost_too(tmp_path, rows):
    positions = filled(tmp_path / "d")
    damage(tmp_path / "d", positions[3], at=88 + 12 + 5)
    every = RowFilter("sql92", "TAGS IS NOT NULL")
    with OfflineBulk(tmp_path / "d") as bulk:
        assert len(rows(bulk, filter=every, fail_on_data_loss=False)) == 9
        assert (bulk.summary.lost, bulk.summary.read) == (1, 9)
        with pytest.raises(BulkError, match="damaged"):
            rows(bulk, filter=every)


def test_rows_that_a_filter_does_not_want_are_read_and_not_given(tmp_path, rows):
    filled(tmp_path / "d")
    with OfflineBulk(tmp_path / "d") as bulk:
        found = rows(bulk, filter=RowFilter("tag", "odd"), columns=["offset"])
        assert [row["offset"] for row in found] == [1, 3, 5, 7, 9]
        assert (bulk.summary.rows, bulk.summary.read, bulk.summary.lost) == (5, 10, 0)

        assert rows(bulk, filter=RowFilter("tag", "none")) == []
        assert (bulk.summary.rows, bulk.summary.read, bulk.summary.next_offset) == (0, 10, 10)


def test_a_filter_that_cannot_be_compiled_is_a_bad_request(tmp_path, rows):
    filled(tmp_path / "d")
    with OfflineBulk(tmp_path / "d") as bulk, pytest.raises(BulkError, match="filter") as caught:
        rows(bulk, filter=RowFilter("sql92", "a = = b"))
    assert caught.value.kind == "bad-request"


def test_messages_that_a_restart_drops_are_not_lost(tmp_path, rows):
    data = BulkData(tmp_path / "d")
    [queue] = data.topic("orders")
    transient = neutral_record(b"gone")
    transient.reshape(flags=int(RecordFlag.TRANSIENT))
    data.append(
        (neutral_record(b"0"), (queue,)), (transient, (queue,)), (neutral_record(b"2"), (queue,))
    )
    data.close()
    with OfflineBulk(tmp_path / "d") as bulk:
        assert [row["body"] for row in rows(bulk)] == [b"0", b"2"]
        assert (bulk.summary.dropped, bulk.summary.read, bulk.summary.lost) == (1, 2, 0)


def test_offsets_of_another_epoch_or_incarnation_are_refused(tmp_path, rows):
    filled(tmp_path / "d")
    with OfflineBulk(tmp_path / "d") as bulk:
        for fields in ({"epoch": 99}, {"incarnation": 99}):
            with pytest.raises(BulkError, match="may name other messages") as caught:
                rows(bulk, **fields)
            assert caught.value.kind == "epoch"


def test_nothing_is_read_above_the_end(tmp_path, rows):
    filled(tmp_path / "d")
    with OfflineBulk(tmp_path / "d") as bulk:
        with pytest.raises(BulkError, match="ends at 10") as caught:
            rows(bulk, start=8, end=12)
        assert caught.value.kind == "bad-request"
        assert rows(bulk, start=10, end=10) == []


def test_a_copy_gives_the_same_rows(tmp_path, rows):
    filled(tmp_path / "d")
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    with OfflineBulk(tmp_path / "d") as one, OfflineBulk(tmp_path / "copy") as other:
        assert rows(one) == rows(other)
