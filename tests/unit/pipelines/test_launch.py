"""How a run's session is made; Spark itself is a fake."""

import contextlib
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


# What PySpark 4.3 and its JVM say, shortened, of four files that are wrong.
NO_GATEWAY = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
PARTITIONS = """Error while instantiating 'org.apache.spark.sql.internal.SessionStateBuilder':

JVM stacktrace:
java.lang.IllegalArgumentException: Error while instantiating 'SessionStateBuilder':
\tat org.apache.spark.sql.classic.SparkSession$.instantiateSessionState(SparkSession.scala:1211)
Caused by: org.apache.spark.SparkIllegalArgumentException: [INVALID_CONF_VALUE.TYPE_MISMATCH] The \
value 'hunter2' in the config "spark.sql.shuffle.partitions" is invalid. It should be a/an 'int' \
parameter. SQLSTATE: 22022
\tat org.apache.spark.internal.config.ConfigHelpers$.toNumber(ConfigBuilder.scala:36)
\t... 17 more
"""
CORES = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'local[hunter2]'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3391)
"""
MASTER = """Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn \
or start with spark, k8s, or local
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)
"""
MEMORY = """Invalid maximum heap size: -Xmxlots
Error: Could not create the Java Virtual Machine.
"""


@pytest.mark.parametrize(
    ("raised", "said", "sentence"),
    [
        (
            PARTITIONS,
            "",
            "[INVALID_CONF_VALUE.TYPE_MISMATCH] The value '${PW}' in the config"
            " \"spark.sql.shuffle.partitions\" is invalid. It should be a/an 'int' parameter.",
        ),
        (CORES, "", "Could not parse Master URL: 'local[${PW}]'"),
        (NO_GATEWAY, MASTER, "Master must either be yarn or start with spark, k8s, or local"),
        (
            NO_GATEWAY,
            MEMORY,
            "Invalid maximum heap size: -Xmxlots Error: Could not create the Java Virtual Machine.",
        ),
        (NO_GATEWAY, "", NO_GATEWAY),
    ],
    ids=["partitions", "cores", "master", "memory", "nothing said"],
)
def test_settings_that_spark_does_not_start_with_are_told_in_a_sentence(
    made, monkeypatch, raised, said, sentence
):
    def local_session(*_, **__):
        raise RuntimeError(raised)

    @contextlib.contextmanager
    def starting():
        yield lambda: said

    monkeypatch.setattr(launch, "local_session", local_session)
    text = FLOW.replace('"b"', '"${PW}"')
    pipeline = parse_pipeline(text, path=Path("/p/x.toml"), environment={"PW": "hunter2"}, given={})
    with (
        pytest.raises(PenstockError) as caught,
        launch.spark_session(pipeline, starting=starting),
    ):
        pytest.fail("it has started")
    assert str(caught.value) == f"[spark]: {sentence}"
    assert caught.value.__suppress_context__
