"""A transactional RocketMQ producer on a ``RocketmqBench``: half messages, decisions, questions.

producer = BenchProducer.on(bench)
answer = producer.send_half(b"body")
producer.end(answer, COMMIT)
"""

from __future__ import annotations

from typing import Any

from penstock.testing.rocketmq_bench import BenchClient, RocketmqBench
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.message_id import parse_offset_message_id

GROUP = "producers"
COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"


class BenchProducer(BenchClient):
    """One producer, and a member of its group."""

    @classmethod
    def on(cls, bench: RocketmqBench, group: str = GROUP) -> BenchProducer:
        """A new connection that has sent its first heartbeat."""
        producer = cls(bench, int(bench.client().session.connection_id) + 1000)
        producer.join_producers(group)
        return producer

    def send_half(self, body: bytes = b"half", **properties: Any) -> Command:
        """A half message for ``orders``."""
        answer = self.send("orders", body, TRAN_MSG="true", PGROUP=GROUP, **properties)
        assert answer.code == 0, answer.remark
        return answer

    def ending(self, answer: Command, decision: str, **changes: str) -> dict[str, str]:
        """What ends the transaction of this send."""
        return {
            "producerGroup": GROUP,
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": str(position_of(answer)),
            "commitOrRollback": decision,
            "fromTransactionCheck": "false",
            "msgId": answer.ext["transactionId"],
            **changes,
        }

    def end(self, answer: Command, decision: str, **changes: str) -> Command:
        """END_TRANSACTION."""
        return self.ask(RequestCode.END_TRANSACTION, self.ending(answer, decision, **changes))

    @property
    def checks(self) -> list[Command]:
        """The questions so far."""
        return [each for each in self.told if each.code == RequestCode.CHECK_TRANSACTION_STATE]

    def live(self, ms: int, heartbeat_ms: int = 30_000) -> None:
        """Let time pass while it says every 30 s that it lives."""
        while ms > 0:
            self.join_producers()
            self._bench.advance(min(ms, heartbeat_ms))
            ms -= heartbeat_ms


def position_of(answer: Command) -> int:
    """The commitLogOffset in the id that a send was answered with."""
    return parse_offset_message_id(answer.ext["msgId"])[1]
