"""Feeds the memory and disk alarms: looks every ``alarm_check_ms``, and ten times as often near.

Both figures can change faster than a slow look would notice: at 500 MB/s half a second is a quarter
of a gigabyte. So the nearer a figure is to its limit the sooner the next look comes; far away one
look costs two system calls and 20 us. What the broker itself writes needs no clock: once half of
what was free above the limit is written the disk is looked at, however soon that is.

A probe that fails is not a probe that is silent: the engine is told the worst figure, so that a
disk that cannot even be asked stops publishers (F3).

Resident memory is not memory in use: the allocator keeps pages that were freed. So near the limit
it gives them back before the figure counts, and nobody is held for what nothing uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import math
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.flow.alarms import AlarmBoard, parse_limit
from penstock.flow.progress import THREADS_MAX
from penstock.model.errors import SettingsError
from penstock.model.ids import size_text
from penstock.telemetry.statistics import LAG_SECONDS, Histogram

if TYPE_CHECKING:
    from penstock.engine.broker import Engine
    from penstock.engine.sampler import Sampler
    from penstock.model.clock import Clock

logger = logging.getLogger(__name__)

NEAR_RATIO: Final = 0.8
"""Memory counts as near above this share of its limit, disk below the limit divided by it, or
within ``NEAR_DISK_BYTES`` of it, whichever is more."""

NEAR_DISK_BYTES: Final = 512 * 1024 * 1024
NEAR_DIVISOR: Final = 10
WRITTEN_DIVISOR: Final = 2
"""The last bytes above a limit are reached in ever smaller steps, so that an alarm comes at most
one turn's writes too late, and others who write to the same disk have their half."""
DELAYS_SECONDS: Final = 0.9
"""Between two looks at what threads waited for a CPU: a file for each of them."""
TRIM_SECONDS: Final = 10.0
"""From one ``trim`` to the next. Up to 50 ms were measured with a hundred thousand free blocks: too
long for an ordinary turn, and nothing beside an alarm that holds every publisher."""


class Probes:
    """Looks at memory and disk for as long as it runs."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        *,
        rss_bytes: Callable[[], int],
        free_bytes: Callable[[], int],
        written: Callable[[], int],
        memory_limit: int,
        disk_limit: int,
        check_ms: int,
        looked: Callable[[], None],
        trim: Callable[[], None] | None = None,
        run_delays: Callable[[], dict[int, float]] | None = None,
    ) -> None:
        """``written``: bytes in the log; ``trim`` gives freed memory back to the system."""
        self._engine = engine
        self._loop = loop
        self._rss_bytes = rss_bytes
        self._free_bytes = free_bytes
        self._written = written
        self._written_max = math.inf
        """From so much on the disk has to be looked at again."""
        self.memory_limit = memory_limit
        self.disk_limit = disk_limit
        self._check_ms = check_ms
        self._looked = looked
        self._trim = trim
        self._run_delays = run_delays
        self._delays_at = 0.0
        self._trimmed_at = -TRIM_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self.memory_used = 0
        self.disk_free = 0
        self.failures = 0

    def start(self) -> None:
        """Look now and then for ever."""
        self.look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Read both figures, tell the engine, arm the next look."""
        self.stop()
        self.memory_used = self._read("memory", self._rss_bytes, self.memory_limit + 1)
        if self._is_memory_near and self._has_trimmed():
            self.memory_used = self._read("memory", self._rss_bytes, self.memory_limit + 1)
        self.disk_free = self._read("disk", self._free_bytes, 0)
        self._engine.set_alarm("memory", self.memory_used)
        self._engine.set_alarm("disk", self.disk_free)
        if self._run_delays is not None and self._loop.time() >= self._delays_at:
            self._delays_at = self._loop.time() + DELAYS_SECONDS
            self._engine.note_run_delay(self._run_delays())
        # Below the limit only time helps, and whoever gives something back.
        room = self.disk_free - self.disk_limit
        self._written_max = math.inf if room < 0 else self._written() + room // WRITTEN_DIVISOR
        self._looked()
        delay_ms = self._check_ms / NEAR_DIVISOR if self.is_near else self._check_ms
        self._timer = self._loop.call_later(delay_ms / 1000, self.look)

    def look_after_writes(self) -> None:
        """After each turn: look now if it, or those before it, wrote much for what is free."""
        if self._written() > self._written_max:
            self.look()

    def set_limits(self, memory_limit: int, disk_limit: int) -> None:
        """Other limits from now on: judged with figures that are taken now."""
        self.memory_limit, self.disk_limit = memory_limit, disk_limit
        self._engine.set_alarm_limits(memory_bytes=memory_limit, disk_free_bytes=disk_limit)
        self.look()

    @property
    def is_near(self) -> bool:
        """True when one of the figures could cross its limit before an ordinary next look."""
        near_disk = max(self.disk_limit / NEAR_RATIO, self.disk_limit + NEAR_DISK_BYTES)
        return self._is_memory_near or self.disk_free < near_disk

    @property
    def _is_memory_near(self) -> bool:
        return self.memory_used > self.memory_limit * NEAR_RATIO

    def _has_trimmed(self) -> bool:
        if self._trim is None:
            return False
        now = self._loop.time()
        if now < self._trimmed_at + TRIM_SECONDS:
            return False
        self._trimmed_at = now
        self._trim()
        return True

    def _read(self, name: str, probe: Callable[[], int], worst: int) -> int:
        try:
            return probe()
        except (OSError, ValueError, IndexError) as error:
            if not self.failures:
                logger.error("a probe failed; the worst is assumed", exc_info=error)
            self.failures += 1
            return worst


# ---- limits -------------------------------------------------------------------------------------
# What raises the alarms, seen and changed while the broker runs.


class AlarmState(msgspec.Struct, frozen=True):
    """One alarm as operators see it."""

    limit_bytes: int
    """Memory: raised above it. Disk: raised when less is free."""
    now_bytes: int
    """Memory in use, or disk that is free, at the last look."""
    total_bytes: int
    is_raised: bool
    setting: str
    """What the next start takes the limit from."""


class AlarmLimits:
    """Memory and disk limits of a running broker (F3).

    A change holds at once and until the next start, which takes the settings again. A limit of 0
    raises its alarm for good: the operator's way to stop publishers.
    """

    def __init__(
        self, probes: Probes, alarms: AlarmBoard, totals: Callable[[], tuple[int, int]]
    ) -> None:
        """``totals``: bytes of memory and of disk that there are."""
        self._probes = probes
        self._alarms = alarms
        self._totals = totals

    def show(self) -> dict[str, AlarmState]:
        probes, (memory, disk) = self._probes, self._alarms.alarms
        memory_total, disk_total = self._totals()
        return {
            "memory": AlarmState(
                probes.memory_limit,
                probes.memory_used,
                memory_total,
                memory.is_raised,
                "flow.memory_limit",
            ),
            "disk": AlarmState(
                probes.disk_limit,
                probes.disk_free,
                disk_total,
                disk.is_raised,
                "flow.disk_free_limit",
            ),
        }

    def change(self, *, memory: str | None = None, disk: str | None = None) -> None:
        """Limits as the settings take them; ``SettingsError`` says what is wrong with one.

        Both or none: a mistake in one leaves the other alone.
        """
        if memory is None and disk is None:
            raise SettingsError(
                "no limit is given; name memory (as 0.6 or 2GiB), disk (as 1GiB or auto), or both"
            )
        if memory is not None and memory.strip().lower() == "auto":
            raise SettingsError("memory has no limit 'auto'; give a share as 0.6, or bytes as 2GiB")
        probes, (memory_total, disk_total) = self._probes, self._totals()
        memory_limit = _within("memory", memory, memory_total, probes.memory_limit)
        disk_limit = _within("disk", disk, disk_total, probes.disk_limit)
        for name, before, after in (
            ("memory", probes.memory_limit, memory_limit),
            ("disk", probes.disk_limit, disk_limit),
        ):
            if before != after:
                extra = {"alarm": name, "from_bytes": before, "to_bytes": after}
                logger.info("the limit of an alarm was changed until the next start", extra=extra)
        probes.set_limits(memory_limit, disk_limit)


def _within(name: str, text: str | None, total: int, now: int) -> int:
    if text is None:
        return now
    limit = parse_limit(text, total)
    if limit > total:
        raise SettingsError(
            f"{name} limit {text!r} is {size_text(limit)}, and there are {size_text(total)} in all;"
            " give less"
        )
    return limit


# ---- machine ------------------------------------------------------------------------------------
# What the machine says about memory and disk: the figures behind the alarms (F3).
#
# Linux tells through ``/proc`` and the cgroup files (v2 and v1, this process's group and all above
# it); where they are missing, as on macOS, ``resource`` and ``sysconf`` stand in: RSS is then the
# *peak*, which can raise the memory alarm but never clear it, and is said so at start.


NO_LIMIT_BYTES: Final = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63; anything above this is none."""


class Machine:
    """Reads the figures; ``root`` is ``/`` except in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._statm: int | None = None
        try:
            self._statm = os.open(root / "proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statm = None

    @property
    def is_rss_exact(self) -> bool:
        """False where only the peak is known."""
        return self._statm is not None

    def rss_bytes(self) -> int:
        """Resident memory of this process now."""
        if self._statm is None:
            return peak_rss_bytes()
        return int(os.pread(self._statm, 128, 0).split()[1]) * self._page_bytes

    def memory_bytes(self) -> int:
        """Memory this process may use: RAM, or less where a cgroup says so."""
        ram = os.sysconf("SC_PHYS_PAGES") * self._page_bytes
        return min([ram, *self._cgroup_limits()])

    def close(self) -> None:
        """Give the file handle back."""
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None

    def _cgroup_limits(self) -> list[int]:
        try:
            lines = (self._root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            return []
        limits = []
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                limits += self._limits_upwards("sys/fs/cgroup", path, "memory.max")
            elif "memory" in controllers.split(","):
                limits += self._limits_upwards("sys/fs/cgroup/memory", path, _V1_LIMIT)
        return limits

    def _limits_upwards(self, mount: str, path: str, name: str) -> list[int]:
        """Limits of a group and of every group above it, down to the mount point itself.

        Inside a container the path often names a group that only the host sees: then the mount
        point is this process's own group, and it is always looked at.
        """
        top = self._root / mount
        group = top / path.lstrip("/")
        limits = []
        while True:
            try:
                text = (group / name).read_text().strip()
                if text.isdigit() and int(text) < NO_LIMIT_BYTES:
                    limits.append(int(text))
            except OSError:
                pass
            if group == top or top not in group.parents:
                return limits
            group = group.parent


_V1_LIMIT: Final = "memory.limit_in_bytes"


def trimmer() -> Callable[[], None] | None:
    """What makes the C library give freed pages back; None where it has no such call (macOS)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return lambda: trim(0)


def run_delays(process: Path = Path("/proc/self")) -> dict[int, float]:
    """How long each of our threads was ready to run and had no CPU, in milliseconds.

    Empty where the kernel does not say; of the main thread alone where it says no more than that.
    """
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(process / "task")[:THREADS_MAX]:
            _note_delay(found, int(thread), process / "task" / thread / "schedstat")
    if not found:
        _note_delay(found, 0, process / "schedstat")
    return found


def _note_delay(found: dict[int, float], thread: int, path: Path) -> None:
    # A thread may end between two looks at it.
    with contextlib.suppress(OSError, ValueError, IndexError):
        found[thread] = int(path.read_bytes().split()[1]) / 1e6


def peak_rss_bytes() -> int:
    """The most this process ever had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def disk_bytes(path: Path) -> tuple[int, int]:
    """(total, free to an ordinary user) of the file system that holds ``path``."""
    room = os.statvfs(path)
    return room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize


def boot_id(root: Path = Path("/")) -> str:
    """Names this run of the kernel; empty where nobody tells (then every start counts as new)."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


# ---- loop lag -----------------------------------------------------------------------------------
# How late the event loop is: a timer that should fire every quarter second, and by how much not.
#
# A loop that is late answers everybody late, HTTP included; the figure is the first thing to look
# at when latencies grow without a full disk. Kept as a histogram and as the worst of the last
# windows.


PERIOD_SECONDS: Final = 0.25
WINDOW_SAMPLES: Final = 40
"""The worst lag is remembered for 40 samples, that is the last 10 s, like the share of a stage."""


class LoopLag:
    """Measures the lag for as long as it runs."""

    __slots__ = ("_due", "_loop", "_recent", "_timer", "histogram")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._recent: list[float] = []
        self.histogram = Histogram(LAG_SECONDS)

    def start(self) -> None:
        self._due = self._loop.time() + PERIOD_SECONDS
        self._timer = self._loop.call_at(self._due, self._fired)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def worst_seconds(self) -> float:
        """The largest lag of the last 10 s."""
        return max(self._recent, default=0.0)

    def _fired(self) -> None:
        lag = max(0.0, self._loop.time() - self._due)
        self.histogram.observe(lag)
        self._recent.append(lag)
        del self._recent[:-WINDOW_SAMPLES]
        self.start()


# ---- sampling -----------------------------------------------------------------------------------
# Calls the engine's sampler when it is due: a slice of a walk, no turn of the engine.


class Sampling:
    """Drives one sampler for as long as it runs."""

    __slots__ = ("_clock", "_loop", "_sampler", "_timer")

    def __init__(self, sampler: Sampler, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._sampler = sampler
        self._clock = clock
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        delay_ms = max(0, self._sampler.next_deadline_ms() - self._clock.monotonic_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._fired)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fired(self) -> None:
        self._sampler.due(self._clock.monotonic_ms())
        self.start()
