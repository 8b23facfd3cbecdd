"""How a run's session is made; Spark itself is a fake."""

import logging
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError

from penstock.model.errors import PenstockError
from penstock.pipelines import launch
from penstock.pipelines.flow_file import parse_pipeline

FLOW = '[flow.x]\nfrom = { topics = "a" }\nto = { topic = "b" }\n'


class Session:
    """What is asked of Spark's."""

    def __init__(self):
        self.files = []
        self.active = []
        self.streams = self.sparkContext = self
        self.is_stopped = False
        self._accumulatorServer = SimpleNamespace()

    def __getattr__(self, name):
        return {"addListener": lambda _: None, "addPyFile": self._add}[name]

    def _add(self, name):
        self.files.append(Path(name).name)

    def stop(self):
        self.is_stopped = True


@pytest.fixture
def made(monkeypatch):
    """What sessions were made with."""
    seen = []

    def local_session(name, **options):
        seen.append(options)
        # As PySpark does: Ctrl-C would cancel the batch that it is to end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return Session()

    monkeypatch.setattr(launch, "local_session", local_session)
    monkeypatch.setattr(launch, "prepare_session", lambda _: None)
    monkeypatch.setenv("PYTHONPATH", "")
    return seen


def session(text):
    pipeline = parse_pipeline(text, path=Path("/p/x.toml"), environment={}, given={})
    with launch.spark_session(pipeline) as found:
        assert not found.is_stopped
    assert found.is_stopped
    return found


def test_spark_does_not_take_ctrl_c_away(made):
    kept = signal.getsignal(signal.SIGINT)

    def mine(*_):
        pass

    signal.signal(signal.SIGINT, mine)
    try:
        session(FLOW)
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, kept)


def test_spark_itself_is_silent_unless_the_file_says_otherwise(made):
    session(FLOW)
    session(FLOW + '[spark]\nsettings = { "spark.log.level" = "warn" }')
    assert [each["log_level"] for each in made] == ["off", "warn"]
    for name in launch.PYSPARK_LOGGERS:
        assert not logging.getLogger(name).isEnabledFor(logging.ERROR)


def test_a_thread_of_pyspark_prints_no_stack_when_the_jvm_goes_first(made):
    found = session(FLOW)
    assert found._accumulatorServer.handle_error(None, None) is None


@pytest.mark.parametrize(
    "problem", [Py4JError("py4j.reflection does not exist in the JVM"), ConnectionRefusedError()]
)
def test_a_jvm_that_ends_while_the_session_is_made_is_told_in_a_sentence(
    made, monkeypatch, problem
):
    """A signal to the whole group ends it as well."""

    def fail(_):
        raise problem

    monkeypatch.setattr(launch, "prepare_session", fail)
    with pytest.raises(PenstockError, match="Spark's JVM ended while it started; no flow was"):
        session(FLOW)


def test_executors_of_a_cluster_are_sent_what_they_need(made):
    assert session(FLOW + '[spark]\nmaster = "local[2,4]"').files == []
    assert session(FLOW + '[spark]\nmaster = "spark://h:7077"').files == ["penstock-executor.zip"]
    local, cluster = (each["settings"] for each in made)
    assert local == {"spark.master": "local[2,4]"}
    assert cluster["spark.master"] == "spark://h:7077"


def test_what_is_right_for_one_machine_is_left_to_spark_on_a_cluster(made):
    text = FLOW + '[spark]\nmaster = "yarn"\nsettings = { "spark.driver.host" = "10.0.0.1" }'
    session(text)
    assert made[0]["settings"] == {
        "spark.master": "yarn",
        "spark.driver.host": "10.0.0.1",
        "spark.driver.bindAddress": None,
        "spark.default.parallelism": None,
        "spark.sql.shuffle.partitions": None,
    }
