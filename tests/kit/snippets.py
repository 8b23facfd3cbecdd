"""The code blocks of a page, run as they are printed; ``docs/*.md`` and the README are held to it.

A page is read from top to bottom, as by somebody who types it all. Its directory has a ``penstock``
(this one), an ``app.log``, and a broker on ``penstock-data`` that the page's own ``penstock up``
starts, or the first command that needs one. What is not as printed:

* listeners take free ports (``PENSTOCK_LISTENERS_*``), and HOST:PORT with a port of the docs
  becomes the one that the broker of the page listens on;
* ``penstock up`` runs on in the background; a later one takes the place of the one before;
* what lasts "until Ctrl-C", as its comment says, gets it after a moment, and must have lasted;
* ``curl`` fails for an HTTP error; Enter is pressed wherever a program asks for it.

Python blocks of a page share their names, ``def test_`` is a file for pytest. Blocks with Spark in
them are for ``tests/spark/test_docs.py``. A block that cannot run here has the reason in front of
it: ``<!-- not run: why -->``.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from penstock.testing.running import BrokerProcess

RUN_KINDS: Final = ("python", "sh", "console")
KINDS: Final = (*RUN_KINDS, "text", "toml", "json", "mermaid")
FENCE: Final = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
ADDRESS: Final = re.compile(r"\b(127\.0\.0\.1|localhost):(\d+)\b")
PORTS: Final = {
    "5672": "amqp", "9876": "rocketmq", "10911": "rocketmq_broker", "15672": "http",
    "8815": "flight", "6650": "pulsar",
}  # fmt: skip
SETTINGS: Final = {
    **{f"PENSTOCK_LISTENERS_{name.upper()}": "0" for name in PORTS.values()},
    "PENSTOCK_LISTENERS_FLIGHT": "off",
}
LAST_SECONDS: Final = 0.7
COMMAND_SECONDS_MAX: Final = 40.0


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    kind: str
    text: str
    reason: str
    """Why it is not run; empty when it is."""

    @property
    def is_run(self) -> bool:
        return self.kind in RUN_KINDS and not self.reason

    @property
    def is_for_spark(self) -> bool:
        return self.is_run and self.kind == "python" and "spark" in self.text


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, from top to bottom."""
    text = page.read_text("utf-8")
    return [
        Block(
            text.count("\n", 0, found.start("text")),
            found["kind"],
            found["text"],
            found["reason"] or "",
        )
        for found in FENCE.finditer(text)
    ]


def commands_of(block: Block) -> Iterator[str]:
    """The commands of a shell block, each as it would be typed; what they print is left out."""
    prompt = "$ " if block.kind == "console" else ""
    whole = ""
    for line in block.text.splitlines():
        if not whole and not line.startswith(prompt):
            continue
        whole += line if whole else line.removeprefix(prompt)
        if whole.endswith("\\"):
            whole += "\n"
        else:
            if whole.strip():
                yield whole
            whole = ""


def with_ports(text: str, endpoints: dict[str, str]) -> str:
    """The same with the ports of the broker of the page."""

    def found(match: re.Match[str]) -> str:
        actual = endpoints.get(PORTS.get(match[2], ""), "")
        return f"{match[1]}:{actual.rpartition(':')[2]}" if actual else match[0]

    return ADDRESS.sub(found, text)


class SnippetFailed(AssertionError):
    """A block does not do what a reader expects of it."""


class PageRun:
    """Runs the blocks of one page in a directory of its own."""

    def __init__(self, page: Path, directory: Path) -> None:
        self._page: Final = page
        self._directory: Final = directory
        self._broker: BrokerProcess | None = None
        self._python: subprocess.Popen[str] | None = None
        self._environment: Final = {
            **os.environ,
            **SETTINGS,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "CURL_HOME": str(directory),
        }
        (directory / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
        (directory / "app.log").write_text("started\n")
        launcher = directory / "penstock"
        launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m penstock "$@"\n')
        launcher.chmod(0o755)

    def run(self, block: Block) -> None:
        """Run a block; ``SnippetFailed`` says where it stands and what it said."""
        if block.kind == "python":
            if "def test_" in block.text:
                self._run_pytest(block)
            else:
                self._run_python(block)
            return
        for command in commands_of(block):
            words = shlex.split(command, comments=True)
            if words[1:2] == ["up"]:
                self._start(words)
            else:
                self._run_command(block, command)

    def close(self) -> None:
        """End what runs for the page."""
        if self._python is not None:
            with contextlib.suppress(BrokenPipeError):
                self._python.communicate(timeout=COMMAND_SECONDS_MAX)
        self._stop_broker()

    def _start(self, words: Sequence[str]) -> None:
        self._stop_broker()
        set_up = [f"{name}={self._environment[name]}" for name in (*SETTINGS, "PATH")]
        command = ("sh", "-c", 'cd "$0" && exec env "$@"', str(self._directory), *set_up, *words)
        self._broker = BrokerProcess(self._directory / "penstock-data", command=command)
        self._broker.start()

    def _stop_broker(self) -> None:
        if self._broker is not None:
            self._broker.stop()
            self._broker = None

    @property
    def _endpoints(self) -> dict[str, str]:
        if self._broker is None:
            self._start(("./penstock", "up"))
        assert self._broker is not None
        return self._broker.endpoints

    def _fail(self, block: Block, what: str, said: str) -> SnippetFailed:
        return SnippetFailed(f"{self._page.name}:{block.line + 1}: {what}; it said:\n{said}")

    def _run_command(self, block: Block, command: str) -> None:
        text = with_ports(command, self._endpoints)
        process = subprocess.Popen(
            ["sh", "-c", text],
            cwd=self._directory, env=self._environment, text=True, process_group=0,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with process:
            is_lasting = "until Ctrl-C" in command
            if is_lasting:
                time.sleep(LAST_SECONDS)
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGINT)
                else:
                    raise self._fail(block, f"{command!r} did not last", process.communicate()[0])
            try:
                said = process.communicate(timeout=COMMAND_SECONDS_MAX)[0]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said = process.communicate()[0]
                raise self._fail(block, f"{command!r} did not end", said) from None
        if process.returncode and not is_lasting:
            raise self._fail(block, f"{command!r} ended with {process.returncode}", said)

    def _run_pytest(self, block: Block) -> None:
        path = self._directory / f"test_line_{block.line}.py"
        path.write_text(block.text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path.name]
        ended = subprocess.run(
            command, cwd=self._directory, env=self._environment, text=True, check=False,
            capture_output=True, timeout=COMMAND_SECONDS_MAX,
        )  # fmt: skip
        if ended.returncode or "1 passed" not in ended.stdout:
            raise self._fail(block, "its test did not pass", ended.stdout + ended.stderr)

    def _run_python(self, block: Block) -> None:
        source = with_ports(block.text, self._endpoints)
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-m", "kit.snippets"],
                cwd=self._directory, env=self._environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        python = self._python
        assert python.stdin is not None
        assert python.stdout is not None
        # So that a traceback has the lines of the page.
        python.stdin.write(json.dumps("\n" * block.line + source) + "\n")
        python.stdin.flush()
        problem = json.loads(python.stdout.readline() or '"its process ended"')
        if problem:
            raise self._fail(block, "it raised", problem)


def serve() -> None:
    """Run the Python blocks of a page, one per line of the input; the traceback of each, or ""."""
    import builtins
    import traceback

    names = {"__name__": "__main__"}
    # Below Python as well: a client's own logger writes to the descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    builtins.input = lambda *_: ""
    for line in sys.stdin:
        try:
            exec(compile(json.loads(line), "page", "exec"), names)
            problem = ""
        except Exception:
            problem = traceback.format_exc()
        print(json.dumps(problem), file=answers, flush=True)


if __name__ == "__main__":
    serve()
