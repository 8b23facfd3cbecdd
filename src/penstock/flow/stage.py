"""A stage: one node of the chain a message passes, and who holds it back (F1).

Who grants: the next stage downstream, through a ``Credit``. Who spends: this stage, as sender.
Who stops: this stage, while its set of blockers is not empty. What wakes it: the last blocker going
away, which first hands on every grant this stage had deferred to its own senders (that alone
carries pressure upstream and relief after it) and then calls ``wake``.

Invariants: a blocker is in the set at most once per credit, so two credits between the same stages
(messages and bytes) never release each other; relief travels upstream in a loop, not by recursion,
so a long chain or a ring of stages cannot exhaust the stack.
Not here: how much may be in flight (``credit``), whether a socket is read (``gate``).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.flow.episodes import Episodes
from penstock.flow.journal import Journal
from penstock.flow.reason import Reason

if TYPE_CHECKING:
    from penstock.flow.credit import Credit


def stage_label(kind: str, name: str) -> str:
    """How others name a stage; the one log is called "log", not "log log"."""
    return name if name == kind else f"{kind} {name}"


class Stage:
    """One node of the chain: a connection, channel, queue, log, subscription or consumer."""

    __slots__ = (
        "_blocks",
        "_deferred",
        "_journal",
        "episodes",
        "is_blocked",
        "kind",
        "label",
        "name",
        "wake",
    )

    def __init__(self, kind: str, name: str, journal: Journal | None = None) -> None:
        self.kind = kind
        self.name = name
        self.label = stage_label(kind, name)
        """What others call it when they say who holds them back."""
        self.wake: Callable[[], None] | None = None
        """Called when the last blocker went away; must only mark the owner as having work."""
        self._journal = journal if journal is not None else Journal()
        self.episodes: Episodes = self._journal.episodes(kind, name)
        # What holds it (a credit, or a stage when blocked by hand) -> the stage to be named.
        self._blocks: dict[object, Stage] = {}
        self.is_blocked = False
        """True while at least one blocker remains."""
        self._deferred: dict[Credit, None] = {}

    def __repr__(self) -> str:
        return f"<Stage {self.label}{' blocked' if self._blocks else ''}>"

    @property
    def blocked_by(self) -> set["Stage"]:
        """The stages this one waits for."""
        return set(self._blocks.values())

    def block(self, by: "Stage", via: object | None = None) -> None:
        """Wait for ``by``; ``via`` tells apart several holds of the same stage (its credits)."""
        if not self.is_blocked:
            self.is_blocked = True
            self.episodes.entered(Reason.FLOW, by.label, self._journal.now_ms)
        self._blocks[by if via is None else via] = by

    def unblock(self, by: "Stage", via: object | None = None) -> None:
        """``by`` no longer holds this stage; the last one to go sends relief upstream."""
        if self.released(by if via is None else via):
            relieve(self)

    def released(self, hold: object) -> bool:
        """Remove one hold; True when it was the last (then the caller owes a ``relieve``)."""
        if self._blocks.pop(hold, None) is None or self._blocks:
            return False
        self.is_blocked = False
        self.episodes.left(Reason.FLOW, self._journal.now_ms)
        return True

    def waits(self, stage: "Stage") -> None:
        """It stands still for a moment, not for want of credit: noted, and nobody is held by it."""
        self.episodes.entered(Reason.FLOW, stage.label, self._journal.now_ms)

    def waited(self) -> None:
        """That moment is over."""
        self.episodes.left(Reason.FLOW, self._journal.now_ms)

    def defer(self, credit: "Credit") -> None:
        """Remember a credit whose grant waits until this stage, its receiver, is free."""
        self._deferred[credit] = None

    def forget(self, credit: "Credit") -> None:
        """A credit is closed: nothing is owed on it any more."""
        self._deferred.pop(credit, None)

    def take_deferred(self) -> list["Credit"]:
        """The credits waiting for this stage; they are its own business from now on."""
        deferred = list(self._deferred)
        self._deferred.clear()
        return deferred

    def close(self) -> None:
        """The stage is gone: end its episodes (its credits are closed by their owners)."""
        self._blocks.clear()
        self.is_blocked = False
        self._deferred.clear()
        self.wake = None
        self.episodes.close(self._journal.now_ms)


def relieve(first: Stage) -> None:
    """Flush the deferred grants of an unblocked stage and of every sender that this unblocks."""
    ready = [first]
    while ready:
        stage = ready.pop()
        # A wake function may have spent again and blocked it: then its next release comes here.
        if stage.is_blocked:
            continue
        ready.extend(credit.sender for credit in stage.take_deferred() if credit.flush())
        if stage.wake is not None:
            stage.wake()
