"""The last places of a table are for those who have made few of what is in it (law 5).

Queues, groups and Spark's queries are bounded in number, and whoever makes them without end would
lock out everybody else. So from a mark on only newcomers get a place: one maker can fill the table
up to its reserve, and the first queue, group or query of another client still fits.

A maker is an address; on this machine, where everybody has the same one, it is a connection (so
a local client that opens connections on and on gets further, bounded by what each may make).

Who grants: the owner of the table. Who spends: whoever makes something. Who stops: a maker of many,
while only the reserve is left. What wakes it: nobody waits, it is refused with a sentence; what is
deleted makes room.
"""

from typing import Final

NEWCOMER_MAKES_MAX: Final = 32
"""What a maker may have made, and still use the reserve: an application's queues, not a flood."""
MAKERS_MAX: Final = 10_000
"""Makers that are remembered; the longest unheard of is forgotten first."""


class Reserve:
    """Who made how many of one kind of thing since the broker started, and who may make more."""

    __slots__ = ("_made", "_percent")

    def __init__(self, percent: int) -> None:
        self._percent: Final = percent
        self._made: dict[str, int] = {}

    def refusal(self, maker: str, used: int, places_max: int, *, count: int = 1) -> str | None:
        """Why ``maker`` may not make so many more; None when it may.

        Without a maker it is the broker itself, or an operator, who may use every place.
        """
        reserved = places_max * self._percent // 100
        made = self._made.get(maker, 0)
        if not maker or used + count <= places_max - reserved or made < NEWCOMER_MAKES_MAX:
            return None
        return (
            f"{used} of {places_max} are there, and the last {reserved} are for clients that made "
            f"fewer than {NEWCOMER_MAKES_MAX} (topics.reserve_percent); {maker} made {made}: "
            "delete some first"
        )

    def made(self, maker: str, count: int = 1) -> None:
        """``maker`` has made so many more."""
        if not maker:
            return
        self._made[maker] = self._made.pop(maker, 0) + count
        if len(self._made) > MAKERS_MAX:
            del self._made[next(iter(self._made))]
