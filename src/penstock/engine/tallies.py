"""Counters that adapters keep and everybody may see: shown, not copied.

An adapter counts in a dictionary of its own (label -> how often) and shows it here once, under a
name; whoever observes the broker reads it when asked. Counting costs what adding to a dictionary
costs, and the engine knows nothing of what is counted.

Invariant: names and the labels of one are bounded when they are read, whatever an adapter does.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

NAMES_MAX: Final = 100
LABELS_MAX: Final = 100
"""Labels of one name that are shown; adapters count by status or cause, never by peer."""


class Tally(NamedTuple):
    """One family of counters."""

    name: str
    """In snake case, with the protocol in front: ``rocketmq_pulls``."""
    text: str
    label: str
    """What the keys are: ``status``."""
    counts: Mapping[str, int]


class Tallies:
    """All that is shown."""

    __slots__ = ("_tallies",)

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}

    def show(self, name: str, text: str, label: str, counts: Mapping[str, int]) -> None:
        """Show a dictionary from now on; a second one of the name takes its place."""
        if name in self._tallies or len(self._tallies) < NAMES_MAX:
            self._tallies[name] = Tally(name, text, label, counts)

    def __iter__(self) -> Iterator[Tally]:
        for tally in list(self._tallies.values()):
            shown = dict(list(tally.counts.items())[:LABELS_MAX])
            yield tally._replace(counts=shown)
