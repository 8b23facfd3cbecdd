"""Class 60, basic: publish, consume, get, settle. Sheet: amqp.md 1.3.

Publish, return, deliver and get-ok are followed by a content (``amqp/frames.py``). The three that
come and go per message have fast paths: publish and acks that come in ``amqp/parser.py``, deliver
and acks that go out in ``amqp/serializer.py``.
"""

from penstock.wire.amqp.methods.method import (
    U16,
    U32,
    U64,
    Bit,
    Method,
    ShortStr,
    TableArg,
    declared,
)


@declared(60, 10)
class Qos(Method, gc=False):
    """How much may be unacknowledged."""

    prefetch_size: U32 = 0
    prefetch_count: U16 = 0
    is_global: Bit = False


@declared(60, 11)
class QosOk(Method, gc=False):
    """Done."""


@declared(60, 20)
class Consume(Method, gc=False):
    """Deliver what the queue has to this channel; an empty tag asks the server for one."""

    ticket: U16 = 0
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    is_no_local: Bit = False
    is_no_ack: Bit = False
    is_exclusive: Bit = False
    is_nowait: Bit = False
    arguments: TableArg = {}


@declared(60, 21)
class ConsumeOk(Method, gc=False):
    """The consumer's tag."""

    consumer_tag: ShortStr = ""


@declared(60, 30)
class Cancel(Method, gc=False):
    """The consumer ends; the server sends it, too."""

    consumer_tag: ShortStr = ""
    is_nowait: Bit = False


@declared(60, 31)
class CancelOk(Method, gc=False):
    """It has ended."""

    consumer_tag: ShortStr = ""


@declared(60, 40)
class Publish(Method, gc=False):
    """A message for an exchange; its content follows."""

    ticket: U16 = 0
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    is_mandatory: Bit = False
    is_immediate: Bit = False


@declared(60, 50)
class Return(Method, gc=False):
    """A message comes back; its content follows."""

    reply_code: U16 = 312
    reply_text: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


@declared(60, 60)
class Deliver(Method, gc=False):
    """A message for a consumer; its content follows."""

    consumer_tag: ShortStr = ""
    delivery_tag: U64 = 0
    is_redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


@declared(60, 70)
class Get(Method, gc=False):
    """One message now, if there is one."""

    ticket: U16 = 0
    queue: ShortStr = ""
    is_no_ack: Bit = False


@declared(60, 71)
class GetOk(Method, gc=False):
    """Here it is; its content follows."""

    delivery_tag: U64 = 0
    is_redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    messages: U32 = 0


@declared(60, 72)
class GetEmpty(Method, gc=False):
    """There is none."""

    reserved_1: ShortStr = ""


@declared(60, 80)
class Ack(Method, gc=False):
    """Settled, or confirmed; ``is_multiple``: so is everything before it."""

    delivery_tag: U64 = 0
    is_multiple: Bit = False


@declared(60, 90)
class Reject(Method, gc=False):
    """Not taken."""

    delivery_tag: U64 = 0
    is_requeue: Bit = False


@declared(60, 100)
class RecoverAsync(Method, gc=False):
    """Give back what is unacknowledged, without an answer."""

    is_requeue: Bit = False


@declared(60, 110)
class Recover(Method, gc=False):
    """The same with an answer."""

    is_requeue: Bit = False


@declared(60, 111)
class RecoverOk(Method, gc=False):
    """Done."""


@declared(60, 120)
class Nack(Method, gc=False):
    """Not taken, or not confirmed; ``is_multiple``: nor is anything before it."""

    delivery_tag: U64 = 0
    is_multiple: Bit = False
    is_requeue: Bit = False
