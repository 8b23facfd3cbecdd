"""Topics that are to go and have dead to bury first (law 5).

Whoever deletes a queue in which thousands wait for their dead letters must not hold up everybody
else; and the catalog must not lose a queue before the disk has the letters of its dead. So such a
topic stays until all of them are buried, some in every turn (``dying.py``), and durable; it only
hands out nothing any more. After a crash in between it is there still, with those who were not
buried.

Who stops: the topic's subscriptions. What wakes it: the turns that its dead ask for, then the sync.
Invariants: a topic goes once. It does go: nothing is handed out, so nobody new can be refused but
those who were in flight.
Not here: what going means (``parts.py``), whose letters wait (``dead_letter.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.commit import Commits
    from penstock.engine.topic import Topic


class Leaving:
    """All of them."""

    def __init__(
        self,
        commits: Commits,
        has_unsafe_letters: Callable[[], bool],
        remove: Callable[[Topic, str], None],
    ) -> None:
        self._commits = commits
        self._has_unsafe_letters = has_unsafe_letters
        self._remove = remove
        # Bounded by the topics there are.
        self.causes: dict[Topic, str] = {}
        """Topics that are to go, and why; to be looked at only."""
        # Those without anybody to bury, until that is durable.
        self._buried: set[Topic] = set()

    def retire(self, topic: Topic, cause: str) -> None:
        """The topic goes: now if nobody is left to be buried, else as soon as that is so."""
        if topic in self.causes:
            return
        if not has_dying(topic) and not self._has_unsafe_letters():
            self._remove(topic, cause)
            return
        self.causes[topic] = cause
        topic.is_leaving = True
        for subscription in topic.subscriptions.values():
            subscription.is_leaving = True
        self.look()

    def look(self) -> None:
        """Somebody may have been buried."""
        for topic in list(self.causes):
            if topic.is_deleted:
                self._forget(topic)
            elif topic not in self._buried and not has_dying(topic):
                self._buried.add(topic)
                self._commits.after_durable(partial(self._go, topic))

    def _go(self, topic: Topic) -> None:
        """All letters so far are durable."""
        self._buried.discard(topic)
        if topic.is_deleted:
            self._forget(topic)
        elif not has_dying(topic) and topic in self.causes:
            self._remove(topic, self.causes.pop(topic))

    def _forget(self, topic: Topic) -> None:
        """Somebody did not wait."""
        self.causes.pop(topic, None)


def has_dying(topic: Topic) -> bool:
    """True while somebody waits to be buried."""
    return any(each.has_dying for each in topic.subscriptions.values())
