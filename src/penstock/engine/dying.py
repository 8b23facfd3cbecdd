"""Messages that are to die, when they are many: some are buried in every turn (law 5).

Who refuses tens of thousands at once must not hold up everybody else: a dead letter is read, made
and written again. Until it is its turn, such a message is in flight still, in nobody's hands: it is
neither ready nor anybody's to settle, and after a crash it is delivered again, like all in flight.

Who spends: whoever rejects, or brings back too often. Who stops: this subscription hands out
nothing new before all of them are buried, so that they cannot pile up. What wakes it: itself.

Invariants: what was charged for them is returned at once; they are buried in the order in which
they were refused, each once. Bound: ``DYING_MAX``; beyond it whoever refuses more waits himself.
Not here: who dies (``settle.py``), letters (``dead_letter.py``).
"""

from collections import deque
from typing import Final

from penstock.engine.going_back import Give
from penstock.engine.host import Host
from penstock.engine.lane import Lane
from penstock.engine.pending import NOBODY, Held
from penstock.engine.pick import Picker, entries_at
from penstock.model.settlement import Cause

DEATHS_AT_ONCE: Final = 250
"""Messages one subscription buries in one turn, refused by one command or by many."""

DYING_MAX: Final = 200_000
"""Messages that may wait; as many as can be in flight, the rest was taken by hand meanwhile."""


class Dying:
    """The line of those who wait to be buried."""

    __slots__ = ("_give", "_host", "_left", "_line", "_picker", "count", "since_ms")

    def __init__(self, host: Host, picker: Picker, give: Give) -> None:
        self._host = host
        self._picker = picker
        self._give = give
        self._left = DEATHS_AT_ONCE
        # First offsets of in-flight entries.
        self._line: deque[tuple[Lane, deque[int], Cause]] = deque()
        self.count = 0
        self.since_ms = 0
        """Since when somebody waits, while somebody does."""

    def __bool__(self) -> bool:
        return bool(self._line)

    def condemn(self, lane: Lane, starts: list[int], cause: Cause) -> None:
        """These in-flight entries die: now, or when it is their turn."""
        if not starts:
            return
        was_waiting = bool(self._line)
        self._let_go(lane, starts)
        last = self._line[-1] if self._line else None
        if last is not None and last[0] is lane and last[2] is cause:
            last[1].extend(starts)
        else:
            self._line.append((lane, deque(starts), cause))
        self.count += len(starts)
        if self.count > DYING_MAX:
            self._left = DEATHS_AT_ONCE
        self._bury_some()
        if self._line and not was_waiting:
            self.since_ms = self._host.clock.monotonic_ms()

    def turn(self) -> bool:
        """A turn has come: bury the first of those who wait for it; True while others do."""
        self._left = DEATHS_AT_ONCE
        if not self._line:
            return False
        self._bury_some()
        return bool(self._line)

    def bury_all(self) -> None:
        """Bury everybody who waits for it: the subscription ends."""
        while self._line:
            self.turn()

    def _let_go(self, lane: Lane, starts: list[int]) -> None:
        """Nobody has them any more."""
        entries = lane.pending.entries
        messages = size = holder = 0
        for start in starts:
            held = entries[start]
            if held.slot:
                lane.dispatcher.released(held.slot)
            if held.consumer_id != holder:
                self._give(holder, messages, size)
                holder, messages, size = held.consumer_id, 0, 0
            messages += held.messages
            size += held.size
            entries[start] = Held(NOBODY, 0, held.attempts, held.messages, held.span)
        self._give(holder, messages, size)

    def _bury_some(self) -> None:
        while self._line and self._left > 0:
            lane, starts, cause = self._line[0]
            some = [starts.popleft() for _ in range(min(self._left, len(starts)))]
            self._left -= len(some)
            self.count -= len(some)
            if not starts:
                self._line.popleft()
            self._bury(lane, [start for start in some if _leaves(lane, start)], cause)

    def _bury(self, lane: Lane, starts: list[int], cause: Cause) -> None:
        """Entries out of flight die; their records are read again, they were not kept."""
        found = entries_at(lane, starts)
        records = self._host.read([(entry[0], entry[4]) for entry in found.values()])
        for entry, record in zip(found.values(), records, strict=True):
            self._picker.bury(lane, entry, record, cause)
        for start in starts:
            if start not in found:
                self._picker.gone(lane, start, start + 1)


def _leaves(lane: Lane, start: int) -> bool:
    """Take an entry out of flight; False when it is not waiting to be buried any more."""
    held = lane.pending.entries.get(start)
    if held is None or held.consumer_id != NOBODY:
        return False
    lane.pending.pop(start)
    lane.redelivery.counts[start] = held.attempts
    return True
