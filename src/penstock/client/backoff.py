"""How long an address is left alone after it could not be connected to.

Pure: time comes in as monotonic milliseconds. The wait doubles with each failure in a row; a
connection that was made ends the row.
"""


class Backoff:
    """The failures in a row of one address."""

    __slots__ = ("failures", "until_ms", "why")

    def __init__(self) -> None:
        self.failures = 0
        self.until_ms = 0
        """Not before this time is it tried again."""
        self.why = ""

    def failed(self, now_ms: int, why: str, *, least_ms: int, most_ms: int) -> bool:
        """It failed again; True for the first failure in a row, which is worth a log line."""
        # Shifts past 30 bits would only make a large number larger.
        wait_ms = min(least_ms << min(self.failures, 30), most_ms)
        self.failures += 1
        self.until_ms = now_ms + wait_ms
        self.why = why
        return self.failures == 1
