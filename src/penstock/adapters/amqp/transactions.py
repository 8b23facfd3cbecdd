"""Transactions of one channel: publishes and settlements wait for tx.commit.

Settlements go to the engine together with the publishes, so that a transaction which fits a turn is
one frame of the log: all of it survives a crash, or nothing (D5). One that does not fit is stored
in several, and then its settlements follow when the last publish is durable: a crash in between
means that messages are delivered again, never that one is lost.

commit-ok leaves when everything is durable. A publish that is refused at the commit (a full queue
that rejects, a disk that does not take it) makes the channel fail, because part of it is done:
``PRECONDITION_FAILED - partial tx completion``, RabbitMQ's words. A rollback forgets; what the
consumers had stays with them, unsettled. ``expiration`` counts from the commit.

Bound: what waits has room in the pool (``TxBudget``), a connection at most its share of it
(``flow.connection_bytes_max``); what does not fit is refused with 406, and the channel with it.
Not here: what a publish is checked for (``publisher.py``), settling (``consumer.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.engine.publish_batch import PUBLICATION_BYTES
from penstock.flow.budgets import BytesPool
from penstock.model.ids import ConnectionId
from penstock.model.record import Record
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.channel import (
    TxCommitOk,
)
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.origin import PublishHead

if TYPE_CHECKING:
    from penstock.adapters.amqp.ports import ChannelPort
    from penstock.adapters.amqp.topology.router import ExchangeRoute

ACK_BYTES: Final = 512
"""What a settlement that waits weighs: two closures and a piece of the ledger."""
POOL_PART: Final = 4
"""Transactions get one of so many parts of the publishers' pool."""


class Transaction:
    """What a channel after tx.select holds back, and the commits whose end it awaits."""

    __slots__ = ("_acks", "_budget", "_bytes", "_channel", "_commits", "_publishes", "_serial")

    def __init__(self, channel: ChannelPort, budget: TxBudget) -> None:
        self._channel: Final = channel
        self._budget: Final = budget
        self._bytes = 0
        self._publishes: list[TxPublish] = []
        self._acks: list[TxAck] = []
        # A client that does not await commit-ok can have several; what they hold is the engine's.
        self._commits: dict[int, _Commit] = {}
        self._serial = 0

    @property
    def token(self) -> int:
        """What the publishes of the running commit are known by: below 0, so no confirm's."""
        return -self._serial

    @property
    def held(self) -> tuple[int, int]:
        """Publishes and settlements that wait, for people."""
        return sum(len(each.records) for each in self._publishes), len(self._acks)

    def hold_publish(
        self, head: PublishHead, route: ExchangeRoute | None, records: list[Record]
    ) -> None:
        self._charge(sum([len(each.origin) for each in records]) + PUBLICATION_BYTES * len(records))
        now_ms = self._channel.context.clock.wall_ms()
        self._publishes.append(TxPublish(head, route, records, now_ms))

    def hold_ack(self, apply: Callable[[], None], undo: Callable[[], None] = lambda: None) -> None:
        """A settlement came in: done at the commit, undone by a rollback."""
        self._charge(ACK_BYTES)
        self._acks.append(TxAck(apply, undo))

    def rollback(self) -> None:
        """Forget what waits; the settlements are undone, the newest first."""
        acks, self._acks = self._acks, []
        self._publishes.clear()
        self._release()
        for ack in reversed(acks):
            ack.undo()

    def commit(self, publish: Callable[[TxPublish], int]) -> None:
        """Do what waits; ``publish`` says how many of the publishes the engine will answer."""
        publishes, self._publishes = self._publishes, []
        acks, self._acks = self._acks, []
        self._release()
        self._serial += 1
        now_ms = self._channel.context.clock.wall_ms()
        for held in publishes:
            held.begin_life(now_ms)
        fits = self._fits(publishes)
        open_publishes = sum([publish(held) for held in publishes])
        # Behind the publishes: what comes back of them leaves before commit-ok.
        commit = _Commit(self._channel.answer_later(), acks, open_publishes)
        self._commits[self._serial] = commit
        if fits:
            self._settle(commit)
        if not commit.open:
            self._finish(self._serial)

    def answered(self, token: int, count: int) -> None:
        """The engine has stored publishes of the commit with this token."""
        commit = self._commits.get(-token)
        if commit is not None:
            commit.open -= count
            if not commit.open:
                self._finish(-token)

    def refused(self) -> AmqpError:
        """The engine did not take a publish of a commit: the channel's end."""
        self.close()
        return AmqpError(ReplyCode.PRECONDITION_FAILED, "partial tx completion")

    def close(self) -> None:
        """The channel ends: what waits is forgotten, nobody hears of its commits."""
        self._publishes.clear()
        self._acks.clear()
        self._release()
        commits, self._commits = self._commits, {}
        for commit in commits.values():
            commit.answer(None)

    def _charge(self, size: int) -> None:
        if not self._budget.take(self._channel.connection.connection_id, size):
            text = f"transaction of {self._bytes + size} bytes: no room for it before its commit"
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
        self._bytes += size

    def _release(self) -> None:
        size, self._bytes = self._bytes, 0
        self._budget.give(self._channel.connection.connection_id, size)

    def _fits(self, publishes: list[TxPublish]) -> bool:
        """True when the engine takes all of it in its next turn."""
        flow = self._channel.context.all_settings.flow
        steps = sum(
            len(each.records) * each.route.steps for each in publishes if each.route is not None
        )
        size = sum(len(record.origin) for each in publishes for record in each.records)
        return (
            self._channel.connection.engine_connection.gate.is_open
            and steps <= flow.turn_channel_messages_max
            and size <= flow.turn_bytes_max // 2
        )

    def _settle(self, commit: _Commit) -> None:
        acks, commit.acks = commit.acks, []
        for ack in acks:
            ack.apply()

    def _finish(self, serial: int) -> None:
        """Every publish is stored: what is left to do is waited for, and then it is done."""
        self._settle(self._commits[serial])

        def say() -> None:
            commit = self._commits.pop(serial, None)
            if commit is not None:
                commit.answer(TxCommitOk())

        self._channel.context.engine.after_durable(say)


class TxPublish(NamedTuple):
    """Publishes that wait for the commit, checked and with their way known."""

    head: PublishHead
    route: ExchangeRoute | None
    """None = a direct reply."""
    records: list[Record]
    arrived_ms: int
    """Wall time."""

    def begin_life(self, now_ms: int) -> None:
        """Published by the commit: a time to live counts from there."""
        waited_ms = now_ms - self.arrived_ms
        for record in self.records if waited_ms > 0 else ():
            if record.expire_ms:
                record.reshape(expire_ms=record.expire_ms + waited_ms)


class TxAck(NamedTuple):
    """Settlements that wait for the commit."""

    apply: Callable[[], None]
    undo: Callable[[], None]


class _Commit:
    """A commit whose end is awaited."""

    __slots__ = ("acks", "answer", "open")

    def __init__(
        self, answer: Callable[[Method | None], None], acks: list[TxAck], publishes: int
    ) -> None:
        self.answer = answer
        self.acks = acks
        """Those that wait for the publishes."""
        self.open = publishes
        """Publishes that the engine has not answered."""


class TxBudget:
    """Room for what the open transactions of a broker hold until their commit.

    Who spends: a channel in tx mode, for every publish and settlement that waits. Who grants: its
    commit, rollback or end. Who stops: nobody waits here; a transaction that does not fit is
    refused, since reading on is the only way to its commit. What wakes it: nothing has to.

    All transactions together have at most a quarter of the publishers' pool, so that those who keep
    theirs open for hours do not stop anybody else; one connection has at most its byte share.
    """

    def __init__(self, pool: BytesPool, connection_bytes_max: int) -> None:
        self._pool: Final = pool
        self._share: Final = pool.share("transactions", pool.bytes_max // POOL_PART)
        self._connection_bytes_max: Final = connection_bytes_max
        # Bounded by the number of connections: who holds nothing is not in it.
        self._held: Final[dict[ConnectionId, int]] = {}

    @property
    def bytes(self) -> int:
        return self._share.used

    def take(self, connection: ConnectionId, size_bytes: int) -> bool:
        """Hold more; False when it does not fit, then nothing is held."""
        held = self._held.get(connection, 0) + size_bytes
        if held > self._connection_bytes_max or not self._fits(size_bytes):
            return False
        self._pool.take(self._share, size_bytes)
        self._held[connection] = held
        return True

    def give(self, connection: ConnectionId, size_bytes: int) -> None:
        if size_bytes:
            self._pool.give(self._share, size_bytes)
            self._held[connection] -= size_bytes
            if not self._held[connection]:
                del self._held[connection]

    def _fits(self, size_bytes: int) -> bool:
        is_within = self._share.used + size_bytes <= self._share.bytes_max
        # Asked first: a share that was refused would stand in line for what it does not want.
        return is_within and self._pool.can_take(self._share, size_bytes)
