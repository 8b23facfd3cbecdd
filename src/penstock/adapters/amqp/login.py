"""What a client says to prove who it is: PLAIN and AMQPLAIN, read and nothing more.

    PLAIN      NUL user NUL password
    AMQPLAIN   a field table without its length: LOGIN, PASSWORD

Not here: whether it is true (``users.py``).
"""

from typing import NamedTuple

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import decode_entries


class Credentials(NamedTuple):
    """A name and a claim to it."""

    user: str
    password: str


def credentials(mechanism: str, response: bytes) -> Credentials | None:
    """What the response says; None when it says nothing, 503 for a mechanism we do not have."""
    if mechanism == "PLAIN":
        parts = response.decode("utf-8", "surrogateescape").split("\0")
        return Credentials(parts[1], parts[2]) if len(parts) == 3 else None
    if mechanism == "AMQPLAIN":
        try:
            table = decode_entries(response, 0, len(response))
        except (AmqpError, IndexError):
            return None
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(user, str) and isinstance(password, str):
            return Credentials(user, password)
        return None
    text = f"unknown authentication mechanism '{mechanism}'"
    raise AmqpError(ReplyCode.COMMAND_INVALID, text)
