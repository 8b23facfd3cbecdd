"""The send hook of message trace: a record for each message sent and each transaction ended."""

import itertools
import time
from typing import Final

from penstock.client.producer.hooks import EndContext, SendContext, SendHook
from penstock.client.producer.transaction_state import TransactionState
from penstock.client.trace import Trace
from penstock.client.trace_records import TracedKind, published, transaction_ended

STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}


class SendTrace(SendHook):
    """Records every send and every end of a transaction."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def after(self, context: SendContext) -> None:
        """One record per message of the send; oneway sends leave none, nobody knows their end."""
        if context.is_oneway or context.messages[0].topic == self._trace.topic:
            return
        result = context.result
        cost_ms = context.cost_ms // len(context.messages)
        offset_ids = result.offset_message_id.split(",") if result is not None else []
        records = [
            published(
                at_ms=context.born_ms,
                group=context.group,
                topic=message.topic,
                message_id=unique_key,
                tag=message.tag or "",
                keys=" ".join(message.keys),
                store_host=context.address,
                body_bytes=len(message.body),
                cost_ms=cost_ms,
                kind=TracedKind(context.kind.value),
                offset_message_id=offset_id,
                is_ok=result is not None,
            )
            for message, unique_key, offset_id in itertools.zip_longest(
                context.messages, context.unique_keys, offset_ids[: len(context.messages)],
                fillvalue="",
            )
            if not isinstance(message, str)
        ]  # fmt: skip
        self._trace.record(*records)

    def transaction_ended(self, context: EndContext) -> None:
        """One record."""
        record = transaction_ended(
            at_ms=time.time_ns() // 1_000_000,
            group=context.group,
            topic=context.topic,
            message_id=context.message_id,
            tag=context.tag,
            keys=context.keys,
            store_host=context.address,
            transaction_id=context.transaction_id,
            state=STATES[context.state],
            is_from_check=context.is_from_check,
        )
        self._trace.record(record)
