"""Lease: data stays as long as a Spark query that has not processed it lives, within bounds (F18).

Who grants: the broker, when a query is first heard of. Who spends: every byte behind the query's
position. Who stops: nobody; a lease that passes a bound is broken, and retention goes on without
it. What wakes it: any word of the query; then it holds again, if it is within its bounds.

Two bounds: time without a word (a query that died keeps nothing for ever), and bytes held (a slow
one does not fill the disk). Times are wall times of a steady clock, since leases outlive restarts.

Invariant: a broken lease tells so exactly once (``judge``), and remembers why until it is mended.
Not here: which segments stay (``log/retention.py``), what is told (``engine/bulk/``).
"""

from typing import Final, Literal

from penstock.model.ids import size_text

Cause = Literal["", "silence", "bytes", "released"]


class Lease:
    """What is kept for one query."""

    __slots__ = ("broke", "bytes_max", "cause", "heard_ms", "text", "ttl_ms")

    def __init__(self, *, ttl_ms: int, bytes_max: int, now_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.bytes_max: Final = bytes_max
        self.heard_ms = now_ms
        """When the query said anything the last time."""
        self.cause: Cause = ""
        """Why nothing is kept any more; empty while it holds."""
        self.text = ""
        self.broke = ""
        """Why it was broken the last time, also after it was mended: what went then is gone."""

    @property
    def holds(self) -> bool:
        """True while data is kept."""
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
        self.broke = self.text or self.broke
        return bool(self.cause)

    def release(self) -> None:
        """The query gave it back."""
        if not self.cause:
            self.cause, self.text = "released", "it gave its lease back"

    def restore(self, heard_ms: int, cause: Cause, text: str) -> None:
        """Go on as before a restart."""
        self.heard_ms, self.cause, self.text = heard_ms, cause, text
        self.broke = text if self.is_broken else ""
