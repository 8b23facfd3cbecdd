"""What of a flow can be told without a session: its functions, and what it asks of its source."""

import importlib
import sys

import pytest

from penstock.model.queries import ResolveResponse, TopicRange
from penstock.pipelines import query
from penstock.pipelines.flow_file import parse_pipeline
from penstock.pipelines.query import (
    FlowProblem,
    FlowQuery,
    check_target,
    load_function,
    with_spark,
)
from penstock.pipelines.runner import SparkGone
from penstock.pipelines.state import FlowState


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "flow_functions.py").write_text("def double(row): return row\nnumber = 1\n")
    (tmp_path / "flow_broken.py").write_text("import nosuch_module\n")
    (tmp_path / "flow_typo.py").write_text("def double(row:\n")
    (tmp_path / "flow_raises.py").write_text("import os\nos.environ['NOSUCH_VARIABLE']\n")
    yield tmp_path
    sys.modules.pop("flow_functions", None)


def test_functions_are_found_beside_the_file(home):
    assert load_function("flow_functions:double", home)({"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("flow_functions:doble", "module flow_functions has no function doble"),
        ("flow_functions:number", "has no function number"),
        ("flow_nosuch:f", "No module named 'flow_nosuch'; modules are looked for in"),
        ("flow_broken:f", "No module named 'nosuch_module'"),
        ("flow_typo:double", r"flow_typo cannot be imported: SyntaxError: .*line 1"),
        ("flow_raises:f", "cannot be imported: KeyError: 'NOSUCH_VARIABLE'"),
    ],
)
def test_a_function_that_is_not_there_is_told(home, reference, words):
    with pytest.raises(FlowProblem, match=words):
        load_function(reference, home)


def test_a_jvm_that_is_gone_is_told_from_what_spark_itself_says():
    gone = importlib.import_module("py4j.protocol").Py4JNetworkError(
        "Answer from Java side is empty"
    )
    for problem in (gone, ConnectionRefusedError("Connection refused")):
        with pytest.raises(SparkGone), with_spark():
            raise problem
    with pytest.raises(LookupError), with_spark():
        raise LookupError("no such customer")


class Frame:
    """Whatever is done with a DataFrame."""

    def __getattr__(self, _):
        return lambda *_, **__: self


class Reader(Frame):
    """Notes what the source is asked for."""

    def __init__(self):
        self.readStream, self.given = self, {}

    def format(self, name):
        self.name = name
        return self

    def options(self, **given):
        self.given = given
        return self


@pytest.mark.parametrize(
    ("to", "rolls"),
    [
        ('{ parquet = "out", roll_rows = 7, roll_time = "90s" }', ("7", "90s")),
        ('{ delta = "out" }', ("100000", "60s")),
        ('{ topic = "out" }', (None, None)),
    ],
)
def test_a_batch_of_a_table_waits_for_rows_or_time(tmp_path, to, rolls):
    text = f'[flow.x]\nfrom = {{ topics = "a", max_rows = 500 }}\nto = {to}'
    path = tmp_path / "p.toml"
    (flow,) = parse_pipeline(text, path=path, environment={}, given={}).flows
    reader = Reader()
    FlowQuery(reader, flow, FlowState(tmp_path, flow)).messages()
    asked = reader.given
    assert (reader.name, asked["maxRowsPerTrigger"]) == ("penstock", "500")
    assert (asked.get("rollRows"), asked.get("maxTriggerDelay")) == rolls


@pytest.fixture
def topics(monkeypatch):
    """``topics("a", is_auto_creating=False)``: those that are there."""

    def topics(*names, is_auto_creating):
        class Client(Frame):
            def __init__(self, endpoint, **_):
                assert endpoint == "127.0.0.1:8815"

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def resolve(self, _, *, optional):
                found = [TopicRange(name=each, queues=[]) for each in names if each in optional]
                return ResolveResponse(epoch=0, topics=found, is_auto_creating=is_auto_creating)

        monkeypatch.setattr(query, "BulkClient", Client)

    return topics


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ((), "out"),
        (("out",), "x-dead"),
        (("out", "x-dead"), r"penstock\.retry\.x"),
    ],
)
def test_a_topic_that_nobody_makes_is_told_before_the_first_row(tmp_path, topics, there, missing):
    text = '[flow.x]\nfrom = { topics = "a" }\nmap = "m:f"\nto = { topic = "out" }'
    path = tmp_path / "p.toml"
    (flow,) = parse_pipeline(text, path=path, environment={}, given={}).flows
    topics(*there, is_auto_creating=False)
    with pytest.raises(FlowProblem, match=f"no topic '{missing}' to .*topics create {missing}`"):
        check_target(flow)
    topics(*there, is_auto_creating=True)
    check_target(flow)
    topics("out", "x-dead", "penstock.retry.x", is_auto_creating=False)
    check_target(flow)
