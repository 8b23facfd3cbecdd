"""Store busy: a commit that takes too long refuses new sends instead of collecting them (F6).

Who raises: a write or sync in progress for longer than the limit, or a write the disk refused. Who
stops: new sends (refused) and queued ones (drained as busy by ``fast_fail``). What wakes it: the
end of that commit; after a refused write, time: the store is tried again after ``limit_ms``,
because only another write can show that it works again.

Not here: the hold of the loop's own writes while a sync is older than 100 ms (D8, ``engine``).
"""


class StoreBusy:
    """Watches the one commit in progress."""

    __slots__ = ("_failed_at_ms", "_started_at_ms", "episodes", "limit_ms")

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self.episodes = 0
        """Commits that took longer than the limit, and refused writes."""
        self._started_at_ms: int | None = None
        self._failed_at_ms: int | None = None

    def commit_started(self, now_ms: int) -> None:
        """A write + sync is on its way to the disk."""
        if self._started_at_ms is None:
            self._started_at_ms = now_ms

    def commit_ended(self, now_ms: int) -> None:
        """The disk answered."""
        if self._started_at_ms is not None and now_ms - self._started_at_ms > self.limit_ms:
            self.episodes += 1
        self._started_at_ms = None

    def append_failed(self, now_ms: int) -> None:
        """The disk refused a write (full, short)."""
        self.episodes += 1
        self._failed_at_ms = now_ms

    def append_succeeded(self) -> None:
        """A later write went through: the refusal is over."""
        self._failed_at_ms = None

    def busy_ms(self, now_ms: int) -> int:
        """How long the commit in progress has taken; 0 when there is none."""
        return 0 if self._started_at_ms is None else now_ms - self._started_at_ms

    def is_busy(self, now_ms: int) -> bool:
        """True while new sends are to be refused."""
        if self._started_at_ms is not None and now_ms - self._started_at_ms > self.limit_ms:
            return True
        failed_at_ms = self._failed_at_ms
        return failed_at_ms is not None and now_ms - failed_at_ms < self.limit_ms

    def since_ms(self, now_ms: int) -> int | None:
        """When the trouble began; None while not busy."""
        if not self.is_busy(now_ms):
            return None
        began = (self._started_at_ms, self._failed_at_ms)
        return min(at_ms for at_ms in began if at_ms is not None)

    def next_deadline_ms(self) -> int | None:
        """When ``is_busy`` changes by time alone; None while nothing is in progress."""
        began = [at for at in (self._started_at_ms, self._failed_at_ms) if at is not None]
        return min(began) + self.limit_ms if began else None
