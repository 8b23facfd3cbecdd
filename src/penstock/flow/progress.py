"""Progress: what of the past the diagnosis needs, to tell alike things apart.

A look at a queue says how much waits in it, not whether that is a burst that will be gone in a
moment, a consumer that has stopped, or nobody's business. So every reader has a ``Progress`` that
is told of what happens (its head moved, something was settled, something came back, somebody read),
and keeps a handful of figures: nobody has to walk all queues every second to know them.

``Spell`` is anything that happens again and again for a while: refusals, discards, dead letters.

Who writes: subscriptions, and whoever refuses or drops. Who reads: the flow map. Time is monotonic,
and comes in. Invariants: memory is fixed; a message costs nothing, a list of them a comparison.
Not here: what follows from it (``diagnosis.py``).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.flow.reason import Culprit

POINT_EVERY_MS: Final = 1000
POINTS_MAX: Final = 16
"""Three windows of five seconds: the one that counts, and something to compare it with."""

STILL_PAUSES: Final = 2
"""A head that moves now and then (long jobs) stands still when it did not for so many pauses."""

COMPARED_PAUSES: Final = 3
"""So many of them are the window then in which there have to be fewer, or older ones."""

FREED_MS: Final = 50
"""Who gets the next message so soon after it settled one had one waiting."""

GROWTH_PART: Final = 10
"""A head gets older that is older by a tenth of the window; less is an accident."""

CATCH_UP_PART: Final = 50
"""Who gives back a fiftieth of what it has within the window catches up; less is too little."""

ENDED_MS: Final = 3000
"""A spell that paused for so long is over; so an answer is ``ok`` again within five seconds."""

STUCK_MS: Final = 30_000
"""Who holds messages and settles none of them for so long never acks; before that it is slow."""

UNSETTLED_MIN: Final = 50
"""Unsettled messages of one consumer from which on their age is looked at, whatever its window."""

READ_MS: Final = 3_600_000
"""Who was read within the last hour is meant to be read; else it lies there on purpose."""

LOOPS_MIN: Final = 10
"""Times in a row that a message comes back, with nothing settled, until that is a loop."""


class Spell:
    """Something that happens again and again, with pauses shorter than ``ENDED_MS``."""

    __slots__ = ("count", "last_ms", "since_ms", "total")

    def __init__(self) -> None:
        self.since_ms = 0
        self.last_ms = -ENDED_MS - 1
        self.count = 0
        """How often since it began."""
        self.total = 0
        """How often at all."""

    def note(self, count: int, now_ms: int) -> None:
        if not self.is_on(now_ms):
            self.since_ms, self.count = now_ms, 0
        self.last_ms = now_ms
        self.count += count
        self.total += count

    def is_on(self, now_ms: int) -> bool:
        """False when it never happened, or not lately."""
        return now_ms - self.last_ms <= ENDED_MS


class Point(msgspec.Struct, frozen=True, gc=False):
    """Where a reader stood at a moment."""

    at_ms: int
    age_ms: int
    """Of the oldest message it has not been given."""
    ready: int
    unacked: int = 0
    is_freed: bool = False
    """It moved because something was settled just then: a message had waited for that."""


class ProgressView(msgspec.Struct, frozen=True):
    """What the diagnosis is told."""

    at_ms: int = 0
    """When one looked."""
    age_ms: int = 0
    """Of the oldest message that waits."""
    is_behind: bool = False
    """That is older than it may be, gets older, and there are not fewer of them."""
    since_ms: int | None = None
    """Since when it is too old."""
    unread_ms: int | None = None
    """For how long nobody has read; 0 = somebody does, None = nobody ever did."""
    unsettled_ms: int = 0
    """For how long nothing was settled."""
    unacked_age_ms: int = 0
    """Of the oldest message that is not settled."""
    unacked_since_ms: int | None = None
    """Since when that is older than it may be; None = it is not."""
    is_unacked_less: bool = False
    """There are fewer of them than there were a moment ago: somebody catches up."""
    loops: int = 0
    """How often the same message came back in a row, with nothing settled; 0 = it does not."""
    loop_offset: int = -1
    loop_since_ms: int | None = None
    discarding_ms: int | None = None
    """Since when old messages make room for new ones; None = they do not."""
    discarded: int = 0
    discarded_by: str = ""
    """The setting of the topic that asks for that."""

    @property
    def was_read(self) -> bool:
        """Whether somebody is expected to read it."""
        return self.unread_ms is not None and self.unread_ms <= READ_MS


class Progress:
    """One reader's past."""

    __slots__ = (
        "_behind_since_ms",
        "_is_behind",
        "_loop_last_ms",
        "_loop_since_ms",
        "_points",
        "_unacked_since_ms",
        "discarded_by",
        "discards",
        "loop_offset",
        "loops",
        "made_ms",
        "point_ms",
        "read_ms",
        "settled_ms",
    )

    def __init__(self, now_ms: int) -> None:
        self.made_ms = now_ms
        self.read_ms: int | None = None
        """When somebody read last, or was there to read; None = never."""
        self.settled_ms = now_ms
        self.point_ms = now_ms
        """From then on ``moved`` wants to hear of it again."""
        self.loops = 0
        self.loop_offset = -1
        self._loop_since_ms = self._loop_last_ms = now_ms
        self.discards: Spell | None = None
        self.discarded_by = ""
        # Made when the head first moves late: most readers never are.
        self._points: deque[Point] | None = None
        self._behind_since_ms: int | None = None
        self._is_behind = False
        self._unacked_since_ms: int | None = None

    @property
    def is_late(self) -> bool:
        """True when its head was too old: that it has nothing left is to be told at once."""
        return self._behind_since_ms is not None

    def moved(
        self, now_ms: int, age_ms: int, ready: int, behind_ms: int, *, unacked: int = 0
    ) -> None:
        """The head moved, or everything was taken; to be told once ``point_ms`` is over."""
        self.point_ms = now_ms + POINT_EVERY_MS
        if age_ms <= behind_ms:
            self._behind_since_ms = None
        elif self._behind_since_ms is None:
            self._behind_since_ms = now_ms - (age_ms - behind_ms)
        if self._points is None:
            self._points = deque(maxlen=POINTS_MAX)
        is_freed = now_ms - self.settled_ms <= FREED_MS
        self._points.append(Point(now_ms, age_ms, ready, unacked, is_freed))

    def settled(self, now_ms: int) -> None:
        self.settled_ms = now_ms
        self.loops = 0

    def returned(self, offsets: Sequence[int], now_ms: int) -> None:
        """Messages went back to their places, to be delivered again."""
        if not self.loops or not (self.loop_offset in offsets or self._is_in_loop(now_ms)):
            self.loop_offset, self.loops = offsets[0], 1
            self._loop_since_ms = self._loop_last_ms = now_ms
        elif self.loop_offset in offsets:
            self.loops += 1
            self._loop_last_ms = now_ms

    def _is_in_loop(self, now_ms: int) -> bool:
        """False when the message did not come back as it used to: somebody keeps it, or is gone."""
        usual_ms = (self._loop_last_ms - self._loop_since_ms) // max(1, self.loops)
        return now_ms - self._loop_last_ms <= max(ENDED_MS, 2 * usual_ms)

    def _loops(self, now_ms: int) -> int:
        is_loop = self.loops >= LOOPS_MIN and self._is_in_loop(now_ms)
        return self.loops if is_loop else 0

    def discarded(self, messages: int, now_ms: int, setting: str = "length_max") -> None:
        self.discarded_by = setting
        if self.discards is None:
            self.discards = Spell()
        self.discards.note(messages, now_ms)

    def is_noteworthy(self, now_ms: int) -> bool:
        """True when something happens that a count of messages does not show."""
        return self._loops(now_ms) > 0 or (
            self.discards is not None and self.discards.is_on(now_ms)
        )

    def view(
        self,
        now_ms: int,
        *,
        age_ms: int,
        ready: int,
        unacked_age_ms: int,
        is_read: bool,
        behind_ms: int,
        unacked: int = 0,
    ) -> ProgressView:
        """What there is to say, with the figures of this moment."""
        self._judge(now_ms, age_ms, ready, behind_ms)
        loops = self._loops(now_ms)
        if unacked_age_ms < STUCK_MS:
            self._unacked_since_ms = None
        elif self._unacked_since_ms is None:
            self._unacked_since_ms = now_ms - (unacked_age_ms - STUCK_MS)
        if self._is_behind and self._behind_since_ms is None:
            # So it stays, however far its head moves on meanwhile.
            self._behind_since_ms = now_ms - (age_ms - behind_ms)
        unread_ms = None if self.read_ms is None else now_ms - self.read_ms
        discards = self.discards
        if discards is not None and not discards.is_on(now_ms):
            discards = None
        return ProgressView(
            at_ms=now_ms,
            age_ms=age_ms,
            is_behind=self._is_behind,
            since_ms=self._behind_since_ms if self._is_behind else None,
            unread_ms=0 if is_read else unread_ms,
            unsettled_ms=now_ms - self.settled_ms,
            unacked_age_ms=unacked_age_ms,
            unacked_since_ms=self._unacked_since_ms,
            is_unacked_less=self._is_less(now_ms, unacked, behind_ms),
            loops=loops,
            loop_offset=self.loop_offset,
            loop_since_ms=self._loop_since_ms if loops else None,
            discarding_ms=None if discards is None else discards.since_ms,
            discarded=0 if discards is None else discards.count,
            discarded_by=self.discarded_by,
        )

    def _is_less(self, now_ms: int, unacked: int, behind_ms: int) -> bool:
        recent = [each for each in self._points or () if now_ms - each.at_ms <= behind_ms]
        return bool(recent) and recent[0].unacked - unacked > recent[0].unacked // CATCH_UP_PART

    def _judge(self, now_ms: int, age_ms: int, ready: int, behind_ms: int) -> None:
        """Once behind it stays so until its head is young again, or there is less and less."""
        if age_ms <= behind_ms or not ready:
            self._is_behind = False
            return
        points = list(self._points or ())
        pause_ms = _usual_pause_ms(points)
        if STILL_PAUSES * pause_ms > behind_ms:
            self._is_behind = _is_behind_by_moves(points, pause_ms, now_ms, ready)
            return
        recent = [each for each in points if now_ms - each.at_ms <= behind_ms]
        if recent and now_ms - recent[0].at_ms >= POINT_EVERY_MS and ready < recent[0].ready:
            self._is_behind = False
            return
        before = [each for each in points if now_ms - each.at_ms >= behind_ms]
        if recent and not before:
            # It began to move a moment ago: what it was like before that is not known.
            before = recent[:1] if now_ms - recent[0].at_ms >= POINT_EVERY_MS else []
        # A head that did not move at all is older by all the time that went by.
        least_ms = behind_ms // GROWTH_PART
        self._is_behind |= not recent or (bool(before) and age_ms > before[-1].age_ms + least_ms)


def _usual_pause_ms(points: Sequence[Point]) -> int:
    """For how long its head stands still between two moves, with messages behind it, at most.

    What was so once was an accident: it counts what was so twice.
    """
    pairs = itertools.pairwise(points)
    pauses = sorted(
        [after.at_ms - before.at_ms for before, after in pairs if before.ready or after.is_freed]
    )
    return pauses[-2] if len(pauses) > 1 else 0


def _is_behind_by_moves(points: list[Point], pause_ms: int, now_ms: int, ready: int) -> bool:
    """Who works on each message for long moves seldom: compared is what it was like at its moves.

    In between the oldest message gets older by itself, and there are as many as before.
    """
    last = points[-1]
    if now_ms - last.at_ms > STILL_PAUSES * pause_ms:
        return True
    # As far as one remembers.
    window_ms = min(COMPARED_PAUSES * pause_ms, now_ms - points[0].at_ms)
    first = [each for each in points if now_ms - each.at_ms >= window_ms][-1]
    if ready < first.ready:
        return False
    return last.age_ms > first.age_ms + pause_ms // GROWTH_PART


class Unsettled:
    """For how long one consumer has messages and gives none of them back, as far as looks tell.

    Looks are at a list that moves, once a second, and at questions: nothing is noted per message.
    """

    __slots__ = ("_done", "_idle_ms", "_look_ms", "usual_ms")

    def __init__(self) -> None:
        self.usual_ms = 0
        """How long it took lately to give something back; the longest times count longest."""
        self._done = -1
        # Until then it had nothing, or gave something back; None = it had nothing.
        self._idle_ms: int | None = None
        self._look_ms: int | None = None

    def look(self, done: int, held: int, now_ms: int, settled_ms: int) -> int:
        """It gave back ``done`` in all its life and holds ``held``.

        ``settled_ms`` is when anybody of the subscription settled last: it did nothing after that.
        """
        if self._idle_ms is None or done != self._done:
            looked_ms = now_ms if self._look_ms is None else self._look_ms
            since_ms = min(now_ms, max(looked_ms, settled_ms))
            if self._idle_ms is not None:
                self.usual_ms = max(since_ms - self._idle_ms, self.usual_ms * 7 // 8)
            self._idle_ms, self._done = since_ms, done
        self._look_ms = now_ms
        unsettled_ms = now_ms - self._idle_ms
        if not held:
            self._idle_ms = None
        return unsettled_ms


# ---- host ---------------------------------------------------------------------------------------
# How long our threads were ready to run and had no CPU: the kernel counts it for each of them.


HOST_WINDOW_MS: Final = 5000
HOST_BUSY: Final = 0.2
"""Part of the window that a thread waited for a CPU, from which on the host is busy."""
HOST_POINTS_MAX: Final = 8
HOST_POINT_MS: Final = 900
"""Looks come every second or more often; the window has room for one in so long."""
THREADS_MAX: Final = 64


class HostView(msgspec.Struct, frozen=True):
    """The machine, as our threads see it."""

    share: float
    """Of the last seconds, in which the thread that waited most had no CPU."""
    since_ms: int


class RunDelay:
    """Told now and then how long each thread has waited in all; knows what that was lately."""

    __slots__ = ("_points", "since_ms")

    def __init__(self) -> None:
        # At which time each thread had waited how long, in milliseconds.
        self._points: deque[tuple[int, dict[int, float]]] = deque(maxlen=HOST_POINTS_MAX)
        self.since_ms: int | None = None
        """Since when the host is busy; None while it is not."""

    def note(self, waited_ms: dict[int, float], now_ms: int) -> None:
        """By thread, since each began."""
        if self._points and now_ms - self._points[-1][0] < HOST_POINT_MS:
            return
        self._points.append((now_ms, dict(list(waited_ms.items())[:THREADS_MAX])))
        if self.share() <= HOST_BUSY:
            self.since_ms = None
        elif self.since_ms is None:
            self.since_ms = now_ms

    def share(self) -> float:
        """Of the window that ends with the last look; 0 until one has gone by."""
        if len(self._points) < 2:
            return 0.0
        until_ms, after = self._points[-1]
        began = [each for each in self._points if until_ms - each[0] >= HOST_WINDOW_MS]
        if not began:
            return 0.0
        since_ms, before = began[-1]
        waited = [after[thread] - before[thread] for thread in after.keys() & before.keys()]
        return max(waited, default=0.0) / (until_ms - since_ms)

    def view(self) -> HostView | None:
        """None while the host is not busy, or nobody knows."""
        return None if self.since_ms is None else HostView(self.share(), self.since_ms)


# ---- troubles -----------------------------------------------------------------------------------
# Refusals and losses, each kind for each place once: who says no, since when, how often, to whom.


TROUBLES_MAX: Final = 256
"""Places where the same goes wrong at the same time; who comes later is counted. So ten thousand
publishers of what nobody wants hide no disk that refuses, and the first of them are found."""
PUBLISHERS_MAX: Final = 16
"""Who is concerned, by name; more are counted."""
COUNTED_MAX: Final = 1024
"""Publishers that are told apart when they are counted: each once, however often it is refused."""


class Trouble:
    """One place where publishes are refused or lost, or where dead letters arrive."""

    __slots__ = ("_others", "culprit", "publishers", "spell", "text", "via")

    def __init__(self, culprit: Culprit) -> None:
        self.culprit = culprit
        self.text = ""
        """What is said to publishers."""
        self.via: Culprit | None = None
        """What it passed last on its way there, if that has a name of its own."""
        self.spell = Spell()
        self.publishers: dict[str, str] = {}
        """Id -> name."""
        self._others: set[str] = set()

    def concerns(self, publisher: Culprit) -> None:
        if publisher.id in self.publishers:
            return
        if len(self.publishers) < PUBLISHERS_MAX:
            self.publishers[publisher.id] = str(publisher)
        elif len(self._others) < COUNTED_MAX:
            self._others.add(publisher.id)

    @property
    def publishers_left_out(self) -> int:
        return len(self._others)

    def begins_anew(self) -> None:
        self.publishers.clear()
        self._others.clear()


class Troubles:
    """What went wrong lately, by what it is and where."""

    __slots__ = ("_found", "_swept_ms", "dropped")

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Trouble]] = {}
        """By cause and id of the culprit."""
        self._swept_ms = -1
        self.dropped = 0
        """Times that a place was not noted because there were too many."""

    def note(
        self,
        cause: str,
        culprit: Culprit,
        messages: int,
        now_ms: int,
        *,
        text: str = "",
        publisher: Culprit | None = None,
        via: Culprit | None = None,
    ) -> None:
        places = self._found.get(cause)
        if places is None:
            places = self._found[cause] = {}
        trouble = places.get(culprit.id)
        if trouble is None:
            if not self._has_room(places, now_ms):
                self.dropped += 1
                return
            trouble = places[culprit.id] = Trouble(culprit)
        if not trouble.spell.is_on(now_ms):
            trouble.begins_anew()
        trouble.culprit = culprit  # which of several limits it is may change
        trouble.text = text
        trouble.via = via
        trouble.spell.note(messages, now_ms)
        if publisher is not None:
            trouble.concerns(publisher)

    def forget(self, cause: str, culprit_id: str) -> None:
        """It is over, before its time."""
        places = self._found.get(cause)
        if places is not None:
            places.pop(culprit_id, None)

    def now(self, now_ms: int) -> list[tuple[str, Trouble]]:
        """(cause, trouble) of those that go on."""
        return [
            (cause, trouble)
            for cause, places in self._found.items()
            for trouble in places.values()
            if trouble.spell.is_on(now_ms)
        ]

    def _has_room(self, places: dict[str, Trouble], now_ms: int) -> bool:
        """Those that are over make room; while all go on, one look in a millisecond is enough."""
        if len(places) < TROUBLES_MAX:
            return True
        if now_ms == self._swept_ms:
            return False
        self._swept_ms = now_ms
        for culprit_id in [at for at, each in places.items() if not each.spell.is_on(now_ms)]:
            del places[culprit_id]
        return len(places) < TROUBLES_MAX
