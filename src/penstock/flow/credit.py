"""The chain: credit between stages, the stages themselves, and the gate before a socket (F1, F2).

``Credit`` says how far a sender may be ahead of its receiver; ``Stage`` is a node of the chain and
who holds it; ``Gate`` is the set of reasons not to read a connection. Credit first:

Who grants: the receiver, ``more`` after every ``more`` it has processed. Who spends: the sender,
one per message (or one per byte: the same class counts either). Who stops: the sender, when its
credit reaches zero; the send that crosses zero still happens, so a list is never split. What wakes
it: a grant that lifts the credit above zero.

The rule that carries pressure upstream: a receiver that is itself blocked *defers* its grants, and
sends them all when its own set of blockers is empty (``relieve``).

Invariants (law 1): available = initial - in flight - processed but not yet granted, so it never
exceeds ``initial``, and in flight never exceeds ``initial`` plus one list. Because 0 < more <=
initial, a receiver that has processed everything has always granted enough to make it positive
again: a credit alone cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.flow.episodes import Episodes, Journal
from penstock.flow.reason import Culprit, Reason
from penstock.model.errors import InvariantBroken
from penstock.model.names import object_id


class Credit:
    """One hop sender -> receiver."""

    __slots__ = (
        "_deferred",
        "_is_blocking",
        "_is_closed",
        "_owed",
        "available",
        "initial",
        "more",
        "receiver",
        "sender",
        "spent_total",
    )

    def __init__(self, sender: Stage, receiver: Stage, *, initial: int, more: int) -> None:
        _check(initial, more)
        self.sender = sender
        self.receiver = receiver
        self.initial = initial
        self.more = more
        self.available = initial
        self.spent_total = 0
        """Handed over since the hop exists; of two looks at it the rate of the hop is made."""
        # Processed since the last grant; and granted while the receiver was blocked.
        self._owed = 0
        self._deferred = 0
        self._is_blocking = False
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Sent and not yet processed."""
        return self.initial - self.available - self._owed - self._deferred

    @property
    def is_blocking(self) -> bool:
        """True while this credit holds its sender."""
        return self._is_blocking

    def spend(self, n: int = 1) -> None:
        """The sender hands over n; at zero or below it is blocked by the receiver from now on."""
        self.available -= n
        self.spent_total += n
        if self.available <= 0 and not self._is_blocking and not self._is_closed:
            self._is_blocking = True
            self.sender.block(self.receiver, self)

    def processed(self, n: int = 1) -> None:
        """The receiver finished n; grants what that makes due, or defers it while blocked."""
        owed = self._owed + n
        if owed < self.more:
            self._owed = owed
            return
        self._owed = owed % self.more
        self._deferred += owed - self._owed
        if self._is_closed:
            return
        if self.receiver.is_blocked:
            self.receiver.defer(self)
        elif self.flush():
            relieve(self.sender)

    def flush(self) -> bool:
        """Hand over what is due; True when that freed the sender (the caller then relieves it)."""
        self.available += self._deferred
        self._deferred = 0
        if self.available + self._owed > self.initial and not self._is_closed:
            raise InvariantBroken(
                f"{self.receiver.label} processed more than {self.sender.label} sent: "
                f"credit {self.available} of {self.initial}"
            )
        if not self._is_blocking or self.available <= 0:
            return False
        self._is_blocking = False
        return self.sender.released(self)

    def resize(self, *, initial: int, more: int) -> None:
        """Change both figures under way; what is in flight stays counted."""
        _check(initial, more)
        self.available += initial - self.initial
        self.initial = initial
        self.more = more
        # A smaller step may make owed processing due; a smaller initial may block at once.
        self.processed(0)
        self.spend(0)
        if self._is_blocking and self.available > 0:
            self._is_blocking = False
            self.sender.unblock(self.receiver, self)

    def close(self) -> None:
        """A side died: the sender is not held by this hop any more, and nothing is owed on it."""
        if self._is_closed:
            return
        self._is_closed = True
        self.receiver.forget(self)
        self._deferred = 0
        if self._is_blocking:
            self._is_blocking = False
            self.sender.unblock(self.receiver, self)


def _check(initial: int, more: int) -> None:
    if not 0 < more <= initial:
        raise ValueError(
            f"credit of {initial} given back {more} at a time: more must be between 1 and initial"
        )


# ---- stage --------------------------------------------------------------------------------------
# A stage: one node of the chain a message passes, and who holds it back (F1).
#
# Who grants: the next stage downstream, through a ``Credit``. Who spends: this stage, as sender.
# Who stops: this stage, while its set of blockers is not empty. What wakes it: the last blocker
# going away, which first hands on every grant this stage had deferred to its own senders (that
# alone carries pressure upstream and relief after it) and then calls ``wake``.
#
# Invariants: a blocker is in the set at most once per credit, so two credits between the same
# stages (messages and bytes) never release each other; relief travels upstream in a loop, not by
# recursion, so a long chain or a ring of stages cannot exhaust the stack.


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
        "id",
        "is_blocked",
        "kind",
        "label",
        "name",
        "wake",
    )

    def __init__(
        self, kind: str, name: str, journal: Journal | None = None, *, stage_id: str = ""
    ) -> None:
        self.kind = kind
        self.name = name
        self.id = stage_id or object_id(kind, name)
        self.label: str = Culprit(stage_label(kind, name), self.id)
        """What others call it when they say who holds them back."""
        self.wake: Callable[[], None] | None = None
        """Called when the last blocker went away; must only mark the owner as having work."""
        self._journal = journal if journal is not None else Journal()
        self.episodes: Episodes = self._journal.episodes(kind, name, self.id)
        # What holds it (a credit, or a stage when blocked by hand) -> the stage to be named.
        self._blocks: dict[object, Stage] = {}
        self.is_blocked = False
        """True while at least one blocker remains."""
        self._deferred: dict[Credit, None] = {}

    def __repr__(self) -> str:
        return f"<Stage {self.label}{' blocked' if self._blocks else ''}>"

    @property
    def blocked_by(self) -> set[Stage]:
        """The stages this one waits for."""
        return set(self._blocks.values())

    def block(self, by: Stage, via: object | None = None) -> None:
        """Wait for ``by``; ``via`` tells apart several holds of the same stage (its credits)."""
        if not self.is_blocked:
            self.is_blocked = True
            self.episodes.entered(Reason.FLOW, by.label, self._journal.now_ms)
        self._blocks[by if via is None else via] = by

    def unblock(self, by: Stage, via: object | None = None) -> None:
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

    def waits(self, stage: Stage) -> None:
        """It stands still for a moment, not for want of credit: noted, and nobody is held by it."""
        self.episodes.entered(Reason.FLOW, stage.label, self._journal.now_ms)

    def waited(self) -> None:
        self.episodes.left(Reason.FLOW, self._journal.now_ms)

    def defer(self, credit: Credit) -> None:
        """Remember a credit whose grant waits until this stage, its receiver, is free."""
        self._deferred[credit] = None

    def forget(self, credit: Credit) -> None:
        """A credit is closed: nothing is owed on it any more."""
        self._deferred.pop(credit, None)

    def take_deferred(self) -> list[Credit]:
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


# ---- gate ---------------------------------------------------------------------------------------
# The gate of a connection: a set of named reasons not to read from it (F2).
#
# Who closes: credit (flow), alarms (memory, disk), limits (rate, quota, pending, held, room), each
# under its own name and with the culprit to blame. Who stops: the connection's reader, at a message
# boundary. What wakes it: the last reason being taken away, never a boolean that somebody forgot to
# reset.
#
# Invariants (law 7): a reason is in the set at most once however often it is closed, and opened
# exactly once per episode, also by ``clear`` when the peer dies. Not here: *whether* an alarm
# concerns this connection (only those that publish; the engine decides).


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
