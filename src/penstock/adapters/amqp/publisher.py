"""The way in: runs of publishes become the engine's, a list at a time.

Per run: its route (remembered by its head until the topology changes), the checks of what its
headers claim, one comprehension, one ``channel.publish``. What a run asks beyond that is rare and
leaves the fast way: CC and BCC, direct replies, a mandatory message on a route that looks into
headers, transactions.

    no exchange 404, internal 403 (channel)       immediate 540 (connection)
    user-id not the login 406, expiration 406     unroutable: dropped and confirmed at once,
    too large 406 (found by ``wire/amqp``)        mandatory: basic.return 312 before the confirm;
                                                  under an alarm held by the engine like others

What the engine refuses later (``refused``) is a nack in confirm mode. Without confirms a full queue
that rejects drops silently, as RabbitMQ does, and everything else closes the channel with the words
of the refusal: a publisher that was held too long learns the name of the queue (D23).

Invariant (law 6): a publish is either given to the engine once, or it has had all its answers here.
Not here: routes (``topology/router.py``), transactions (``transactions.py``), when something is
durable (``engine/commit.py``), the arithmetic of confirms (``flow/confirms.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from penstock.adapters.amqp.direct_reply import DirectReplyHandler, is_pseudo
from penstock.adapters.amqp.topology.router import ExchangeRoute, with_copies
from penstock.adapters.amqp.transactions import Transaction, TxPublish
from penstock.adapters.amqp.users import check_claims
from penstock.engine.ports import Publication
from penstock.flow.confirms import ConfirmLedger
from penstock.flow.reason import Culprit
from penstock.model.ids import UNASSIGNED_OFFSET
from penstock.model.record import Record
from penstock.model.refusal import Refusal, RefusalKind
from penstock.wire.amqp.codes import CLASS_BASIC, AmqpError, ReplyCode
from penstock.wire.amqp.methods.basic import Publish
from penstock.wire.amqp.methods.channel import TxCommit
from penstock.wire.amqp.origin import NO_CLAIMS, PublishHead
from penstock.wire.amqp.serializer import ack_frame, confirm_frames, return_frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.adapters.amqp.direct_reply import DirectReplyRegistry
    from penstock.adapters.amqp.ports import ChannelPort
    from penstock.adapters.amqp.transactions import TxBudget
    from penstock.engine.ports import Confirmation
    from penstock.wire.amqp.frames import PublishRun

PLAIN_TOKEN: Final = 0
"""What publishes are known by when nobody waits for an answer."""
NOWHERE: Final = ExchangeRoute((), 1)
"""The route of what no queue is there for, while an alarm holds it."""
NO_ROUTE: Final = "NO_ROUTE"
"""The whole text of a return."""
_SILENT: Final = frozenset((RefusalKind.LENGTH_LIMIT, RefusalKind.NO_ROUTE, RefusalKind.CLOSING))


class ChannelPublisher:
    """The publishing half of one channel: plain, or in confirm mode, or in a transaction.

    It routes runs of publishes and gives them to the engine, and answers for them: confirms,
    returns, or the end of the channel. A mode once selected stays. It stores nothing: what is not
    in a transaction is the engine's as soon as ``publish`` returns.
    """

    def __init__(
        self, channel: ChannelPort, direct_replies: DirectReplyRegistry, transactions: TxBudget
    ) -> None:
        self._channel: Final = channel
        self._direct_replies: Final = direct_replies
        self._transactions: Final = transactions
        self.confirms: Confirms | None = None
        """In confirm mode, after confirm.select."""
        self.tx: Transaction | None = None
        """In tx mode, after tx.select: publishes and settlements wait in it."""
        self.direct_reply: Final = DirectReplyHandler(channel, direct_replies)
        self.published = 0
        self.dropped = self.returned = 0
        """What no queue was there for, by what became of it."""
        self._unroutable: Final[dict[int, deque[tuple[PublishHead, Record]]]] = {}
        """What is to be dropped once no alarm holds it, by token; bounded as what the engine holds,
        which holds (and charges) the same records (F9)."""
        self._routes: Final = channel.vhost.routes

    # What the connection calls.

    def publish(self, run: PublishRun) -> None:
        """Publishes with one head, in order."""
        head, records = run.head, run.records
        route = self._routes.known(head)
        # Also for what the engine never sees: unroutable, or in a transaction.
        self._channel.connection.engine_connection.note_publisher()
        if route is None:
            route = self._routes.find(head)
        self.published += len(records)
        # A transaction keeps what it is given until the commit.
        send: Callable[[PublishHead, ExchangeRoute | None, list[Record]], object]
        send = self._send if self.tx is None else self.tx.hold_publish
        claims = run.claims
        if claims is not NO_CLAIMS:
            check_claims(claims, self._channel.connection.user)
            now_ms = self._channel.context.clock.wall_ms()
            if is_pseudo(claims.reply_to):
                records = self.direct_reply.addressed(head, records, now_ms)
            if claims.has_copies:
                for each in records:
                    record, keys = with_copies(head, each, now_ms)
                    send(head, self._routes.of_keys(head.exchange, keys), [record])
                return
        send(head, route, records)

    def select_confirms(self) -> None:
        """confirm.select; again and again is fine."""
        if self.tx is not None:
            raise _wrong_mode("cannot switch from tx to confirm mode")
        if self.confirms is None:
            self.confirms = Confirms(self._channel.number)

    def select_tx(self) -> None:
        """tx.select; again and again is fine."""
        if self.confirms is not None:
            raise _wrong_mode("cannot switch from confirm to tx mode")
        if self.tx is None:
            self.tx = Transaction(self._channel, self._transactions)

    def commit(self) -> None:
        """tx.commit; commit-ok leaves when everything is durable."""
        self._transaction().commit(self._send_held)

    def rollback(self) -> None:
        self._transaction().rollback()

    def close(self) -> None:
        """The channel ends; what the engine has goes on."""
        self.direct_reply.close()
        if self.tx is not None:
            self.tx.close()

    # What the engine says.

    def confirmed(self, confirmations: list[Confirmation]) -> None:
        """These are as safe as they asked to be."""
        if self.confirms is not None:
            self.confirms.acked([each.token for each in confirmations])
            self.send_confirms()
        elif self.tx is not None:
            tokens = [each.token for each in confirmations]
            for token in dict.fromkeys(tokens):
                if token < PLAIN_TOKEN:
                    self.tx.answered(token, tokens.count(token))

    def refused(self, refusals: Sequence[tuple[int, Refusal]]) -> None:
        if self._unroutable:
            refusals = self._drop_held(refusals)
            if not refusals:
                return
        if self.confirms is not None:
            self.confirms.nacked([token for token, _ in refusals])
            self.send_confirms()
        elif self.tx is not None and any(token < PLAIN_TOKEN for token, _ in refusals):
            self._channel.fail(self.tx.refused().about(0, TxCommit.class_id, TxCommit.method_id))
            return
        for token, refusal in refusals:
            # With confirms, only those from before the select have had no answer.
            if token == PLAIN_TOKEN and refusal.kind not in _SILENT:
                self._channel.fail(_close_for(refusal))
                return

    # On the way.

    def _send_held(self, held: TxPublish) -> int:
        return self._send(held.head, held.route, held.records)

    def _send(self, head: PublishHead, route: ExchangeRoute | None, records: list[Record]) -> int:
        """Give publishes to the engine; how many of them it will answer."""
        if self.confirms is not None:
            first = self.confirms.expect(len(records))
        else:
            first = PLAIN_TOKEN if self.tx is None else self.tx.token
        if route is None:
            self._reply(head, records, first)
            return 0
        if route.is_empty:
            self._drop(head, records, first)
            return 0
        if head.is_mandatory and not route.is_constant:
            return self._send_each(head, route, records, first)
        engine_channel = self._channel.engine_channel or self._channel.open_engine_channel()
        publications: list[Publication] = []
        token, step = first, 1 if first > 0 else 0
        for record in records:
            publications.append(Publication(record, (), UNASSIGNED_OFFSET, (), route, token))
            token += step
        engine_channel.publish(publications)
        return len(records)

    def _send_each(
        self, head: PublishHead, route: ExchangeRoute, records: list[Record], first: int
    ) -> int:
        """Mandatory ones on a route that must be asked for each."""
        sent: list[Publication] = []
        for number, record in enumerate(records):
            token = first + number if first > 0 else first
            if route.targets(record):
                sent.append(Publication(record, route=route, token=token))
            else:
                self._drop(head, [record], token)
        if sent:
            self._channel.open_engine_channel().publish(sent)
        return len(sent)

    def _reply(self, head: PublishHead, records: list[Record], first: int) -> None:
        vhost = self._channel.vhost.name
        consumer = self._direct_replies.find(head.routing_key, vhost)
        taken = 0 if consumer is None else consumer.deliver(records)
        if taken:
            self._ack(first, taken)
        if taken < len(records):
            self._drop(head, records[taken:], first + taken if first > 0 else first)

    def _drop(self, head: PublishHead, records: list[Record], first: int) -> None:
        """No queue for them: done with at once, or when no alarm holds publishers any more.

        Those of a transaction were held long enough: what comes back of them leaves before
        commit-ok.
        """
        if self.tx is not None or not self._channel.context.engine.alarms.is_raised:
            self._channel.context.engine.counters.published += len(records)
            self._drop_now(head, records)
            self._ack(first, len(records))
            return
        publications: list[Publication] = []
        for number, record in enumerate(records):
            token = first + number if first > 0 else first
            self._unroutable.setdefault(token, deque()).append((head, record))
            publications.append(Publication(record, route=NOWHERE, token=token, is_mandatory=True))
        self._channel.open_engine_channel().publish(publications)

    def _drop_held(self, refusals: Sequence[tuple[int, Refusal]]) -> Sequence[tuple[int, Refusal]]:
        """The alarm is over for what was held without a queue; the refusals of others."""
        others: list[tuple[int, Refusal]] = []
        for token, refusal in refusals:
            held = self._unroutable.get(token)
            if held and refusal.kind is RefusalKind.NO_ROUTE:
                head, record = held.popleft()
                self._drop_now(head, [record])
                self._ack(token, 1)
            else:
                others.append((token, refusal))
            if not held or token > PLAIN_TOKEN:
                self._unroutable.pop(token, None)
        return others

    def _drop_now(self, head: PublishHead, records: list[Record]) -> None:
        """They come back if they must not be lost, and are done with."""
        engine = self._channel.context.engine
        engine.counters.note_unroutable(len(records), is_returned=head.is_mandatory)
        if self._channel.is_open:
            now_ms = engine.clock.monotonic_ms()
            via = exchange_culprit(self._channel.vhost.name, head.exchange)
            self._channel.open_engine_channel().note_unroutable(len(records), now_ms, via)
        if not head.is_mandatory:
            self.dropped += len(records)
        else:
            self.returned += len(records)
            number, frame_max = self._channel.number, self._channel.connection.frame_max
            self._channel.send(
                b"".join(
                    [
                        return_frames(number, record, ReplyCode.NO_ROUTE, NO_ROUTE, frame_max)
                        for record in records
                    ]
                )
            )

    # Answers.

    def _ack(self, first: int, count: int) -> None:
        if self.confirms is not None and first > 0:
            self.confirms.acked(list(range(first, first + count)))
            self._channel.confirm_later()

    def send_confirms(self) -> None:
        """Send what is known of publishes; at the end of a turn, so that it is one answer."""
        if self.confirms is not None:
            frames = self.confirms.take()
            if frames:
                self._channel.send(frames)

    def _transaction(self) -> Transaction:
        if self.tx is None:
            raise _wrong_mode("channel is not transactional")
        return self.tx


def _wrong_mode(text: str) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, text)


def _close_for(refusal: Refusal) -> AmqpError:
    """What closes the channel for a refusal."""
    is_ours = refusal.kind is RefusalKind.SYNC_FAILED
    code = ReplyCode.INTERNAL_ERROR if is_ours else ReplyCode.PRECONDITION_FAILED
    # Most texts name whom to blame first; others do not.
    is_named = refusal.text.startswith(refusal.culprit)
    text = refusal.text if is_named else f"{refusal.culprit}: {refusal.text}"
    return AmqpError(code, text).about(0, CLASS_BASIC, Publish.method_id)


class Confirms:
    """Publisher confirms of one channel: what was stored, in as few frames as can say it.

    From confirm.select on, publishes are numbered from 1. An ack says "as safe as it was asked
    for": persistent ones are durable, transient ones stored, unroutable ones dropped (they have no
    queue to be lost from). A nack says "not stored": a full queue that rejects (others of a
    fan-out may have it), a hold that lasted too long, a disk that refused. What was answered in one
    turn leaves as one cumulative ack where that is true of all before it, and singly where it is
    not (sheet 3.6).

    Invariant: each publish is answered once; what was published before the select never is.
    Bound: the open ones are bounded by what the engine holds of the connection (F9).
    """

    __slots__ = ("_acked", "_ledger", "_nacked", "_number", "expect")

    def __init__(self, channel_number: int) -> None:
        self._number = channel_number
        self._ledger = ConfirmLedger()
        self.expect: Final = self._ledger.expect
        """So many publishes came in -> the number of the first."""
        self._acked: list[int] = []
        self._nacked: list[int] = []

    @property
    def outstanding(self) -> int:
        """Publishes whose answer was not sent yet."""
        return self._ledger.outstanding

    def acked(self, tokens: list[int]) -> None:
        """These are safe; number 0 is from before the select and nobody's business."""
        self._acked += tokens if 0 not in tokens else [each for each in tokens if each]

    def nacked(self, tokens: list[int]) -> None:
        self._nacked += [each for each in tokens if each]

    def take(self) -> bytes:
        """The frames that say it; empty when there is nothing to say."""
        if not self._acked and not self._nacked:
            return b""
        if not self._nacked:
            first, last = self._acked[0], self._acked[-1]
            is_run = self._acked == list(range(first, last + 1))
            if is_run and self._ledger.answer_next(first, last):
                self._acked = []
                return ack_frame(self._number, last, is_multiple=last > first)
        acked, self._acked = self._acked, []
        nacked, self._nacked = self._nacked, []
        verdicts = self._ledger.answer(acked, nacked)
        return confirm_frames(self._number, *verdicts.acks) + confirm_frames(
            self._number, *verdicts.nacks, is_ack=False
        )


def exchange_culprit(vhost: str, exchange: str) -> Culprit:
    """An exchange as what found no queue; its id is made as that of a topic."""
    name = f"exchange {exchange}" if exchange else "the default exchange"
    place = quote(exchange, safe="") + (f"@{quote(vhost, safe='')}" if vhost != "/" else "")
    return Culprit(name, f"exchange/{place}")
