"""Short cuts for the commands a broker sees per message: sends in, answers to sends and pulls out.

``parse_send`` reads a JSON send in one pass, without the map of ``ext`` fields; whatever it does
not understand (binary headers, nulls, odd types, other codes) is None and takes the general road
(``frame.decode``), which also finds the words for what is wrong. Answers are byte templates; they
read back as the same commands that ``frame.encode`` would write.

Not here: answers that carry a remark for people; they are rare and go through ``frame.encode``.
"""

from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    OUR_LANGUAGE,
    OUR_VERSION,
    Command,
)
from penstock.wire.rocketmq.frame import HEADER_BYTES_MAX, decode, encode
from penstock.wire.rocketmq.headers import I32, fields
from penstock.wire.rocketmq.send_headers import (
    SendAnswer,
    SendHeader,
    SendHeaderV2,
    parse_send_header,
)

REGION: Final = b"DefaultRegion"

_PREFIX: Final = Struct(">II")
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


def send_of(frame: bytes) -> SendFrame:
    """The send in a frame whose code says so, at leisure; ``Malformed`` names what is wrong."""
    command = decode(frame)
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
) -> bytes:
    """The frame that answers a stored send; ``host_hex`` is ``message_id.host_hex(store_host)``."""
    if send.serialization:
        return _general_answer(send, position, queue_offset, host_hex, (queue_id, unique_key, code))
    # A unique key comes from the peer: only what cannot break out of the quotes is copied as it is.
    quoted = b'"%b"' % unique_key if unique_key.isalnum() else _quoted(unique_key)
    header = _SEND_ANSWER % (
        code, send.opaque, host_hex, position, queue_id, queue_offset, quoted
    )  # fmt: skip
    size = len(header)
    return _PREFIX.pack(4 + size, size) + header


def _general_answer(
    send: SendFrame,
    position: int,
    queue_offset: int,
    host_hex: bytes,
    rest: tuple[int, bytes, int],
) -> bytes:
    """The same for a peer that does not speak JSON."""
    queue_id, unique_key, code = rest
    answer = SendAnswer(
        msg_id=f"{host_hex.decode()}{position:016X}",
        queue_id=queue_id,
        queue_offset=queue_offset,
        transaction_id=unique_key.decode("utf-8", "replace"),
        msg_region=REGION.decode(),
        trace_on=True,
    )
    return encode(
        Command(
            code, fields(answer), b"", send.opaque, FLAG_RESPONSE, serialization=send.serialization
        )
    )


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
