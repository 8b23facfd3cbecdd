"""Settlements on their way into the log (D5).

Subscriptions say that they have something to save; just before the append they are asked for it,
so that one subscription costs one record per cause and turn, and a dead letter is in the same frame
as the settlement that removed its original. What the disk refused is kept and goes first next time.

Also here: which cursors changed since the last snapshot. Non-durable subscriptions are asked, too
(they must not pile up), but nothing of them is stored.
"""

from __future__ import annotations

from penstock.engine.chain import Chain
from penstock.engine.frame import Frame
from penstock.engine.host import Awaiting
from penstock.log.encode import Appending
from penstock.log.format import settlement_record
from penstock.model.ids import is_transient_id
from penstock.model.settlement import Settlement


class Settling:
    """Subscriptions with something to save."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.noted: dict[Awaiting, None] = {}
        self.again: list[Settlement] = []
        """Who wants a frame, and what the disk refused; to be looked at only."""
        self._changed: dict[tuple[int, int], None] = {}
        self.settlements = 0

    def note(self, subscription: Awaiting) -> None:
        """A subscription has something to save."""
        self.noted[subscription] = None
        self._chain.is_stirred = True

    def forget(self, subscription: Awaiting) -> None:
        """A subscription is gone: what it did not save yet is nobody's business any more."""
        self.noted.pop(subscription, None)
        gone = subscription.subscription_id
        self.again = [each for each in self.again if each.subscription_id != gone]
        self._changed = {key: None for key in self._changed if key[0] != gone}

    def put(self, frame: Frame) -> list[Settlement]:
        """Put everything there is to save into the frame; what was taken, for ``failed``."""
        if not (self.noted or self.again):
            return []
        taken, self.again = self.again, []
        noted, self.noted = self.noted, {}
        for subscription in noted:
            settlements = subscription.take_settlements()
            if not is_transient_id(subscription.subscription_id):
                taken += settlements
        for settlement in taken:
            frame.batch.append(Appending(settlement_record(settlement)))
        return taken

    def saved(self, taken: list[Settlement]) -> None:
        """The frame is written: remember what the next snapshot has to show."""
        self.settlements += len(taken)
        for settlement in taken:
            for part in settlement.queues:
                self._changed[settlement.subscription_id, part.queue_id] = None

    def replayed(self, settlement: Settlement) -> None:
        """Recovery applied it from the log: the next snapshot, which covers it, has to show it."""
        for part in settlement.queues:
            self._changed[settlement.subscription_id, part.queue_id] = None

    def failed(self, taken: list[Settlement]) -> None:
        """The frame was refused: the same goes into the next one."""
        self.again = taken + self.again

    def take_changed(self) -> list[tuple[int, int]]:
        """(subscription id, queue id) of the cursors that changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed)
