import dataclasses
import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from kit.fake_upstream import FakeUpstream
from penstock.bulk.layout import arrow_schema
from penstock.bulk.tickets import BulkError, Summary
from penstock.spark import readers, tasks
from penstock.spark.options import BadOption, read_options
from penstock.spark.readers import partitions
from penstock.spark.schema import columns_of, full_schema
from penstock.spark.source import PenstockSource
from penstock.spark.tasks import ReadRange, check_complete, rows
from penstock.spark.upstream import Position

COLUMNS = ("offset", "body")


def ranges(start, end, **given):
    options = read_options({"topics": "orders", **given})
    return [each.wanted for each in partitions(start, end, options, COLUMNS)]


def at(*offsets, begins=None):
    queues = {str(number): offset for number, offset in enumerate(offsets)}
    return Position(epoch=4, offsets={"orders": queues}, begins=begins or {})


def test_one_task_for_each_queue_with_rows():
    found = ranges(at(0, 5, 5), at(10, 5, 7))
    assert [(each.queue, each.start, each.end) for each in found] == [("0", 0, 10), ("2", 5, 7)]
    assert {each.epoch for each in found} == {4}


def test_a_queue_that_is_new_in_the_batch_begins_where_the_batch_says():
    found = ranges(at(0), at(0, 9, begins={"orders": {"1": 4}}))
    assert [(each.queue, each.start, each.end) for each in found] == [("1", 4, 9)]


def test_ranges_are_cut_to_the_longest_that_is_allowed():
    found = ranges(at(0), at(10), maxRecordsPerPartition="4")
    assert [(each.start, each.end) for each in found] == [(0, 3), (3, 6), (6, 10)]


def test_partitions_survive_pickling():
    options = read_options({"topics": "orders"})
    made = partitions(at(0), at(10), options, COLUMNS)
    again = pickle.loads(pickle.dumps(made))
    assert [each.wanted for each in again] == [each.wanted for each in made]
    assert repr(again[0]) == "RangePartition(orders/0 [0, 10))"


@given(
    queues=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=5),
    least=st.integers(1, 40),
    most=st.integers(1, 300),
)
def test_ranges_cover_a_batch_exactly_and_are_the_same_every_time(queues, least, most):
    start = at(*[first for first, _ in queues])
    end = at(*[first + rows for first, rows in queues])
    limits = {"minPartitions": str(least), "maxRecordsPerPartition": str(most)}
    found = ranges(start, end, **limits)
    assert found == ranges(start, end, **limits)
    covered = {}
    for each in found:
        assert 0 < each.end - each.start <= most
        assert covered.get(each.queue, start.offsets["orders"][each.queue]) == each.start
        covered[each.queue] = each.end
    rows = sum(each for _, each in queues)
    assert sum(each.end - each.start for each in found) == rows
    assert len(found) >= min(least, rows)


# ---- reading ------------------------------------------------------------------------------------
# Ranges as an executor reads them, and the readers as Spark makes and moves them.


def schema_of(text):
    """A schema as in SQL, without asking a JVM."""
    kinds = {"long": LongType(), "binary": BinaryType(), "string": StringType()}
    fields = [each.split() for each in text.split(",")]
    return StructType([StructField(name, kinds[kind]) for name, kind in fields])


def a_range(start=0, end=8, columns=("offset", "body")):
    return ReadRange(topic="orders", queue="0", start=start, end=end, columns=columns)


def read(upstream, wanted=None, **given):
    wanted = wanted or a_range()
    options = read_options({"topics": "orders", **given})
    return list(rows(upstream, wanted, options, arrow_schema(list(wanted.columns))))


@pytest.fixture
def upstream(monkeypatch):
    """What every reader finds in this process."""
    made = FakeUpstream(orders=2)
    made.grow("orders", "0", 8)
    monkeypatch.setattr(readers, "new_upstream", lambda options: made)
    monkeypatch.setattr(tasks, "FlightRows", lambda options: made)
    yield made
    readers.drop_upstreams()


def test_a_range_comes_whole(upstream):
    batches = read(upstream)
    assert [each for batch in batches for each in batch.column("offset").to_pylist()] == [*range(8)]


def test_the_broker_knows_the_query_of_spark_before_its_rows_are_written(upstream, monkeypatch):
    known = {"sql.streaming.queryId": "of-spark", "streaming.sql.batchId": "3"}
    monkeypatch.setattr(tasks, "task_property", known.get)
    wanted = dataclasses.replace(a_range(), checkpoint="c1")
    options = read_options({"topics": "orders"})
    batches = rows(upstream, wanted, options, arrow_schema(list(wanted.columns)))
    assert next(batches).num_rows
    [(progress, state, _)] = upstream.reported
    assert (progress.query_id, progress.checkpoint, state) == ("of-spark", "c1", "running")
    list(batches)
    assert [each.batch_id for each, *_ in upstream.reported] == [-1, 3]


def test_lost_messages_are_an_error_or_counted_and_told(upstream):
    upstream.missing = {2, 3}
    with pytest.raises(BulkError, match=r"2 messages of .* are lost; set failOnDataLoss"):
        read(upstream)
    assert sum(each.num_rows for each in read(upstream, failOnDataLoss="false")) == 6
    assert upstream.reported[-1][2].startswith("2 messages of [0, 8) of queue 0")


@pytest.mark.parametrize(
    "summary",
    [
        Summary(next_offset=7, rows=7, read=7),
        Summary(next_offset=8, rows=7, read=7),
        Summary(next_offset=8, rows=8, read=9),
    ],
)
def test_a_range_that_does_not_add_up_is_an_error_in_any_case(summary):
    with pytest.raises(BulkError, match="the range has 8"):
        check_complete(a_range(), summary, summary.rows, is_strict=False)


def test_rows_that_a_filter_left_out_and_dropped_ones_are_no_loss():
    summary = Summary(next_offset=8, rows=3, read=6, dropped=2)
    check_complete(a_range(), summary, 3, is_strict=True)


def test_offsets_that_go_back_or_outside_are_not_trusted(upstream):
    class Liar(FakeUpstream):
        def read(self, wanted):
            yield from super().read(a_range(1, 4))
            yield from super().read(a_range(0, 3))

    with pytest.raises(BulkError, match="not to be trusted"):
        read(Liar(orders=1))


def test_every_column_has_the_type_that_spark_wants_to_the_letter():
    options = read_options({"topics": "orders"})
    schema = full_schema(options)
    assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema())


def test_columns_can_be_left_out_by_option_or_by_schema():
    slim = read_options({"topics": "a", "includeProperties": "false", "includeBody": "false"})
    assert {"properties", "body"} & set(full_schema(slim).fieldNames()) == set()
    assert columns_of(schema_of("body binary, offset long")) == ("body", "offset")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("offsets long", "no column 'offsets'; did you mean offset"),
        ("body string", "column body is binary, not string"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_in_words(schema, words):
    source = PenstockSource({"topics": "orders"})
    with pytest.raises(BadOption, match=words):
        source.reader(schema_of(schema))


def test_a_stream_has_no_end():
    source = PenstockSource({"topics": "orders", "endingOffsets": "latest"})
    with pytest.raises(BadOption, match="a stream has no end"):
        source.streamReader(source.schema())


def test_a_batch_reader_plans_here_and_reads_elsewhere(upstream):
    source = pickle.loads(pickle.dumps(PenstockSource({"topics": "orders"})))
    reader = source.reader(schema_of("offset long"))
    (partition,) = reader.partitions()
    there = pickle.loads(pickle.dumps(reader))
    batches = list(there.read(pickle.loads(pickle.dumps(partition))))
    assert sum(each.num_rows for each in batches) == 8
    assert batches[0].schema.names == ["offset"]
    assert list(there.read(None)) == []


def test_a_stream_reader_runs_and_is_pickled_without_what_lives_in_it(upstream):
    source = PenstockSource({"topics": "orders", "startingOffsets": "earliest"})
    reader = source.streamReader(schema_of("offset long, body binary"))
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    start = reader.initialOffset()
    end = reader.latestOffset(start, limit)
    assert [each.offsets["orders"]["0"] for each in upstream.kept] == [0]
    assert reader.reportLatestOffset()["offsets"] == end["offsets"]
    planned = reader.partitions(start, end)
    assert [each.wanted for each in reader.partitions(start, end)] == [
        each.wanted for each in planned
    ]
    there = pickle.loads(pickle.dumps(reader))
    assert vars(there).keys() == {"options", "schema"}
    assert sum(each.num_rows for each in there.read(planned[0])) == 8
    reader.commit(end)
    reader.stop()
    reader.stop()


def test_trigger_once_wants_everything(upstream):
    source = PenstockSource(
        {"topics": "orders", "startingOffsets": "earliest", "maxRowsPerTrigger": "3"}
    )
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable())["offsets"]["orders"]["0"] == 8
    assert reader.latestOffset(start, ReadMaxRows(3))["offsets"]["orders"]["0"] == 3
    reader.stop()


def test_a_process_keeps_one_connection_for_the_same_options(upstream):
    first = readers.open_upstream(read_options({"topics": "orders"}))
    assert readers.open_upstream(read_options({"topics": "orders"})) is first


def test_what_a_worker_has_imported_is_collected_less_and_less_often(monkeypatch):
    """Tasks leave nothing behind for good but those few at whose begin it is put aside."""
    begun, frozen = [], []
    monkeypatch.setattr(tasks, "_begun", itertools.count(1))
    monkeypatch.setattr(tasks.TaskContext, "get", classmethod(lambda cls: cls))
    monkeypatch.setattr(tasks.gc, "freeze", lambda: frozen.append(len(begun)))
    for number in range(1, 40):
        begun.append(number)
        tasks.begin_task()
    assert frozen == [2, 4, 8, 16, 32]


def test_a_process_that_is_no_workers_keeps_its_collector(monkeypatch):
    monkeypatch.setattr(tasks.gc, "freeze", lambda: pytest.fail("it is somebody else's"))
    for _ in range(4):
        tasks.begin_task()
