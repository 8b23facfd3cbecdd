"""Under which keys a message can be looked up (QUERY_MESSAGE)."""

from typing import Final

from penstock.wire.rocketmq.properties import span_at

_KEYS: Final = b"KEYS\x01"
KEYS_MAX: Final = 32
"""Keys of one message that are indexed; the properties string could hold thousands."""


def keys_of(properties: bytes, unique_key: bytes) -> tuple[bytes, ...]:
    """The unique key and each of KEYS."""
    at = properties.rfind(_KEYS)
    if at < 0:
        return (unique_key,)
    at, size = span_at(properties, _KEYS, at)
    return (unique_key, *properties[at : at + size].split(None, KEYS_MAX)[:KEYS_MAX])
