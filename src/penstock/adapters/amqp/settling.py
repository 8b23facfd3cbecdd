"""basic.ack, nack, reject and recover: what becomes of messages that a channel holds.

Tags become pieces of the ledger (``unacked.py``), pieces of one queue become one list of offsets,
and each list one verb of its subscription: settled, back to its place (flagged as redelivered;
counted in quorum queues), or refused for good (dead letter). In a transaction pieces wait for
tx.commit; a rollback puts them back into the ledger.

A tag that is not unsettled is an error of the channel (406); what came before it in the same run of
acks is settled, as if each had come by itself.
Not here: transactions (``tx.py``), dead letters (``burial.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp.unacked import Run, unknown_tag
from penstock.wire.amqp.basic_methods import (
    Ack,
    Nack,
    Recover,
    RecoverAsync,
    RecoverOk,
    Reject,
)
from penstock.wire.amqp.codes import CLASS_BASIC, AmqpError, ReplyCode

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState
    from penstock.adapters.amqp.consumers import Holder
    from penstock.engine.subscription import Subscription
    from penstock.model.position import QueueId
    from penstock.wire.amqp.content import AckRun


class Verdict(Enum):
    """What a client says of messages it was given."""

    DONE = "done"
    BACK = "back"
    REFUSED = "refused"


def acks(channel: ChannelState, run: AckRun) -> None:
    """Acks, in the order they came."""
    unacked = channel.consuming.unacked
    take = unacked.take_multiples if run.is_multiple else unacked.take_each
    pieces, unknown = take(run.tags)
    if pieces:
        decide(channel, pieces, Verdict.DONE)
    if unknown is not None:
        raise unknown_tag(unknown).about(channel.number, CLASS_BASIC, Ack.method_id)


def nack(channel: ChannelState, method: Nack) -> None:
    """basic.nack."""
    pieces = channel.consuming.unacked.take(method.delivery_tag, is_multiple=method.is_multiple)
    decide(channel, pieces, Verdict.BACK if method.is_requeue else Verdict.REFUSED)


def reject(channel: ChannelState, method: Reject) -> None:
    """basic.reject."""
    pieces = channel.consuming.unacked.take(method.delivery_tag, is_multiple=False)
    decide(channel, pieces, Verdict.BACK if method.is_requeue else Verdict.REFUSED)


def recover(channel: ChannelState, method: Recover) -> None:
    """basic.recover: everything unsettled goes back."""
    _recover(channel, is_requeue=method.is_requeue)
    channel.answer(RecoverOk())


def recover_async(channel: ChannelState, method: RecoverAsync) -> None:
    """The same without an answer."""
    _recover(channel, is_requeue=method.is_requeue)


def _recover(channel: ChannelState, *, is_requeue: bool) -> None:
    if not is_requeue:
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
    carry_out(channel, channel.consuming.unacked.take_all(), Verdict.BACK)


def decide(channel: ChannelState, pieces: list[Run], verdict: Verdict) -> None:
    """Carry it out now, or at the commit."""
    tx = channel.publishing.tx
    if tx is None:
        carry_out(channel, pieces, verdict)
    else:
        tx.hold_ack(
            partial(carry_out, channel, pieces, verdict),
            partial(channel.consuming.unacked.put_back, pieces),
        )


def carry_out(channel: ChannelState, pieces: list[Run], verdict: Verdict) -> None:
    """One verb of the engine for all messages of a queue."""
    for (subscription, queue_id), (offsets, holder) in grouped(pieces).items():
        if subscription.is_closed:
            continue  # the queue is gone, and with it what was to be settled
        if verdict is Verdict.DONE:
            subscription.settle(queue_id, offsets)
            channel.consuming.tally.ack += len(offsets)
            holder.queue.tally.ack += len(offsets)
        elif verdict is Verdict.BACK:
            subscription.requeue(queue_id, offsets, count=holder.is_counted)
        else:
            subscription.reject(queue_id, offsets)
    channel.consuming.tidy()


def grouped(
    pieces: list[Run],
) -> dict[tuple[Subscription, QueueId], tuple[list[int], Holder]]:
    """The offsets of these pieces by queue, and one of those who held them there."""
    found: dict[tuple[Subscription, QueueId], tuple[list[int], Holder]] = {}
    for piece in pieces:
        holder = piece.holder
        key = (holder.subscription, piece.queue_id)
        known = found.get(key)
        if known is None:
            # A copy: a run may go on in its list.
            found[key] = (list(piece.settled_offsets), holder)
        else:
            known[0].extend(piece.settled_offsets)
    return found


COMMANDS: Final[dict[type[Any], Callable[[ChannelState, Any], None]]] = {
    Nack: nack,
    Reject: reject,
    Recover: recover,
    RecoverAsync: recover_async,
}
