"""Offsets in memory over a store: increase only, write what changed, forget."""

import asyncio

from kit.client.parts import MemoryOffsetStore
from penstock.client.consumer.offsets import OffsetTable
from penstock.model.assignment import QueueRef

A, B = QueueRef("t", "b", 0), QueueRef("u", "b", 1)


def test_a_late_result_does_not_undo_progress_but_a_reset_does():
    offsets = OffsetTable(MemoryOffsetStore())
    offsets.note(A, 5)
    offsets.note(A, 3)
    assert offsets.get(A) == 5
    offsets.note(A, 3, is_increase_only=False)
    assert offsets.get(A) == 3


def test_what_did_not_change_is_not_written_again():
    class Counting(MemoryOffsetStore):
        writes = 0

        async def write(self, offsets):
            self.writes += 1
            return await super().write(offsets)

    store = Counting()
    offsets = OffsetTable(store)
    offsets.note(A, 5)
    asyncio.run(offsets.persist())
    asyncio.run(offsets.persist())
    assert (store.stored, store.writes) == ({A: 5}, 1)
    offsets.note(A, 6)
    asyncio.run(offsets.persist())
    assert (store.stored, store.writes) == ({A: 6}, 2)


def test_what_could_not_be_written_is_written_next_time():
    store = MemoryOffsetStore()
    offsets = OffsetTable(store)
    offsets.note(A, 5)
    store.is_reachable = False
    asyncio.run(offsets.persist())
    store.is_reachable = True
    asyncio.run(offsets.persist())
    assert store.stored == {A: 5}


def test_only_some_queues_may_be_written():
    store = MemoryOffsetStore()
    offsets = OffsetTable(store)
    offsets.note(A, 5)
    offsets.note(B, 6)
    asyncio.run(offsets.persist([B, QueueRef("x", "b", 0)]))
    assert store.stored == {B: 6}


def test_a_read_offset_is_known_and_needs_no_write():
    store = MemoryOffsetStore()
    store.stored[A] = 9
    offsets = OffsetTable(store)
    assert asyncio.run(offsets.read(A)) == 9
    assert offsets.get(A) == 9
    store.stored.clear()
    asyncio.run(offsets.persist())
    assert store.stored == {}


def test_a_stored_offset_below_zero_is_none():
    store = MemoryOffsetStore()
    store.stored[A] = -1
    offsets = OffsetTable(store)
    assert asyncio.run(offsets.read(A)) is None
    assert asyncio.run(offsets.read(B)) is None
    assert offsets.get(A) is None


def test_a_forgotten_queue_is_neither_known_nor_written():
    store = MemoryOffsetStore()
    offsets = OffsetTable(store)
    offsets.note(A, 5)
    offsets.forget(A)
    asyncio.run(offsets.persist())
    assert (offsets.get(A), store.stored) == (None, {})


def test_a_queue_forgotten_while_it_is_written_is_not_remembered_as_written():
    class Slow(MemoryOffsetStore):
        async def write(self, written):
            offsets.forget(A)
            return await super().write(written)

    offsets = OffsetTable(Slow())
    offsets.note(A, 5)
    asyncio.run(offsets.persist())
    offsets.note(A, 5)
    asyncio.run(offsets.persist())
    assert offsets.get(A) is None


def test_a_snapshot_is_of_one_topic_or_of_all():
    offsets = OffsetTable(MemoryOffsetStore())
    offsets.note(A, 1)
    offsets.note(B, 2)
    assert offsets.snapshot("u") == {B: 2}
    assert offsets.snapshot() == {A: 1, B: 2}
