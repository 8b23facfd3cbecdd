"""What is staged must be exactly what the plain encoder writes and a plain count numbers."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log import encode as intake
from penstock.log.encode import SEAL_COLUMNS_MIN, Appending, StagedFrame, packing_of, stage
from penstock.log.format import INDEX_RELEASED, decode, encode, entry_flags, release_record
from penstock.log.index import QueueIndex
from penstock.log.side_files import SideFiles
from penstock.model.errors import InvariantBroken
from penstock.model.ids import UNASSIGNED_OFFSET
from penstock.model.record import Record, RecordFlag, RecordKind, Shape, neutral_record, tag_hash
from penstock.testing.storage import MemoryStorage

BASE = 4096
SHORT_RUN = 4
"""So that a few records are staged by columns as well as one by one."""


STAMPS = ("stamp_offset_at", "stamp_position_at", "stamp_store_ms_at")


def new_queues(count):
    files = SideFiles(MemoryStorage())
    return [QueueIndex(number, 1, files) for number in range(1, count + 1)]


def staged(batch, position=BASE, store_ms=500, index_ms=600, runs=()):
    done = StagedFrame(position, store_ms=store_ms, index_ms=index_ms)
    stage(batch, done, runs)
    return done


def take_in(done):
    for index in done.touched:
        index.take_staged(BASE)


def runs_in(batch):
    """Stretches of one shape, size and target; some that belong together come apart."""
    ends = [
        at
        for at in range(1, len(batch) + 1)
        if at == len(batch)
        or at % 7 == 0
        or batch[at].queues is not batch[at - 1].queues
        or batch[at].record.shape is not batch[at - 1].record.shape
        or len(batch[at].record.origin) != len(batch[at - 1].record.origin)
    ]
    return list(zip([0, *ends], ends, strict=False))


RECORDS = st.builds(
    lambda body, key, tag, messages, flags, expire_ms, deliver_ms, stamp: _with(
        neutral_record(bytes(body) + bytes(25), key=key, tag=tag),
        messages=messages,
        flags=flags,
        expire_ms=expire_ms,
        deliver_ms=deliver_ms,
        **dict(zip(STAMPS, stamp, strict=True)),
    ),
    st.sampled_from((0, 1, 7, 128, 128, 128, 20_000)),
    st.sampled_from((b"", b"key")),
    st.sampled_from((b"", b"red", b"blue")),
    st.sampled_from((1, 1, 1, 3, 5000)),
    st.sampled_from((0, 0, 0, int(RecordFlag.TRANSIENT), int(RecordFlag.COMPRESSED))),
    st.sampled_from((0, 0, 9)),
    st.sampled_from((0, 0, 8)),
    # None, RocketMQ's order at the edges and inside, one missing, another order.
    st.sampled_from(((-1, -1, -1), (-1, -1, -1), (0, 8, 16), (1, 9, 17), (4, 12, -1), (16, 0, 8))),
)


def _with(record, *, born_ms=0, position=-1, **facts):
    record.born_ms, record.position = born_ms, position
    record.reshape(**facts)
    return record


def copy_of(record):
    return Record(record.origin, record.shape, record.born_ms)


WHERE = ((0,), (0,), (1,), (0, 2), (2, 1, 0), ())
PLANS = st.lists(
    st.tuples(RECORDS, st.sampled_from(WHERE), st.sampled_from((1, 1, 2, SHORT_RUN, 10, 20)))
)


def alike(record, count):
    """Records of one shape that differ in all that a shape leaves open, and partly in size."""
    for number in range(count):
        born_ms = record.born_ms + number // 3
        origin = record.origin
        if number % 5 == 4 and record.shape.tag_len:
            at = record.shape.tag_at
            origin = origin[:at] + b"x" + origin[at + 1 :]
        yield Record(origin + bytes(number // 13), record.shape, born_ms)


@given(PLANS)
def test_a_batch_is_staged_as_if_record_by_record(runs):
    queues = new_queues(3)
    plan = [(each, where) for record, where, count in runs for each in alike(record, count)]
    targets_of = {where: tuple(queues[i] for i in where) for where in WHERE}
    batch = [Appending(record, targets_of[where]) for record, where in plan]
    originals = [copy_of(record) for record, _ in plan]
    with mock.patch.object(intake, "RUN_MIN", SHORT_RUN):
        done = staged(batch, runs=runs_in(batch))
    data = b"".join(done.parts)
    assert done.positions == [appending.record.position for appending in batch]
    take_in(done)
    offsets = [0, 0, 0]
    entries = [[], [], []]
    bytes_before = [0, 0, 0]
    at = 0
    for original, appending, (_, where) in zip(originals, batch, plan, strict=True):
        targets = [(i + 1, offsets[i]) for i in where]
        expected = encode(original, targets, BASE + at, 500)
        assert data[at : at + len(expected)] == expected
        record = appending.record
        assert (record.position, record.store_ms) == (BASE + at, 500)
        assert record.origin == original.origin
        assert appending.first_offsets == tuple(offsets[i] for i in where)
        for i in where:
            hashed = tag_hash(record.tag) if record.shape.tag_len else 0
            entries[i].append(
                (
                    BASE + at, offsets[i], bytes_before[i], 600, len(expected), record.messages,
                    hashed, entry_flags(record.shape),
                )
            )  # fmt: skip
            offsets[i] += record.messages
            bytes_before[i] += len(expected)
        at += len(expected)
    assert at == len(data)
    for index, wanted in zip(queues, entries, strict=True):
        assert index.entries(0, 1000) == wanted
        assert index.next_offset == (wanted[-1][1] + wanted[-1][5] if wanted else 0)


@pytest.mark.parametrize("messages", [0, 1, SEAL_COLUMNS_MIN])
def test_settlements_among_messages_lie_where_they_came(messages):
    (queue,) = new_queues(1)
    target = (queue,)
    kinds = "s" + "m" * messages + "ss" + "m" + "s"
    records = [
        neutral_record(b"body")
        if kind == "m"
        else Record(bytes(at), Shape(kind=int(RecordKind.SETTLE)))
        for at, kind in enumerate(kinds)
    ]
    originals = [copy_of(record) for record in records]
    batch = [
        Appending(record, target if kind == "m" else ())
        for record, kind in zip(records, kinds, strict=True)
    ]
    done = staged(batch)
    at, offset, wanted = BASE, 0, b""
    for kind, original, record in zip(kinds, originals, records, strict=True):
        targets = [(1, offset)] if kind == "m" else []
        piece = encode(original, targets, at, 500)
        assert (record.position, record.store_ms) == (at, 500)
        wanted, at, offset = wanted + piece, at + len(piece), offset + len(targets)
    assert b"".join(done.parts) == wanted
    assert done.at == at
    assert queue.staged_offset == messages + 1


def test_undo_leaves_no_trace():
    first, second = new_queues(2)
    before = [Appending(neutral_record(b"0"), (first,))]
    take_in(staged(before))
    batch = [
        Appending(neutral_record(b"1"), (first,)),
        Appending(neutral_record(b"2"), (first, second)),
    ]
    staged(batch).undo(batch)
    assert [(q.next_offset, q.staged_offset, q.staged_bytes) for q in (first, second)] == [
        (1, 1, first.end_bytes),
        (0, 0, 0),
    ]
    assert [(each.first_offsets, each.record.position) for each in batch] == [((), -1), ((), -1)]
    take_in(staged(batch))
    assert [entry[1] for entry in first.entries(0, 10)] == [0, 1, 2]


def test_a_delayed_record_names_its_queues_and_gets_no_entry():
    (queue,) = new_queues(1)
    record = _with(neutral_record(b"later"), flags=int(RecordFlag.DELAYED), deliver_ms=10**6)
    batch = [Appending(record, (queue,))]
    done = staged(batch)
    assert done.touched == []
    assert decode(b"".join(done.parts), 0, BASE)[1] == ((1, UNASSIGNED_OFFSET),)
    assert batch[0].first_offsets == (UNASSIGNED_OFFSET,)
    (delayed_appends,) = done.delayed_appends
    assert (delayed_appends.appending, delayed_appends.release) == (batch[0], None)


def test_the_stamp_of_a_delayed_record_leaves_out_the_offset_it_does_not_have():
    (queue,) = new_queues(1)
    record = _with(
        neutral_record(bytes(24)),
        flags=int(RecordFlag.DELAYED),
        stamp_offset_at=0,
        stamp_position_at=8,
        stamp_store_ms_at=16,
    )
    staged([Appending(record, (queue,))])
    assert record.origin == bytes(8) + BASE.to_bytes(8) + (500).to_bytes(8)


def test_a_release_gives_the_original_its_offsets():
    first, second = new_queues(2)
    original = _with(
        neutral_record(b"later", tag=b"red"),
        flags=int(RecordFlag.DELAYED),
        deliver_ms=7,
        messages=2,
        position=512,
    )
    batch = [
        Appending(neutral_record(b"before"), (first,)),
        Appending(release_record(original, 128), (first, second)),
        Appending(neutral_record(b"after"), (first,)),
    ]
    done = staged(batch)
    take_in(done)
    length = first.entries(0, 1)[0][4]
    assert first.entries(1, 1) == [(512, 1, length, 600, 128, 2, tag_hash(b"red"), INDEX_RELEASED)]
    assert second.entries(0, 9)[0][:2] == (512, 0)
    assert [entry[1] for entry in first.entries(0, 9)] == [0, 1, 3]
    assert done.delayed_appends[0].release.position == 512


def test_a_record_that_contradicts_itself_is_our_own_mistake():
    (queue,) = new_queues(1)
    record = neutral_record(b"body")
    record.reshape(body_len=99)
    with pytest.raises(InvariantBroken):
        staged([Appending(record, (queue,))])


def test_tags_and_births_may_differ_within_a_shape():
    (queue,) = new_queues(1)
    tags = (b"red", b"red", b"sky", b"red")
    batch = [
        Appending(_with(neutral_record(b"body", tag=tag), born_ms=number), (queue,))
        for number, tag in enumerate(tags)
    ]
    data = b"".join(staged(batch).parts)
    length = len(data) // len(tags)
    expected = [
        encode(_with(neutral_record(b"body", tag=tag), born_ms=n), [(1, n)], BASE + n * length, 500)
        for n, tag in enumerate(tags)
    ]
    assert data == b"".join(expected)
    queue.take_staged(0)
    assert [entry[6] for entry in queue.entries(0, 9)] == [tag_hash(tag) for tag in tags]


def test_stamped_records_are_packed_by_their_shape_and_others_one_by_one():
    assert packing_of(Shape(**dict(zip(STAMPS, (4, 12, 32), strict=True))), 40) is not None
    for places in ((4, 12, 33), (12, 4, 20), (4, 11, 20), (4, 12, -1), (-1, 4, 12)):
        assert packing_of(Shape(**dict(zip(STAMPS, places, strict=True))), 40) is None, places


def test_a_record_with_a_place_gets_it_and_leaves_a_hole():
    (index,) = new_queues(1)
    wanted = [0, 7, 8, 20, 15]
    batch = [
        Appending(
            _with(neutral_record(b"x"), flags=int(RecordFlag.PLACED), messages=3),
            (index,),
            first_offset=offset,
        )
        for offset in wanted
    ]
    done = staged([Appending(neutral_record(b"plain"), (index,)), *batch])
    take_in(done)

    # The place is a wish: what is given out is given out.
    firsts = [entry[1] for entry in index.entries(0, 100)]
    assert firsts == [0, 1, 7, 10, 20, 23]
    assert index.next_offset == 26
    assert [entry[1] for entry in index.entries(2, 2)] == [1, 7]
    assert [entry[1] for entry in index.entries(5, 1)] == [7]


def test_a_place_that_was_not_written_is_free_again():
    (index,) = new_queues(1)
    placed = Appending(
        _with(neutral_record(b"x"), flags=int(RecordFlag.PLACED)), (index,), first_offset=9
    )
    staged([placed]).undo([placed])
    take_in(staged([Appending(neutral_record(b"plain"), (index,))]))

    assert [entry[1] for entry in index.entries(0, 10)] == [0]
