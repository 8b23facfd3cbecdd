"""``penstock doctor``: what it finds, and that it only looks."""

import json
import os
import socket
import subprocess
import sys

import pytest

from penstock.cli import doctor
from penstock.cli.main import main
from penstock.server.ready_file import write_ready

ALL_OFF = tuple(
    word
    for flag in ("rocketmq", "rocketmq-broker", "amqp", "pulsar", "flight", "http")
    for word in (f"--{flag}", "off")
)


def examined(capsys, *arguments):
    """(exit code, name -> state, name -> text)"""
    code = 0
    try:
        main(["doctor", "--json", *arguments])
    except SystemExit as ended:
        code = ended.code
    found = json.loads(capsys.readouterr().out)
    return (
        code,
        {each["name"]: each["state"] for each in found},
        {each["name"]: each["text"] for each in found},
    )


def test_a_good_place_passes_and_is_left_as_it_was(capsys, tmp_path):
    code, states, _ = examined(capsys, "--data", str(tmp_path / "data"), *ALL_OFF)
    assert code == 0
    assert "fail" not in states.values()
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_fails_with_the_flag_to_choose_another(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ("--data", str(tmp_path), *ALL_OFF, "--amqp", port)
        code, states, texts = examined(capsys, *arguments)
    assert code == 1
    assert states["port amqp"] == "fail"
    assert "--amqp PORT" in texts["port amqp"]


def test_a_free_port_passes(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as freed:
        port = str(freed.getsockname()[1])
    arguments = ("--data", str(tmp_path), "--bind", "127.0.0.1", *ALL_OFF, "--http", port)
    assert examined(capsys, *arguments)[1]["port http"] == "ok"


def test_a_file_in_place_of_the_directory_fails(capsys, tmp_path):
    file = tmp_path / "data"
    file.write_bytes(b"")
    code, states, texts = examined(capsys, "--data", str(file), *ALL_OFF)
    assert (code, states["data directory"]) == (1, "fail")
    assert "--data" in texts["data directory"]


def test_a_directory_one_may_not_write_fails(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, states, _ = examined(capsys, "--data", str(tmp_path), *ALL_OFF)
    assert (code, states["data directory"]) == (1, "fail")


@pytest.mark.parametrize(("amount", "state"), [(1 << 30, "ok"), (64 << 20, "warn")])
def test_little_memory_is_a_warning(capsys, tmp_path, monkeypatch, amount, state):
    monkeypatch.setattr(doctor.Machine, "memory_bytes", lambda machine: amount)
    assert examined(capsys, "--data", str(tmp_path), *ALL_OFF)[1]["memory"] == state


def test_a_nearly_full_disk_and_few_file_handles_are_warnings(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "DISK_BYTES_MIN", 1 << 70)
    monkeypatch.setattr(doctor, "FILES_OF_OUR_OWN", 1 << 62)
    code, states, _ = examined(capsys, "--data", str(tmp_path), *ALL_OFF)
    assert (code, states["disk"], states["open files"]) == (0, "warn", "warn")


def test_a_missing_uvloop_is_a_warning(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert examined(capsys, "--data", str(tmp_path), *ALL_OFF)[1]["event loop"] == "warn"


PYENV = "/opt/pyenv/versions/3.11.7"


@pytest.mark.parametrize(
    ("built", "state"),
    [
        ((PYENV, "'--enable-shared'"), "warn"),
        ((PYENV, "'--enable-optimizations' '--with-lto'"), "ok"),
        (("/usr", "'--enable-shared' '--prefix=/usr'"), "ok"),
        (("/opt/python", None), "ok"),
    ],
)
def test_a_python_built_without_profiles_is_a_warning(capsys, tmp_path, monkeypatch, built, state):
    prefix, how = built
    monkeypatch.setattr("sys.base_prefix", prefix)
    monkeypatch.setattr("sysconfig.get_config_var", lambda _name: how)
    assert examined(capsys, "--data", str(tmp_path), *ALL_OFF)[1]["python"] == state


def test_the_text_has_one_line_per_finding(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["doctor", "--data", str(tmp_path), *ALL_OFF])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[1] == "python"
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in lines)


def test_the_java_that_spark_would_use_is_named_with_the_reason(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    _, states, texts = examined(capsys, "--data", str(tmp_path), *ALL_OFF)
    assert (states["java"], states["spark"], states["pyarrow"]) == ("ok", "ok", "ok")
    assert f"{tmp_path}/gone/bin/java does not work" in texts["java"]


def test_without_any_java_it_says_how_to_get_one(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("penstock.spark.java.find_spec", lambda name: None)
    code, states, texts = examined(capsys, "--data", str(tmp_path), *ALL_OFF)
    assert (code, states["java"]) == (0, "warn")
    assert "penstock-broker[spark]" in texts["java"]


def test_a_broker_alone_needs_neither_spark_nor_pyarrow(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    _, states, texts = examined(capsys, "--data", str(tmp_path), *ALL_OFF)
    assert (states["spark"], states["pyarrow"]) == ("ok", "ok")
    assert "java" not in states
    assert "pip install" in texts["spark"]


def test_a_flight_port_without_pyarrow_is_warned_of(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    _, states, _ = examined(capsys, "--data", str(tmp_path), *ALL_OFF, "--flight", "0")
    assert states["pyarrow"] == "warn"


def test_beside_its_own_broker_it_says_so_and_finds_no_fault(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write_ready(tmp_path / "ready.json", {"amqp": f"127.0.0.1:{port}"})
        arguments = ("--data", str(tmp_path), *ALL_OFF, "--amqp", str(port))
        code, states, texts = examined(capsys, *arguments)
    assert (code, states["broker"], states["port amqp"]) == (0, "ok", "ok")
    assert f"runs here as process {os.getpid()}" in texts["broker"]
    assert texts["port amqp"] == f"{port} is its own; free without it"


def test_the_ready_file_of_a_killed_broker_is_no_broker(capsys, tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    content = {"pid": ended.pid, "endpoints": {"amqp": "127.0.0.1:5672"}}
    (tmp_path / "ready.json").write_text(json.dumps(content))
    _, states, _ = examined(capsys, "--data", str(tmp_path), *ALL_OFF)
    assert "broker" not in states
