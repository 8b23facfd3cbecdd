"""Spark's sink without Spark: which rows are messages, keys of batches, what goes to executors."""

import json
import pickle
import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.bulk.client import BulkClient
from penstock.bulk.rows import RowClient
from penstock.model.queries import CommitBatchResponse
from penstock.model.spark_batch import StageReceipt
from penstock.spark import sink, tasks
from penstock.spark.options import BadOption, read_sink_options
from penstock.spark.source import LETTER_TOPICS, FlowSink, PenstockSource

TYPES = {
    "binary": BinaryType(),
    "string": StringType(),
    "long": LongType(),
    "timestamp": TimestampType(),
    "map": MapType(StringType(), StringType()),
}


def schema_of(text):
    """``body binary, key string``."""
    pairs = [each.split() for each in text.split(",")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


class Broker:
    """What was put and committed; stands for both clients."""

    def __init__(self):
        self.puts = []
        self.commits = []
        self.aborts = []
        self.is_replay = False

    def put_stage(self, command, batches):
        rows = sum(each.num_rows for each in batches)
        self.puts.append(command)
        return StageReceipt(name=command.name, rows=rows)

    def commit_batch(self, request, *, patience_s):
        self.commits.append(request)
        return CommitBatchResponse(rows=1, is_replay=self.is_replay)

    def abort_batch(self, request):
        self.aborts.append(request)


@pytest.fixture
def broker(monkeypatch):
    made = Broker()
    monkeypatch.setattr(RowClient, "put_stage", made.put_stage)
    monkeypatch.setattr(BulkClient, "commit_batch", made.commit_batch)
    monkeypatch.setattr(BulkClient, "abort_batch", made.abort_batch)
    return made


@pytest.fixture
def task(monkeypatch):
    """The properties of the task that runs."""
    properties = {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": "7"}
    for each in (sink, tasks):
        monkeypatch.setattr(each, "task_property", properties.get)
    return properties


def batch(count):
    return pa.record_batch({"body": [b"x"] * count})


# ---- columns and options


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("key string", "no column body"),
        ("body binary, value string", "'value' is none of a message; did you mean body?"),
        ("body binary, proprties map", "did you mean properties?"),
        ("body binary, zzz string", "there are topic, key"),
        ("body long", "column body is bigint, but must be binary or string"),
        ("body binary, key long", "column key is bigint, but must be string; cast it"),
        ("body binary, delay_ms long, deliver_at timestamp", "the same thing twice"),
    ],
)
def test_rows_that_are_no_messages_are_refused_in_words(schema, words):
    source = PenstockSource({"topic": "out"})
    with pytest.raises(BadOption) as caught:
        source.writer(schema_of(schema), overwrite=False)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        "body binary",
        "body string, key string, tag string, message_id string, topic string",
        "body binary, properties map, expire timestamp, delay_ms long",
        "body binary, properties binary, expire long, deliver_at long",
    ],
)
def test_nothing_but_a_body_is_needed_and_everything_else_may_be_there(schema):
    PenstockSource({"topic": "out"}).writer(schema_of(schema), overwrite=False)


def test_a_topic_comes_from_the_option_or_from_each_row():
    with pytest.raises(BadOption, match="to which topic"):
        PenstockSource({}).writer(schema_of("body binary"), overwrite=False)
    rows = schema_of("body binary, topic string")
    assert PenstockSource({}).writer(rows, overwrite=False).options.name == "topics"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topik": "out"}, "did you mean topic?"),
        ({"topic": "a,b"}, "more than one topic"),
        ({"topic": "out", "guarantee": "maybe"}, "none of exactly-once, at-least-once"),
        ({"topic": "out", "transactionalId": "x"}, "belong together"),
        ({"topic": "out", "batch": "3"}, "belong together"),
        ({"topic": "out", "batch": "x", "transactionalId": "x"}, "no whole number"),
        ({"topic": "out", "endpoint": "rocketmq://a:9876"}, "written to a Penstock"),
    ],
)
def test_options_that_cannot_be_are_refused_in_words(options, words):
    with pytest.raises(BadOption) as caught:
        read_sink_options(options)
    assert words in str(caught.value)


def test_what_spark_itself_hands_a_sink_is_no_option_of_ours():
    given = {"topic": "out", "checkpointLocation": "c", "queryName": "q", "path": "p"}
    assert read_sink_options(given) == read_sink_options({"topic": "out"})


def test_the_sink_is_called_after_its_target_unless_it_has_a_name():
    assert read_sink_options({"topic": "out"}).name == "out"
    assert read_sink_options({"topic": "out", "sink": "second"}).name == "second"


def test_a_topic_is_never_overwritten():
    source = PenstockSource({"topic": "out"})
    with pytest.raises(BadOption, match="never overwritten: use mode"):
        source.writer(schema_of("body binary"), overwrite=True)
    with pytest.raises(BadOption, match="no meaning"):
        source.streamWriter(schema_of("body binary"), overwrite=True)


def test_a_stream_counts_its_own_batches():
    source = PenstockSource({"topic": "out", "transactionalId": "x", "batch": "1"})
    with pytest.raises(BadOption, match="a stream counts its own"):
        source.streamWriter(schema_of("body binary"), overwrite=False)


# ---- streams


def test_a_task_puts_under_its_query_and_batch_and_a_name_nobody_else_has(broker, task):
    writer = PenstockSource({"topic": "out"}).streamWriter(schema_of("body binary"), False)
    there = pickle.loads(pickle.dumps(writer))
    first = there.write(iter([batch(3), batch(0), batch(2)]))
    again = there.write(iter([batch(5)]))
    assert (first.rows, first.query, first.batch) == (5, "q-1", 7)
    assert first.name != again.name
    said = broker.puts[0]
    assert (said.sink, said.query, said.batch, said.topic) == ("out", "q-1", 7, "out")


def test_only_the_sink_of_flows_says_which_topics_do_not_hold_it(broker, task):
    given = {"topic": "out", LETTER_TOPICS: json.dumps(["retry", "dead"])}
    writer = FlowSink(given).streamWriter(schema_of("body binary"), False)
    writer = pickle.loads(pickle.dumps(writer))
    writer.commit([writer.write(iter([batch(1)]))], 7)
    assert broker.puts[0].passing == ("retry", "dead")
    assert broker.commits[0].passing == ["retry", "dead"]
    with pytest.raises(BadOption, match="letters"):
        PenstockSource(given).streamWriter(schema_of("body binary"), False)


def test_only_what_the_commit_names_counts(broker, task):
    writer = PenstockSource({"topic": "out"}).streamWriter(schema_of("body binary"), False)
    puts = [writer.write(iter([batch(2)])), writer.write(iter([])), None]
    writer.commit(pickle.loads(pickle.dumps(puts)), 7)
    (said,) = broker.commits
    assert (said.sink, said.query, said.batch, said.is_streaming) == ("out", "q-1", 7, True)
    assert [(each.name, each.rows) for each in said.stages] == [(puts[0].name, 2)]


def test_a_batch_without_rows_is_committed_all_the_same(broker, task):
    writer = PenstockSource({"topic": "out"}).streamWriter(schema_of("body binary"), False)
    writer.commit([writer.write(iter([]))], 7)
    assert broker.commits[0].stages == []


def test_a_batch_without_tasks_commits_nothing(broker):
    writer = PenstockSource({"topic": "out"}).streamWriter(schema_of("body binary"), False)
    writer.commit([], 7)
    assert broker.commits == []


def test_an_abort_names_what_is_known_and_a_stopped_query_knows_nothing(broker, task):
    writer = PenstockSource({"topic": "out"}).streamWriter(schema_of("body binary"), False)
    done = writer.write(iter([batch(2)]))
    writer.abort([None, None], 7)
    assert broker.aborts == []
    writer.abort([done, None], 7)
    assert broker.aborts[0].stages == [done.name]


def test_a_spark_that_does_not_say_which_batch_is_refused(broker, task):
    del task["streaming.sql.batchId"]
    writer = PenstockSource({"topic": "out"}).streamWriter(schema_of("body binary"), False)
    with pytest.raises(BadOption, match="use foreachBatch"):
        writer.write(iter([batch(1)]))


# ---- plain writes


def test_each_plain_write_has_a_key_of_its_own_which_its_copies_share(broker, task):
    source = PenstockSource({"topic": "out"})
    writer = source.writer(schema_of("body binary"), False)
    other = source.writer(schema_of("body binary"), False)
    assert writer.key != other.key
    there = pickle.loads(pickle.dumps(writer))
    put = there.write(iter([batch(2)]))
    pickle.loads(pickle.dumps(writer)).commit([put])
    (said,) = broker.commits
    assert (said.query, said.batch, said.is_streaming) == (writer.key, 0, False)
    # Inside foreachBatch tasks have a query and a batch, which are not this write's.
    assert put.query == writer.key


def test_a_write_within_foreach_batch_says_whose_lease_it_may_free(broker, task):
    writer = PenstockSource({"topic": "out"}).writer(schema_of("body binary"), False)
    writer.commit([pickle.loads(pickle.dumps(writer.write(iter([batch(2)]))))])
    assert (broker.puts[0].spark_query, broker.commits[0].spark_query) == ("q-1", "q-1")
    task.clear()
    writer.commit([writer.write(iter([batch(2)]))])
    assert (broker.puts[1].spark_query, broker.commits[1].spark_query) == ("", "")


def test_a_write_may_say_which_one_it_is(broker):
    source = PenstockSource({"topic": "out", "transactionalId": "daily", "batch": "12"})
    writer = source.writer(schema_of("body binary"), False)
    writer.commit([writer.write(iter([batch(1)]))])
    assert (broker.commits[0].query, broker.commits[0].batch) == ("daily", 12)


def test_at_least_once_needs_no_commit(broker, task):
    source = PenstockSource({"topic": "out", "guarantee": "at-least-once"})
    writer = source.streamWriter(schema_of("body binary"), False)
    put = writer.write(iter([batch(1)]))
    assert broker.puts[0].guarantee == "at-least-once"
    writer.commit([put], 7)
    writer.abort([put], 7)
    assert (broker.commits, broker.aborts) == ([], [])


# ---- executors


LIGHT = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("msgspec", "google_crc32c", "cramjam", "lark", "numpy"):
            raise ImportError(f"an executor has no {name}")
import pyarrow, pyspark, pyspark.sql.pandas.types  # they may have numpy
sys.meta_path.insert(0, Refused())
for name in [each for each in sys.modules if each.split(".")[0] == "numpy"]:
    del sys.modules[name]
import pickle
reader, partition, stream, plain, source = pickle.loads(bytes.fromhex(sys.stdin.read()))
ours = sorted(each for each in sys.modules if each.split(".")[0] == "penstock")
import json
print(json.dumps([type(reader).__name__, source.name(), ours]))
"""


def test_what_goes_to_executors_needs_python_pyspark_and_pyarrow_only():
    source = PenstockSource({"topics": "orders", "filter": "A || B"})
    reader = source.streamReader(source.schema())
    start = {"version": 1, "epoch": 1, "offsets": {"orders": {"0": 0}}, "incarnations": {}}
    end = {**start, "offsets": {"orders": {"0": 5}}}
    (partition,) = reader.partitions(start, end)
    target = PenstockSource({"topic": "out"})
    schema = schema_of("body binary")
    sent = (
        reader,
        partition,
        target.streamWriter(schema, False),
        target.writer(schema, False),
        source,
    )
    done = subprocess.run(
        [sys.executable, "-c", LIGHT],
        input=pickle.dumps(sent).hex(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name, format_name, ours = json.loads(done.stdout)
    assert (name, format_name) == ("TaskReader", "penstock")
    assert ours == [
        "penstock", "penstock.bulk", "penstock.bulk.rows", "penstock.bulk.tickets",
        "penstock.model", "penstock.model.errors", "penstock.model.spark_batch", "penstock.spark",
        "penstock.spark.options", "penstock.spark.schema", "penstock.spark.sink",
        "penstock.spark.source", "penstock.spark.tasks",
    ]  # fmt: skip
