"""The credit of each hop, changed while messages are under way (F1).

    reader_channel   a connection may be ahead of each of its channels
    channel_queue    a channel may be ahead of each queue it publishes to
    queue_log        a queue may be ahead of the log's sync

A change holds for every credit there is and for all that are made later; what is in flight stays
counted. Lowering it may hold a sender at once, raising it frees one at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.model.errors import SettingsError

if TYPE_CHECKING:
    from penstock.engine.chain import Chain
    from penstock.engine.registry import Registry
    from penstock.flow.credit import Credit
    from penstock.settings.flow import FlowSettings

HOPS: Final = ("reader_channel", "channel_queue", "queue_log")


class HopCredit(msgspec.Struct, frozen=True):
    """How far a sender may be ahead, and how much is given back at a time."""

    credit: int
    more: int


def hop_credits(chain: Chain) -> dict[str, HopCredit]:
    """What is in force."""
    flow = chain.flow
    return {
        hop: HopCredit(getattr(flow, f"{hop}_credit"), getattr(flow, f"{hop}_more")) for hop in HOPS
    }


def set_hop_credit(chain: Chain, registry: Registry, hop: str, wanted: HopCredit) -> None:
    """Put another credit in force; raises ``SettingsError`` when it makes no sense."""
    if hop not in HOPS:
        raise SettingsError(f"there is no hop {hop!r}; use one of {', '.join(HOPS)}")
    chain.flow = _changed(chain.flow, hop, wanted)
    for credit in list(_credits(chain, registry, hop)):
        credit.resize(initial=wanted.credit, more=wanted.more)
    for connection in chain.connections.values():
        chain.mark(connection)
    chain.refresh_gates()
    chain.stir()


def _changed(flow: FlowSettings, hop: str, wanted: HopCredit) -> FlowSettings:
    """The settings with another credit; they check themselves that its two figures fit."""
    credit, more = wanted.credit, wanted.more
    if hop == "reader_channel":
        return replace(flow, reader_channel_credit=credit, reader_channel_more=more)
    if hop == "channel_queue":
        return replace(flow, channel_queue_credit=credit, channel_queue_more=more)
    return replace(flow, queue_log_credit=credit, queue_log_more=more)


def _credits(chain: Chain, registry: Registry, hop: str) -> Iterator[Credit]:
    if hop == "queue_log":
        for queue in registry.queues.values():
            yield queue.log_credit
        return
    for connection in chain.connections.values():
        for channel in connection.channels.values():
            if hop == "reader_channel":
                yield channel.credit
            else:
                yield from channel.queue_credits.values()
