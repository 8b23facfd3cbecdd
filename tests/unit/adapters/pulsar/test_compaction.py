"""Unit tests for compaction: what survives, who reads it how, what is kept, what a crash leaves."""

import pytest

from kit.pulsar.bench import PulsarBench
from kit.pulsar.compacted import (
    NAME,
    TOPIC,
    Shelf,
    Till,
    compact,
    compacted,
    finish,
    keyed,
    opened,
)
from kit.pulsar_payload import batch_tail, single_tail
from kit.workbench import Workbench
from penstock.adapters.pulsar import compaction as room
from penstock.adapters.pulsar.naming import parse_name
from penstock.engine.topic import DirectRoute
from penstock.model.errors import AlreadyExists
from penstock.model.names import TopicName
from penstock.model.record import neutral_record
from penstock.settings.broker import StorageSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import PulsarSettings
from penstock.testing.storage import FaultKind
from penstock.wire.pulsar.frames import NO_ID
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, CommandSubscribe


@pytest.fixture
def till(bench):
    return Till(bench)


def queue_of(bench):
    return bench.engine.topic(NAME.topic_name).queues[0]


def views(bench):
    """Queues of copies that there are."""
    return [each for each in bench.engine.topics() if each.name.space == room.VIEWS_SPACE]


# ---- what survives ------------------------------------------------------------------------------


def test_the_newest_message_of_each_key_survives_in_the_order_of_the_topic(bench, till):
    till.send(keyed("a", b"1"), keyed("b", b"2"), keyed("a", b"3"), keyed("c", b"4"))
    compact(bench)

    assert compacted(bench) == [("b", b"2"), ("a", b"3"), ("c", b"4")]


def test_before_it_runs_readers_of_the_compacted_topic_get_all_of_it(bench, till):
    till.send(keyed("a", b"1"), keyed("a", b"2"))

    assert bench.broker.compaction.status(NAME).status == "NOT_RUN"
    assert compacted(bench) == [("a", b"1"), ("a", b"2")]


def test_a_null_value_and_an_empty_payload_delete_their_keys(bench, till):
    till.send(keyed("a", b"1"), keyed("b", b"2"), keyed("c", b"3"))
    till.send(keyed("a", b"x", is_null=True), keyed("b"))
    compact(bench)

    assert compacted(bench) == [("c", b"3")]


def test_a_deleted_key_may_come_back(bench, till):
    till.send(keyed("a", b"1"), keyed("a"), keyed("a", b"2"))
    compact(bench)

    assert compacted(bench) == [("a", b"2")]


def test_messages_without_a_key_are_dropped(bench, till):
    till.send(keyed("", b"1"), keyed("a", b"2"), [keyed("", b"3"), keyed("b", b"4")])
    compact(bench)

    assert compacted(bench) == [("a", b"2"), ("b", b"4")]


def test_what_comes_after_it_is_the_tail_and_comes_as_it_is(bench, till):
    till.send(keyed("a", b"1"), keyed("a", b"2"))
    compact(bench)
    till.send(keyed("a", b"3"), keyed("", b"4"), keyed("a", b"5"))

    assert compacted(bench) == [("a", b"2"), ("a", b"3"), ("", b"4"), ("a", b"5")]


def test_the_next_one_goes_on_from_the_last(bench, till):
    till.send(keyed("a", b"1"), keyed("b", b"2"), keyed("c", b"3"))
    compact(bench)
    till.send(keyed("a", b"4"), keyed("b"))
    compact(bench)

    assert compacted(bench) == [("c", b"3"), ("a", b"4")]
    assert len(views(bench)) == 1


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_of_a_batch_that_survives_in_part_each_survivor_is_an_entry_at_its_place(
    bench, till, compression
):
    messages = [keyed(f"k{number}", b"%d" % number) for number in range(6)]
    till.raw(batch_tail(*messages, compression=compression))
    till.send(keyed("k1", b"x"), keyed("k4"))
    compact(bench)

    shelf = Shelf(bench)
    assert shelf.entries() == [
        (0, [("k0", b"0")]),
        (2, [("k2", b"2")]),
        (3, [("k3", b"3")]),
        (5, [("k5", b"5")]),
        (6, [("k1", b"x")]),
    ]


def test_a_batch_that_survives_as_a_whole_is_passed_on_byte_for_byte(bench, till):
    tail = batch_tail(keyed("a", b"1"), keyed("b", b"2"), compression="ZLIB")
    till.raw(tail)
    compact(bench)

    ((_, heard),) = Shelf(bench).client.heard()
    assert heard == tail


def test_within_a_batch_the_later_message_of_a_key_counts(bench, till):
    till.send([keyed("a", b"1"), keyed("b", b"2"), keyed("a", b"3"), keyed("b")])
    compact(bench)

    assert Shelf(bench).entries() == [(2, [("a", b"3")])]


def test_an_encrypted_batch_is_kept_as_it_is(bench, till):
    encrypted = {"encryption_keys": [{"key": "k", "value": b"v"}]}
    tail = batch_tail(keyed("a", b"1"), keyed("b", b"2"), **encrypted)
    till.raw(tail)
    till.send(keyed("a", b"3"))
    compact(bench)
    compact(bench)

    first, second = Shelf(bench).client.heard()
    assert first[1] == tail
    assert opened(second[1]) == [("a", b"3")]


def test_an_encrypted_message_goes_by_its_key_which_is_not_encrypted(bench, till):
    encrypted = {"encryption_keys": [{"key": "k", "value": b"v"}]}
    till.raw(single_tail(keyed("a", b"old"), **encrypted))
    till.raw(single_tail(keyed("a", b"new"), **encrypted))
    compact(bench)

    assert compacted(bench) == [("a", b"new")]


def test_a_batch_that_cannot_be_opened_is_kept_as_it_is(bench, till):
    tail = batch_tail(keyed("a", b"1"), keyed("b", b"2"), compression="ZLIB", has_crc=False)
    broken = tail[:-3] + b"xyz"
    till.raw(broken)
    till.send(keyed("a", b"3"))
    compact(bench)

    assert next(each for _, each in Shelf(bench).client.heard()) == broken


def test_of_a_compressed_message_its_size_before_counts(bench, till):
    till.raw(single_tail(keyed("a", b"1"), compression="ZLIB"))
    till.raw(single_tail(keyed("b", b"2"), compression="ZLIB"))
    till.raw(single_tail(keyed("a", b""), compression="ZLIB"))
    compact(bench)

    ((_, tail),) = Shelf(bench).client.heard()
    assert opened(tail)[0][0] == "b"


def test_a_long_key_is_a_key_like_any_other(bench, till):
    long, other = "k" * 5_000, "k" * 4_999 + "x"
    till.send(keyed(long, b"1"), keyed(other, b"2"), keyed(long, b"3"))
    compact(bench)

    assert compacted(bench) == [(other, b"2"), (long, b"3")]


def chunk(uuid, number, count, key="", body=b"c"):
    return single_tail(
        keyed(key, body), uuid=uuid, chunk_id=number, num_chunks_from_msg=count,
        total_chunk_msg_size=count,
    )  # fmt: skip


def test_the_chunks_of_a_message_survive_together(bench, till):
    for number in range(3):
        till.raw(chunk("old", number, 3, "a", b"o"))
    till.send(keyed("b", b"between"))
    for number in range(2):
        till.raw(chunk("new", number, 2, "a", b"n%d" % number))
    compact(bench)

    assert compacted(bench) == [("b", b"between"), ("a", b"n0"), ("a", b"n1")]


def test_chunks_that_are_not_complete_are_kept_until_they_are(bench, till):
    till.raw(chunk("u", 0, 2, "a", b"first"))
    compact(bench)
    assert compacted(bench) == [("a", b"first")]

    till.raw(chunk("u", 1, 2, "a", b"last"))
    compact(bench)
    assert compacted(bench) == [("a", b"first"), ("a", b"last")]

    till.send(keyed("a", b"small"))
    compact(bench)
    assert compacted(bench) == [("a", b"small")]


def test_messages_of_other_protocols_are_compacted_by_their_keys(bench, till):
    till.send(keyed("a", b"pulsar"))
    channel = Workbench.connect(bench).open_channel()
    route = DirectRoute(queue_of(bench))
    bench.publish(channel, route, neutral_record(b"neutral", key=b"a"), neutral_record(b"x"))
    bench.settle()
    compact(bench)

    assert compacted(bench) == [("a", b"neutral")]


# ---- reading it ---------------------------------------------------------------------------------


def test_a_durable_subscription_reads_it_once_and_goes_on_where_it_acked(bench, till):
    till.send(keyed("a", b"1"), keyed("b", b"2"), keyed("a", b"3"), keyed("c", b"4"))
    compact(bench)
    shelf = Shelf(bench)
    assert [entry for entry, _ in shelf.entries()] == [1, 2, 3]
    shelf.ack(1, 3)
    shelf.client.vanish()

    again = Shelf(bench)
    assert again.got() == [("a", b"3")]
    again.ack(2)
    again.client.vanish()
    assert Shelf(bench).got() == []


def test_a_cumulative_ack_settles_what_was_left_out_as_well(bench, till):
    till.send(keyed("a", b"1"), keyed("b", b"2"), keyed("a", b"3"), keyed("c", b"4"))
    compact(bench)
    shelf = Shelf(bench)
    shelf.entries()
    shelf.ack(2, kind="Cumulative")
    shelf.client.vanish()

    assert Shelf(bench).got() == [("c", b"4")]


def test_what_is_not_acked_comes_again(bench, till):
    till.send(keyed("a", b"1"), [keyed("b", b"2"), keyed("a", b"3")], keyed("a", b"4"))
    compact(bench)
    shelf = Shelf(bench)
    assert shelf.got() == [("b", b"2"), ("a", b"4")]
    shelf.client.say("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)

    assert shelf.got() == [("b", b"2"), ("a", b"4")]


def test_each_survivor_costs_a_permit_and_nothing_else_does(bench, till):
    till.send([keyed(f"k{number}", b"x") for number in range(10)], keyed("k0", b"y"))
    till.send([keyed(f"k{number}", b"z") for number in range(1, 5)])
    compact(bench)
    shelf = Shelf(bench, permits=3)
    assert len(shelf.entries()) == 3
    shelf.client.say("FLOW", consumer_id=1, messagePermits=4)

    assert [entry for entry, _ in shelf.entries()] == [8, 9, 10, 11]


def test_it_can_be_sought_by_id_and_by_time(bench, till):
    for number in range(4):
        till.raw(single_tail(keyed(f"k{number}", b"%d" % number), publish_time=1_000 * number + 1))
    till.raw(single_tail(keyed("k1", b"x"), publish_time=9_001))
    compact(bench)
    shelf = Shelf(bench)
    assert len(shelf.entries()) == 4
    ledger = queue_of(bench).incarnation
    shelf.client.say(
        "SEEK", consumer_id=1, request_id=5, message_id={"ledgerId": ledger, "entryId": 1}
    )
    bench.settle()
    shelf.client.vanish()
    assert Shelf(bench).got() == [("k2", b"2"), ("k3", b"3"), ("k1", b"x")]

    last = Shelf(bench, "t")
    last.client.say("SEEK", consumer_id=1, request_id=5, message_publish_time=3_001)
    bench.settle()
    last.client.vanish()
    assert Shelf(bench, "t").got() == [("k3", b"3"), ("k1", b"x")]


def test_the_last_message_id_is_that_of_the_last_survivor(bench, till):
    till.send(keyed("a", b"1"), keyed("b", b"2"), [keyed("c", b"3"), keyed("b"), keyed("", b"4")])
    compact(bench)
    shelf = Shelf(bench)
    assert shelf.got() == [("a", b"1"), ("c", b"3")]
    assert shelf.last_id() == (2, 0)

    till.send(keyed("d", b"5"))
    assert shelf.got() == [("d", b"5")]
    assert shelf.last_id() == (5, -1)


def test_where_nothing_survives_there_is_no_last_message(bench, till):
    till.send(keyed("a", b"1"), keyed("a"))
    compact(bench)
    shelf = Shelf(bench)

    assert shelf.got() == []
    assert shelf.last_id() == (NO_ID, -1)


def test_a_reader_begins_at_the_message_of_a_batch_that_its_id_names(bench, till):
    till.send([keyed(f"k{number}", b"%d" % number) for number in range(5)], keyed("k0", b"x"))
    compact(bench)
    start = {"ledgerId": queue_of(bench).incarnation, "entryId": 0, "batch_index": 3}
    shelf = Shelf(bench, "reader-2", durable=False, start_message_id=start)

    assert [entry for entry, _ in shelf.entries()] == [3, 4, 5]


def test_who_does_not_ask_for_it_reads_everything(bench, till):
    till.send(keyed("a", b"1"), keyed("a", b"2"))
    compact(bench)

    assert Shelf(bench, read_compacted=False).got() == [("a", b"1"), ("a", b"2")]


def test_a_subscription_reads_it_or_not_as_its_consumers_want(bench, till):
    till.send(keyed("a", b"1"), keyed("b", b"2"), keyed("a", b"3"))
    compact(bench)
    first = Shelf(bench, permits=1)
    assert first.got() == [("b", b"2")]
    first.client.vanish()

    # What was left out before the message it got counts as acked.
    assert Shelf(bench, read_compacted=False).got() == [("b", b"2"), ("a", b"3")]


def test_failover_consumers_read_it_together(bench, till):
    till.send(keyed("a", b"1"), keyed("b", b"2"), keyed("a", b"3"))
    compact(bench)
    first = Shelf(bench, subType=CommandSubscribe.Failover, consumer_name="a")
    bench.pass_time(1_100)
    second = Shelf(bench, subType=CommandSubscribe.Failover, consumer_name="b")
    bench.pass_time(1_100)
    first.client.vanish()
    bench.pass_time(1_100)
    messages = [tail for command, tail in second.client.heard() if command.HasField("message")]

    assert [opened(each)[0] for each in messages] == [("b", b"2"), ("a", b"3")]


def test_a_partition_is_compacted_by_itself(bench):
    bench.broker.topics.create(NAME, 2)
    bench.settle()
    tills = [Till(bench, f"{TOPIC}-partition-{number}") for number in range(2)]
    for till in tills:
        till.send(keyed("a", b"1"), keyed("a", b"2"))
    compact(bench, NAME.of_partition(1))

    assert Shelf(bench, topic=f"{TOPIC}-partition-0").got() == [("a", b"1"), ("a", b"2")]
    assert Shelf(bench, topic=f"{TOPIC}-partition-1").got() == [("a", b"2")]


# ---- while somebody reads -----------------------------------------------------------------------


def test_who_is_in_the_midst_of_the_old_view_is_told_to_come_again(bench, till):
    till.send(keyed("a", b"1"), keyed("b", b"2"), keyed("c", b"3"))
    compact(bench)
    shelf = Shelf(bench, permits=1)
    assert shelf.got() == [("a", b"1")]
    till.send(keyed("b", b"4"))
    compact(bench)

    (closed,) = shelf.client.commands()
    assert closed.type == BaseCommand.CLOSE_CONSUMER
    assert Shelf(bench).got() == [("a", b"1"), ("c", b"3"), ("b", b"4")]


def test_who_has_passed_the_old_view_reads_on_undisturbed(bench, till):
    till.send(keyed("a", b"1"), keyed("a", b"2"))
    compact(bench)
    shelf = Shelf(bench)
    ((entry, _),) = shelf.entries()
    shelf.ack(entry)
    till.send(keyed("a", b"3"))
    assert shelf.got() == [("a", b"3")]
    compact(bench)
    till.send(keyed("a", b"4"))

    assert shelf.got() == [("a", b"4")]


def test_what_is_published_while_it_runs_belongs_to_the_next(bench, till):
    till.send(*[keyed(f"k{number % 7}", b"%d" % number) for number in range(30)])
    bench.broker.compaction.start(NAME)
    till.send(keyed("k0", b"late"))
    finish(bench)

    found = compacted(bench)
    assert len(found) == 8
    assert found[-1] == ("k0", b"late")


# ---- pieces, bounds and errors ------------------------------------------------------------------


def test_it_runs_in_pieces(bench, till, monkeypatch):
    monkeypatch.setattr(room, "PIECE_STEPS", 10)
    till.send(*[keyed(f"k{number % 5}", b"x") for number in range(100)])
    compaction = bench.broker.compaction
    compaction.start(NAME)
    pieces = 0
    while compaction.status(NAME).status == "RUNNING":
        bench.clock.advance(room.PAUSE_MS)
        compaction.due(bench.clock.monotonic_ms())
        bench.settle()
        pieces += 1

    assert pieces > 10
    assert len(compacted(bench)) == 5


def test_it_runs_once_at_a_time(bench, till):
    till.send(keyed("a", b"1"))
    bench.broker.compaction.start(NAME)

    with pytest.raises(AlreadyExists, match="Compaction already in progress"):
        bench.broker.compaction.start(NAME)
    assert finish(bench).status == "SUCCESS"
    compact(bench)


def test_topics_wait_for_each_other(bench, till):
    other = "persistent://public/default/other"
    Till(bench, other).send(keyed("a", b"1"), keyed("a", b"2"))
    till.send(keyed("a", b"1"))
    bench.broker.compaction.start(NAME)
    bench.broker.compaction.start(parse_name(other))

    assert finish(bench).status == "SUCCESS"
    assert finish(bench, parse_name(other)).status == "SUCCESS"
    assert Shelf(bench, topic=other).got() == [("a", b"2")]


def test_too_many_keys_are_an_error_and_change_nothing():
    bench = PulsarBench(Settings(pulsar=PulsarSettings(compaction_keys_max=3)))
    till = Till(bench)
    till.send(keyed("a", b"1"), keyed("b", b"2"), keyed("a", b"3"))
    compact(bench)
    till.send(keyed("c", b"4"), keyed("d", b"5"))
    bench.broker.compaction.start(NAME)
    found = finish(bench)

    assert found.status == "ERROR"
    assert "pulsar.compaction_keys_max" in found.last_error
    assert len(views(bench)) == 1
    assert compacted(bench) == [("b", b"2"), ("a", b"3"), ("c", b"4"), ("d", b"5")]


def test_a_refused_copy_ends_it_with_its_reason(bench, till):
    till.send(keyed("a", b"1"))
    bench.broker.compaction.start(NAME)
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC, times=100)
    found = finish(bench)

    assert found.status == "ERROR"
    assert found.last_error
    assert views(bench) == []


def test_deleting_the_topic_ends_it_and_takes_the_view(bench, till):
    till.send(keyed("a", b"1"))
    compact(bench)
    bench.broker.compaction.start(NAME)
    bench.broker.topics.delete(NAME)
    bench.pass_time(2_000)

    assert views(bench) == []
    assert bench.engine.definitions(room.COMPACTED_KIND) == {}
    assert bench.broker.compaction.status(NAME).status in ("NOT_RUN", "ERROR")
    Till(bench).send(keyed("a", b"2"), keyed("a", b"3"))
    assert compacted(bench) == [("a", b"2"), ("a", b"3")]


def test_nobody_can_add_to_a_view(bench, till):
    till.send(keyed("a", b"1"))
    compact(bench)

    (view,) = views(bench)
    assert view.is_terminated
    assert view.name.is_hidden


# ---- what is kept -------------------------------------------------------------------------------


def small_segments(**pulsar):
    storage = StorageSettings(
        segment_bytes_max=65_536,
        settled_keep_ms=0,
        settled_keep_bytes_max=0,
        retention_sweep_ms=1_000,
    )
    return PulsarBench(Settings(storage=storage, pulsar=PulsarSettings(**pulsar)))


def fill(till, keys, size=4_000):
    """Some segments full."""
    for number in range(60):
        till.send(keyed(f"k{number % keys}", b"%d" % number + b"." * size))


def test_copies_outlive_what_they_are_copies_of():
    bench = small_segments()
    till = Till(bench)
    fill(till, 5)
    compact(bench)
    bench.pass_time(30_000)

    assert queue_of(bench).index.min_offset > 0
    assert [key for key, _ in compacted(bench)] == ["k0", "k1", "k2", "k3", "k4"]
    assert Shelf(bench).got() == compacted(bench)


def test_what_came_since_is_kept_for_the_next_compaction():
    bench = small_segments()
    till = Till(bench)
    till.send(keyed("a", b"1"))
    compact(bench)
    fill(till, 5)
    bench.pass_time(30_000)
    assert queue_of(bench).index.min_offset <= 1

    compact(bench)
    bench.pass_time(30_000)
    assert queue_of(bench).index.min_offset > 1
    assert len(compacted(bench)) == 6


def test_beyond_its_bound_the_broker_compacts_by_itself():
    bench = small_segments(compaction_kept_bytes_max=100_000)
    till = Till(bench)
    till.send(keyed("a", b"1"))
    compact(bench)
    fill(till, 5)
    bench.pass_time(30_000)

    assert queue_of(bench).index.min_offset > 1
    assert len(compacted(bench)) == 6


def test_where_that_fails_it_is_kept_no_longer():
    bench = small_segments(compaction_kept_bytes_max=100_000, compaction_keys_max=3)
    till = Till(bench)
    till.send(keyed("a", b"1"))
    compact(bench)
    fill(till, 5)
    bench.pass_time(60_000)

    assert bench.broker.compaction.status(NAME).status == "ERROR"
    assert queue_of(bench).kept_from is None
    assert queue_of(bench).index.min_offset > 1


# ---- restarts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill", "cut_power"])
def test_the_view_and_who_reads_it_survive(bench, till, end):
    till.send([keyed("a", b"1"), keyed("b", b"2")], keyed("a", b"3"), keyed("c", b"4"))
    compact(bench)
    till.send(keyed("c", b"5"))
    shelf = Shelf(bench, permits=1)
    ((entry, _),) = shelf.entries()
    shelf.ack(entry)
    getattr(bench, end)()

    assert bench.broker.compaction.status(NAME).status == "NOT_RUN"
    assert compacted(bench) == [("b", b"2"), ("a", b"3"), ("c", b"4"), ("c", b"5")]
    assert Shelf(bench).got() == [("a", b"3"), ("c", b"4"), ("c", b"5")]
    assert queue_of(bench).kept_from == 4


@pytest.mark.parametrize("end", ["kill", "cut_power"])
def test_a_crash_in_the_midst_leaves_the_last_view(bench, till, monkeypatch, end):
    monkeypatch.setattr(room, "PIECE_STEPS", 1)
    monkeypatch.setattr(room, "COPIES_AT_A_TIME", 1)
    till.send(keyed("a", b"1"), keyed("a", b"2"))
    compact(bench)
    till.send(*[keyed(f"k{number}", b"x") for number in range(10)], keyed("a", b"3"))
    compaction = bench.broker.compaction
    compaction.start(NAME)
    while len(views(bench)) == 1 or not views(bench)[1].queues[0].index.next_offset:
        bench.clock.advance(room.PAUSE_MS)
        compaction.due(bench.clock.monotonic_ms())
        bench.settle()
    getattr(bench, end)()
    bench.settle()

    assert len(views(bench)) == 1
    found = compacted(bench)
    assert found[0] == ("a", b"2")
    assert len(found) == 12
    compact(bench)
    assert len(compacted(bench)) == 11


def test_a_view_of_a_topic_that_is_gone_goes_at_the_start(bench, till):
    till.send(keyed("a", b"1"))
    compact(bench)
    bench.engine.delete_topic(TopicName("", "orders"))
    bench.settle()
    bench.stop()

    assert views(bench) == []
