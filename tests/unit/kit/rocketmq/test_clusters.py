import subprocess

import pytest

from kit.rocketmq import clusters
from kit.rocketmq.clusters import Unavailable, jars


def test_without_java_or_maven_it_says_which_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(clusters.shutil, "which", lambda tool: None)
    with pytest.raises(Unavailable, match="java is not installed"):
        jars(tmp_path)


def test_a_repository_that_cannot_be_reached_is_told_in_mavens_words(monkeypatch, tmp_path):
    def run(command, **_):
        return subprocess.CompletedProcess(
            command, 1, "", "[ERROR] could not resolve it\n[ERROR] help"
        )

    monkeypatch.setattr(clusters.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(clusters.subprocess, "run", run)
    with pytest.raises(Unavailable, match=r"could not resolve it$"):
        jars(tmp_path)


def test_jars_are_fetched_once_by_coordinates_of_both_programs(monkeypatch, tmp_path):
    fetched = []

    def run(command, cwd, **_):
        fetched.append((cwd / "pom.xml").read_text())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(clusters.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(clusters.subprocess, "run", run)
    assert jars(tmp_path) == jars(tmp_path)
    (pom,) = fetched
    assert "rocketmq-namesrv" in pom
    assert "rocketmq-broker" in pom
    assert "http" not in pom
