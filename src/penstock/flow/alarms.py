"""Memory and disk alarms, and the watermark with hysteresis they are made of (F3).

Who raises: a probe's figure crossing its watermark (resident memory too high, free disk too low).
Who stops: connections that publish; consumers, acks and heartbeats go on. What wakes them: the
figure getting better than the *other* mark, so an alarm at the limit does not flutter. Some way
before the disk alarm lies its amber mark: below it ``shortage_bytes`` says how much is missing, and
what is kept only "if there is room" goes (``engine/turn.py``).

Invariants: an edge is returned once per episode, however often the probe reports; a limit of 0 is
raised at the first look and stays; a probe that fails counts as the worst figure (``failed``).
Not here: reading /proc and the disk (``server/probes.py``), which connections publish (``engine``).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.flow.reason import Reason
from penstock.model.errors import SettingsError
from penstock.model.ids import size_text

_UNITS: Final = {
    "b": 1,
    "k": 1 << 10,
    "kb": 10**3,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mb": 10**6,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gb": 10**9,
    "gib": 1 << 30,
    "t": 1 << 40,
    "tb": 10**12,
    "tib": 1 << 40,
}

AUTO_DISK_BYTES_MAX: Final = 1 << 30
AUTO_DISK_DIVISOR: Final = 20
"""``auto`` = min(5 % of the disk, 1 GiB): small disks are not mostly reserve, large ones enough."""


AMBER_RATIO: Final = 1.25
"""The amber mark of the disk in multiples of its limit, never below the mark that clears the alarm:
what is kept if there is room goes before publishers are stopped, and an alarm can end by it."""


class Edge(Enum):
    """A change of an alarm."""

    RAISED = "raised"
    CLEARED = "cleared"


class Alarm:
    """One watched figure."""

    __slots__ = (
        "_is_seen",
        "_watermark",
        "episodes",
        "name",
        "peak",
        "reason",
        "since_ms",
        "value",
    )

    def __init__(self, name: str, watermark: Watermark) -> None:
        self.name = name
        self.reason = Reason(name)
        self.value = 0
        self.peak = 0
        """The worst figure since it was raised last."""
        self.since_ms: int | None = None
        """When it was raised; None while it is not."""
        self.episodes = 0
        self._is_seen = False
        self._watermark = watermark

    @property
    def is_raised(self) -> bool:
        """True from the edge that raised it to the edge that cleared it."""
        return self.since_ms is not None

    @property
    def limit(self) -> int:
        """The mark that raises it, in bytes."""
        return self._watermark.limit

    @property
    def shortage_bytes(self) -> int:
        """How much of what there should be free is missing to the amber mark; 0 = enough.

        A limit of 0 says "stop", not "no room"; nothing is known before the first look.
        """
        if not (self._is_seen and self._watermark.is_floor and self.limit):
            return 0
        amber = max(int(self.limit * AMBER_RATIO), self._watermark.high + 1)
        return max(0, amber - self.value)

    @property
    def text(self) -> str:
        """RabbitMQ's words for ``connection.blocked``."""
        return f"low on {self.name}"

    @property
    def culprit(self) -> str:
        """The figure and its limit, for people."""
        word = "free" if self._watermark.is_floor else "used"
        return f"{size_text(self.value)} {word}, limit {size_text(self.limit)}"

    def update(self, value: int, now_ms: int) -> Edge | None:
        """Look at a new figure; the edge if it changed the alarm."""
        self.value = value
        self._is_seen = True
        return self._turn(self._watermark.update(value), now_ms)

    def failed(self, now_ms: int) -> Edge | None:
        """The probe could not look: assume the worst until it can."""
        return self.update(0 if self._watermark.is_floor else self._watermark.high + 1, now_ms)

    def resize(self, high: int, low: int, now_ms: int) -> Edge | None:
        """New marks, judged at once with the last figure seen."""
        self._watermark.resize(high, low)
        return self._turn(self._watermark.update(self.value), now_ms)

    def _turn(self, is_raised: bool, now_ms: int) -> Edge | None:
        if is_raised:
            worst = min if self._watermark.is_floor else max
            self.peak = worst(self.peak, self.value) if self.is_raised else self.value
        if is_raised == self.is_raised:
            return None
        self.since_ms = now_ms if is_raised else None
        self.episodes += is_raised
        return Edge.RAISED if is_raised else Edge.CLEARED


class AlarmBoard:
    """The alarms of one broker."""

    __slots__ = ("disk", "memory")

    def __init__(self, memory: Alarm, disk: Alarm) -> None:
        self.memory = memory
        self.disk = disk

    @property
    def alarms(self) -> tuple[Alarm, Alarm]:
        """Both, memory first as in RabbitMQ's text."""
        return self.memory, self.disk

    @property
    def is_raised(self) -> bool:
        """True while at least one is raised."""
        return self.memory.since_ms is not None or self.disk.since_ms is not None

    @property
    def raised(self) -> dict[Reason, str]:
        """Reason -> culprit of the raised ones: what a publishing connection's gate is told."""
        return {alarm.reason: alarm.culprit for alarm in self.alarms if alarm.is_raised}

    @property
    def text(self) -> str:
        """``low on memory & low on disk``, or the one, or nothing."""
        return " & ".join(alarm.text for alarm in self.alarms if alarm.is_raised)


def memory_alarm(limit_bytes: int, low_ratio: float) -> Alarm:
    """Raised above the limit, cleared below ``low_ratio`` of it."""
    return Alarm("memory", Watermark(limit_bytes, int(limit_bytes * low_ratio)))


def disk_alarm(limit_bytes: int, high_ratio: float) -> Alarm:
    """Raised below the limit, cleared above ``high_ratio`` times it."""
    return Alarm("disk", Watermark(int(limit_bytes * high_ratio), limit_bytes, is_floor=True))


def parse_limit(text: str, total: int) -> int:
    """Bytes meant by ``0.6`` or ``60%`` (of total), ``2GiB``, ``500000``, ``0`` or ``auto``."""
    word = text.strip().lower()
    if word == "auto":
        return min(total // AUTO_DISK_DIVISOR, AUTO_DISK_BYTES_MAX)
    if word.endswith("%"):
        return _share(text, word[:-1], 100, total)
    digits = word.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = word[len(digits) :].strip()
    if unit:
        if unit not in _UNITS:
            raise _unreadable(text)
        return int(_number(text, digits) * _UNITS[unit])
    if "." in digits:
        return _share(text, digits, 1, total)
    return int(_number(text, digits))


def _share(text: str, digits: str, whole: int, total: int) -> int:
    value = _number(text, digits)
    if value > whole:
        raise SettingsError(
            f"limit {text!r} is more than all of it; give a share up to 1, or bytes"
        )
    return int(total * value / whole)


def _number(text: str, digits: str) -> float:
    try:
        value = float(digits)
    except ValueError:
        raise _unreadable(text) from None
    if not 0 <= value < float("inf"):
        raise _unreadable(text)
    return value


def _unreadable(text: str) -> SettingsError:
    return SettingsError(
        f"limit {text!r} is not readable; give a share as 0.6 or 60%, bytes as 2GiB, 0, or auto"
    )


# ---- watermark ----------------------------------------------------------------------------------
# A limit with hysteresis: raised at one value, cleared only at a better one.
#
# Used by the alarms (F3) and wherever "resume at half" would otherwise be written by hand. As a
# ceiling (too much) it is raised above ``high`` and cleared below ``low``; as a floor (too little)
# it is raised below ``low`` and cleared above ``high``. A limit of 0 is raised whatever the value
# is: the operator's way to say "stop now".


class Watermark:
    """Two marks and one bit."""

    __slots__ = ("high", "is_floor", "is_raised", "low")

    def __init__(self, high: int, low: int, *, is_floor: bool = False) -> None:
        self.is_floor = is_floor
        self.is_raised = False
        self.high = high
        self.low = low
        self.resize(high, low)

    @property
    def limit(self) -> int:
        return self.low if self.is_floor else self.high

    def resize(self, high: int, low: int) -> None:
        """New marks; they count from the next update on."""
        if not 0 <= low <= high:
            raise ValueError(f"low mark {low} and high mark {high}: 0 <= low <= high must hold")
        self.high = high
        self.low = low

    def update(self, value: int) -> bool:
        """Look at a new value; True while raised."""
        if self.limit == 0:
            self.is_raised = True
        elif self.is_floor:
            self.is_raised = value <= self.high if self.is_raised else value < self.low
        else:
            self.is_raised = value >= self.low if self.is_raised else value > self.high
        return self.is_raised
