"""Neutral facts of a message, read out of the bytes its protocol sent (D15, D16).

``wire/<protocol>/facts.py`` makes them; other protocols' presenters, Spark and people read them.
Text only, except for the body, which is not here: it may have to be inflated, so it is asked for
separately and with a limit.
"""

import msgspec


class Facts(msgspec.Struct, gc=False, kw_only=True):
    """One message as every protocol can tell it; empty and 0 mean "none"."""

    key: str = ""
    tag: str = ""
    message_id: str = ""
    born_ms: int = 0
    expire_ms: int = 0
    deliver_ms: int = 0
    attempts: int = 0
    """Deliveries before this one, as far as the message itself says."""
    properties: dict[str, str] = {}
    """The user's own; what the protocol added is not among them."""
