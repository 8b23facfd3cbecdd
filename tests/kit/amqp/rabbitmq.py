"""RabbitMQ for benchmarks and reference counts: Debian's package, private ports and files.

    with rabbitmq() as broker:
        broker.port, broker.pid, broker.start_seconds

Nothing of it is part of this repository, and no service of the machine is touched: the package's
own start script runs with a node name, a port mapper (epmd), a cookie and directories of its own,
all of them gone at the end. Without the package there is nothing to compare with, and
``Unavailable`` says why.
"""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kit.rocketmq.clusters import free_ports

SCRIPTS: Final = (
    Path("/usr/lib/rabbitmq/bin/rabbitmq-server"),
    Path("/usr/lib/rabbitmq/lib/rabbitmq-server/bin/rabbitmq-server"),
)
"""The script that changes no user; the one in ``sbin`` wants to become ``rabbitmq``."""
START_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.01
OUTPUT_CHARACTERS_MAX: Final = 1500
LOOPBACKS: Final = ("127.0.0.1", "::1")
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"


class Unavailable(Exception):
    """RabbitMQ cannot be had on this machine; the text says why."""


class RabbitMq:
    """One node with an empty store; ``start`` returns once it said its first word."""

    def __init__(self, home: Path, port: int = 0) -> None:
        free, self._mapper_port, self._link_port = free_ports(3)
        self.port = port or free
        self.start_seconds = 0.0
        self._home = home
        self._script = _script()
        self._mapper: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of Erlang's machine, which does the work; the script around it only waits."""
        return int((self._home / "pid").read_text())

    @property
    def version(self) -> str:
        """As the package names it."""
        found = sorted((self._script.parent.parent / "plugins").glob("rabbit-*"))
        found += sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return found[0].name.rpartition("-")[2] if found else "unknown"

    @property
    def rabbitmqctl(self) -> Path:
        """Its ``rabbitmqctl``, made on demand; which node is meant need not be known."""
        program = self._home / "rabbitmqctl"
        ours = self._environment()
        changed = {name: value for name, value in ours.items() if os.environ.get(name) != value}
        exports = "".join(f"export {name}={shlex.quote(each)}\n" for name, each in changed.items())
        real = shlex.quote(str(self._script.with_name("rabbitmqctl")))
        call = f'[ "$1" = -n ] && shift 2\nexec {real} -n "$RABBITMQ_NODENAME" "$@"\n'
        program.write_text(f"#!/bin/sh\n{exports}{call}")
        program.chmod(0o755)
        return program

    def start(self) -> None:
        """Start, and return once ``connection.start`` came from every loopback."""
        environment = self._environment()
        with (self._home / "output").open("ab") as output:
            self._mapper = subprocess.Popen(
                ("epmd", "-port", str(self._mapper_port), "-address", "127.0.0.1"),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
            )  # fmt: skip
            began = time.monotonic()
            self._process = subprocess.Popen(
                (str(self._script),),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                cwd=self._home, env=environment,
                # A group to end it by. Not a session: the kernel shares out a busy machine by
                # sessions, and a broker with one of its own would be served apart from ours.
                process_group=0,
            )  # fmt: skip
        for host in LOOPBACKS:
            while not is_speaking(host, self.port):
                if self._process.poll() is not None or time.monotonic() > began + START_SECONDS_MAX:
                    self.stop()
                    said = (self._home / "output").read_text(errors="replace")
                    raise Unavailable(f"it did not start: {said[-OUTPUT_CHARACTERS_MAX:]}")
                time.sleep(POLL_SECONDS)
        self.start_seconds = time.monotonic() - began

    def stop(self) -> None:
        """End the node and its port mapper; without them nothing happens."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS_MAX)
            # The node's helpers outlive a node that did not stop by itself.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None

    def _environment(self) -> dict[str, str]:
        home = self._home
        (home / "enabled_plugins").write_text("[].\n")
        (home / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in self._settings()))
        return {
            **os.environ,
            "HOME": str(home),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "RABBITMQ_NODENAME": f"penstock-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._link_port),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        }

    def _settings(self) -> list[str]:
        return [
            *(
                f"listeners.tcp.{number} = {host}:{self.port}"
                for number, host in enumerate(LOOPBACKS, 1)
            ),
            "log.console = false",
            "log.file.level = warning",
        ]


@contextlib.contextmanager
def rabbitmq(port: int = 0, directory: str | None = None) -> Iterator[RabbitMq]:
    """A node that runs, on this port or a free one; its files in a directory of its own."""
    with tempfile.TemporaryDirectory(
        prefix="rabbitmq-", dir=directory, ignore_cleanup_errors=True
    ) as home:
        broker = RabbitMq(Path(home), port)
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()


def is_speaking(host: str, port: int) -> bool:
    """Whether an AMQP broker answers the protocol header with a method frame on channel 0."""
    try:
        with socket.create_connection((host, port), timeout=5) as link:
            link.sendall(PROTOCOL_HEADER)
            return link.recv(3) == b"\x01\x00\x00"
    except OSError:
        return False


def _script() -> Path:
    for tool in ("erl", "epmd"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed (Debian: rabbitmq-server)")
    for path in SCRIPTS:
        if path.exists():
            return path
    raise Unavailable("rabbitmq-server is not installed (Debian: rabbitmq-server)")
