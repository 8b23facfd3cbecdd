"""Remoting frames: bytes in, commands out, and back.

    byte  0         4      5            8                8+h           4+length
          | length  | type | header h   | header (h)     | body        |
            u32       u8     u24          type 0: JSON, type 1: below

    type 1 (big-endian; a string of length 0 is null):
          | code i16 | language i8 | version i16 | opaque i32 | flag i32 |
          | remark length i32 | remark | ext length i32 | ext |
    ext, repeated: | key length i16 | key | value length i32 | value |

``length`` counts everything behind itself. Sheet: rocketmq.md 1.1-1.3.

Nothing is allocated for a length before it was compared with its limit (T12). Values of ``ext``
arrive as strings, numbers or booleans and leave as strings; nulls and nested values are dropped.

``decode`` and ``encode`` do all of it. For the commands that come once per message there are fast
paths behind them; each gives what the general way would give, or leaves the frame to it.

Not here: what the fields mean (``headers.py``).
"""

import re
from functools import lru_cache
from struct import Struct, error
from typing import Any, Final

import msgspec

from penstock.wire.frame_buffer import FRAME_BYTES_MAX, FrameBuffer, FrameTooLarge, FrameTooSmall
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    OUR_LANGUAGE,
    OUR_VERSION,
    Command,
    Language,
    Malformed,
    Serialization,
)
from penstock.wire.rocketmq.headers import (
    I32,
    SendAnswer,
    SendHeader,
    SendHeaderV2,
    fields,
    parse_send_header,
)

HEADER_BYTES_MAX: Final = 256 * 1024
"""A properties string of 32,767 bytes is up to six times as long where JSON escapes every byte; the
rest is for the other fields. RocketMQ itself has no limit."""
OPAQUE_SEARCH_BYTES: Final = 4 * 1024
"""Clients write ``opaque`` before ``extFields`` or right after it: a header that is too long to be
read is searched for it at both ends only."""
EXT_FIELDS_MAX: Final = 256
"""The largest request of the protocol has 20."""
BINARY_CODE_MAX: Final = 32767

_LENGTH: Final = Struct(">I")
_PREFIX: Final = Struct(">II")
_BINARY_HEAD: Final = Struct(">hbhiii")
_LENGTH_16: Final = Struct(">h")
_LENGTH_32: Final = Struct(">i")
_JSON: Final = int(Serialization.JSON)
_BINARY: Final = int(Serialization.BINARY)
_OPAQUE: Final = re.compile(rb'"opaque"\s*:\s*(-?\d{1,10})\b')
_ALL_TEXT: Final = frozenset((str,))
_LANGUAGES: Final = {language.name: int(language) for language in Language}
_LANGUAGE_NAMES: Final = {int(language): language.name for language in Language}

Scalar = str | int | float | bool | None


class _JsonHeader(msgspec.Struct, gc=False):
    code: I32
    opaque: I32 = 0
    flag: I32 = 0
    version: I32 = 0
    language: str | int | None = None
    remark: str | None = None
    ext: dict[str, Scalar] | None = msgspec.field(default=None, name="extFields")


class _JsonOut(msgspec.Struct, gc=False, omit_defaults=True):
    code: int
    language: str
    version: int
    opaque: int
    flag: int
    ext: dict[str, str] = msgspec.field(name="extFields")
    remark: str | None = None
    serialization: str = msgspec.field(name="serializeTypeCurrentRPC", default="")


_DECODE: Final = msgspec.json.Decoder(_JsonHeader).decode
_ENCODE: Final = msgspec.json.Encoder().encode


class RemotingFrames:
    """The bytes of one connection, cut into frames and read."""

    __slots__ = ("_broken", "_buffer")

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer = FrameBuffer(_LENGTH, frame_bytes_max=frame_bytes_max, least_bytes=4)
        self._broken: Malformed | None = None

    def __len__(self) -> int:
        """Bytes fed and not handed out yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take what the socket gave."""
        self._buffer.feed(data)

    def clear(self) -> None:
        """The peer is given up: what it sent is room for others."""
        self._buffer.clear()

    @property
    def announced_bytes(self) -> int:
        """Length of the next frame, as it says itself; 0 while that is not known."""
        head = self._buffer.peek(4)
        return int.from_bytes(head, "big") if len(head) == 4 else 0

    def begun(self, bytes_min: int) -> Command | None:
        """The head of an unfinished frame of ``bytes_min`` or more; None until it can be read.

        Its body is empty. Raises ``Malformed`` when the frame is worth nothing.
        """
        head = self._buffer.peek(8)
        if len(head) < 8:
            return None
        length, mark = _PREFIX.unpack(head)
        if length < bytes_min:
            return None
        size = mark & 0xFFFFFF
        if size > HEADER_BYTES_MAX:
            raise Malformed(f"header of {size} bytes, limit {HEADER_BYTES_MAX}")
        if len(self._buffer) < 8 + size:
            return None
        return decode(_LENGTH.pack(4 + size) + self._buffer.peek(8 + size)[4:])

    def frames(self, count_max: int = 1 << 30) -> list[bytes]:
        """Whole frames as they came, for ``parse_send`` and ``decode``."""
        try:
            return self._buffer.frames(count_max)
        except (FrameTooLarge, FrameTooSmall) as problem:
            raise Malformed(str(problem)) from None

    def commands(self, count_max: int = 1 << 30) -> list[Command]:
        """Every whole command so far.

        Raises ``Malformed`` when the next one cannot be read; commands before it are handed out
        first, by this call, and the error comes with the next one and with every later one.
        """
        if self._broken is not None:
            raise self._broken
        found: list[Command] = []
        for frame in self.frames(count_max):
            try:
                found.append(decode(frame))
            except Malformed as problem:
                self._broken = problem
                if found:
                    break
                raise
        return found


def decode(frame: bytes) -> Command:
    """The command in a whole frame, its length field included."""
    if len(frame) < 8:
        raise Malformed(f"frame of {len(frame)} bytes has no header mark")
    length, mark = _PREFIX.unpack_from(frame)
    header_bytes = mark & 0xFFFFFF
    if length != len(frame) - 4 or header_bytes > len(frame) - 8:
        raise Malformed(f"header of {header_bytes} bytes in a frame of {len(frame)}")
    kind = mark >> 24
    if header_bytes > HEADER_BYTES_MAX:
        raise _header_too_long(frame, header_bytes, kind)
    header = frame[8 : 8 + header_bytes]
    body = frame[8 + header_bytes :]
    if kind == _JSON:
        return _decode_json(header, body)
    if kind == _BINARY:
        return _decode_binary(header, body)
    raise Malformed(f"header serialization {kind} is unknown; 0 is JSON, 1 is binary")


def _header_too_long(frame: bytes, header_bytes: int, kind: int) -> Malformed:
    """The refusal of a header that is not read; with its opaque, if that is where it should be."""
    opaque: int | None = None
    if kind == _BINARY:
        opaque = int(_BINARY_HEAD.unpack_from(frame, 8)[3])
    elif kind == _JSON:
        end = 8 + header_bytes
        ends = frame[8 : 8 + OPAQUE_SEARCH_BYTES], frame[end - OPAQUE_SEARCH_BYTES : end]
        # Quotes inside of a JSON string are escaped: this is never part of a property.
        found = _OPAQUE.search(ends[0]) or _OPAQUE.search(ends[1])
        opaque = int(found[1]) if found else None
    return Malformed(
        f"the message is illegal: header of {header_bytes} bytes, limit {HEADER_BYTES_MAX}; put "
        "large values into the body, properties may have 32767 bytes",
        opaque=opaque,
        code=ResponseCode.MESSAGE_ILLEGAL,
        is_binary=kind == _BINARY,
    )


def _decode_json(header: bytes, body: bytes) -> Command:
    try:
        head = _DECODE(header)
    except (ValueError, RecursionError):
        head = _decode_odd_json(header)
    ext = head.ext
    if ext is None:
        ext = {}
    elif len(ext) > EXT_FIELDS_MAX:
        raise Malformed(f"{len(ext)} ext fields, limit {EXT_FIELDS_MAX}", opaque=head.opaque)
    return Command(
        head.code,
        _texts(ext),
        body,
        head.opaque,
        head.flag,
        head.remark,
        _language(head.language),
        head.version,
    )


def _decode_odd_json(header: bytes) -> _JsonHeader:
    """A header with what strict reading refuses: quoted numbers, nested values, broken UTF-8."""
    try:
        text = header.decode("utf-8", "replace")
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        ext = found.get("extFields")
        if isinstance(ext, dict):
            plain = {k: v for k, v in ext.items() if not isinstance(v, (dict, list))}
            found["extFields"] = plain
        return msgspec.convert(found, _JsonHeader, strict=False)
    except (ValueError, RecursionError) as problem:
        raise Malformed(f"JSON header cannot be read: {problem}") from None


def _texts(ext: dict[str, Any]) -> dict[str, str]:
    if set(map(type, ext.values())) <= _ALL_TEXT:
        return ext
    texts: dict[str, str] = {}
    for name, value in ext.items():
        if type(value) is str:
            texts[name] = value
        elif value is not None:
            texts[name] = _text(value)
    return texts


def _text(value: str | float | bool) -> str:
    """A number or boolean as Java would have written it into a string map."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63:
        return str(int(value))
    return str(value)


def _language(name: str | int | None) -> int:
    if isinstance(name, int):
        return name if name in _LANGUAGE_NAMES else Language.OTHER
    return _LANGUAGES.get(name or "JAVA", Language.OTHER)


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(header)
        at = _BINARY_HEAD.size
        remark = _string(header, at, remark_bytes)
        at += remark_bytes
        (ext_bytes,) = _LENGTH_32.unpack_from(header, at)
        at += 4
        if not 0 <= ext_bytes <= len(header) - at:
            raise Malformed(f"ext of {ext_bytes} bytes, {len(header) - at} left", opaque=opaque)
        ext = _binary_ext(header, at, at + ext_bytes, opaque)
    except error as problem:
        raise Malformed(f"binary header ends early: {problem}") from None
    language = language if language in _LANGUAGE_NAMES else Language.OTHER
    return Command(
        code, ext, body, opaque, flag, remark or None, language, version, Serialization.BINARY
    )


def _binary_ext(header: bytes, at: int, end: int, opaque: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    fields = 0
    # Slices past the end are short, never large: one check after each field is enough.
    while at < end:
        fields += 1
        if fields > EXT_FIELDS_MAX:
            raise Malformed(f"more than {EXT_FIELDS_MAX} ext fields", opaque=opaque)
        name_end = at + 2 + int.from_bytes(header[at : at + 2], "big")
        value_at = name_end + 4
        value_end = value_at + int.from_bytes(header[name_end:value_at], "big")
        if value_end > end:
            raise Malformed(f"ext fields run {value_end - end} bytes too far", opaque=opaque)
        if name_end > at + 2 and value_end > value_at:
            name = header[at + 2 : name_end].decode("utf-8", "replace")
            ext[name] = header[value_at:value_end].decode("utf-8", "replace")
        at = value_end
    return ext


def _string(header: bytes, at: int, size: int) -> str:
    if not 0 <= size <= len(header) - at:
        raise Malformed(f"string of {size} bytes in a binary header, {len(header) - at} left")
    return header[at : at + size].decode("utf-8", "replace")


def encode(command: Command) -> bytes:
    """The frame of a command, in its own serialization."""
    try:
        if command.serialization == _BINARY:
            header, kind = _encode_binary(command), _BINARY
        else:
            header, kind = _encode_json(command), _JSON
    except (error, UnicodeEncodeError) as problem:
        raise Malformed(f"command {command.code} does not fit its header: {problem}") from None
    body = command.body
    size = len(header)
    if size > 0xFFFFFF:
        raise Malformed(f"header of {size} bytes does not fit a frame")
    return b"".join((_PREFIX.pack(4 + size + len(body), kind << 24 | size), header, body))


def _encode_json(command: Command) -> bytes:
    return _ENCODE(
        _JsonOut(
            command.code,
            _LANGUAGE_NAMES.get(command.language, "OTHER"),
            command.version,
            command.opaque,
            command.flag,
            command.ext,
            command.remark,
            "JSON",
        )
    )


def _encode_binary(command: Command) -> bytes:
    if not -BINARY_CODE_MAX <= command.code <= BINARY_CODE_MAX:
        raise Malformed(f"code {command.code} does not fit a binary header; use JSON")
    remark = (command.remark or "").encode()
    pieces: list[bytes] = []
    for name, value in command.ext.items():
        if name and value:
            key, text = name.encode(), value.encode()
            pieces += (_LENGTH_16.pack(len(key)), key, _LENGTH_32.pack(len(text)), text)
    ext = b"".join(pieces)
    head = _BINARY_HEAD.pack(
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        len(remark),
    )
    return b"".join((head, remark, _LENGTH_32.pack(len(ext)), ext))


# ---- fast path of a broker: sends in, answers to sends and pulls out ----------------------------
# ``parse_send`` reads a JSON send in one pass, without a map of ``ext`` fields: 2.4 times as fast
# as ``decode`` and ``parse_send_header``. Whatever it does not understand (binary headers, nulls,
# odd types, other codes) is None and takes the general way, which also finds the words for what is
# wrong. Answers are byte templates, 3.5 times as fast as ``encode`` of a ``Command``; they read
# back as the same commands. Those that carry a remark for people are rare and go through
# ``encode``.


REGION: Final = b"DefaultRegion"

_HEAD: Final = (
    f'"language":"{OUR_LANGUAGE.name}","version":{OUR_VERSION},'
    '"serializeTypeCurrentRPC":"JSON","flag":1'
).encode()
_SEND_ANSWER: Final = (
    b'{"code":%d,' + _HEAD + b',"opaque":%d,"extFields":{"msgId":"%b%016X","queueId":"%d",'
    b'"queueOffset":"%d","transactionId":%b,"MSG_REGION":"' + REGION + b'","TRACE_ON":"true"}}'
)
_PULL_ANSWER: Final = (
    b'{"code":%d,' + _HEAD + b',"opaque":%d,"remark":%b,"extFields":{"suggestWhichBrokerId":"0",'
    b'"nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"}}'
)


class SendFrame(msgspec.Struct, gc=False):
    """A send as it came: what the answer needs, the header, the body."""

    code: I32
    header: SendHeader = msgspec.field(name="extFields")
    opaque: I32 = 0
    flag: I32 = 0
    version: I32 = 0
    body: bytes = b""
    """Filled in from behind the header; a field of that name in the JSON is overwritten."""
    serialization: int = 0

    @property
    def is_oneway(self) -> bool:
        """True when nobody waits for an answer."""
        return bool(self.flag & FLAG_ONEWAY)


class _SendFrameV2(SendFrame, gc=False):
    header: SendHeaderV2 = msgspec.field(name="extFields")


_V1: Final = msgspec.json.Decoder(SendFrame, strict=False).decode
_V2: Final = msgspec.json.Decoder(_SendFrameV2, strict=False).decode
_DECODERS: Final = {
    b'{"code":310': (_V2, int(RequestCode.SEND_MESSAGE_V2)),
    b'{"code":320': (_V2, int(RequestCode.SEND_BATCH_MESSAGE)),
    b'{"code":10,': (_V1, int(RequestCode.SEND_MESSAGE)),
}
"""By the first 11 bytes of the header: every known client writes the code first."""


def parse_send(frame: bytes) -> SendFrame | None:
    """The send in a whole frame, or None: then it is something else, or not plain."""
    found = _DECODERS.get(frame[8:19])
    if found is None:
        return None
    end = int.from_bytes(frame[4:8], "big") + 8
    if end > len(frame) or end > HEADER_BYTES_MAX + 8:
        return None
    decoder, code = found
    try:
        send = decoder(frame[8:end])
    except (ValueError, RecursionError):
        return None
    if send.code != code or send.serialization:
        return None
    send.body = frame[end:]
    return send


def send_of(command: Command) -> SendFrame:
    """The send in a command whose code says so, at leisure; ``Malformed`` names what is wrong."""
    return SendFrame(
        command.code,
        parse_send_header(command),
        command.opaque,
        command.flag,
        command.version,
        command.body,
        command.serialization,
    )


def send_answer(
    send: SendFrame,
    position: int,
    queue_offset: int,
    *,
    host_hex: bytes,
    queue_id: int,
    unique_key: bytes,
    code: int = 0,
    recall_handle: str | None = None,
) -> bytes:
    """The frame that answers a stored send; ``host_hex`` is ``message_id.host_hex(store_host)``."""
    if send.serialization or recall_handle is not None:
        answer = SendAnswer(
            msg_id=f"{host_hex.decode()}{position:016X}",
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=unique_key.decode("utf-8", "replace"),
            recall_handle=recall_handle,
            msg_region=REGION.decode(),
            trace_on=True,
        )
        kind = send.serialization
        return encode(
            Command(code, fields(answer), b"", send.opaque, FLAG_RESPONSE, serialization=kind)
        )
    # A unique key comes from the peer: only what cannot break out of the quotes is copied as it is.
    quoted = b'"%b"' % unique_key if unique_key.isalnum() else _quoted(unique_key)
    header = _SEND_ANSWER % (
        code, send.opaque, host_hex, position, queue_id, queue_offset, quoted
    )  # fmt: skip
    size = len(header)
    return _PREFIX.pack(4 + size, size) + header


def pull_answer_head(
    opaque: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    *,
    body_bytes: int = 0,
    code: int = 0,
    remark: str = "FOUND",
) -> bytes:
    """Everything of an answer to a pull but its body: the stored messages follow as they are."""
    header = _PULL_ANSWER % (
        code, opaque, _quoted_remark(remark), next_offset, min_offset, max_offset
    )  # fmt: skip
    size = len(header)
    return _PREFIX.pack(4 + size + body_bytes, size) + header


def _quoted(text: bytes) -> bytes:
    return msgspec.json.encode(text.decode("utf-8", "replace"))


@lru_cache(maxsize=64)
def _quoted_remark(remark: str) -> bytes:
    return msgspec.json.encode(remark)


# ---- fast path of a client: answers, read in one step -------------------------------------------
# Brokers write JSON headers with nothing but strings in ``extFields``; such a header becomes a
# ``Command`` without a map in between, 1.7 times as fast as ``decode``. Whatever else there is
# (binary headers, numbers, nulls, broken text) takes the general way. What comes out equals what
# ``decode`` gives, but for the language, which nobody needs of an answer.


class _JsonAnswer(Command, gc=False):
    """A command whose JSON fields have their wire names."""

    code: I32
    ext: dict[str, str] = msgspec.field(name="extFields", default_factory=dict)
    opaque: I32 = 0
    flag: I32 = 0
    remark: str | None = None
    version: I32 = 0
    # Names no header has: the body follows the header, the others are known.
    body: bytes = msgspec.field(name="-body", default=b"")
    language: int = msgspec.field(name="-language", default=0)
    serialization: int = msgspec.field(name="-serialization", default=0)


_DECODE_ANSWER: Final = msgspec.json.Decoder(_JsonAnswer).decode


def decode_answer(frame: bytes) -> Command:
    """The command in a whole frame; raises ``Malformed`` as ``decode`` does."""
    # With type 0 (JSON) the mark in bytes 4 to 7 is the length of the header.
    end = 8 + int.from_bytes(frame[4:8], "big")
    if end > len(frame) or end > 8 + HEADER_BYTES_MAX:
        return decode(frame)
    try:
        command = _DECODE_ANSWER(frame[8:end])
    except (ValueError, RecursionError):
        return decode(frame)
    if len(command.ext) > EXT_FIELDS_MAX:
        return decode(frame)
    command.body = frame[end:]
    return command
