"""A broker for the time of a command: it is there, it ends, and why it did not start is told."""

import socket

import pytest

from penstock.cli.private_broker import private_broker
from penstock.model.errors import PenstockError

FLAGS = (
    "--bind", "127.0.0.1", "--amqp", "0", "--http", "off", "--pulsar", "off",
    "--rocketmq", "off", "--rocketmq-broker", "off", "--flight", "off",
)  # fmt: skip


def test_it_is_there_and_then_it_is_gone(tmp_path):
    with private_broker(tmp_path / "a", FLAGS) as endpoints:
        host, _, port = endpoints["amqp"].rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=5)


def test_what_it_said_is_in_the_error(tmp_path):
    with (
        pytest.raises(PenstockError, match=r"did not start(.|\n)*--no-such-flag"),
        private_broker(tmp_path / "a", ("--no-such-flag",)),
    ):
        pass
