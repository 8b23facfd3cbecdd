"""Typed ``ext`` fields of requests that operators and their tools send about groups.

Read with ``headers.parse``, written with ``headers.fields``, as all headers.
"""

import msgspec

from penstock.wire.rocketmq.headers import I32, I64, Header


class GroupNameHeader(Header, gc=False, kw_only=True, rename="camel"):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False
    """What older tools call it."""


class GroupConfigHeader(Header, gc=False, kw_only=True, rename="camel"):
    """GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str


class ProducerGroupHeader(Header, gc=False, kw_only=True, rename="camel"):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class ConsumeStatsHeader(Header, gc=False, kw_only=True, rename="camel"):
    """GET_CONSUME_STATS; without a topic it is about all that the group reads."""

    consumer_group: str
    topic: str | None = None


class ResetOffsetHeader(Header, gc=False, kw_only=True, rename="camel"):
    """INVOKE_BROKER_TO_RESET_OFFSET, and RESET_CONSUMER_CLIENT_OFFSET to clients."""

    topic: str
    group: str
    timestamp: I64 = -1
    """Wall time in milliseconds; -1 = the end."""
    is_force: bool = False
    """Obey although it goes forward."""
    queue_id: I32 = -1
    offset: I64 | None = None


class RelayHeader(Header, gc=False, kw_only=True, rename="camel"):
    """GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: str
    client_id: str = msgspec.field(name="clientId")
    msg_id: str = msgspec.field(name="msgId", default="")
