"""When a send is tried again: how often, after which answers, within one deadline.

A send has one deadline for all its tries, permit and route included. A try that could not be
carried (no connection, no answer) is repeated with another broker; of the error codes only those
that another broker may not answer. Busy (code 2) is not among them: a broker under flow control
asks for fewer messages, and every try would be one more (``retry_on_busy`` says otherwise).

A message that must go to one queue (an ordering key, a selector, a queue given) is tried once:
there is no other broker for it, and a repetition could be stored behind its successors.

"Stored, but not as well as wanted" (flush or replica late) is a result, not an error. With
``retry_another_broker_when_not_store_ok`` it is tried again, and stays the result if nothing better
comes.

Pure. Not here: choosing the queue (``selection.py``), the tries themselves (``sending.py``).
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from penstock.client.errors import (
    Attempt,
    BrokerBusy,
    BrokerRefused,
    ClientError,
    SendFailed,
)
from penstock.wire.rocketmq.codes import ResponseCode

BUSY: Final = int(ResponseCode.SYSTEM_BUSY)

RETRIED_CODES: Final = frozenset(
    map(
        int,
        (
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.NO_PERMISSION,
            ResponseCode.NO_BUYER_ID,
            ResponseCode.NOT_IN_CURRENT_UNIT,
            ResponseCode.GO_AWAY,
        ),
    )
)
"""What another broker may well answer differently; the set of RocketMQ 5.x without busy."""

STALE_ROUTE_CODES: Final = frozenset(
    map(int, (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION, ResponseCode.GO_AWAY))
)
"""The broker no longer takes what the route says it takes: worth asking the name server."""

STORED_CODES: Final = frozenset(
    map(
        int,
        (
            ResponseCode.SUCCESS,
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            ResponseCode.SLAVE_NOT_AVAILABLE,
        ),
    )
)


class Verdict(Enum):
    """What becomes of a send after a try."""

    STORED = "stored"
    AGAIN = "again"
    FAILED = "failed"


class RetryRule:
    """The rule of one producer."""

    __slots__ = ("_codes", "_is_better_wanted", "_tries_max")

    def __init__(
        self, *, retries: int, retry_on_busy: bool = False, retry_when_not_store_ok: bool = False
    ) -> None:
        self._tries_max = 1 + retries
        self._codes = RETRIED_CODES | {BUSY} if retry_on_busy else RETRIED_CODES
        self._is_better_wanted = retry_when_not_store_ok

    def judge(self, code: int | None, *, tries: int, is_pinned: bool, left_ms: int) -> Verdict:
        """After the last of so many tries was answered with this code, or failed without one."""
        if code == 0:
            return Verdict.STORED
        is_again = not is_pinned and tries < self._tries_max and left_ms > 0
        if code is None:
            return Verdict.AGAIN if is_again else Verdict.FAILED
        if code in STORED_CODES:
            return Verdict.AGAIN if is_again and self._is_better_wanted else Verdict.STORED
        return Verdict.AGAIN if is_again and code in self._codes else Verdict.FAILED


def failure(topic: str, attempts: Sequence[Attempt], timeout_ms: int) -> SendFailed:
    """The error of a send whose last try failed; every try is told."""
    last = attempts[-1].error if attempts else None
    if isinstance(last, BrokerRefused) and last.code == BUSY:
        return BrokerBusy(attempts[-1].broker, last.remark, attempts)
    count = len(attempts)
    tries = "1 try" if count == 1 else f"{count} tries"
    told = "; ".join(f"{each.broker or 'no broker'} after {each.cost_ms} ms" for each in attempts)
    why = f": {last}" if last is not None else ""
    error = SendFailed(
        f"message for topic {topic!r} was not sent in {tries} within {timeout_ms} ms ({told}){why}",
        attempts,
    )
    if isinstance(last, ClientError):
        error.__cause__ = last
    return error
