"""Flows from a file in a real Spark, against a real broker.

Starting a query costs more than what it does, so a test runs several flows at once.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from kit.rocketmq.clusters import free_ports
from kit.topic_rows import topic_rows
from penstock.cli import main as cli
from penstock.cli.pipeline import shipped
from penstock.client import ClientError, Message
from penstock.model.errors import PenstockError
from penstock.pipelines import query, runner
from penstock.pipelines.compaction import compact
from penstock.pipelines.flow_file import load_pipeline
from penstock.pipelines.launch import RunOptions, dry_run, launch, sources_of
from penstock.pipelines.state import StateError
from penstock.pipelines.table import Table
from penstock.spark.listener import PenstockListener
from penstock.testing.running import BrokerProcess, eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FUNCTIONS = """
import os
import time

from pyspark.sql.functions import udf

def enrich(row):
    number = row["value"]["id"]
    if number % 10 == 3 and (number < 30 or not os.path.exists(HEALED)):
        raise ValueError(f"no {number}")
    return {"id": number, "origin": f"{row['topic']}/{row['queue']}/{row['offset']}"}

def echo(row):
    if row["body"] == b"3":
        raise ValueError("three")
    return {"key": "echo", "body": row["body"]}

def slowly(row):
    time.sleep(0.2)
    return {"body": row["body"]}

def strict(messages):
    @udf("string")
    def check(body):
        if body == b"junk":
            raise LookupError("nobody knows junk")
        return body.decode()

    return messages.select(check("body").alias("text"))

def upper(messages):
    return messages.selectExpr("key", "upper(value) AS body")
"""


class Shown:
    """The last figures."""

    def __call__(self, figures):
        self.figures = figures


class Shop:
    """A topic, a directory with a pipeline file, and what becomes of them."""

    def __init__(self, bench, producer):
        self.session = bench.spark
        self.endpoint = bench.endpoint
        self.topic = bench.topic
        self.directory = bench.directory
        self._producer = producer
        healed = f"HEALED = {str(self.directory / 'healed')!r}\n"
        (self.directory / "functions.py").write_text(healed + FUNCTIONS)
        sys.modules.pop("functions", None)

    def publish(self, *numbers):
        """Number n as JSON, with junk for a body when n ends in 7."""
        for number in numbers:
            # One has a field that no other had before.
            fields = {"id": number, **({"size": 1} if number == 48 else {})}
            body = b"junk" if number % 10 == 7 else json.dumps(fields).encode()
            message = Message(self.topic, body, keys=f"k{number}", properties={"n": str(number)})
            self._producer.send(message)

    def pipeline(self, text, **given):
        path = self.directory / "shop.toml"
        path.write_text(f'endpoint = "{self.endpoint}"\n' + text.replace("TOPIC", self.topic))
        return load_pipeline(path, environment={}, given=given)

    def run(self, text, *names, is_stopping=lambda: False, show=lambda _: None, **options):
        """All flows of a text, or some, up to what there is now; their last figures."""
        pipeline = self.pipeline(text)
        shown = []

        def note(figures):
            shown[:] = figures
            show(figures)

        is_well = launch(
            pipeline,
            pipeline.only(names),
            RunOptions(**{"is_once": True, **options}),
            show=note,
            is_stopping=is_stopping,
            session=self.session,
        )
        found = {each.flow: each for each in shown}
        assert is_well, [each.text for each in shown]
        return found

    def failures(self, text, *names, **options):
        """What is said of each flow; all of them fail."""
        with pytest.raises(AssertionError):
            self.run(text, *names, show=(shown := Shown()), **options)
        assert {each.state for each in shown.figures} == {"failed"}
        return {each.flow: each.text for each in shown.figures}

    def table(self, name, columns="*"):
        sql = f"SELECT {columns} FROM '{self.directory}/{name}/**/*.parquet'"
        try:
            return duckdb.sql(sql).fetchall()
        except duckdb.IOException:
            return []  # not a file yet

    def messages(self, topic):
        return topic_rows(self.endpoint, topic)


@pytest.fixture
def shop(bench, producer):
    return Shop(bench, producer)


FLOWS = """
[flow.archive]
from = { topics = "TOPIC" }
sql = "SELECT *, date(timestamp) AS day FROM messages"
to = { parquet = "archive", partition_by = ["topic", "day"] }
[flow.rows]
from = { topics = "TOPIC" }
decode = { format = "json", samples = 10 }
sql = "SELECT value.id, key FROM messages"
to = { delta = "rows" }
[flow.mapped]
from = { topics = "TOPIC", max_rows = 25 }
decode = { format = "json", samples = 10 }
map = "functions:enrich"
output = "id long, origin string"
retry = { max_attempts = 2, delays = "1s" }
to = { parquet = "mapped" }
[flow.upper]
from = { pattern = "TOPIC" }
decode = { format = "text" }
python = "functions:upper"
to = { topic = "TOPIC-upper" }
"""


def test_rows_reach_parquet_delta_and_topics_and_bad_ones_the_dead_letters(shop):
    flows = FLOWS
    shop.publish(*range(50))
    figures = shop.run(flows)
    assert (figures["rows"].rows, figures["rows"].rows_out, figures["rows"].dead) == (50, 45, 5)
    assert (figures["mapped"].retries, figures["mapped"].dead) == (5, 5)
    for flow in ("rows", "mapped"):
        assert (figures[flow].new_fields, figures[flow].new_field) == (1, "size")
    good = [n for n in range(50) if n % 10 != 7]

    # Everybody reads the same, without knowing of Spark.
    place = shop.directory / "archive"
    assert len(shop.table("archive")) == len(pl.read_parquet(place)) == len(pd.read_parquet(place))
    assert shop.table("archive", "DISTINCT topic") == [(shop.topic,)]
    delta = DeltaTable(shop.directory / "rows").to_pyarrow_table()
    assert sorted(delta.column("id").to_pylist()) == good
    assert sorted(shop.table("mapped", "id")) == [(n,) for n in good if n % 10 != 3]

    dead = shop.messages("rows-dead")
    assert sorted(int(properties["n"]) for _, properties, _ in dead) == [7, 17, 27, 37, 47]
    key, properties, body = next(each for each in dead if each[0] == "k7")
    assert body == b"junk"
    assert properties["penstock.cause"] == "the body is no JSON of the schema"
    assert (properties["penstock.attempts"], properties["penstock.flow"]) == ("1", "rows")
    topic, _, _ = properties["penstock.origin"].split("/")
    assert (key, topic) == ("k7", shop.topic)
    assert len(shop.messages(f"{shop.topic}-upper")) == 50
    assert ("k5", b'{"ID": 5}') in [
        (each[0], each[2]) for each in shop.messages(f"{shop.topic}-upper")
    ]

    # What failed comes again, as it was; in the end it is done, or dead.
    (shop.directory / "healed").touch()
    shop.publish(50, 53)
    time.sleep(1.2)
    figures = shop.run(flows, "mapped", "archive")
    assert (figures["mapped"].retries, figures["mapped"].dead) == (0, 3)
    mapped = shop.table("mapped", "id, origin")
    lost = {3, 13, 23}
    assert sorted(each[0] for each in mapped) == sorted({*good, 50, 53} - lost)
    assert {each[1].rpartition("/")[0].rpartition("/")[0] for each in mapped} == {shop.topic}
    dead = shop.messages("mapped-dead")
    assert {int(each.properties["n"]) for each in dead} == {7, 17, 27, 37, 47, *lost}
    (twice,) = (each.properties for each in dead if each.key == "k13")
    assert (twice["penstock.cause"], twice["penstock.attempts"]) == ("ValueError: no 13", "2")
    assert len(shop.table("archive")) == 52

    # Fewer files, the same rows.
    before = sorted(shop.table("archive", 'key, "offset", queue'))
    assert compact(Table(place)).after == 1
    assert sorted(shop.table("archive", 'key, "offset", queue')) == before


def test_an_archive_goes_to_a_topic_again_at_a_rate_and_goes_on_where_it_was_stopped(
    shop, admin, producer
):
    shop.publish(*range(60))
    archive = shipped("archive").read_text()
    shop.run(archive.replace("${TOPICS}", "TOPIC"))
    replay = (
        shipped("replay")
        .read_text()
        .replace("${TO:-}", "TOPIC-again")
        .replace("${WHERE:-true}", "properties['n'] != '5'")
        .replace("${RATE:-off}", "5")
    )
    stopping = []

    def stop(figures):
        if figures[0].rows:
            stopping.append(True)

    shop.run(replay, is_stopping=lambda: bool(stopping), show=stop)
    some = len(shop.messages(f"{shop.topic}-again"))
    assert 0 < some < 59
    # As if it had been killed before Spark noted its last batch: nothing is sent twice.
    commits = shop.directory / "penstock-pipelines" / "replay" / "checkpoint" / "commits"
    last = max(int(each.name) for each in commits.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    shop.run(replay.replace('rate = "5"', 'rate = "off"'))
    again = shop.messages(f"{shop.topic}-again")
    numbers = [int(properties["n"]) for _, properties, _ in again]
    assert sorted(numbers) == [n for n in range(60) if n != 5]
    assert {key for key, _, _ in again} == {f"k{n}" for n in numbers}

    # Another topic joins the archive: what it has comes, too, and what is there stays as it is.
    more = f"{shop.topic}-more"
    admin.create_topic(more, queues=2)
    for number in range(5):
        producer.send(Message(more, b"%d" % number))
    shop.publish(60)
    wider = archive.replace("${TOPICS}", f"TOPIC,{more}")
    with pytest.raises(StateError, match=r"its from changed since .*--accept-change goes on"):
        shop.run(wider)
    assert len(shop.table("archive")) == 60
    shop.run(wider, is_accepted=True)
    of_each = shop.table("archive", "topic, key, cast(body AS text)")
    assert sorted(body for topic, _, body in of_each if topic == more) == [*"01234"]
    kept = [key for topic, key, _ in of_each if topic == shop.topic]
    assert sorted(kept) == sorted(f"k{number}" for number in range(61))


UNIQUE = """
[flow.unique]
from = { topics = "TOPIC" }
deduplicate = { by = "properties['message_id']", within = "1h" }
sql = "SELECT cast(body AS string) AS body FROM messages"
to = { parquet = "unique" }
[flow.own]
from = { topics = "TOPIC", columns = ["body"] }
deduplicate = { within = "1h" }
map = "functions:echo"
retry = { max_attempts = 2, delays = "1s" }
dead = { topic = "TOPIC-dead" }
to = { topic = "TOPIC-echo" }
[flow.windows]
from = { topics = "TOPIC" }
watermark = { column = "timestamp(properties['at'])", delay = "10s" }
sql = '''
SELECT date_format(window.start, 'mm') AS minute, count(*) AS orders
FROM messages GROUP BY window(event_time, '1 minute')
'''
to = { parquet = "windows" }
"""


def test_duplicates_are_dropped_by_their_id_and_windows_close(shop):
    def publish(number, at):
        properties = {"message_id": f"m{number}", "at": f"2026-01-31 12:{at}"}
        shop._producer.send(Message(shop.topic, b"%d" % number, properties=properties))

    for number, at in ((1, "00:10"), (2, "00:50"), (1, "01:05"), (3, "01:30"), (2, "05:00")):
        publish(number, at)
    # Their clients gave those ids; these two have one that their publisher gave.
    twice = shop.session.createDataFrame(
        [("m8", b"8"), ("m8", b"8")], "message_id string, body binary"
    )
    options = {"endpoint": shop.endpoint, "topic": shop.topic}
    twice.write.format("penstock").mode("append").options(**options).save()
    figures = shop.run(UNIQUE)
    assert sorted(shop.table("unique", "body")) == [("1",), ("2",), ("3",), ("8",)]
    # The same bodies of another id are no duplicates.
    assert (figures["own"].rows_out, figures["own"].retries) == (5, 1)
    # That of the last message may still get more.
    assert sorted(shop.table("windows")) == [("00", 2), ("01", 2)]
    publish(4, "00:20")
    publish(5, "05:30")
    publish(6, "07:00")
    figures = shop.run(UNIQUE, "own", "windows")
    assert sorted(shop.table("windows")) == [("00", 2), ("01", 2), ("05", 2)]
    assert figures["windows"].late == 1
    # A message that comes again because it failed is no duplicate.
    assert figures["own"].dead == 1
    echoed = sorted(body for _, _, body in shop.messages(f"{shop.topic}-echo"))
    assert echoed == [b"1", b"1", b"2", b"2", b"4", b"5", b"6", b"8"]
    (letter,) = shop.messages(f"{shop.topic}-dead")
    assert (letter.body, letter.properties["penstock.attempts"]) == (b"3", "2")


def test_the_example_runs_as_it_is_ends_its_batch_when_stopped_and_goes_on_with_the_next(shop):
    flow = shipped("example").read_text().replace('["orders"]', '["TOPIC"]')
    flow = flow.replace('"5s"', '"100ms"')
    shop.publish(*range(10))
    stopping = []

    def stop(figures):
        if figures[0].rows >= 10:
            stopping.append(True)

    figures = shop.run(flow, is_once=False, is_stopping=lambda: bool(stopping), show=stop)
    assert figures["orders"].state == "stopped"
    # One is no JSON.
    assert (len(shop.table("out/orders")), figures["orders"].dead) == (9, 1)
    commits = shop.directory / "penstock-pipelines" / "orders" / "checkpoint" / "commits"
    assert max(int(each.name) for each in commits.glob("[0-9]*")) == figures["orders"].batch
    shop.publish(*range(10, 15))
    shop.run(flow)
    assert sorted(shop.table("out/orders", "id")) == [(n,) for n in range(15) if n != 7]
    with pytest.raises(StateError, match="its sql changed since its checkpoint was made"):
        shop.run(flow.replace("cents / 100", "cents / 10"))
    with pytest.raises(StateError, match="has rows of it already"):
        shop.run(f'state = "elsewhere"\n{flow}')
    shop.run(flow, is_reset=True)
    assert len(shop.table("out/orders")) == 28


def test_a_flow_that_falls_behind_holds_its_publishers_and_why_names_it(shop, broker):
    shop.publish(*range(30))
    limits = ["--spark-backpressure", "hard", "--spark-backlog-max", "5"]
    with pytest.raises(SystemExit) as done:
        cli.main(["topics", "set", shop.topic, *limits, "--data", str(broker.data)])
    assert done.value.code == 0
    answers, stopping = [], threading.Event()

    def publish():
        while not stopping.is_set():
            with contextlib.suppress(ClientError):
                shop.publish(0)

    def ask(_):
        with urllib.request.urlopen(f"http://{broker.endpoints['http']}/api/flow") as page:
            answers.append(json.dumps(json.load(page)["answer"]))
        if "Spark query 'behind'" in answers[-1]:
            stopping.set()

    publisher = threading.Thread(target=publish, daemon=True)
    publisher.start()
    flow = """
        [flow.behind]
        from = { topics = "TOPIC", max_rows = 5 }
        map = "functions:slowly"
        to = { topic = "TOPIC-out" }
        """
    try:
        shop.run(flow, is_stopping=stopping.is_set, show=ask)
    finally:
        stopping.set()
        publisher.join(30)
    assert any("bound 5 on topic" in each for each in answers)


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ('sql = "SELECT nosuch FROM messages"\nto = { parquet = "o" }', "nosuch"),
        ('sql = "SELEC 1"\nto = { parquet = "o" }', "flow 'x': .*SELEC"),
        ('to = { parquet = "o", partition_by = ["dya"] }', "partition_by: there is no 'dya'"),
        ('to = { parquet = "o", partition_by = ["timestamp"] }', "directories are named by text"),
        ('to = { parquet = "functions.py" }', "is no directory"),
        ('sql = "SELECT key AS a FROM messages"\nto = { topic = "o", key = "b" }', "to.key"),
        ('sql = "SELECT body, key AS kye FROM messages"\nto = { topic = "o" }', "mean key"),
        ('python = "functions:nosuch"\nto = { topic = "o" }', "has no function nosuch"),
        ('python = "nosuch:f"\nto = { topic = "o" }', "No module named 'nosuch'"),
        (
            'decode = { format = "json", schema = "id lon" }\nto = { parquet = "o" }',
            "decode.schema",
        ),
        ('decode = { format = "json" }\nto = { parquet = "o" }', "no message yet has a JSON"),
        ('watermark = { column = "at" }\nto = { parquet = "o" }', "at"),
        (
            'sql = "SELECT body, 1 AS expire FROM messages"\nto = { topic = "o" }',
            "column expire is",
        ),
        ('to = { topic = "o", endpoint = "127.0.0.1:1" }', "flow 'x': no answer from Penstock's"),
    ],
)
def test_a_dry_run_says_what_is_wrong_in_one_sentence(shop, monkeypatch, flow, words):
    monkeypatch.setattr(query, "ASK_S", 0.2)
    pipeline = shop.pipeline(f'[flow.x]\nfrom = {{ topics = "TOPIC" }}\n{flow}')
    with pytest.raises(PenstockError, match=words):
        dry_run(pipeline, pipeline.flows, session=shop.session)
    assert not (shop.directory / "penstock-pipelines").exists()


def test_a_dry_run_names_the_columns_of_each_target_and_a_missing_topic(shop):
    text = '[flow.x]\nfrom = { topics = "TOPIC" }\nto = { parquet = "o" }\n'
    pipeline = shop.pipeline(text)
    ((flow, columns),) = dry_run(pipeline, pipeline.flows, session=shop.session)
    assert (flow.name, columns[:2]) == ("x", ["topic string", "queue int"])
    pipeline = shop.pipeline(text.replace("TOPIC", "TOPICx"))
    with pytest.raises(PenstockError, match=f"did you mean '{shop.topic}'"):
        dry_run(pipeline, pipeline.flows, session=shop.session)


def queries_at(broker):
    with urllib.request.urlopen(f"http://{broker.endpoints['http']}/api/queries") as page:
        return {each["name"]: each for each in json.load(page)["queries"]}


@pytest.fixture
def listened(shop):
    """``listened(text)``: while a pipeline's flows run, the broker is told how."""
    made = []

    def listen(text):
        made.append(PenstockListener(sources=sources_of(shop.pipeline(text).flows)))
        shop.session.streams.addListener(made[-1])

    yield listen
    for each in made:
        shop.session.streams.removeListener(each)


def test_what_goes_wrong_on_the_way_is_told_in_a_sentence_and_nothing_is_lost(
    shop, admin, broker, listened, monkeypatch
):
    monkeypatch.setattr(runner, "RESTARTS_MAX_ONCE", 1)
    flows = """
        [flow.cast]
        from = { topics = "TOPIC" }
        decode = { format = "text" }
        sql = "SELECT cast(value AS int) AS number FROM messages"
        to = { parquet = "cast" }
        [flow.strict]
        from = { topics = "TOPIC" }
        python = "functions:strict"
        to = { parquet = "strict" }
        [flow.gone]
        from = { topics = "TOPIC" }
        to = { parquet = "gone" }
        """
    shop.publish(1)
    shop.run(flows, "gone")
    shop.publish(7)
    # Behind the table's back, as a disk that is gone would be.
    control = shop.directory / ".gone.penstock"
    shutil.rmtree(control / "staged")
    (control / "staged").write_text("somebody's")
    listened(flows)
    texts = shop.failures(flows)
    # The broker knows it, too, of a flow that never got a batch done.
    failed = {"state": "failed", "text": texts["strict"]}
    eventually(lambda: failed.items() <= queries_at(broker)["strict"].items(), seconds=30)
    assert re.search(r"The value '.*' of .* cannot be cast .*line 1, position 8", texts["cast"])
    assert texts["strict"] == "LookupError: nobody knows junk"
    assert re.search(r"table .*/gone cannot be written: File exists .*; give", texts["gone"])
    assert shop.table("cast") == shop.table("strict") == []
    (control / "staged").unlink()
    shop.run(flows, "gone")
    assert len(shop.table("gone")) == 2

    # The topic is deleted and made anew: what the checkpoint says is about another one.
    admin.delete_topic(shop.topic)
    admin.create_topic(shop.topic, queues=2)
    shop.publish(2)
    told = shop.failures(flows, "gone")["gone"]
    assert f"queue 0 of topic '{shop.topic}' was deleted and made anew since offset 1" in told
    assert "or begin anew with --reset" in told
    assert len(shop.table("gone")) == 2
    shop.run(flows, "gone", is_reset=True)
    assert len(shop.table("gone")) == 3


def test_files_of_a_table_are_as_many_as_rows_and_time_ask_for(shop):
    flow = """
        [flow.rolled]
        from = { topics = "TOPIC" }
        to = { parquet = "rolled", tasks = 1, roll_rows = 20, roll_time = "TIME" }
        """
    looks = []

    def files():
        return [
            pq.read_metadata(each).num_rows for each in shop.directory.rglob("rolled/*.parquet")
        ]

    def show(figures):
        if figures[0].state == "starting":
            return
        looks.append(files())
        if len(looks) == 1:
            shop.publish(*range(10))
        elif len(looks) == 8:  # two seconds later
            assert looks == [[]] * 8
            shop.publish(*range(10, 20))

    def is_rolled():
        return bool(looks and looks[-1])

    shop.run(flow.replace("TIME", "10m"), is_once=False, is_stopping=is_rolled, show=show)
    assert files() == [20]
    # Too few of them go when it is time.
    shop.publish(*range(20, 25))
    shop.run(flow.replace("TIME", "1s"), is_once=False, is_stopping=lambda: len(files()) > 1)
    assert sorted(files()) == [5, 20]


def test_a_batch_that_the_broker_has_no_room_for_says_what_to_do_and_then_goes_on(
    shop, broker, tmp_path
):
    (port,) = free_ports(1)
    target = f"127.0.0.1:{port}"
    flow = f"""
        [flow.big]
        from = {{ topics = "TOPIC" }}
        to = {{ topic = "big", endpoint = "{target}" }}
        """
    shop.publish(*range(20, 60))
    flags = ("--flight", str(port), "--set", "spark.stage_batch_bytes_max=4KiB")
    with BrokerProcess(tmp_path / "data", flags=flags):
        # Told at once: another start would say the same.
        told = shop.failures(flow)["big"]
        assert "(spark.stage_batch_bytes_max): make batches smaller" in told
        assert "maxRowsPerTrigger (max_rows of a pipeline)" in told
        assert topic_rows(target, "big") == []
        # Spark has written down how large its batch is, and yet it becomes smaller.
        shop.publish(*range(60, 70))
        figures = shop.run(flow.replace('TOPIC"', 'TOPIC", max_rows = 15'))
        assert figures["big"].batch == 3
        assert len(topic_rows(target, "big")) == 50
        assert [name for name in queries_at(broker) if name.startswith("big")] == ["big"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("spark.sql.shuffle.partitions", "The value '${PW}' in the config"),
        ("spark.driver.memory", "Invalid maximum heap size: -Xmx${PW}"),
    ],
)
def test_a_setting_that_spark_does_not_start_with_is_one_sentence_without_the_secret_in_it(
    tmp_path, name, words
):
    file = tmp_path / "x.toml"
    flow = '[flow.x]\nfrom = { topics = "a", endpoint = "127.0.0.1:1" }\nto = { parquet = "out" }\n'
    file.write_text(f'[spark]\nsettings = {{ "{name}" = "${{PW}}" }}\n{flow}')
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", "run", str(file), "--once"],
        env={**os.environ, "PW": "hunter2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("penstock: [spark]: ")
    assert words in line
    assert "hunter2" not in done.stdout + done.stderr
