"""Answers to publishers: the one place from which confirms and refusals leave the engine (F4).

Collected while a turn or a sync is worked on, told at its end: one call per channel and kind, so
that a protocol can make one cumulative answer of a hundred. A channel whose peer is gone is told
nothing; what happened to its publishes is counted all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.ports import Confirmation, Publication
from penstock.engine.statistics import Counters
from penstock.model.refusal import Refusal, RefusalKind

if TYPE_CHECKING:
    from penstock.engine.connection import Channel
    from penstock.engine.parcel import Parcel


class Answers:
    """Confirms and refusals waiting for the end of a turn."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._confirmed: dict[Channel, list[Confirmation]] = {}
        self._refused: dict[Channel, list[tuple[int, Refusal]]] = {}

    def confirm(self, channel: Channel, publications: list[Publication]) -> None:
        """These are stored as well as they asked for."""
        self._counters.confirmed += len(publications)
        waiting = self._confirmed.get(channel)
        if waiting is None:
            self._confirmed[channel] = publications
        else:
            # Never into the first list: it belongs to a parcel.
            self._confirmed[channel] = waiting + publications

    def refuse(self, channel: Channel, publications: list[Publication], refusal: Refusal) -> None:
        """These are not stored and never will be."""
        refused = self._counters.refused
        refused[refusal.kind] = refused.get(refusal.kind, 0) + len(publications)
        self._refused.setdefault(channel, []).extend(
            [(publication.token, refusal) for publication in publications]
        )

    def unroutable(self, parcel: Parcel) -> None:
        """No queue wants it: confirmed at once, or refused if the publisher insists on one."""
        channel = parcel.channel
        channel.connection.refund(parcel.charge)
        mandatory = [each for each in parcel.publications if each.is_mandatory]
        optional = [each for each in parcel.publications if not each.is_mandatory]
        self._counters.unroutable += len(parcel.publications)
        if mandatory:
            text = "no queue is bound for this message and it is mandatory; nothing was stored"
            self.refuse(channel, mandatory, Refusal(RefusalKind.NO_ROUTE, "route", text))
        if optional:
            self.confirm(channel, optional)

    def say(self) -> None:
        """Tell the peers."""
        while self._refused or self._confirmed:
            if self._refused:
                self._say_refused()
            confirmed, self._confirmed = self._confirmed, {}
            for channel, confirmations in confirmed.items():
                if not channel.is_closed:
                    channel.connection.outlet.confirmed(channel, confirmations)

    def _say_refused(self) -> None:
        refused, self._refused = self._refused, {}
        for channel, refusals in refused.items():
            if not channel.is_closed:
                channel.connection.outlet.refused(channel, refusals)
