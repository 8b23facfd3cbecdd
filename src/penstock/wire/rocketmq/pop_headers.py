"""Typed ``ext`` fields of pop: take, acknowledge, change the invisible time, peek, wait.

Not here: the strings inside them (``pop_handle.py``), BATCH_ACK's body (``bodies.py``).
"""

from penstock.wire.rocketmq.headers import I32, I64, Header


class PopHeader(Header, gc=False, kw_only=True, rename="camel"):
    """POP_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: I32 = -1
    """-1: any queue."""
    max_msg_nums: I32 = 32
    invisible_time: I64 = 60_000
    poll_time: I64 = 0
    born_time: I64 = 0
    init_mode: I32 = 0
    """Where a new group begins: 0 at the oldest message, 1 at the newest."""
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopAnswer(Header, gc=False, kw_only=True, rename="camel"):
    """Answer to a pop; the client builds the handles from it (``pop_handle.py``)."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32 = 0
    rest_num: I64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckHeader(Header, gc=False, kw_only=True, rename="camel"):
    """ACK_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64


class ChangeInvisibleHeader(Header, gc=False, kw_only=True, rename="camel"):
    """CHANGE_MESSAGE_INVISIBLETIME."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64


class ChangeInvisibleAnswer(Header, gc=False, kw_only=True, rename="camel"):
    """The parts of the new handle; the old one is void."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32 = 0


class PeekHeader(Header, gc=False, kw_only=True, rename="camel"):
    """PEEK_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: I32 = -1
    max_msg_nums: I32 = 32


class NotificationHeader(Header, gc=False, kw_only=True, rename="camel"):
    """NOTIFICATION: wait until there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: I32 = -1
    poll_time: I64 = 0
    born_time: I64 = 0
    order: bool = False
    attempt_id: str | None = None


class NotificationAnswer(Header, gc=False, kw_only=True, rename="camel"):
    """Whether there is."""

    has_msg: bool
    polling_full: bool = False
