"""Offsets in a file: kept over restarts, and over crashes in the middle of a write."""

import asyncio

from penstock.client.consumer.offsets import LocalFileOffsetStore, offsets_file
from penstock.model.assignment import QueueRef

A, B = QueueRef("t", "b", 0), QueueRef("t", "b", 1)


def read(path, queue):
    return asyncio.run(LocalFileOffsetStore(path).read(queue))


def test_what_was_written_is_read_by_the_next_one(tmp_path):
    path = tmp_path / "c" / "g" / "offsets.json"
    store = LocalFileOffsetStore(path)
    assert asyncio.run(store.read(A)) is None
    assert asyncio.run(store.write({A: 3})) == [A]
    asyncio.run(store.write({B: 7}))
    assert (read(path, A), read(path, B)) == (3, 7)


def test_writers_side_by_side_lose_nothing(tmp_path):
    path = tmp_path / "offsets.json"
    queues = [QueueRef("t", "b", number) for number in range(20)]

    async def write_all():
        store = LocalFileOffsetStore(path)
        await asyncio.gather(*(store.write({queue: queue.queue}) for queue in queues))

    asyncio.run(write_all())
    assert [read(path, queue) for queue in queues] == list(range(20))


def test_a_damaged_file_is_replaced_by_the_one_before(tmp_path):
    path = tmp_path / "offsets.json"
    store = LocalFileOffsetStore(path)
    asyncio.run(store.write({A: 3}))
    asyncio.run(store.write({A: 4}))
    path.write_bytes(path.read_bytes()[:10])
    assert read(path, A) == 3
    path.unlink()
    assert read(path, A) == 3


def test_a_place_that_cannot_be_written_keeps_nothing_and_says_so(tmp_path, caplog):
    blocker = tmp_path / "file"
    blocker.write_text("no directory")
    store = LocalFileOffsetStore(blocker / "offsets.json")
    assert asyncio.run(store.write({A: 3})) == ()
    assert "not stored" in caplog.text


def test_the_file_is_named_after_client_and_group_whatever_they_are_called(tmp_path):
    path = offsets_file(str(tmp_path), "10.0.0.1@DEFAULT", "../evil/group")
    assert path == tmp_path / "10.0.0.1@DEFAULT" / ".._evil_group" / "offsets.json"
    assert offsets_file(None, "c", "g").parts[-4:] == (
        ".penstock_offsets",
        "c",
        "g",
        "offsets.json",
    )
