"""How a run's session is made; Spark itself is a fake."""

import logging
from pathlib import Path

import pytest

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


def test_spark_itself_is_silent_unless_the_file_says_otherwise(made):
    session(FLOW)
    session(FLOW + '[spark]\nsettings = { "spark.log.level" = "warn" }')
    assert [each["log_level"] for each in made] == ["off", "warn"]
    for name in launch.PYSPARK_LOGGERS:
        assert not logging.getLogger(name).isEnabledFor(logging.ERROR)


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
