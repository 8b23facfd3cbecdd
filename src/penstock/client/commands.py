"""Requests as the client writes them: JSON headers, our language and version.

Not here: sending them (``network.py``), one coroutine per request (``calls.py``).
"""

from typing import Final

from penstock.wire.rocketmq.command import Command, Language
from penstock.wire.rocketmq.headers import Header, fields

CLIENT_VERSION: Final = 475
"""V5_3_1: new enough for everything used here; later ones are told to go away (1500) by a broker
that stops, where this one simply sees the connection close."""

CLIENT_LANGUAGE: Final = int(Language.PYTHON)


def make_command(
    code: int,
    header: Header | dict[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """A request; its opaque is filled in when it is sent."""
    ext = {} if header is None else fields(header) if isinstance(header, Header) else header
    return Command(int(code), ext, body, language=CLIENT_LANGUAGE, version=CLIENT_VERSION)
