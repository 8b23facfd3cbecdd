"""Write down what the code of today does; ``tests/scenario/test_pinned.py`` holds later code to it.

    .venv/bin/python tests/pinned/record.py [digests] [digests-partitions] [tapes] [data] [views]

Only for a change of behaviour that is meant: whatever is recorded anew is not pinned any more.
"""

import logging
import os
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import amqp_scripts
import directory
import rocketmq_scripts

from kit.pin_bench import LATER_MS, SMALL, PinBench
from kit.simulation.steps import CLASSIC, PARTITIONS
from kit.simulator import STEPS_DEFAULT, simulate
from penstock.testing.clock import START_WALL_MS

HERE = Path(__file__).parent
SEEDS = 500


def readable(line):
    """The line, and for what the broker said a comment that can be read."""
    mark, _, text = line.partition(" ")
    if not mark.endswith("<") or text == "closed":
        return [line]
    data = bytes.fromhex(text)
    return [line, "# " + "".join(chr(each) if 32 <= each < 127 else "." for each in data)]


def write_tape(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = [each for line in lines for each in readable(line)]
    path.write_text("\n".join(text) + "\n")


def tapes():
    for name, script in {**amqp_scripts.SCRIPTS, **rocketmq_scripts.SCRIPTS}.items():
        bench = PinBench()
        script(bench)
        again = PinBench().replay(bench.lines)
        assert again == bench.lines, name
        write_tape(HERE / "tapes" / f"{name}.tape", again)


def data():
    with tempfile.TemporaryDirectory() as folder:
        directory.write(Path(folder), HERE / "killed.tar.xz", HERE / "stopped.tar.xz")
    for name in ("killed", "stopped"):
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(HERE / f"{name}.tar.xz") as archive:
                archive.extractall(folder, filter="data")
            bench = PinBench(Path(folder), SMALL, wall_ms=START_WALL_MS + LATER_MS)
            directory.read(bench)
            write_tape(HERE / f"{name}.tape", bench.lines)
            bench.close()


def digests():
    record_digests(CLASSIC)


def digests_partitions():
    record_digests(PARTITIONS)


def record_digests(family):
    with ProcessPoolExecutor(
        2,
        mp_context=get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    ) as pool:
        each_steps, each_family = repeat(STEPS_DEFAULT), repeat(family)
        outcomes = pool.map(simulate, range(SEEDS), each_steps, each_family, chunksize=5)
        lines = [f"{each.digest}\n" for each in outcomes]
    (HERE / family.pinned).write_text("".join(lines))


def views():
    """What the test itself looks at, it also writes."""
    test = HERE.parent / "scenario" / "test_pinned.py"
    environment = {**os.environ, "PIN_RECORD": "1"}
    subprocess.run([sys.executable, "-m", "pytest", "-q", test], env=environment, check=True)


PARTS = {
    "digests": digests,
    "digests-partitions": digests_partitions,
    "tapes": tapes,
    "data": data,
    "views": views,
}

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
