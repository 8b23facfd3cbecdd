"""Tasks write, the driver's commit publishes; whatever is cut off where, a row is in one place."""

import contextlib
import datetime
import itertools
import pickle
import random
import shutil

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import flight
from pyspark.sql.types import (
    BooleanType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from penstock.model.queries import CommitBatchRequest, CommitBatchResponse
from penstock.model.spark_batch import NO_STAGE, StageCommand, StageReceipt
from penstock.pipelines.letters import LETTER
from penstock.pipelines.table import Table, TableError
from penstock.pipelines.table_sink import TableOptions, TableSink, TableWriter, split
from penstock.spark import tasks

LETTER_TYPE = StructType([StructField("topic", StringType()), StructField("body", StringType())])
SCHEMA = StructType(
    [
        StructField("n", LongType()),
        StructField("day", DateType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField(LETTER, LETTER_TYPE),
    ]
)
DAY = datetime.date(2026, 1, 31)


class Broker(flight.FlightServerBase):
    """Stages and commits as Penstock does: by batch, once."""

    def __init__(self):
        super().__init__("grpc://127.0.0.1:0")
        self.staged = {}
        self.committed = {}
        self.dead = []
        self.spark_queries, self.passing = [], []
        """What puts and commits say."""

    def do_put(self, _context, descriptor, reader, writer):
        command = msgspec.json.decode(descriptor.command, type=StageCommand)
        rows = []
        for chunk in reader:
            if chunk.data is not None:
                rows += chunk.data.to_pylist()
        self.staged[command.name] = rows
        self.spark_queries.append(command.spark_query)
        self.passing += command.passing
        receipt = StageReceipt(name=command.name, rows=len(rows))
        writer.write(pa.py_buffer(msgspec.json.encode(receipt)))

    def do_action(self, _context, action):
        asked = msgspec.json.decode(action.body.to_pybytes(), type=CommitBatchRequest)
        key = (asked.sink, asked.query)
        self.spark_queries.append(asked.spark_query)
        self.passing += asked.passing
        if asked.batch > self.committed.get(key, -1):
            if any(each.name not in self.staged for each in asked.stages):
                said = msgspec.json.encode({"kind": NO_STAGE, "text": "gone"})
                raise flight.FlightServerError("x", extra_info=said)
            self.committed[key] = asked.batch
            for each in asked.stages:
                self.dead += [int(row["body"]) for row in self.staged[each.name]]
        return iter([flight.Result(msgspec.json.encode(CommitBatchResponse()))])


@pytest.fixture
def broker():
    with Broker() as made:
        yield made


@pytest.fixture
def writer(tmp_path, broker):
    """``writer(kind=...)``: as Spark makes one, in any of its processes."""
    table = Table(tmp_path / "out")
    table.open()

    def writer(**options):
        given = TableOptions(
            path=str(table.path),
            writer="w",
            endpoint=f"127.0.0.1:{broker.port}",
            sink="etl.letters",
            **options,
        )
        made = TableSink(given.as_option()).streamWriter(SCHEMA, False)
        return pickle.loads(pickle.dumps(made))

    return writer


def batch_of(numbers, bad=(), day=DAY):
    full = pa.schema(
        [
            ("n", pa.int64()),
            ("day", pa.date32()),
            ("properties", pa.map_(pa.string(), pa.string())),
            (LETTER, pa.struct([("topic", pa.string()), ("body", pa.string())])),
        ]
    )
    rows = [
        {LETTER: {"topic": "dead", "body": str(each)}}
        if each in bad
        else {"n": each, "day": day, "properties": [("a", "b")]}
        for each in numbers
    ]
    return pa.RecordBatch.from_pylist(rows, full)


def run(writer, number, numbers, bad=()):
    tasks = [
        writer.write_task([batch_of(numbers[task::2], bad)], number, task) for task in range(2)
    ]
    writer.commit(pickle.loads(pickle.dumps([*tasks, None])), number)


def in_table(writer):
    sql = f"SELECT n FROM '{writer.options.path}/**/*.parquet'"
    try:
        return sorted(each[0] for each in duckdb.sql(sql).fetchall())
    except duckdb.IOException:
        return []


def test_rows_go_to_the_table_and_letters_to_the_broker(writer, broker):
    made = writer(partition_by=("day",))
    run(made, 0, range(10), bad={3, 7})
    run(made, 1, range(10, 15))
    assert in_table(made) == [n for n in range(15) if n not in (3, 7)]
    assert sorted(broker.dead) == [3, 7]
    place = made.options.path
    assert len(pl.read_parquet(place)) == len(pd.read_parquet(place)) == 13
    days = duckdb.sql(f"SELECT DISTINCT day FROM '{place}/**/*.parquet'").fetchall()
    assert days == [(DAY,)]
    assert not list(Table(place).control.rglob("*.staged"))
    assert not list(Table(place).control.rglob("*.arrow"))


ODD = ["a b", "x/y", "100%", "ü", "a=b", "q?#&+", None, "a%20b", ":", "*"]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_partitions_read_back_whatever_their_values_are(tmp_path, kind):
    table = Table(tmp_path / "out")
    table.open()
    columns = {"n": LongType(), "text": StringType(), "flag": BooleanType(), "day": DateType()}
    schema = StructType([StructField(name, each) for name, each in columns.items()])
    rows = [
        {"n": at, "text": text, "flag": at % 2 == 0, "day": DAY.replace(day=at + 1)}
        for at, text in enumerate(ODD)
    ]
    options = TableOptions(
        path=str(table.path), kind=kind, writer="w", partition_by=("text", "flag", "day")
    )
    made = TableSink(options.as_option()).streamWriter(schema, False)
    batch = pa.RecordBatch.from_pylist(rows, made.columns)
    made.commit([made.write_task([batch], 0, 0)], 0)
    if kind == "delta":
        delta = DeltaTable(table.path)
        assert delta.metadata().partition_columns == ["text", "flag", "day"]
        found = delta.to_pyarrow_table().to_pylist()
    else:
        # Of directories' names DuckDB knows dates, but no booleans.
        sql = f"SELECT n, text, flag::bool AS flag, day FROM '{table.path}/**/*.parquet'"
        found = duckdb.sql(sql).to_arrow_table().to_pylist()
    assert sorted(found, key=lambda row: row["n"]) == rows


def test_a_batch_without_anything_leaves_nothing(writer, broker):
    made = writer()
    run(made, 0, [])
    assert (in_table(made), broker.committed) == ([], {})
    assert Table(made.options.path).last_done("w") == -1


def test_letters_say_whose_lease_they_may_free(writer, broker, monkeypatch):
    monkeypatch.setattr(tasks, "task_property", {"sql.streaming.queryId": "of-spark"}.get)
    run(writer(), 0, range(4), bad={2})
    assert broker.spark_queries == ["of-spark", "of-spark"]


def test_limits_of_the_topics_of_letters_are_not_for_them(writer, broker):
    run(writer(letter_topics=("dead",)), 0, range(4), bad={2})
    assert broker.passing == ["dead", "dead"]


def test_a_batch_that_comes_again_changes_nothing(writer, broker):
    made = writer()
    run(made, 0, range(10), bad={3})
    run(made, 0, range(10), bad={4})
    assert in_table(made) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert broker.dead == [3]
    run(made, 5, [10])
    with pytest.raises(TableError, match="the checkpoint was rewound"):
        run(made, 4, [11])


def test_a_place_that_goes_away_is_told_and_the_batch_done_again_loses_and_doubles_nothing(
    writer, broker
):
    made = writer(partition_by=("day",))
    run(made, 0, range(4))
    table, told = Table(made.options.path), "cannot be written: .*; mend the place and run on"
    staged = table.control / "staged"
    shutil.rmtree(staged)
    staged.write_text("a task finds no directory here")
    with pytest.raises(TableError, match=told):
        made.write_task([batch_of(range(4, 8))], 1, 0)
    staged.unlink()
    # And the commit, behind its decision, none where the files belong.
    tomorrow = DAY + datetime.timedelta(days=1)
    place = table.path / f"day={tomorrow}"
    place.write_text("in the way")
    with pytest.raises(TableError, match=told):
        made.commit([made.write_task([batch_of(range(4, 8), {5}, tomorrow)], 1, 0)], 1)
    assert in_table(made) == [*range(4)]
    place.unlink()
    made.commit([made.write_task([batch_of(range(4, 8), {6}, tomorrow)], 1, 0)], 1)
    assert (in_table(made), broker.dead) == ([0, 1, 2, 3, 4, 6, 7], [5])


class Killed(BaseException):
    """As ``kill -9`` does: nothing runs afterwards."""


STEPS = ("prepare", "letters", "first file", "publish", "done")


def dying(writer, step):
    """The same writer, killed behind a step of its commit."""

    class Dying(TableWriter):
        def finish(self, table, batch):
            if step == "prepare":
                raise Killed
            return super().finish(table, batch)

        def publish_letters(self, batch):
            found = super().publish_letters(batch)
            if step == "letters":
                raise Killed
            return found

        def publish_files(self, table, batch):
            if step == "first file" and batch.files:
                one = batch.files[0]
                (table.path / one.path).parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    (table.control / one.staged).rename(table.path / one.path)
                raise Killed
            super().publish_files(table, batch)
            if step == "publish":
                raise Killed

    return Dying(writer.options, writer.schema)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("step", STEPS[:-1])
def test_the_outcome_that_was_decided_first_counts_even_if_the_next_one_is_another(
    writer, broker, step, kind
):
    made = writer(kind=kind)
    run(made, 0, range(5), bad={1})
    with pytest.raises(Killed):
        run(dying(made, step), 1, range(5, 10), bad={6})
    run(made, 1, range(5, 10), bad={8})
    run(made, 2, range(10, 12), bad={11})
    assert sorted(broker.dead) == [1, 6, 11]
    expected = [n for n in range(11) if n not in (1, 6)]
    if kind == "delta":
        found = DeltaTable(made.options.path).to_pyarrow_table().column("n").to_pylist()
        assert sorted(found) == expected
        assert DeltaTable(made.options.path).version() == 2
    assert in_table(made) == expected


def test_an_outcome_whose_letters_are_gone_is_withdrawn_for_the_next(writer, broker):
    made = writer()
    with pytest.raises(Killed):
        run(dying(made, "prepare"), 0, range(5), bad={1})
    broker.staged.clear()
    run(made, 0, range(5), bad={2})
    assert (in_table(made), broker.dead) == ([0, 1, 3, 4], [2])


@pytest.mark.parametrize("seed", range(10))
def test_every_row_is_in_the_table_or_dead_whoever_is_killed_when(writer, broker, seed):
    chosen = random.Random(seed)
    made = writer(partition_by=("day",))
    for number in range(6):
        numbers = range(10 * number, 10 * number + 10)
        for _ in itertools.repeat(None, chosen.randrange(4)):
            bad = set(chosen.sample(numbers, 3))
            if chosen.random() < 0.2:
                made.write_task([batch_of(numbers, bad)], number, 0)
                continue
            try:
                run(dying(made, chosen.choice(STEPS)), number, numbers, bad)
            except Killed:
                Table(made.options.path).clean("w")
            else:
                break
        run(made, number, numbers, set(chosen.sample(numbers, 3)))
    assert sorted([*in_table(made), *broker.dead]) == [*range(60)]


def test_rows_are_split_by_the_values_of_several_columns_and_keep_their_order():
    batch = pa.RecordBatch.from_pydict(
        {"a": ["x", "y", None, "x", "y"], "b": [1, 1, 2, 1, 2], "n": [*range(5)]}
    )
    found = {values: rows.column("n").to_pylist() for values, rows in split(batch, ("a", "b"))}
    assert found == {
        (("a", "x"), ("b", "1")): [0, 3],
        (("a", "y"), ("b", "1")): [1],
        (("a", None), ("b", "2")): [2],
        (("a", "y"), ("b", "2")): [4],
    }


def test_many_partitions_are_written_with_a_bounded_number_of_open_files(writer, monkeypatch):
    monkeypatch.setattr("penstock.pipelines.table_sink.OPEN_MAX", 3)
    monkeypatch.setattr("penstock.pipelines.table_sink.ROWS_PER_GROUP", 2)
    made = writer(partition_by=("day",))
    days = [DAY.replace(day=each) for each in range(1, 11)]
    batches = [batch_of([at], day=day) for at, day in enumerate([*days, *days])]
    made.commit([made.write_task(batches, 0, 0)], 0)
    assert in_table(made) == [*range(20)]


def test_a_task_whose_rows_are_all_bad_writes_no_file(writer, broker):
    made = writer()
    run(made, 0, range(20_000), bad=set(range(20_000)))
    assert (in_table(made), len(broker.dead)) == ([], 20_000)
    assert Table(made.options.path).last_done("w") == 0
