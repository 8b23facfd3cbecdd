"""Integers with a meaning: positions, offsets and ids.

``NewType`` costs nothing at run time and keeps mypy from mixing them up.

* ``LogPosition``: byte position in the one log, never reused, never changed (D12).
* ``QueueOffset``: counts *messages* of one queue; a batch record of N takes N offsets (D4).
* Topic, queue and subscription ids come from the catalog and are never reused (D17); ids from
  ``TRANSIENT_ID_MIN`` up belong to objects that do not survive a restart (D6).
"""

from typing import Final, NewType

LogPosition = NewType("LogPosition", int)
QueueOffset = NewType("QueueOffset", int)

TopicId = NewType("TopicId", int)
QueueId = NewType("QueueId", int)
SubscriptionId = NewType("SubscriptionId", int)

ConnectionId = NewType("ConnectionId", int)
ChannelId = NewType("ChannelId", int)
ConsumerId = NewType("ConsumerId", int)

TRANSIENT_ID_MIN: Final = 1 << 31
"""Ids of non-durable objects start here and are dropped with their records at restart (D6)."""

ID_MAX: Final = (1 << 32) - 1

UNASSIGNED_OFFSET: Final = QueueOffset((1 << 64) - 1)
"""Offset in the target list of a delayed record: a later release record assigns the real one."""


def is_transient_id(identifier: int) -> bool:
    """True for an id of an object that is not in the catalog."""
    return identifier >= TRANSIENT_ID_MIN


# ---- sizes --------------------------------------------------------------------------------------
# Numbers of bytes as people read them.


_STEPS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(count: int) -> str:
    """Bytes for people: 16 MiB, 1.5 GiB."""
    value = float(count)
    for step in _STEPS[:-1]:
        if value < 1024:
            return f"{value:.{0 if value == int(value) else 1}f} {step}"
        value /= 1024
    return f"{value:.1f} {_STEPS[-1]}"
