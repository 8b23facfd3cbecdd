"""RabbitMQ of the machine: what is missing is named; who speaks AMQP is known by its first word."""

import socket
import subprocess
import threading
from pathlib import Path

import pytest

from kit.amqp import rabbitmq as module
from kit.amqp.rabbitmq import PROTOCOL_HEADER, RabbitMq, Unavailable, is_speaking


def answering(said):
    """A server for one connection that hears a protocol header and says this."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with server, server.accept()[0] as link:
            assert link.recv(8) == PROTOCOL_HEADER
            link.sendall(said)

    threading.Thread(target=serve).start()
    return server.getsockname()[1]


@pytest.mark.parametrize(
    ("said", "is_amqp"),
    [(b"\x01\x00\x00\x00", True), (b"AMQP\x00\x00\x09\x01", False), (b"", False)],
    ids=["a method frame", "another version", "nothing"],
)
def test_a_broker_is_known_by_its_first_word(said, is_amqp):
    assert is_speaking("127.0.0.1", answering(said)) is is_amqp


def test_a_port_without_anybody_does_not_speak():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert not is_speaking("127.0.0.1", port)


def test_without_erlang_it_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda tool: None)
    with pytest.raises(Unavailable, match="erl is not installed"):
        RabbitMq(tmp_path)


def test_without_the_package_it_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(module, "SCRIPTS", (Path("nowhere"),))
    with pytest.raises(Unavailable, match="rabbitmq-server is not installed"):
        RabbitMq(tmp_path)


def test_a_node_keeps_to_its_own_directory_ports_and_loopback(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(module, "SCRIPTS", (tmp_path,))
    node = RabbitMq(tmp_path, 5672)
    environment = node._environment()
    for name in ("HOME", "RABBITMQ_MNESIA_BASE", "RABBITMQ_LOG_BASE", "RABBITMQ_PID_FILE"):
        assert Path(environment[name]).is_relative_to(tmp_path)
    settings = (tmp_path / "rabbitmq.conf").read_text()
    assert "listeners.tcp.1 = 127.0.0.1:5672\nlisteners.tcp.2 = ::1:5672\n" in settings
    node.stop()  # nothing runs, nothing happens


def test_its_rabbitmqctl_means_this_node_whichever_was_named(tmp_path, monkeypatch):
    real = tmp_path / "rabbitmqctl-real" / "rabbitmqctl"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\necho "$HOME" "$@"\n')
    real.chmod(0o755)
    monkeypatch.setattr(module.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(module, "SCRIPTS", (real.with_name("rabbitmq-server"),))
    real.with_name("rabbitmq-server").touch()
    program = RabbitMq(tmp_path, 5672).rabbitmqctl
    called = (program, "-n", "rabbit@localhost", "eval", "a b")
    said = subprocess.run(called, check=True, capture_output=True, text=True).stdout
    assert said == f"{tmp_path} -n penstock-5672@localhost eval a b\n"
