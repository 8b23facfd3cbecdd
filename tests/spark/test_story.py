"""``penstock demo``, the whole story in its small size: a demonstration is a test, too (D27)."""

import json
import os
import subprocess
import sys

import pytest

from kit import brief_spark
from penstock.demo.story.publishers import CLIENTS, has_client

STORY_S_MAX = 600
"""It takes under a minute on a machine that is not busy; on one that is drowned Spark may take four
to start, and the story waits for whoever is behind before each act."""


@pytest.mark.spark
@pytest.mark.timeout(STORY_S_MAX + 20)
def test_the_whole_story_is_true():
    command = (sys.executable, "-m", "penstock", "demo", "--size", "small", "--json")
    told = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=STORY_S_MAX,
        check=False,
        env={**os.environ, "JAVA_TOOL_OPTIONS": brief_spark.JVM},
    )
    assert told.stdout, told.stderr
    verdict = json.loads(told.stdout)
    assert verdict["published"] == verdict["consumed"] == verdict["rows"] > 0
    assert sum(verdict["placed_by"].values()) == verdict["placed"]
    readers = {"RocketMQ", *(["AMQP (pika)"] if has_client("amqp") else ())}
    assert verdict["large"].keys() == {"published", *readers}
    assert len(set(verdict["large"].values())) == 1
    assert verdict["placed_by"].keys() == {"rocketmq", *filter(has_client, CLIENTS)}
    assert [each for each in verdict["checks"] if not each["is_true"]] == []
    assert verdict["refused"] > 0
    assert told.returncode == 0
