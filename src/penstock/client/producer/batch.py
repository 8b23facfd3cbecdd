"""Several messages in one request: what may be one batch, and how to make batches of a long list.

The messages of a batch share topic and ``wait_store_ok``, go to one queue, and are stored as
messages of their own. They cannot be delayed, and do not go to retry topics. A batch counts against
``message_bytes_max`` as a whole; ``split_batch`` makes lists that fit.

Not here: the header (``encoding.py``), the layout (``wire/rocketmq/stored.py``).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.client.errors import InvalidMessage
from penstock.client.message import RETRY_PREFIX, Message
from penstock.client.producer.property_text import properties_of
from penstock.wire.rocketmq.stored import BATCH_MESSAGES_MAX, BatchItem, join_batch

ITEM_BYTES: Final = 22
"""What the layout adds to body and properties of a message."""

_SAMPLE_KEY: Final = "0" * 32
"""As long as the unique key of a version 4 address; those of version 6 are 24 longer."""

_KEY_SLACK_BYTES: Final = 24


def check_batch(messages: Sequence[Message], bytes_max: int) -> None:
    """Raise ``InvalidMessage`` unless these (each checked by itself) may be one batch."""
    if not messages:
        raise InvalidMessage("a batch needs at least one message")
    if len(messages) > BATCH_MESSAGES_MAX:
        raise InvalidMessage(
            f"a batch of {len(messages)} messages, limit {BATCH_MESSAGES_MAX}; use split_batch"
        )
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise InvalidMessage(f"a batch cannot go to a retry topic ({first.topic!r})")
    for each in messages:
        if each.topic != first.topic:
            raise InvalidMessage(
                f"a batch has one topic, not {first.topic!r} and {each.topic!r}; use split_batch"
            )
        if each.wait_store_ok != first.wait_store_ok:
            raise InvalidMessage("the messages of a batch share wait_store_ok; use split_batch")
        if each.delay_level or each.delay_ms or each.deliver_at_ms:
            raise InvalidMessage("messages of a batch cannot be delayed; send them one by one")
        if each.ordering_key != first.ordering_key:
            raise InvalidMessage(
                "a batch goes to one queue, so its messages share their ordering_key; use"
                " split_batch"
            )
    size = sum(map(item_bytes, messages))
    if size > bytes_max:
        raise InvalidMessage(
            f"a batch of {len(messages)} messages has up to {size} bytes, limit {bytes_max}"
            f" (message_bytes_max); use split_batch"
        )


def split_batch(
    messages: Iterable[Message], *, bytes_max: int = 4 * 1024 * 1024, messages_max: int = 1024
) -> Iterator[list[Message]]:
    """Lists that may be sent as batches, in order; each as long as its messages go together.

    A message that is too large or delayed comes alone: send it by itself, or see it refused.
    """
    batch: list[Message] = []
    kind: tuple[object, ...] = ()
    size = 0
    for each in messages:
        each_kind, each_bytes = _kind(each), item_bytes(each)
        is_full = len(batch) >= messages_max or size + each_bytes > bytes_max
        if batch and (is_full or each_kind != kind or _is_alone(each)):
            yield batch
            batch, size = [], 0
        batch.append(each)
        kind = each_kind
        size += each_bytes
        if _is_alone(each):
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def item_bytes(message: Message) -> int:
    """What a message takes in a batch, at most."""
    text = properties_of(message, _SAMPLE_KEY)
    size = len(text) if text.isascii() else len(text.encode())
    return ITEM_BYTES + len(message.body) + size + _KEY_SLACK_BYTES


def batch_body(messages: Sequence[Message], unique_keys: Sequence[str]) -> bytes:
    """The body that carries them."""
    return join_batch(
        [
            BatchItem(each.body, properties_of(each, key).encode(), each.flag)
            for each, key in zip(messages, unique_keys, strict=True)
        ]
    )


def _kind(message: Message) -> tuple[object, ...]:
    return message.topic, message.wait_store_ok, message.ordering_key


def _is_alone(message: Message) -> bool:
    is_delayed = message.delay_level or message.delay_ms or message.deliver_at_ms
    return bool(is_delayed) or message.topic.startswith(RETRY_PREFIX)
