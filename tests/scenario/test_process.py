"""``penstock up`` as a process: it gets ready, answers, stops, and refuses with one sentence."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

READY_SECONDS_MAX = 30
UP = (sys.executable, "-m", "penstock", "up")
LISTENERS = ("http", "amqp", "pulsar", "rocketmq", "rocketmq-broker")
FREE_PORTS = tuple(word for name in LISTENERS for word in (f"--{name}", "0"))
"""Tests run beside each other."""
LINE = (sys.executable, "-m", "kit.line_broker")
"""The same process with one protocol more."""


class Process:
    """One ``penstock up`` on free ports."""

    def __init__(self, data, *flags, command=UP):
        self.data = data
        self.popen = subprocess.Popen(
            [*command, "--data", str(data), *FREE_PORTS, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"},
        )
        self.lines = []

    def wait_ready(self):
        """Until its banner is complete; the endpoints of its ready file."""
        while not self.lines or "stops it cleanly" not in self.lines[-1]:
            line = self.popen.stdout.readline()
            assert line, f"not ready: {''.join(self.lines)}"
            self.lines.append(line)
        return json.loads((self.data / "ready.json").read_text())

    def end(self, number=signal.SIGTERM):
        """Send a signal; (exit code, everything it printed)."""
        self.popen.send_signal(number)
        return self.result()

    def result(self):
        """(exit code, everything it printed) of a process that ends by itself."""
        output, _ = self.popen.communicate(timeout=READY_SECONDS_MAX)
        return self.popen.returncode, "".join(self.lines) + output

    def ask(self, path, method="GET", body=None):
        host, port = self.wait_endpoint().rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        headers = {"content-type": "application/json"} if body else {}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def wait_endpoint(self):
        return json.loads((self.data / "ready.json").read_text())["endpoints"]["http"]


@pytest.fixture
def start(tmp_path):
    processes = []

    def make(*flags, data=None, command=UP):
        processes.append(Process(data or tmp_path / "data", *flags, command=command))
        return processes[-1]

    yield make
    for process in processes:
        if process.popen.poll() is None:
            process.popen.kill()
        with contextlib.suppress(ValueError):
            process.popen.communicate()


def test_it_gets_ready_answers_and_stops_cleanly(start, tmp_path):
    process = start("--ready-file", str(tmp_path / "ready"))
    ready = process.wait_ready()
    assert ready["pid"] == process.popen.pid
    assert json.loads((tmp_path / "ready").read_text()) == ready
    assert process.ask("/livez") == (200, "ok\n")
    status, text = process.ask("/readyz")
    assert (status, json.loads(text)["state"]) == (200, "running")
    status, text = process.ask("/metrics")
    assert status == 200
    assert "penstock_connections 0.0" in text
    status, text = process.ask("/api/flow")
    assert "Nothing is held back" in json.loads(text)["diagnosis"]["sentence"]
    assert {limit["name"] for limit in json.loads(text)["limits"]} >= {"in-flight pool"}
    assert process.ask("/api/faults")[0] == 404
    code, output = process.end()
    assert (code, "stopped cleanly" in output) == (0, True), output
    assert not (process.data / "ready.json").exists()
    assert not (tmp_path / "ready").exists()


def test_the_end_of_its_terminal_does_not_end_it(start):
    process = start()
    process.wait_ready()
    process.popen.send_signal(signal.SIGHUP)
    assert process.ask("/livez") == (200, "ok\n")
    code, output = process.end()
    assert (code, "stopped cleanly" in output) == (0, True), output


def test_the_banner_shows_endpoints_limits_and_weakened_promises(start):
    process = start("--durability", "os", "--memory-limit", "1GiB", "--disk-free-limit", "2MiB")
    process.wait_ready()
    banner = "".join(process.lines)
    assert "http://127.0.0.1:" in banner
    assert "1 GiB of" in banner
    assert "2 MiB free" in banner
    assert "! durability os" in banner


def test_ctrl_c_stops_it_like_a_signal_from_a_supervisor(start):
    process = start()
    process.wait_ready()
    code, output = process.end(signal.SIGINT)
    assert (code, "Traceback" in output) == (0, False), output


def test_a_second_process_on_the_same_directory_is_refused_with_the_pid(start):
    first = start()
    first.wait_ready()
    code, output = start().result()
    assert code == 3
    assert f"process {first.popen.pid}" in output
    assert len(output.splitlines()) == 1
    assert first.ask("/livez")[0] == 200, "the first one does not care"
    assert (first.data / "ready.json").exists()


def test_a_taken_port_is_refused_by_name(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, output = start("--http", str(port)).result()
    assert code == 3
    assert f"port {port} for http" in output
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "data" / "ready.json").exists()


def test_a_file_in_place_of_the_directory_is_refused(start, tmp_path):
    (tmp_path / "data").write_text("not a directory")
    code, output = start().result()
    assert code == 3
    assert "a file is in its place" in output
    assert len(output.splitlines()) == 1


def test_a_directory_that_cannot_be_made_is_refused(start, tmp_path):
    (tmp_path / "file").write_text("")
    code, output = start(data=tmp_path / "file" / "below").result()
    assert code == 3
    assert len(output.splitlines()) == 1


def test_a_newer_format_is_refused_and_left_alone(start):
    process = start()
    process.wait_ready()
    process.end()
    (format_file,) = process.data.glob("format*")
    before = format_file.read_bytes()
    newer = before.replace(before.strip()[-1:], b"9" + before.strip()[-1:])
    format_file.write_bytes(newer)
    code, output = start().result()
    assert code == 4, output
    assert len(output.splitlines()) == 1
    assert format_file.read_bytes() == newer


def test_a_wrong_setting_is_refused_before_anything_is_made(start, tmp_path):
    code, output = start("--durability", "maybe").result()
    assert code == 2, output
    assert not (tmp_path / "data").exists()


def test_after_kill_9_it_starts_again_although_lock_and_ready_file_are_left(start):
    first = start()
    first.wait_ready()
    first.end(signal.SIGKILL)
    assert (first.data / "ready.json").exists()
    second = start()
    ready = second.wait_ready()
    assert ready["pid"] == second.popen.pid
    assert second.end()[0] == 0


def test_faults_are_ordered_from_the_command_line(start):
    process = start("--faults")
    process.wait_ready()
    command = [sys.executable, "-m", "penstock", "fault"]
    where = ["--data", str(process.data)]
    done = subprocess.run(
        [*command, "disk", "--bytes", "10", *where], capture_output=True, text=True, check=True
    )
    assert "10 bytes" in done.stdout
    assert json.loads(process.ask("/readyz")[1])["alarms"] == ["disk"]
    assert 'penstock_alarm{alarm="disk"} 1.0' in process.ask("/metrics")[1]
    subprocess.run([*command, "clear", *where], check=True, capture_output=True)
    assert json.loads(process.ask("/readyz")[1])["alarms"] == []


def test_an_order_to_a_broker_without_faults_is_refused_with_a_sentence(start):
    process = start()
    process.wait_ready()
    refused = subprocess.run(
        [sys.executable, "-m", "penstock", "fault", "clear", "--data", str(process.data)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "--faults" in refused.stderr


def test_without_file_handles_peers_are_turned_away_and_the_broker_lives_on(start):
    few_files = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *LINE)
    process = start(command=few_files)
    host, port = process.wait_ready()["endpoints"]["line"].rsplit(":", 1)
    address = (host, int(port))
    with contextlib.ExitStack() as peers:
        flood = []
        for _ in range(300):
            peer = peers.enter_context(socket.create_connection(address, timeout=10))
            flood.append(peer)
        served = [peer for peer in flood if is_served(peer)]
        assert 0 < len(served) < 256
        assert says(served[0], "TOPIC orders", "TOPIC orders")
        assert says(served[-1], "PUB orders 1 body", "CONFIRM 1"), "the log still has its files"
        status, text = process.ask("/metrics")
        assert status == 200
        # Turned away at the door, or later for another, as long as nothing was heard of it.
        told = re.findall(r"^penstock_connections_refused_total\{.*\} ([0-9.]+)$", text, re.M)
        assert sum(map(float, told)) == 300 - len(served)
    while True:  # until the broker has noticed that the others are gone
        with socket.create_connection(address, timeout=10) as later:
            if is_served(later):
                break
    assert process.end()[0] == 0


def is_served(peer):
    """True when the broker speaks to this peer, False when it was turned away."""
    try:
        return says(peer, "PING x", "PONG x")
    except OSError:
        return False


def says(peer, line, answer):
    peer.sendall(f"{line}\n".encode())
    heard = b""
    while not heard.endswith(b"\n"):
        chunk = peer.recv(4096)
        if not chunk:
            return False
        heard += chunk
    return heard.decode().startswith(answer)


def test_a_stop_asked_for_as_soon_as_the_ready_file_is_there_is_clean(start, tmp_path):
    ready = tmp_path / "ready"
    broker = start("--ready-file", str(ready))
    while not ready.exists():
        assert broker.popen.poll() is None
    code, output = broker.end()
    assert code == 0, output
    assert not ready.exists()
