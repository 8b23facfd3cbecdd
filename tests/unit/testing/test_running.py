import pytest

from kit.line_broker import LINE_BROKER
from kit.line_protocol import LineClient
from penstock.testing.running import BrokerProcess, running_broker


def test_a_running_broker_serves_and_stops_cleanly():
    with running_broker() as broker:
        assert broker.pid > 0
        host, port = broker.address("http")
        assert (host, port > 0) == ("127.0.0.1", True)
        assert broker.stop() == 0
        assert "stopped cleanly" in broker.output


def test_a_killed_broker_starts_again_with_what_it_confirmed(tmp_path):
    with BrokerProcess(tmp_path / "data", command=LINE_BROKER) as broker:
        client = LineClient(*broker.address("line"))
        client.ask("TOPIC t", "TOPIC", "t")
        client.ask("PUB t 1 kept", "CONFIRM", "1")
        broker.kill()
        with pytest.raises(ConnectionError, match="connection lost"):
            client.ask("PING", "PONG")
        client.close()
        broker.start()
        client = LineClient(*broker.address("line"))
        client.ask("SUB t s 1", "SUB")
        assert client.wait_for("MSG")[-1] == "kept"
        client.close()
        assert broker.restarts == 2


def test_a_broker_that_cannot_start_says_why(tmp_path):
    with BrokerProcess(tmp_path / "data", command=LINE_BROKER):
        second = BrokerProcess(tmp_path / "data", command=LINE_BROKER)
        with pytest.raises(RuntimeError, match="is in use by process"):
            second.start()
