"""A real broker for tests: its own process, its own ports, gone when the test is over.

    with running_broker() as broker:
        pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        Producer(broker.name_server, "shop")

``BrokerProcess`` is the same in slow motion: it can be killed and started again on the same data
directory, which is what crash tests do. The process is found by its ready file, never by waiting
a fixed time, and whatever it wrote to its error output is part of the failure.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

START_SECONDS_MAX: Final = 30.0
"""A broker on a busy machine is ready long before; past this it is broken."""

STOP_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.005

UP: Final = (
    sys.executable, "-m", "penstock", "up", "--bind", "127.0.0.1",
    "--amqp", "0", "--pulsar", "0", "--rocketmq", "0", "--rocketmq-broker", "0",
    "--pulsar-http", "0", "--flight", "off", "--http", "0",
)  # fmt: skip
"""Every listener on a free port of its own, so that tests run side by side; a test that wants the
Flight process says ``--flight 0``."""


class BrokerProcess:
    """One data directory, and a broker process on it whenever ``start`` was called last."""

    def __init__(
        self, data: Path, *, command: Sequence[str] = UP, flags: Sequence[str] = ()
    ) -> None:
        self.data = data
        self.endpoints: dict[str, str] = {}
        self.restarts = 0
        self._command = (*command, *flags)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = data.with_name(data.name + ".ready.json")
        self._output = data.with_name(data.name + ".output")

    def __enter__(self) -> "BrokerProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id of the broker that runs now."""
        if self._process is None:
            raise RuntimeError("no broker runs; call start() first")
        return self._process.pid

    def address(self, listener: str) -> tuple[str, int]:
        """Host and port of a listener."""
        host, _, port = self.endpoints[listener].rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def amqp_url(self) -> str:
        """For RabbitMQ clients: the default virtual host as ``guest``."""
        return f"amqp://guest:guest@{self.endpoints['amqp']}/%2F"

    @property
    def name_server(self) -> str:
        """For RocketMQ clients: the address of the name server."""
        return self.endpoints["rocketmq"]

    @property
    def http_url(self) -> str:
        """Of ``/metrics``, ``/api/flow`` and RabbitMQ's management API."""
        return f"http://{self.endpoints['http']}"

    def start(self) -> None:
        """Start, and return once every listener accepts."""
        if self._process is not None:
            raise RuntimeError(f"a broker with pid {self._process.pid} runs on {self.data}")
        self._ready.unlink(missing_ok=True)
        flags = ("--data", str(self.data), "--ready-file", str(self._ready))
        # Appended: a second process on the same directory must not write over the first one's.
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                (*self._command, *flags),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The package under test, wherever it was imported from.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self.restarts += 1
        until = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"the broker did not start; it said:\n{self.output}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> int:
        """SIGTERM, as an operator would; the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said; without a broker nothing happens."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    @property
    def output(self) -> str:
        """What the current or last process printed."""
        with contextlib.suppress(FileNotFoundError):
            return self._output.read_text(errors="replace")
        return ""

    def _end(self, how: signal.Signals) -> int:
        process = self._process
        if process is None:
            raise RuntimeError("no broker runs")
        process.send_signal(how)
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(
                f"the broker ignored {how.name} for {STOP_SECONDS_MAX} s; it said:\n{self.output}"
            ) from None
        finally:
            self._process = None
        return code

    def _is_ready(self) -> bool:
        try:
            content = json.loads(self._ready.read_text())
        except FileNotFoundError:
            return False
        self.endpoints = content["endpoints"]
        return True


@contextlib.contextmanager
def running_broker(
    *flags: str, data: Path | None = None, command: Sequence[str] = UP
) -> Iterator[BrokerProcess]:
    """A broker on free ports, in a directory of its own unless one is given; stopped at the end."""
    with contextlib.ExitStack() as stack:
        if data is None:
            data = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")), "data"
            )
        broker = stack.enter_context(BrokerProcess(data, command=command, flags=flags))
        yield broker
        if broker._process is not None:
            broker.stop()


WAIT_POLL_SECONDS: Final = 0.01
SECONDS_MAX: Final = 20.0
"""Long enough for a machine that does eight other things; a green test waits a fraction of it."""

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = SECONDS_MAX, what: str = "") -> T:
    """The first true value of ``condition``, which another process brings about.

    ``AssertionError`` with the last value seen when it does not come in time. Within one process
    nothing has to be waited for: ``penstock.testing.clock.ManualClock``.
    """
    until = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > until:
            name = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"{name}: not within {seconds} s; last seen: {value!r}")
        time.sleep(WAIT_POLL_SECONDS)
    return value
