"""Brake: a Spark query that falls behind slows or holds the publishers of its topic (F18, D23).

Who grants: the query, by draining. Who spends: every publish to the topic. Who stops: publishers of
this topic, no others. What wakes them: the query's next acknowledgement, or time (soft).

Soft: while the bound is passed, and until the backlog is back at nine tenths of it, publishers get
1.1 times what the query drains (in messages, and in bytes where those are bounded), so a steady
query still catches up as soon as they pause. Hard: a publish that would carry the backlog over the
bound waits. A backlog of nothing admits anything: one message larger than the bound must not wait
for ever.

A pure judge: whoever has the figures calls ``look``; ``judge`` and ``admit`` are asked in between.
Not here: which query is the slowest (``engine/spark/query.py``).
"""

from enum import Enum
from typing import Final, Literal, NamedTuple

import msgspec

from penstock.flow.rate import RateLimit
from penstock.model.ids import size_text

SOFT_FACTOR: Final = 1.1
"""D23: what publishers get of the drain rate."""
SOFT_CLEAR: Final = 0.9
"""Share of the bound below which publishers run free again."""
HARD_CLEAR: Final = 0.9
"""Share of the bound above which a publish that was held there still counts as held."""
SOFT_PER_S_MIN: Final = 10
"""Messages per second that always pass: a query that drains nothing slows, it does not stop."""
SOFT_BYTES_PER_S_MIN: Final = 64 * 1024
"""The same in bytes, where the bound is one of bytes."""
SOFT_BURST_PART: Final = 10
"""A tenth of a second's worth may pass at once."""


class Backpressure(Enum):
    """What a topic's policy says."""

    OFF = "off"
    SOFT = "soft"
    HARD = "hard"


class BacklogBound(msgspec.Struct, frozen=True):
    """How far a query may fall behind on one topic; 0 = no bound."""

    messages_max: int = 0
    bytes_max: int = 0
    age_ms_max: int = 0

    @property
    def is_set(self) -> bool:
        """False when a query may fall behind as far as it likes."""
        return bool(self.messages_max or self.bytes_max or self.age_ms_max)

    def share(self, backlog: "QueryBacklog") -> float:
        """The largest part of a bound that is used; 1 = at it."""
        return max(
            backlog.messages / self.messages_max if self.messages_max else 0.0,
            backlog.bytes / self.bytes_max if self.bytes_max else 0.0,
            backlog.age_ms / self.age_ms_max if self.age_ms_max else 0.0,
        )

    def figures(self, backlog: "QueryBacklog") -> str:
        """The tightest bound in words."""
        setting, limit = self.tightest(backlog)
        match setting:
            case "spark_backlog_messages_max":
                return f"{backlog.messages} messages behind, bound {limit}"
            case "spark_backlog_bytes_max":
                return f"{size_text(backlog.bytes)} behind, bound {size_text(limit)}"
            case "spark_backlog_age_ms_max":
                return f"{backlog.age_ms} ms behind, bound {limit} ms"
        return "behind"

    def tightest(self, backlog: "QueryBacklog") -> tuple[str, int]:
        """The one of which most is used, as a topic's policy calls it; empty when there is none."""
        parts = (
            (backlog.messages, "spark_backlog_messages_max", self.messages_max),
            (backlog.bytes, "spark_backlog_bytes_max", self.bytes_max),
            (backlog.age_ms, "spark_backlog_age_ms_max", self.age_ms_max),
        )
        found = [(used / limit, setting, limit) for used, setting, limit in parts if limit]
        return max(found)[1:] if found else ("", 0)


class QueryBacklog(NamedTuple):
    """What one query has not processed of one topic."""

    query: str
    messages: int
    bytes: int
    age_ms: int
    drain_messages_per_s: float = 0.0
    drain_bytes_per_s: float = 0.0
    slow_part: str = ""
    """read, transform or sink, as its progress says."""


class BrakeHold(NamedTuple):
    """Why a publish waits."""

    culprit: str
    until_ms: int | None


class Brake:
    """The brake of one topic."""

    __slots__ = ("_backlog", "_has_held", "_rate", "bound", "is_on", "mode", "topic")

    def __init__(self, topic: str, mode: Backpressure, bound: BacklogBound, now_ms: int) -> None:
        self.topic: Final = topic
        self.mode: Final = mode
        self.bound: Final = bound
        self.is_on = False
        """True while the bound is passed (soft) or reached (hard)."""
        self._backlog: QueryBacklog | None = None
        self._has_held = False
        self._rate = RateLimit(0, 0, now_ms)

    def look(self, backlogs: list[QueryBacklog], now_ms: int) -> bool:
        """Fresh figures of every query that may brake; True when it was put on or let go."""
        was_on = self.is_on
        self._backlog = max(backlogs, key=self.bound.share, default=None)
        share = self.bound.share(self._backlog) if self._backlog is not None else 0.0
        if self._backlog is None or self.mode is Backpressure.OFF:
            self.is_on = False
        elif self.mode is Backpressure.HARD:
            # A large message may be held a little below the bound.
            self._has_held &= share >= HARD_CLEAR
            self.is_on = share >= 1 or self._has_held
        else:
            self.is_on = share >= (SOFT_CLEAR if was_on else 1)
            if self.is_on:
                self._set_rate(self._backlog, now_ms)
        return self.is_on is not was_on

    @property
    def query(self) -> str:
        """The query that is furthest behind, measured by the bound."""
        return self._backlog.query if self._backlog is not None else ""

    def judge(self, messages: int, size_bytes: int, now_ms: int) -> BrakeHold | None:
        """Why a publish of so many messages waits; None = it may pass."""
        backlog = self._backlog
        if backlog is None or self.mode is Backpressure.OFF:
            return None
        if self.mode is Backpressure.SOFT:
            wait_ms = self._rate.wait_ms(now_ms) if self.is_on else 0
            return BrakeHold(self.explain(), now_ms + wait_ms) if wait_ms else None
        if backlog.messages == 0:
            return None
        bound = self.bound
        is_over = (
            0 < bound.messages_max < backlog.messages + messages
            or 0 < bound.bytes_max < backlog.bytes + size_bytes
            or 0 < bound.age_ms_max <= backlog.age_ms
        )
        if not is_over:
            return None
        self._has_held = True
        return BrakeHold(self.explain(), None)

    def admit(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """A publish passed: count it until the next look."""
        self.count(messages, size_bytes)
        if self.is_on and self.mode is Backpressure.SOFT:
            self._rate.charge(messages, size_bytes, now_ms)

    def count(self, messages: int, size_bytes: int) -> None:
        """So much more will be behind, which the last look could not see."""
        backlog = self._backlog
        if backlog is not None and (messages or size_bytes):
            self._backlog = backlog._replace(
                messages=backlog.messages + messages, bytes=backlog.bytes + size_bytes
            )

    @property
    def tightest(self) -> tuple[str, int]:
        """The setting of the bound that is passed, and that bound."""
        return ("", 0) if self._backlog is None else self.bound.tightest(self._backlog)

    def explain(self) -> str:
        """Who holds the publishers, in one sentence without its end."""
        backlog = self._backlog
        if backlog is None:
            return f"topic '{self.topic}' waits for a Spark query"
        part = f", its {backlog.slow_part} is the slow part" if backlog.slow_part else ""
        return (
            f"Spark query '{backlog.query}' is {self.bound.figures(backlog)} on topic "
            f"'{self.topic}' (spark_backpressure {self.mode.value}){part}"
        )

    def _set_rate(self, backlog: QueryBacklog, now_ms: int) -> None:
        messages = max(SOFT_PER_S_MIN, round(backlog.drain_messages_per_s * SOFT_FACTOR))
        burst = max(1, messages // SOFT_BURST_PART)
        if messages != self._rate.messages.rate_per_s:
            self._rate.messages.resize(messages, burst, now_ms)
        if not self.bound.bytes_max:
            return
        # A backlog that is bounded in bytes must not grow by larger messages at the same rate.
        size = max(SOFT_BYTES_PER_S_MIN, round(backlog.drain_bytes_per_s * SOFT_FACTOR))
        if size != self._rate.bytes.rate_per_s:
            self._rate.bytes.resize(size, max(1, size // SOFT_BURST_PART), now_ms)


# ---- drain --------------------------------------------------------------------------------------
# Drain rate: how fast a Spark query processes, measured from what it acknowledges (F18).
#
# Who grants: the broker, with each batch it hands out. Who spends: the query, by acknowledging it.
# Who stops: nobody here; ``Brake`` slows publishers by this rate. What wakes it: each poll.
#
# A batch counts from the moment it was handed out: time in which there was nothing to read is not
# the query's. A batch under way that already takes longer than the rate promised lowers it, so that
# a query that hangs does not keep the rate of its better days.


WEIGHT: Final = 0.5
"""Of the newest batch: rates of jobs change in steps, not slowly."""


class DrainRate:
    """Messages and bytes per second of one query on one topic."""

    __slots__ = ("_bytes_per_s", "_given", "_given_bytes", "_given_ms", "_messages_per_s")

    def __init__(self) -> None:
        self._messages_per_s = -1.0
        self._bytes_per_s = -1.0
        self._given = 0
        self._given_bytes = 0
        self._given_ms = 0

    @property
    def is_known(self) -> bool:
        """False before the first batch was acknowledged."""
        return self._messages_per_s >= 0

    def gave(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """A batch was handed out; the same one again does not start it anew."""
        if messages > 0 and self._given == 0:
            self._given_ms = now_ms
        if messages > 0 or self._given == 0:
            self._given, self._given_bytes = messages, size_bytes

    def took(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """So much of what was handed out is processed for good."""
        if messages <= 0 or self._given == 0:
            return
        seconds = max(1, now_ms - self._given_ms) / 1000
        self._messages_per_s = _mixed(self._messages_per_s, messages / seconds)
        self._bytes_per_s = _mixed(self._bytes_per_s, size_bytes / seconds)
        self._given = self._given_bytes = 0

    def messages_per_s(self, now_ms: int) -> float:
        """The rate now; 0 while it is not known."""
        return self._bounded(self._messages_per_s, self._given, now_ms)

    def bytes_per_s(self, now_ms: int) -> float:
        return self._bounded(self._bytes_per_s, self._given_bytes, now_ms)

    def _bounded(self, rate: float, given: int, now_ms: int) -> float:
        if rate < 0:
            return 0.0
        seconds = (now_ms - self._given_ms) / 1000
        return min(rate, given / seconds) if given and seconds > 0 else rate


def _mixed(old: float, new: float) -> float:
    return new if old < 0 else old + WEIGHT * (new - old)


# ---- lease --------------------------------------------------------------------------------------
# Lease: data stays as long as a Spark query that has not processed it lives, within bounds (F18).
#
# Who grants: the broker, when a query is first heard of. Who spends: every byte behind the query's
# position. Who stops: nobody; a lease that passes a bound is broken, and retention goes on without
# it. What wakes it: any word of the query; then it holds again, if it is within its bounds.
#
# Two bounds: time without a word (a query that died keeps nothing for ever), and bytes held (a slow
# one does not fill the disk). Times are wall times of a steady clock, since leases outlive
# restarts.
#
# Invariant: a broken lease tells so exactly once (``judge``), and remembers why until it is mended.
# Not here: which segments stay (``log/retention.py``), what is told (``engine/bulk/``).


Cause = Literal["", "silence", "bytes", "released"]


class Lease:
    """What is kept for one query."""

    __slots__ = ("broke", "broke_ms", "bytes_max", "cause", "heard_ms", "text", "ttl_ms")

    def __init__(self, *, ttl_ms: int, bytes_max: int, now_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.bytes_max: Final = bytes_max
        self.heard_ms = now_ms
        """When the query said anything the last time."""
        self.cause: Cause = ""
        """Why nothing is kept any more; empty while it holds."""
        self.text = ""
        self.broke_ms: int | None = None
        """When a look broke it the last time; None = not since the broker started."""
        self.broke = ""
        """Why it was broken the last time, also after it was mended: what went then is gone."""

    @property
    def holds(self) -> bool:
        return not self.cause

    @property
    def is_broken(self) -> bool:
        """True when it passed a bound; a lease that was given back is not broken."""
        return self.cause in ("silence", "bytes")

    def hear(self, now_ms: int, held_bytes: int) -> bool:
        """The query lives; True when that mends a lease that held nothing any more."""
        self.heard_ms = now_ms
        if not self.cause or (self.bytes_max and held_bytes > self.bytes_max):
            return False
        self.cause, self.text = "", ""
        return True

    def judge(self, now_ms: int, held_bytes: int) -> bool:
        """Look at both bounds; True when this look broke it."""
        if self.cause:
            return False
        silent_ms = now_ms - self.heard_ms
        if self.ttl_ms and silent_ms > self.ttl_ms:
            self.cause = "silence"
            self.text = (
                f"it was silent for {silent_ms // 1000} s, its lease lasts {self.ttl_ms // 1000} s "
                "(spark.lease_ms_max)"
            )
        elif self.bytes_max and held_bytes > self.bytes_max:
            self.cause = "bytes"
            self.text = (
                f"{size_text(held_bytes)} were kept for it, at most {size_text(self.bytes_max)} "
                "are (spark.lease_bytes_max)"
            )
        if not self.cause:
            return False
        self.broke, self.broke_ms = self.text, now_ms
        return True

    def release(self) -> None:
        if not self.cause:
            self.cause, self.text = "released", "it gave its lease back"

    def restore(self, heard_ms: int, cause: Cause, text: str) -> None:
        """Go on as before a restart."""
        self.heard_ms, self.cause, self.text = heard_ms, cause, text
        self.broke = text if self.is_broken else ""
