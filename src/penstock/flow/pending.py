"""Pending publishes of one connection: sent to us and not yet confirmed by us (F9).

Who spends: the connection, one per publish. Who grants: the log, by becoming durable. Who stops:
the connection, when the limit is reached. What wakes it: the count falling to half, so that it does
not stop and start with every single confirm.

Not here: which publishes they are (``confirms``).
"""


class PendingLimit:
    """A count with a ceiling; 0 = no ceiling."""

    __slots__ = ("count", "is_held", "pending_max")

    def __init__(self, pending_max: int) -> None:
        self.pending_max = pending_max
        self.count = 0
        self.is_held = False

    def add(self, n: int = 1) -> bool:
        """Publishes came in; True while held."""
        self.count += n
        if self.count >= self.pending_max > 0:
            self.is_held = True
        return self.is_held

    def done(self, n: int = 1) -> bool:
        """Publishes were confirmed or refused; True when this let the connection go on."""
        self.count -= n
        assert self.count >= 0, "more publishes confirmed than came in"
        if self.is_held and self.count <= self.pending_max // 2:
            self.is_held = False
            return True
        return False
