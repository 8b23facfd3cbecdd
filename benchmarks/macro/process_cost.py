"""What a process has used: CPU of all its threads, and resident memory."""

import os
from pathlib import Path


def cpu_seconds(pid):
    """From schedstat, which counts nanoseconds; ``stat`` would count ticks of 10 ms."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(path.read_text().split()[0])
        except OSError:
            continue  # a thread that ended
    return total / 1e9


def process_cpu_seconds(pid):
    """With threads that ended, as a JVM's compilers do; in ticks, for runs of a second and more."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def process_and_waited_cpu_seconds(pid):
    """What it spent, and what its children did that ended and were waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return (
        (int(fields[11]) + int(fields[12])) / ticks,
        (int(fields[13]) + int(fields[14])) / ticks,
    )


def children(pid):
    """Processes that any thread of it has started and that still run."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue  # a thread that ended
    return found


def descendants_cpu_seconds(pid):
    """All processes below this one, those included that have ended."""
    total = process_and_waited_cpu_seconds(pid)[1]
    for child in children(pid):
        try:
            total += process_and_waited_cpu_seconds(child)[0] + descendants_cpu_seconds(child)
        except OSError:
            continue  # it ended; its parent will have what it spent
    return total
