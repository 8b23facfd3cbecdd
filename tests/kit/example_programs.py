"""Programs of ``examples/``, run as they are.

    with example_programs(tmp_path, broker_address) as start:
        consumer = start("push_consumer.py", topic)
        said = ended(start("producer.py", topic))

Each gets the broker's address as its first argument; what it prints is ``said()``. Those that still
run at the end are killed.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
SECONDS_MAX: Final = 60


class ExampleProgram(subprocess.Popen[bytes]):
    """One program, and the file it prints to."""

    def __init__(self, name: str, arguments: list[str], output: Path) -> None:
        self.output = output
        with output.open("wb") as target:
            super().__init__(
                [sys.executable, str(EXAMPLES / name), *arguments],
                stdout=target,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def said(self) -> str:
        return self.output.read_text()


def ended(program: ExampleProgram) -> str:
    """What it said, when it has ended well."""
    assert program.wait(SECONDS_MAX) == 0, program.said()
    return program.said()


@contextmanager
def example_programs(folder: Path, address: str) -> Iterator[Callable[..., ExampleProgram]]:
    """Starts programs; see the head of this module."""
    started: list[ExampleProgram] = []

    def start(name: str, *arguments: str) -> ExampleProgram:
        output = folder / f"{name}-{len(started)}.out"
        started.append(ExampleProgram(name, [address, *arguments], output))
        return started[-1]

    try:
        yield start
    finally:
        for program in started:
            program.kill()
            program.wait()
