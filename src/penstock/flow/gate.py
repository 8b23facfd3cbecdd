"""The gate of a connection: a set of named reasons not to read from it (F2).

Who closes: credit (flow), alarms (memory, disk), limits (rate, quota, pending, held, room), each
under its own name and with the culprit to blame. Who stops: the connection's reader, at a message
boundary. What wakes it: the last reason being taken away, never a boolean that somebody forgot to
reset.

Invariants (law 7): a reason is in the set at most once however often it is closed, and opened
exactly once per episode, also by ``clear`` when the peer dies.
Not here: *whether* an alarm concerns this connection (only those that publish; the engine decides).
"""

from penstock.flow.episodes import Episodes
from penstock.flow.reason import Reason

__all__ = ["Gate", "Reason"]


class Gate:
    """Open while no reason remains."""

    __slots__ = ("_episodes", "_since", "reasons")

    def __init__(self, episodes: Episodes | None = None) -> None:
        self.reasons: dict[Reason, str] = {}
        """Reason -> culprit, in the order in which they closed the gate."""
        self._since: dict[Reason, int] = {}
        self._episodes = episodes

    @property
    def is_open(self) -> bool:
        """True when nothing speaks against reading."""
        return not self.reasons

    @property
    def since_ms(self) -> int | None:
        """When the oldest reason closed the gate; None while it is open."""
        return min(self._since.values(), default=None)

    @property
    def resources(self) -> dict[Reason, str]:
        """The alarms among the reasons: those a publisher is told about."""
        return {reason: who for reason, who in self.reasons.items() if reason.is_resource}

    def close(self, reason: Reason, culprit: str, now_ms: int) -> bool:
        """Add a reason; True when it was not there yet. A newer culprit replaces the older."""
        is_first = reason not in self.reasons
        self.reasons[reason] = culprit
        if is_first:
            self._since[reason] = now_ms
            if self._episodes is not None:
                self._episodes.entered(reason, culprit, now_ms)
        return is_first

    def open(self, reason: Reason, now_ms: int) -> bool:
        """Take a reason away; True when it was there."""
        if self.reasons.pop(reason, None) is None:
            return False
        del self._since[reason]
        if self._episodes is not None:
            self._episodes.left(reason, now_ms)
        return True

    def clear(self, now_ms: int) -> list[Reason]:
        """The peer died: take every reason away and say which they were."""
        return [reason for reason in list(self.reasons) if self.open(reason, now_ms)]

    def state(self, *, is_alarmed: bool = False) -> str:
        """``blocked`` by an alarm, ``blocking`` if one is raised that it did not run into yet."""
        if self.resources:
            return "blocked"
        if is_alarmed:
            return "blocking"
        return "flow" if self.reasons else "running"
