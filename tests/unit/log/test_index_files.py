from penstock.log.index_files import (
    ENTRY,
    ENTRY_BYTES,
    find_offset,
    find_time,
    queue_of,
)


def run(*entries):
    """Reads from packed (first_offset, messages, store_ms) entries."""
    data = b"".join(ENTRY.pack(0, first, 0, ms, 8, count, 0, 0) for first, count, ms in entries)
    reads = []

    def read(at, size):
        reads.append(at // ENTRY_BYTES)
        return data[at : at + size]

    return read, len(entries), reads


def test_single_messages_without_holes_are_found_without_a_read():
    read, count, reads = run((10, 1, 0), (11, 1, 0), (12, 1, 0))
    assert [find_offset(read, count, (10, 13), offset) for offset in (10, 11, 12)] == [0, 1, 2]
    assert reads == []


def test_batches_and_holes_are_found_by_halving():
    read, count, _ = run((10, 5, 0), (15, 1, 0), (20, 3, 0))
    found = [find_offset(read, count, (10, 23), offset) for offset in range(8, 24)]
    assert found == [0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 3]


def test_a_time_between_entries_gives_the_later_one():
    read, count, _ = run((0, 1, 10), (1, 1, 10), (2, 1, 20))
    assert [find_time(read, count, ms) for ms in (5, 10, 11, 20, 21)] == [0, 0, 2, 2, 3]


def test_the_queue_of_a_file_is_in_its_name():
    assert queue_of("index/0000000042-00000000000000065536.idx") == 42
