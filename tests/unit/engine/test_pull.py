"""Pull: answers by offset, and requests that wait for what they want."""

import pytest

from kit.batches import batch, numbered
from kit.queues import MemoryHost, MemoryQueue
from penstock.engine.pull import SCAN_ENTRIES_MAX, Pull, PullService, PullStatus
from penstock.flow.long_poll import HeldPulls
from penstock.model.record import Record, RecordFlag, Shape, neutral_record, tag_hash


class Reader:
    """A peer that keeps its answers."""

    def __init__(self):
        self.answers = []

    def answered(self, pull, result):
        self.answers.append((pull.token, result.status, [r.body for r in result.records]))


class Tag:
    """Wants one tag, and knows that hashes may collide."""

    def __init__(self, tag):
        self.tag = tag

    def matches_entry(self, hashed):
        return hashed == tag_hash(self.tag)

    def matches_record(self, record):
        return record.tag == self.tag


@pytest.fixture
def host():
    return MemoryHost()


@pytest.fixture
def queue(host):
    return MemoryQueue(host)


@pytest.fixture
def desk(host):
    return PullService(host)


@pytest.fixture
def reader():
    return Reader()


def test_it_gives_what_was_asked_for_and_says_where_to_go_on(desk, queue, reader):
    queue.fill(10)
    result = desk.pull(Pull(reader, queue, 4, messages_max=3))
    assert result.status is PullStatus.FOUND
    assert [record.body for record in result.records] == [b"4", b"5", b"6"]
    assert [entry[1] for entry in result.entries] == [4, 5, 6]
    assert (result.next_offset, result.min_offset, result.max_offset) == (7, 0, 10)


def test_bytes_are_limited_but_one_record_is_always_given(desk, queue, reader):
    queue.append(neutral_record(b"x" * 500) for _ in range(4))
    assert len(desk.pull(Pull(reader, queue, 0, bytes_max=1200)).records) == 2
    assert len(desk.pull(Pull(reader, queue, 0, bytes_max=1)).records) == 1


def test_a_batch_is_one_record_and_counts_all_its_messages(desk, queue, reader):
    queue.append(Record(b"x", Shape(messages=4)) for _ in range(3))
    result = desk.pull(Pull(reader, queue, 5, messages_max=4, whole_batches=True))
    assert [entry[1] for entry in result.entries] == [4]
    assert result.next_offset == 8


def test_only_what_is_durable_is_seen(desk, queue, reader):
    queue.fill(2)
    queue.append([neutral_record(b"unsynced")], is_synced=False)
    result = desk.pull(Pull(reader, queue, 0))
    assert (len(result.records), result.max_offset) == (2, 2)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (1, (PullStatus.OFFSET_TOO_SMALL, 3)),
        (6, (PullStatus.OFFSET_TOO_LARGE, 5)),
        (5, (PullStatus.NO_NEW, 5)),
    ],
)
def test_offsets_outside_are_put_right(desk, queue, reader, offset, expected):
    queue.fill(5)
    queue.trim(3)
    result = desk.pull(Pull(reader, queue, offset))
    assert (result.status, result.next_offset) == expected


def test_a_filter_skips_ahead_and_says_how_far(desk, queue, reader):
    tags = [b"b"] * 3 + [b"a", b"b", b"a", b"b"]
    queue.append(neutral_record(tag, tag=tag) for tag in tags)
    result = desk.pull(Pull(reader, queue, 0, messages_max=1, filter=Tag(b"a")))
    assert [entry[1] for entry in result.entries] == [3]
    assert result.next_offset == 5, "what does not match behind it was looked at, too"
    nothing = desk.pull(Pull(reader, queue, 6, filter=Tag(b"a"), deadline_ms=10**9))
    assert (nothing.status, nothing.next_offset) == (PullStatus.FILTERED, 7)


def test_one_answer_looks_at_a_bounded_number_of_entries(desk, queue, reader):
    queue.append(neutral_record(b"x", tag=b"b") for _ in range(SCAN_ENTRIES_MAX + 200))
    result = desk.pull(Pull(reader, queue, 0, filter=Tag(b"a")))
    assert (result.status, result.next_offset) == (PullStatus.FILTERED, SCAN_ENTRIES_MAX)


def test_unreadable_records_are_passed_and_told(host, desk, queue, reader):
    queue.fill(3)
    for entry in queue.index.all[:2]:
        host.records[entry[0]] = None
    result = desk.pull(Pull(reader, queue, 0, messages_max=2))
    assert [record.body for record in result.records] == [b"2"]
    host.records[queue.index.all[2][0]] = None
    result = desk.pull(Pull(reader, queue, 0))
    assert (result.status, result.next_offset) == (PullStatus.REMOVED, 3)


def test_transient_records_from_before_the_restart_are_gone(host, desk, queue, reader):
    record = neutral_record(b"old")
    record.reshape(flags=int(RecordFlag.TRANSIENT))
    queue.append([record])
    host.transient_floor = 1
    assert desk.pull(Pull(reader, queue, 0)).status is PullStatus.REMOVED


def test_a_pull_at_the_end_is_held_and_answered_by_arrival(host, desk, queue, reader):
    deadline_ms = host.clock.monotonic_ms() + 1000
    assert desk.pull(Pull(reader, queue, 0, deadline_ms=deadline_ms, token=7)) is None
    assert desk.next_deadline_ms() == deadline_ms
    queue.append([neutral_record(b"a")], is_synced=False)
    desk.arrived(queue)
    assert reader.answers == []
    queue.sync()
    desk.arrived(queue)
    assert reader.answers == [(7, PullStatus.FOUND, [b"a"])]
    assert len(desk) == 0


def test_a_held_pull_stays_until_something_matches_its_filter(host, desk, queue, reader):
    deadline_ms = host.clock.monotonic_ms() + 1000
    desk.pull(Pull(reader, queue, 0, filter=Tag(b"a"), deadline_ms=deadline_ms))
    queue.append([neutral_record(b"x", tag=b"b")])
    desk.arrived(queue)
    assert reader.answers == []
    queue.append([neutral_record(b"y", tag=b"a")])
    desk.arrived(queue)
    assert reader.answers == [(0, PullStatus.FOUND, [b"y"])]


def test_when_its_time_is_up_a_pull_is_told_where_it_stands(host, desk, queue, reader):
    deadline_ms = host.clock.monotonic_ms() + 1000
    desk.pull(Pull(reader, queue, 0, deadline_ms=deadline_ms, token=1))
    desk.pull(Pull(reader, queue, 0, filter=Tag(b"a"), deadline_ms=deadline_ms, token=2))
    desk.due(deadline_ms - 1)
    assert reader.answers == []
    desk.due(deadline_ms)
    assert [(token, status) for token, status, _ in reader.answers] == [
        (1, PullStatus.NO_NEW),
        (2, PullStatus.NO_NEW),
    ]


def test_a_pull_without_time_to_wait_or_without_room_is_answered_at_once(host, queue, reader):
    desk = PullService(host, HeldPulls(total_max=1))
    soon = host.clock.monotonic_ms() + 10
    assert desk.pull(Pull(reader, queue, 0)).status is PullStatus.NO_NEW
    assert desk.pull(Pull(reader, queue, 0, deadline_ms=soon)) is None
    assert desk.pull(Pull(reader, queue, 0, deadline_ms=soon)).status is PullStatus.NO_NEW


def test_the_pulls_of_a_peer_that_is_gone_are_dropped(host, desk, queue, reader):
    later = host.clock.monotonic_ms() + 1000
    other = Reader()
    desk.pull(Pull(reader, queue, 0, deadline_ms=later))
    desk.pull(Pull(other, queue, 0, deadline_ms=later))
    desk.disconnected(reader)
    queue.fill(1)
    desk.arrived(queue)
    assert reader.answers == []
    assert len(other.answers) == 1


def test_a_pull_that_is_taken_back_is_not_answered(host, desk, queue, reader):
    pull = Pull(reader, queue, 0, deadline_ms=host.clock.monotonic_ms() + 1000)
    desk.pull(pull)
    assert desk.cancel(pull)
    assert not desk.cancel(pull)
    queue.fill(1)
    desk.arrived(queue)
    assert reader.answers == []


def test_whoever_waits_for_a_deleted_queue_is_told(host, desk, queue, reader):
    desk.pull(Pull(reader, queue, 0, deadline_ms=host.clock.monotonic_ms() + 1000))
    desk.deleted(queue)
    assert reader.answers == [(0, PullStatus.CANCELLED, [])]


def test_what_did_not_match_is_not_looked_at_again(host, desk, queue, reader):
    class CountingTag(Tag):
        looked = 0

        def matches_entry(self, hashed):
            self.looked += 1
            return super().matches_entry(hashed)

    wanted = CountingTag(b"a")
    later = host.clock.monotonic_ms() + 1000
    desk.pull(Pull(reader, queue, 0, filter=wanted, deadline_ms=later))
    for _ in range(20):
        queue.append([neutral_record(b"x", tag=b"b")])
        desk.arrived(queue)
    assert wanted.looked == 20


# Batches


def bodies(result):
    return [record.body for record in result.records]


@pytest.mark.parametrize("count", [1, 3, 1_000])
def test_a_batch_is_pulled_message_by_message(desk, queue, reader, count):
    queue.append([neutral_record(b"x"), batch(*numbered(count)), neutral_record(b"y")])
    at, found = 0, []
    while at < count + 2:
        result = desk.pull(Pull(reader, queue, at, messages_max=32))
        assert [entry[1] for entry in result.entries] == list(range(at, result.next_offset))
        assert len(result.records) <= 32
        found += bodies(result)
        at = result.next_offset
    assert found == [b"x", *[b"%d" % number for number in range(count)], b"y"]
    assert desk.given_messages == count + 2


def test_a_pull_begins_in_the_midst_of_a_batch_and_ends_there(desk, queue, reader):
    queue.append([batch(*numbered(5)), batch(*numbered(5, 5))])
    result = desk.pull(Pull(reader, queue, 3, messages_max=4))
    assert (bodies(result), result.next_offset) == ([b"3", b"4", b"5", b"6"], 7)
    positions = [record.position for record in result.records]
    assert positions == [entry[0] for entry in result.entries] == [3, 4, 1024, 1025]


def test_who_pulls_whole_batches_is_given_them(desk, queue, reader):
    queue.append([batch(*numbered(5))])
    result = desk.pull(Pull(reader, queue, 3, whole_batches=True))
    assert [record.messages for record in result.records] == [5]


def test_a_filter_is_asked_about_what_is_in_a_batch(desk, queue, reader):
    queue.append([batch(*numbered(5)), neutral_record(b"x", tag=b"even")])
    result = desk.pull(Pull(reader, queue, 1, filter=Tag(b"odd")))
    assert (bodies(result), result.next_offset) == ([b"1", b"3"], 6)
    result = desk.pull(Pull(reader, queue, 0, messages_max=1, filter=Tag(b"odd")))
    assert (bodies(result), result.next_offset) == ([b"1"], 3)


def test_a_bounded_number_of_messages_in_batches_is_looked_at(desk, queue, reader):
    queue.append(batch(*numbered(500)) for _ in range(8))
    result = desk.pull(Pull(reader, queue, 0, filter=Tag(b"none")))
    assert (result.status, result.next_offset) == (PullStatus.FILTERED, 1_000)


def test_a_batch_that_cannot_be_opened_is_pulled_as_one(desk, queue, reader):
    queue.append([batch(*numbered(5), is_encrypted=True), neutral_record(b"x")])
    result = desk.pull(Pull(reader, queue, 2))
    assert [entry[1] for entry in result.entries] == [0, 5]


def test_the_bytes_of_an_answer_are_shares_of_a_batch(desk, queue, reader):
    queue.append([batch(*[bytes(100)] * 50)])
    result = desk.pull(Pull(reader, queue, 0, bytes_max=1_000))
    assert 5 <= len(result.records) <= 10


def born(*times, messages=1):
    return [Record(b"x", Shape(messages=messages), each) for each in times]


def test_a_search_by_publish_time_goes_by_the_clients_clock_and_not_by_the_store(desk, host, queue):
    host.clock.advance(1_000_000)
    queue.append(born(10, 20, 20, 30))
    assert [desk.search_published(queue, each) for each in (5, 10, 11, 20, 21, 30)] == [
        0, 0, 1, 1, 3, 3,
    ]  # fmt: skip
    assert desk.search_published(queue, 31) == 4, "the end"


def test_a_search_by_publish_time_ends_at_batches_and_sees_only_what_is_durable(desk, queue):
    queue.append([*born(10, messages=3), *born(20, messages=5), *born(30)])
    queue.append(born(40), is_synced=False)
    assert [desk.search_published(queue, each) for each in (10, 11, 25, 35)] == [0, 3, 8, 9]
    queue.trim(3)
    assert desk.search_published(queue, 0) == 3


def test_a_record_without_a_publish_time_is_as_old_as_its_place(desk, host, queue):
    queue.append(born(0))
    stored_ms = host.clock.wall_ms()
    host.clock.advance(10)
    queue.append(born(stored_ms + 10))
    assert desk.search_published(queue, stored_ms) == 0
    assert desk.search_published(queue, stored_ms + 1) == 1


def test_a_search_in_an_empty_queue_is_at_its_end(desk, queue):
    assert desk.search_published(queue, 1) == 0
