"""Arrow rows to stage files: the same bytes as one by one, queues, errors, room, ends."""

import datetime
import errno
import os

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bulk import staging
from penstock.bulk.staging import RowEncoder, StageWriter, java_hash, remove_parts
from penstock.bulk.tickets import BulkError
from penstock.client.producer.selection import queue_of_key
from penstock.log.format import decode, encode
from penstock.log.index import ENTRY_FACTS
from penstock.log.staging import placed, read_block, read_head
from penstock.log.storage import DiskStorage
from penstock.model.assignment import QueueRef
from penstock.model.ids import UNASSIGNED_OFFSET
from penstock.model.queries import (
    CommitBatchRequest,
    CommitBatchResponse,
    EmptyResponse,
    StageDoneRequest,
    StagedTopic,
    StageRoomRequest,
    StageRoomResponse,
)
from penstock.model.record import neutral_record, tag_hash
from penstock.model.spark_batch import HELD, TOO_LARGE, UNREACHABLE, StageCommand

WALL_MS = 1_700_000_000_000
MAP = pa.map_(pa.string(), pa.string())


def command(**changes):
    return StageCommand(**{"sink": "out", "query": "q", "batch": 0, "stage": "abc"} | changes)


class Broker:
    """Grants what it is told to, and remembers what it was asked."""

    def __init__(self, queues=(1, 2, 3), message_bytes_max=1 << 20):
        self.queues = list(queues)
        self.message_bytes_max = message_bytes_max
        self.rooms = []
        self.done = []
        self.commits = []
        self.holds = []
        """Words of the next answers that say no."""

    def ask(self, name, question):
        if isinstance(question, StageRoomRequest):
            self.rooms.append(question)
            if self.holds:
                return StageRoomResponse(held=self.holds.pop(0))
            topics = [
                StagedTopic(name=each, queues=self.queues, message_bytes_max=self.message_bytes_max)
                for each in question.topics
            ]
            return StageRoomResponse(topics=topics, wall_ms=WALL_MS)
        if isinstance(question, StageDoneRequest):
            self.done.append(question)
            return EmptyResponse()
        assert isinstance(question, CommitBatchRequest)
        self.commits.append(question)
        held = self.holds.pop(0) if self.holds else ""
        return CommitBatchResponse(held=held)


def encoded(batch, broker=None, *, first_row=0, **changes):
    """Blocks of one batch."""
    asked = broker or Broker()
    encoder = RowEncoder(
        command(**{"topic": "orders"} | changes),
        lambda names: asked.ask("", StageRoomRequest(
            sink="", query="", batch=0, name="", topics=names)).topics,
    )  # fmt: skip
    encoder.wall_ms = WALL_MS
    encoder.check(batch.schema)
    encoder.learn(batch)
    return encoder.blocks(batch, first_row)


def records(blocks):
    """(queue, record, deliver time) of every row, read as the log would."""
    found = []
    for block in blocks:
        data, at = bytes(placed(block, 4096, 77)), 0
        for length, *_ in ENTRY_FACTS.iter_unpack(block.facts):
            record, [(queue_id, offset)] = decode(data, at, 4096 + at)
            assert offset == UNASSIGNED_OFFSET
            assert queue_id == block.queue_id
            found.append((block.queue_id, record))
            at += length
    return found


def column(values, kind=None):
    return pa.record_batch({"body": pa.array(values, kind or pa.binary())})


# ---- bytes


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=60),
            st.text(st.characters(blacklist_categories=["Cs"]), max_size=9) | st.none(),
            st.sampled_from(["A", "B", "é", "", None]),
            st.dictionaries(
                st.text("abc", min_size=1, max_size=3), st.text("xyz\x01", max_size=4), max_size=3
            )
            | st.none(),
            st.text("0123", max_size=4) | st.none(),
            st.integers(1, 1 << 41) | st.none(),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_rows_are_the_records_that_they_would_be_one_by_one(rows):
    bodies, keys, tags, maps, ids, expires = zip(*rows, strict=True)
    batch = pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "key": pa.array(keys, pa.string()),
            "tag": pa.array(tags, pa.string()),
            "properties": pa.array([m and list(m.items()) for m in maps], MAP),
            "message_id": pa.array(ids, pa.string()),
            "expire": pa.array(expires, pa.int64()),
        }
    )
    blocks = encoded(batch)
    expected = []
    for body, key, tag, properties, message_id, expire in rows:
        pairs = {**(properties or {})}
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items() if value)
        text += f"message_id\x01{message_id}\x02" if message_id else ""
        record = neutral_record(
            body, properties=text.encode(), key=(key or "").encode(), tag=(tag or "").encode()
        )
        record.reshape(expire_ms=expire or 0, flags=4)
        record.born_ms = WALL_MS
        expected.append(record)
    by_queue = {}
    for (queue_id, record), block_row in zip(records(blocks), _facts(blocks), strict=True):
        by_queue.setdefault(queue_id, []).append(record)
        length, messages, hashed, flags = block_row
        assert (messages, flags) == (1, 8 if record.expire_ms else 0)
        assert hashed == (tag_hash(record.tag) if record.tag else 0)
        assert length == len(encode(record, [(queue_id, UNASSIGNED_OFFSET)], 0, 0))
    found = sorted(each.origin for one in by_queue.values() for each in one)
    assert found == sorted(each.origin for each in expected)
    shapes = sorted((each.origin, each.shape.key_len, each.expire_ms, each.flags, each.born_ms)
                    for one in by_queue.values() for each in one)  # fmt: skip
    assert shapes == sorted(
        (each.origin, each.shape.key_len, each.expire_ms, each.flags, each.born_ms)
        for each in expected
    )


def _facts(blocks):
    return [row for block in blocks for row in ENTRY_FACTS.iter_unpack(block.facts)]


@given(st.lists(st.text(st.characters(blacklist_categories=["Cs"]), max_size=20), max_size=50))
def test_hashes_of_columns_are_javas(texts):
    array = pa.array([each.encode() for each in texts], pa.binary())
    lengths = pa.compute.binary_length(array).to_numpy(zero_copy_only=False)
    assert java_hash(array, lengths).tolist() == [tag_hash(each.encode()) for each in texts]


def test_hashes_of_many_different_texts_are_javas():
    texts = [f"customer-{n}" * (n % 3) for n in range(5000)]
    array = pa.array([each.encode() for each in texts], pa.binary())
    lengths = pa.compute.binary_length(array).to_numpy(zero_copy_only=False)
    assert java_hash(array, lengths).tolist() == [tag_hash(each.encode()) for each in texts]


# ---- queues


def test_a_key_chooses_the_queue_that_the_clients_producer_chooses():
    keys = [f"key-{n}" for n in range(2000)]
    batch = pa.record_batch({"body": [b""] * 2000, "key": keys})
    queues = [QueueRef("orders", "broker", number) for number in range(3)]
    for queue_id, record in records(encoded(batch)):
        chosen = queue_of_key(queues, record.key.decode())
        assert queue_id == [1, 2, 3][queues.index(chosen)]


def test_rows_without_a_key_go_to_all_queues_in_turn_and_keep_their_order():
    found = records(encoded(column([b"%d" % n for n in range(10)]), partition=1))
    by_queue = {}
    for queue_id, record in found:
        by_queue.setdefault(queue_id, []).append(int(record.body))
    assert by_queue == {1: [2, 5, 8], 2: [0, 3, 6, 9], 3: [1, 4, 7]}


def test_the_turn_goes_on_with_the_next_batch():
    broker = Broker()
    encoder = RowEncoder(
        command(topic="orders"),
        lambda names: broker.ask("", StageRoomRequest(
            sink="", query="", batch=0, name="", topics=names)).topics,
    )  # fmt: skip
    batch = column([b"x"])
    encoder.learn(batch)
    queues = [encoder.blocks(batch, 0)[0].queue_id for _ in range(4)]
    assert queues == [1, 2, 3, 1]


def test_rows_of_several_topics_go_to_theirs():
    asked = []

    def resolve(names):
        asked.append(names)
        ids = {"orders": [1], "a": [10, 11], "b": [20]}
        return [StagedTopic(name=n, queues=ids[n], message_bytes_max=100) for n in names]

    encoder = RowEncoder(command(topic="orders"), resolve)
    batch = pa.record_batch({"body": [b"1", b"2", b"3", b"4"], "topic": ["a", None, "b", "a"]})
    encoder.check(batch.schema)
    encoder.learn(batch)
    found = {(queue_id, record.body) for queue_id, record in records(encoder.blocks(batch, 0))}
    assert asked == [["orders", "a", "b"]]
    assert found == {(10, b"1"), (1, b"2"), (20, b"3"), (11, b"4")}


def test_blocks_are_cut_by_rows_and_by_bytes(monkeypatch):
    monkeypatch.setattr(staging, "BLOCK_ROWS_MAX", 3)
    assert [block.rows for block in encoded(column([b"x"] * 10), Broker([1]))] == [3, 3, 3, 1]
    monkeypatch.setattr(staging, "BLOCK_BYTES_MAX", 2000)
    sizes = [block.rows for block in encoded(column([b"x" * 1500] * 4), Broker([1]))]
    assert sizes == [1, 1, 1, 1]


# ---- times


def test_times_are_timestamps_or_milliseconds():
    moment = datetime.datetime(2023, 11, 14, 22, 13, 21, tzinfo=datetime.UTC)
    ms = int(moment.timestamp() * 1000)
    kinds = [
        pa.array([moment], pa.timestamp("us", "UTC")),
        pa.array([moment.replace(tzinfo=None)], pa.timestamp("ns")),
        pa.array([ms], pa.int64()),
    ]
    for values in kinds:
        batch = pa.record_batch({"body": [b""], "deliver_at": values, "expire": values})
        [block] = encoded(batch)
        [(_, record)] = records([block])
        assert (block.is_delayed, record.deliver_ms, record.expire_ms) == (True, ms, ms)
        assert block.times == ms.to_bytes(8, "little")


def test_a_delay_counts_from_the_put_and_what_is_over_is_at_once():
    batch = pa.record_batch({"body": [b"1", b"2", b"3"], "delay_ms": [500, -5, None]})
    blocks = encoded(batch, Broker([1]))
    assert [(block.is_delayed, block.rows) for block in blocks] == [(False, 2), (True, 1)]
    assert records(blocks)[2][1].deliver_ms == WALL_MS + 500


def test_an_expiry_before_1970_is_over_and_not_never():
    [(_, record)] = records(encoded(pa.record_batch({"body": [b""], "expire": [-1]})))
    assert record.expire_ms == 1


# ---- what is wrong


def test_a_put_names_so_many_topics_and_no_more_whatever_its_batches_have(monkeypatch):
    monkeypatch.setattr(staging, "STAGE_TOPICS_MAX", 3)
    encoder = RowEncoder(
        command(), lambda names: Broker().ask("", StageRoomRequest(
            sink="", query="", batch=0, name="", topics=names)).topics,
    )  # fmt: skip
    encoder.learn(pa.record_batch({"body": [b"", b""], "topic": ["a", "b"]}))
    encoder.learn(pa.record_batch({"body": [b"", b""], "topic": ["b", "c"]}))
    with pytest.raises(BulkError, match="one task writes to 4 topics, limit 3"):
        encoder.learn(pa.record_batch({"body": [b""], "topic": ["d"]}))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"body": [b""], "bodi": [b""]}, "'bodi' is none of a message; did you mean body?"),
        ({"body": [b""], "value": [b""]}, "'value' is none of a message; there are topic, key"),
        ({"key": ["k"]}, "there is no column body"),
        ({"body": [1]}, "column body is int64, but must be binary, or text; cast it"),
        ({"body": [b""], "key": [b"k"]}, "column key is binary, but must be text"),
        ({"body": [b""], "properties": ["a"]}, "must be a map of text to text, or RocketMQ's"),
        ({"body": [b""], "delay_ms": [1.5]}, "column delay_ms is double, but must be millis"),
        ({"body": [b""], "delay_ms": [1], "deliver_at": [1]}, "say the same thing twice"),
        ({"body": [b"", None]}, "row 10001, column body: it is null"),
        ({"body": [b"", b""], "key": ["", "x" * 70_000]}, "row 10001, column key: it has 70000"),
        ({"body": [b""], "delay_ms": [1 << 45]}, "more than 366 days ahead"),
        ({"body": [b"", b""], "message_id": ["", "a\x02"]}, "row 10001, column message_id: byte 2"),
    ],
)
def test_rows_that_are_no_messages_are_refused_with_what_to_do(batch, words):
    with pytest.raises(BulkError) as caught:
        encoded(pa.record_batch(batch), first_row=10_000)
    assert words in str(caught.value)


def test_a_separator_in_a_property_is_refused_with_its_row():
    rows = [[("a", "b")], [("a", "b"), ("c\x01", "d")], []]
    batch = pa.record_batch({"body": [b""] * 3, "properties": pa.array(rows, MAP)})
    with pytest.raises(BulkError, match="row 1, column properties: byte 1"):
        encoded(batch)


def test_a_row_without_any_topic_is_refused():
    batch = pa.record_batch({"body": [b"", b""], "topic": ["a", None]})
    with pytest.raises(BulkError, match="row 1, column topic: it has none"):
        encoded(batch, topic="")
    with pytest.raises(BulkError, match="to which topic"):
        encoded(column([b""]), topic="")


def test_a_message_above_the_limit_is_refused_with_its_row_and_size():
    words = r"row 1, column body: the message has 101 B, limit 100 B"
    with pytest.raises(BulkError, match=words) as caught:
        encoded(column([b"", b"x" * 101]), Broker([1], message_bytes_max=100))
    assert caught.value.kind == TOO_LARGE


@pytest.mark.parametrize(
    "changes",
    [{"stage": "../x"}, {"stage": ""}, {"batch": -1}, {"guarantee": "once"}, {"sink": ""}],
)
def test_a_put_that_does_not_say_whose_it_is_is_refused(tmp_path, changes):
    with pytest.raises(BulkError, match="a put names sink"):
        StageWriter(tmp_path, command(**changes), Broker())


# ---- kinds of columns


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.string_view()]
)
def test_a_body_may_be_bytes_or_text_of_any_kind(kind):
    values = ["one", "two"] if "string" in str(kind) else [b"one", b"two"]
    found = records(encoded(column(values, kind), Broker([1])))
    assert [record.body for _, record in found] == [b"one", b"two"]


def test_texts_may_be_dictionaries_and_properties_rocketmqs_bytes():
    batch = pa.record_batch(
        {
            "body": [b"1", b"2"],
            "key": pa.array(["a", "b"]).dictionary_encode(),
            "properties": [b"n\x01v\x02", None],
        }
    )
    found = {record.body: record for _, record in records(encoded(batch))}
    assert (found[b"1"].key, found[b"1"].properties) == (b"a", b"n\x01v\x02")
    assert (found[b"2"].key, found[b"2"].properties) == (b"b", b"")


def test_a_slice_of_a_batch_has_its_own_rows():
    maps = pa.array([[("n", str(n))] for n in range(6)], MAP)
    whole = pa.record_batch({"body": [b"%d" % n for n in range(6)], "properties": maps})
    found = records(encoded(whole.slice(2, 3), Broker([1])))
    assert [(r.body, r.properties) for _, r in found] == [
        (b"%d" % n, b"n\x01%d\x02" % n) for n in (2, 3, 4)
    ]


# ---- the file


def rows_in(path):
    """All rows of a stage file, as the broker reads them."""
    storage = DiskStorage(path.parent)
    file = storage.open(path.name, create=False)
    found, at = [], 0
    while (head := read_head(file, at)) is not None:
        block = read_block(file, at, head)
        found += [record.body for _, record in records([block])]
        at += block.size_bytes
    file.close()
    return found


def test_a_put_has_its_name_when_it_is_durable(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_size))
    broker = Broker([1])
    stage = StageWriter(tmp_path, command(topic="orders", partition=7), broker)
    stage.add(column([b"1", b"2"]))
    stage.add(column([b"3"]))
    path = tmp_path / "stage/out/q/0/7.abc"
    assert not path.exists()
    receipt = stage.finish(3)
    assert (receipt.name, receipt.rows, receipt.bytes) == ("7.abc", 3, path.stat().st_size)
    assert synced == [receipt.bytes]
    assert rows_in(path) == [b"1", b"2", b"3"]
    assert list(path.parent.iterdir()) == [path]
    assert [request.bytes for request in broker.rooms] == [0, receipt.bytes]
    assert [request.bytes for request in broker.done] == [receipt.bytes]


def test_many_small_batches_make_few_blocks_and_a_large_one_several(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "MERGE_ROWS", 100)
    broker = Broker([1])
    stage = StageWriter(tmp_path, command(topic="orders"), broker)
    for _ in range(250):
        stage.add(column([b"x"]))
    stage.add(column([b"y"] * 350))
    stage.finish(600)
    assert [request.bytes > 0 for request in broker.rooms] == [False] + [True] * 5


def test_a_put_with_another_number_of_rows_than_it_says_is_dropped(tmp_path):
    broker = Broker([1])
    stage = StageWriter(tmp_path, command(topic="orders"), broker)
    stage.add(column([b"1", b"2"]))
    with pytest.raises(BulkError, match="has 2 rows and says that it has 3"):
        stage.finish(3)
    stage.drop()
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
    assert [request.bytes for request in broker.done] == [0]


def test_a_put_waits_for_room_and_then_says_for_what_it_waited(tmp_path):
    broker = Broker([1])
    broker.holds = ["topic is full"]
    stage = StageWriter(tmp_path, command(topic="orders"), broker)
    stage.add(column([b"1"]))
    assert stage.finish(1).rows == 1

    broker.holds = ["topic is full"] * 3
    stage = StageWriter(tmp_path, command(topic="orders"), broker, hold_ms_max=0)
    stage.add(column([b"1"]))
    with pytest.raises(BulkError, match=r"spark.stage_hold_ms_max.*topic is full") as caught:
        stage.finish(1)
    assert caught.value.kind == HELD


def test_a_put_whose_sender_has_left_waits_no_more(tmp_path):
    broker = Broker([1])
    broker.holds = ["topic is full"] * 3
    stage = StageWriter(tmp_path, command(topic="orders"), broker, is_cancelled=lambda: True)
    stage.add(column([b"1"]))
    with pytest.raises(BulkError) as caught:
        stage.finish(1)
    assert caught.value.kind == UNREACHABLE


def test_a_disk_that_is_full_holds_a_put_which_goes_on_where_it_was(tmp_path, monkeypatch):
    real, tries = os.writev, []

    def write(fd, pieces):
        tries.append(len(pieces))
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        if len(tries) == 2:
            return real(fd, pieces[:1])
        return real(fd, pieces)

    monkeypatch.setattr(os, "writev", write)
    monkeypatch.setattr(staging, "RETRY_S", 0)
    stage = StageWriter(tmp_path, command(topic="orders"), Broker([1]))
    stage.add(column([b"1"]))
    stage.finish(1)
    assert rows_in(tmp_path / "stage/out/q/0/0.abc") == [b"1"]
    assert len(tries) == 3


def test_a_put_at_least_once_is_committed_by_itself(tmp_path):
    broker = Broker([1])
    stage = StageWriter(
        tmp_path, command(topic="orders", guarantee="at-least-once"), broker, hold_ms_max=60_000
    )
    stage.add(column([b"1"]))
    receipt = stage.finish(1)
    assert receipt.is_committed
    [asked] = broker.commits
    assert (asked.query, asked.is_single, asked.stages[0].rows) == ("q~abc", True, 1)
    assert (tmp_path / "stage/out/q~abc/0/0.abc").exists()


@pytest.mark.parametrize(("said", "known"), [("", "q"), ("of-spark", "of-spark")])
def test_a_put_at_least_once_says_its_query_of_spark_and_what_it_passes_too(tmp_path, said, known):
    broker = Broker()
    given = command(
        topic="orders", guarantee="at-least-once", spark_query=said, passing=("dead", "retry")
    )
    writer = StageWriter(tmp_path, given, broker)
    writer.add(column([b"x"]))
    writer.finish(1)
    asked = [*broker.rooms, *broker.commits]
    assert broker.rooms
    assert broker.commits
    assert {(each.query, each.spark_query) for each in asked} == {("q~abc", known)}
    assert all(each.passing == ["dead", "retry"] for each in asked)


def test_what_an_earlier_process_was_writing_is_removed(tmp_path):
    stage = StageWriter(tmp_path, command(topic="orders"), Broker([1]))
    stage.add(column([b"1"]))
    stage._encode()
    StageWriter(tmp_path, command(topic="orders", stage="def"), Broker([1]))
    assert remove_parts(tmp_path) == 1
    assert remove_parts(tmp_path) == 0
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
