"""One remoting command, request or response, whichever way its header was written.

Invariants: ``ext`` holds text only, whatever JSON types the peer used, and no nulls; a response
carries the opaque and the serialization of its request, because ali-ons reads JSON only.

Not here: the bytes (``frames.py``), what ``ext`` means for a code (``headers.py``).
"""

from enum import IntEnum
from typing import Final

import msgspec

from penstock.wire.rocketmq.codes import ResponseCode

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

OUR_VERSION: Final = 479
"""V5_3_3: at least 232 lets clients use SQL92, at least 413 is a 5.x broker."""


class Malformed(ValueError):
    """Bytes or values that the protocol cannot carry; the peer (or the caller) is at fault.

    ``opaque`` is known when the header could be read: then the refusal can be answered before the
    connection is closed. The only error that anything in this package raises.
    """

    def __init__(
        self,
        text: str,
        *,
        opaque: int | None = None,
        code: int = ResponseCode.SYSTEM_ERROR,
        is_binary: bool = False,
    ) -> None:
        super().__init__(text)
        self.opaque: Final = opaque
        self.code: Final = code
        """The response code of the refusal."""
        self.is_binary: Final = is_binary
        """The refusal is to be written as the request was."""


class Serialization(IntEnum):
    """How a header is written; byte 0 of the header mark."""

    JSON = 0
    BINARY = 1
    """RocketMQ calls it ``ROCKETMQ``."""


class Language(IntEnum):
    """What a peer says it is written in; JSON carries the name, binary the number."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


OUR_LANGUAGE: Final = Language.JAVA
"""What brokers have always said; some clients know few other names."""


class Command(msgspec.Struct, gc=False):
    """A request or a response."""

    code: int
    ext: dict[str, str] = {}
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: int = OUR_LANGUAGE
    version: int = OUR_VERSION
    serialization: int = Serialization.JSON

    @property
    def is_response(self) -> bool:
        """True when it answers a request of this side."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """True when nobody waits for an answer, so none may be sent."""
        return bool(self.flag & FLAG_ONEWAY)

    def __str__(self) -> str:
        """For the debug log: no payload."""
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = f" {self.remark[:80]!r}" if self.remark else ""
        return f"{kind} {self.code} #{self.opaque} {len(self.body)} B{remark}"


def response_to(
    request: Command,
    code: int,
    *,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
) -> Command:
    """An answer the peer can match and read."""
    return Command(
        code,
        {} if ext is None else ext,
        body,
        request.opaque,
        FLAG_RESPONSE,
        remark,
        serialization=request.serialization,
    )
