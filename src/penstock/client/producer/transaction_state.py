"""What a producer says of its transaction: the message exists, it never did, or ask me later."""

from enum import Enum


class TransactionState(Enum):
    """The values are those that the wire carries."""

    COMMIT = 8
    """The message is delivered."""
    ROLLBACK = 12
    """The message is dropped."""
    UNKNOWN = 0
    """Not known yet: the broker asks again (15 times by default, then it gives up)."""
