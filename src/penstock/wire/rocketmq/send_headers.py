"""The header of a send: long names (V1), single letters (V2), and whichever a batch used.

Not here: reading it straight from a frame (``hot_frames.py``).
"""

from typing import Final

import msgspec

from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import I32, I64, Header, parse


class SendHeader(Header, gc=False, kw_only=True, rename="camel"):
    """SEND_MESSAGE; the attributes are those of every version."""

    producer_group: str
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: I32 = 4
    queue_id: I32
    """Below 0: the broker picks one."""
    sys_flag: I32 = 0
    born_timestamp: I64 = 0
    flag: I32 = 0
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False
    broker_name: str | None = None


class SendHeaderV2(SendHeader, gc=False, kw_only=True):
    """SEND_MESSAGE_V2: the same in letters."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c", default="")
    default_topic_queue_nums: I32 = msgspec.field(name="d", default=4)
    queue_id: I32 = msgspec.field(name="e")
    sys_flag: I32 = msgspec.field(name="f", default=0)
    born_timestamp: I64 = msgspec.field(name="g", default=0)
    flag: I32 = msgspec.field(name="h", default=0)
    properties: str = msgspec.field(name="i", default="")
    reconsume_times: I32 = msgspec.field(name="j", default=0)
    unit_mode: bool = msgspec.field(name="k", default=False)
    max_reconsume_times: I32 | None = msgspec.field(name="l", default=None)
    batch: bool = msgspec.field(name="m", default=False)
    broker_name: str | None = msgspec.field(name="n", default=None)


class SendAnswer(Header, gc=False, kw_only=True, rename="camel"):
    """Answer to a send; of a batch ``msg_id`` is a comma list and ``queue_offset`` the first."""

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = msgspec.field(name="MSG_REGION", default=None)
    trace_on: bool | None = msgspec.field(name="TRACE_ON", default=None)


_BY_LETTERS: Final = frozenset(
    (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
)


def parse_send_header(command: Command) -> SendHeader:
    """The header of any send; batches come in letters from Java and in long names from Go."""
    if command.code in _BY_LETTERS and "topic" not in command.ext:
        return parse(SendHeaderV2, command)
    return parse(SendHeader, command)
