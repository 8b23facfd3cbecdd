"""Acknowledgements of popped messages, collected so that one request settles many.

Results come message by message; the broker takes the messages of one pop of one queue in one entry
of a batch (bit i = start offset + i), and many entries in one request. A broker without that
request (before 5.0.1) answers "not supported" once; then every message gets a request of its own.

Who spends: results of the listener. What bounds it: nothing is collected longer than one turn of
the event loop, and no more than the ``popThreshold`` of all queues can be waiting.

Invariants: a receipt is settled once; messages of different pops never share an entry, since their
receipts expire at different times.
Not here: sending it (``pop_settling.py``), the receipts themselves (``pop_receipts.py``).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.client.consumer.pop_receipts import real_topic
from penstock.wire.rocketmq.bodies import BATCH_ACK_BYTES_MAX, BatchAck, BatchAckBody
from penstock.wire.rocketmq.headers import AckHeader
from penstock.wire.rocketmq.pop_handle import REVIVE_ORDERLY, PopHandle

SPAN_MAX: Final = BATCH_ACK_BYTES_MAX * 8
"""Offsets that one entry can reach; a pop takes 32 messages, filters leave gaps."""

ENTRIES_MAX: Final = 256
"""Entries of one request."""

Receipt = tuple[str, PopHandle]
"""(subscribed topic, handle)."""

_EntryKey = tuple[str, str, int, int, int, int, int]


def single(topic: str, group: str, handle: PopHandle) -> AckHeader:
    """The request for one message."""
    return AckHeader(
        consumer_group=group,
        topic=real_topic(handle, topic, group),
        queue_id=handle.queue_id,
        extra_info=str(handle),
        offset=handle.offset,
    )


def batched(group: str, receipts: Iterable[Receipt]) -> Iterator[tuple[str, BatchAckBody]]:
    """(broker, request) for all receipts that can share requests."""
    bits: dict[_EntryKey, int] = {}
    heads: dict[_EntryKey, Receipt] = {}
    for topic, handle in receipts:
        key = (
            handle.broker_name, topic, handle.retry_flag, handle.queue_id,
            handle.start_offset, handle.pop_time, handle.revive_qid,
        )  # fmt: skip
        heads.setdefault(key, (topic, handle))
        bits[key] = bits.get(key, 0) | 1 << (handle.offset - handle.start_offset)
    entries: dict[str, list[BatchAck]] = {}
    for key, (topic, handle) in heads.items():
        entries.setdefault(handle.broker_name, []).append(_entry(group, topic, handle, bits[key]))
    for broker, acks in entries.items():
        for at in range(0, len(acks), ENTRIES_MAX):
            yield broker, BatchAckBody(broker_name=broker, acks=acks[at : at + ENTRIES_MAX])


def can_share(handle: PopHandle) -> bool:
    """False for receipts that need a request of their own: ordered ones, and far-off offsets."""
    return (
        handle.revive_qid != REVIVE_ORDERLY and 0 <= handle.offset - handle.start_offset < SPAN_MAX
    )


def _entry(group: str, topic: str, handle: PopHandle, bits: int) -> BatchAck:
    return BatchAck(
        consumer_group=group,
        topic=topic,
        retry=str(int(handle.retry_flag)),
        start_offset=handle.start_offset,
        queue_id=handle.queue_id,
        revive_queue_id=handle.revive_qid,
        pop_time=handle.pop_time,
        invisible_time=handle.invisible_time,
        bits=bits.to_bytes((bits.bit_length() + 7) // 8, "little"),
    )
