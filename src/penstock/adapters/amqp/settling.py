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

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from itertools import groupby
from operator import itemgetter, lt
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp.unacked import Run, singles, unknown_tag
from penstock.wire.amqp.codes import CLASS_BASIC, AmqpError, ReplyCode
from penstock.wire.amqp.methods.basic import Ack, Nack, Recover, RecoverAsync, RecoverOk, Reject

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState
    from penstock.adapters.amqp.consumers import Holder
    from penstock.engine.subscription.subscription import Subscription
    from penstock.model.ids import QueueId
    from penstock.wire.amqp.frames import AckRun, SettleRun


class Verdict(Enum):
    """What a client says of messages it was given."""

    DONE = "done"
    BACK = "back"
    REFUSED = "refused"


_DONE: Final = Verdict.DONE
"""The rule; a member of an enumeration is slow to find by its name."""
VERDICTS: Final = {
    Ack.method_id: Verdict.DONE,
    Nack.method_id: Verdict.REFUSED,
    Nack.method_id + 1: Verdict.BACK,
    Reject.method_id: Verdict.REFUSED,
    Reject.method_id + 1: Verdict.BACK,
}
"""By the words of a ``SettleRun``."""


def acks(channel: ChannelState, run: AckRun) -> None:
    """Acks, in the order they came."""
    unacked = channel.consuming.unacked
    take = unacked.take_multiples if run.is_multiple else unacked.take_each
    pieces, unknown = take(run.tags)
    if pieces:
        decide(channel, pieces, _DONE)
    if unknown is not None:
        raise unknown_tag(unknown).about(channel.number, CLASS_BASIC, Ack.method_id)


def settle(channel: ChannelState, run: SettleRun) -> None:
    """Words about single messages, one verdict at a time: they do not touch each other's.

    Only who comes back and who is refused, of one queue that counts, may die beside each other:
    those stay in the order in which they were named, and so do all that are refused.
    """
    pieces, unknown = channel.consuming.unacked.take_each(run.tags)
    count = sum([piece.tags for piece in pieces])
    words = run.words[:count]
    if words and words.count(words[0]) == count:
        decide(channel, _as_named(pieces, run.tags, words[0]), VERDICTS[words[0]])
    elif words:
        for verdict, part in _parted(singles(pieces, run.tags[:count]), words):
            decide(channel, part, verdict)
    if unknown is not None:
        raise unknown_tag(unknown).about(channel.number, CLASS_BASIC, run.words[count] & ~1)


def _as_named(pieces: list[Run], tags: list[int], word: int) -> list[Run]:
    """Pieces in the order of these tags, where that may be told: dead letters are in order."""
    is_told = VERDICTS[word] is Verdict.REFUSED or any(each.holder.is_counted for each in pieces)
    if not is_told or all(map(lt, tags, tags[1:])):
        return pieces
    return singles(pieces, tags[: sum([piece.tags for piece in pieces])])


def _parted(pieces: list[Run], words: bytes) -> Iterable[tuple[Verdict, list[Run]]]:
    """Pieces of one tag each, and what is said of them."""
    verdicts = [VERDICTS[word] for word in words]
    parts: dict[Verdict, list[Run]] = {}
    for verdict, piece in zip(verdicts, pieces, strict=True):
        parts.setdefault(verdict, []).append(piece)
    done = parts.pop(Verdict.DONE, None)
    if done is not None:
        yield Verdict.DONE, done
    if len(parts) < 2 or not any(each.holder.is_counted for each in pieces):
        yield from parts.items()
        return
    rest = [each for each in zip(verdicts, pieces, strict=True) if each[0] is not Verdict.DONE]
    for verdict, part in groupby(rest, itemgetter(0)):
        yield verdict, [piece for _, piece in part]


def nack(channel: ChannelState, method: Nack) -> None:
    """basic.nack that came by itself: for all up to a tag, mostly."""
    pieces = channel.consuming.unacked.take(method.delivery_tag, is_multiple=method.is_multiple)
    decide(channel, pieces, Verdict.BACK if method.is_requeue else Verdict.REFUSED)


def reject(channel: ChannelState, method: Reject) -> None:
    """basic.reject that came by itself."""
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
    consuming = channel.consuming
    for holder, queue_id, offsets in grouped(pieces):
        subscription = holder.subscription
        if subscription.is_closed:
            continue  # the queue is gone, and with it what was to be settled
        if verdict is _DONE:
            subscription.settle(queue_id, offsets)
            consuming.tally.ack += len(offsets)
            holder.queue.tally.ack += len(offsets)
        elif verdict is Verdict.BACK:
            subscription.requeue(queue_id, offsets, count=holder.is_counted)
        else:
            subscription.reject(queue_id, offsets)
    if consuming.lingering:
        consuming.tidy()


def grouped(pieces: list[Run]) -> Iterable[tuple[Holder, QueueId, list[int]]]:
    """The offsets of these pieces by queue, and one of those who held them there."""
    if len(pieces) == 1:
        piece = pieces[0]
        return ((piece.holder, piece.queue_id, piece.settled_offsets),)
    found: dict[tuple[Subscription, QueueId], tuple[Holder, QueueId, list[int]]] = {}
    for piece in pieces:
        holder, queue_id = piece.holder, piece.queue_id
        known = found.get((holder.subscription, queue_id))
        if known is None:
            # A copy: it may grow here, and its list is the piece's.
            offsets = list(piece.settled_offsets)
            found[holder.subscription, queue_id] = (holder, queue_id, offsets)
        else:
            known[2].extend(piece.settled_offsets)
    return found.values()


COMMANDS: Final[dict[type[Any], Callable[[ChannelState, Any], None]]] = {
    Nack: nack,
    Reject: reject,
    Recover: recover,
    RecoverAsync: recover_async,
}
