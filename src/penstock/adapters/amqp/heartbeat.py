"""Heartbeats of one connection: when to send one, and when the peer counts as dead.

One is sent when nothing was written for half an interval. The peer is dropped when nothing was
read for two intervals; any byte counts. While we ourselves do not read (or hold its publishes, for
clients that stop talking then) the silence is ours, and the watch starts anew afterwards.

Not here: the clock (times come in), the frame (``wire/amqp/frames.py``).
"""

SILENT_INTERVALS_MAX = 2


class Heartbeat:
    """Both directions of one connection; an interval of 0 turns it off."""

    __slots__ = ("_interval_ms", "deadline_ms", "heard_ms", "sent_ms")

    def __init__(self, interval_s: int, now_ms: int) -> None:
        self._interval_ms = interval_s * 1000
        self.sent_ms = now_ms
        """When bytes went out last; set by whoever writes."""
        self.heard_ms = now_ms
        """When bytes came in last, or we did not listen; set by whoever reads."""
        self.deadline_ms: int | None = None
        """When to look, never later than one of the two is due; None when heartbeats are off.

        Both only move away, so it is enough to work it out anew when it has come (``looked``).
        """
        self.looked()

    def looked(self) -> None:
        """Whatever was due is done."""
        if self._interval_ms:
            self.deadline_ms = min(self.sent_ms + self._interval_ms // 2, self._dead_ms())

    def wants_beat(self, now_ms: int) -> bool:
        """True when it is time to say something."""
        return bool(self._interval_ms) and now_ms >= self.sent_ms + self._interval_ms // 2

    def is_dead(self, now_ms: int) -> bool:
        """True when the peer was silent for too long."""
        return bool(self._interval_ms) and now_ms >= self._dead_ms()

    def _dead_ms(self) -> int:
        return self.heard_ms + SILENT_INTERVALS_MAX * self._interval_ms
