"""The consume hook of message trace: two records for each message a listener was called with."""

import os
import time
from collections.abc import Sequence
from typing import Final

from penstock.client.consumer.results import Finished, ResultKind
from penstock.client.message import ReceivedMessage
from penstock.client.trace import Trace
from penstock.client.trace_records import ConsumeOutcome, consumed, consuming
from penstock.model.assignment import QueueRef

OUTCOMES: Final = {
    ResultKind.SUCCESS: ConsumeOutcome.SUCCESS,
    ResultKind.TIME_OUT: ConsumeOutcome.TIME_OUT,
    ResultKind.EXCEPTION: ConsumeOutcome.EXCEPTION,
    ResultKind.LATER: ConsumeOutcome.LATER,
}


class ConsumeTrace:
    """Records every call of a listener: what it got, and how it ended."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def before(self, group: str, queue: QueueRef, messages: Sequence[ReceivedMessage]) -> object:
        """One record per message; returns the request id."""
        request_id = os.urandom(16).hex().upper()
        at_ms = time.time_ns() // 1_000_000
        self._trace.record(
            *[
                consuming(
                    at_ms=at_ms,
                    group=group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=" ".join(message.keys),
                )
                for message in self._traced(messages)
            ]
        )
        return request_id

    def after(self, group: str, queue: QueueRef, finished: Finished, context: object) -> None:
        """One record per message, with the request id of ``before``."""
        outcome = OUTCOMES[finished.kind]
        cost_ms = int(finished.spent_ms / max(len(finished.messages), 1))
        at_ms = time.time_ns() // 1_000_000
        self._trace.record(
            *[
                consumed(
                    at_ms=at_ms,
                    group=group,
                    request_id=str(context),
                    message_id=message.message_id,
                    cost_ms=cost_ms,
                    keys=" ".join(message.keys),
                    outcome=outcome,
                )
                for message in self._traced(finished.messages)
            ]
        )

    def _traced(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        return [
            each
            for each in messages
            if each.topic != self._trace.topic and each.property_value("TRACE_ON") != "false"
        ]
