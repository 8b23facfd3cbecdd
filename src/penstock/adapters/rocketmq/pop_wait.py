"""Pops and notifications that found nothing and wait (F12 for pops).

Who grants: the client, once per request. Who stops: nobody; a request holds only its place here.
What wakes it: a dispatch of its subscription, or of the retry topic's, that leaves something ready
(an arrival, a revival, an acknowledgement that ends an order's block), or its deadline.

A request waits under its topic, group and queue, where -1 is "any queue". Whoever waits longest
looks first and takes what it can; the next one looks at what is left.

Invariants: bounded in total and per key; a request leaves exactly once: served, timed out, or its
connection closed. A look that finds nothing changes nothing, so it cannot make turns for ever.
Not here: what a look does (``pop.py``, ``notification.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.flow.long_poll import HeldPulls

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session

POLLS_MAX: Final = 100_000
POLLS_PER_KEY_MAX: Final = 1_024

ANY_QUEUE: Final = -1


class PollResult(Enum):
    """What became of a request that found nothing."""

    HELD = "held"
    FULL = "full"
    """No place to wait: 209."""
    TIMED_OUT = "timed-out"
    """Its time was up when it came: 210."""
    NOT_POLLING = "not-polling"
    """It does not want to wait."""


class Poll:
    """One request that waits."""

    __slots__ = ("group", "kind", "look", "queue", "session", "time_up", "topic")

    def __init__(
        self,
        session: Session,
        place: tuple[str, str, int],
        *,
        kind: Hashable,
        look: Callable[[], bool],
        time_up: Callable[[], None],
    ) -> None:
        self.session = session
        self.topic, self.group, self.queue = place
        self.kind = kind
        """What it wants; where one found nothing, others of its kind need not look."""
        self.look = look
        """Serve it if there is something now; True when it was answered."""
        self.time_up = time_up
        """Answer that nothing came."""


class PopWaits:
    """Everybody who waits."""

    def __init__(self, house: House) -> None:
        self._clock = house.clock
        self._wait_ms_max = house.settings.suspend_ms_max
        self._timers = house.timers
        self._held: HeldPulls[Poll] = HeldPulls(POLLS_MAX, POLLS_PER_KEY_MAX)
        house.timers.add(self)

    def __len__(self) -> int:
        return len(self._held)

    def wait(self, poll: Poll, *, born_ms: int, poll_ms: int) -> PollResult:
        """Let a request wait ``poll_ms`` from the moment it was made (wall time; 0 = now)."""
        if poll_ms <= 0:
            return PollResult.NOT_POLLING
        wall_ms = self._clock.wall_ms()
        # A peer's clock may be ahead of ours: nobody waits longer than it asked for.
        left_ms = min(poll_ms, self._wait_ms_max, (born_ms or wall_ms) + poll_ms - wall_ms)
        if left_ms <= 0:
            return PollResult.TIMED_OUT
        key = (poll.topic, poll.group, poll.queue)
        deadline_ms = self._clock.monotonic_ms() + left_ms
        owner = id(poll.session)
        if not self._held.hold(key, poll, deadline_ms, owner=owner):
            return PollResult.FULL
        poll.session.part(_Leaving).waits = self
        self._timers.stir()
        return PollResult.HELD

    def look(self, topic: str, group: str, queues: int) -> None:
        """Something is ready for a group: whoever waits for it looks, the oldest first."""
        if not len(self._held):
            return
        for queue in (ANY_QUEUE, *range(queues)):
            in_vain: set[Hashable] = set()
            self._held.arrived((topic, group, queue), partial(_looks, in_vain))

    def dismiss(self, topic: str, group: str, queues: int) -> None:
        """Topic or group are gone: nothing will come."""
        for queue in (ANY_QUEUE, *range(queues)):
            for poll in self._held.cancel_key((topic, group, queue)):
                poll.time_up()

    def cancel(self, session: Session) -> None:
        """A connection is gone: nobody reads the answers."""
        self._held.cancel_owner(id(session))

    def next_deadline_ms(self) -> int | None:
        """When the first one's time is up."""
        return self._held.next_deadline_ms

    def due(self, now_ms: int) -> None:
        """Answer those whose time is up, with what there is or with nothing."""
        for poll in self._held.due(now_ms):
            if not poll.look():
                poll.time_up()


def _looks(in_vain: set[Hashable], poll: Poll) -> bool:
    if poll.kind in in_vain:
        return False
    is_served = poll.look()
    if not is_served:
        in_vain.add(poll.kind)
    return is_served


class _Leaving:
    """Tells the table that a connection went; one per connection."""

    def __init__(self, session: Session) -> None:
        self.waits: PopWaits | None = None
        self._session = session
        session.on_close(self._closed)

    def _closed(self) -> None:
        if self.waits is not None:
            self.waits.cancel(self._session)
