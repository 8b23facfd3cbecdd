"""Class 50, queue. Sheet: amqp.md 1.3; an empty name means the last one declared on the channel."""

from penstock.wire.amqp.methods.method import U16, U32, Bit, Method, ShortStr, TableArg, declared


@declared(50, 10)
class Declare(Method, gc=False):
    """Make a queue, or look whether it is there; an empty name asks the server for one."""

    ticket: U16 = 0
    queue: ShortStr = ""
    is_passive: Bit = False
    is_durable: Bit = False
    is_exclusive: Bit = False
    is_auto_delete: Bit = False
    is_nowait: Bit = False
    arguments: TableArg = {}


@declared(50, 11)
class DeclareOk(Method, gc=False):
    """Its name, and how many ready messages and consumers it has."""

    queue: ShortStr = ""
    messages: U32 = 0
    consumers: U32 = 0


@declared(50, 20)
class Bind(Method, gc=False):
    """What the exchange routes by this key goes to the queue."""

    ticket: U16 = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    is_nowait: Bit = False
    arguments: TableArg = {}


@declared(50, 21)
class BindOk(Method, gc=False):
    """Bound."""


@declared(50, 30)
class Purge(Method, gc=False):
    """Drop every ready message."""

    ticket: U16 = 0
    queue: ShortStr = ""
    is_nowait: Bit = False


@declared(50, 31)
class PurgeOk(Method, gc=False):
    """How many those were."""

    messages: U32 = 0


@declared(50, 40)
class Delete(Method, gc=False):
    """Remove a queue."""

    ticket: U16 = 0
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    is_nowait: Bit = False


@declared(50, 41)
class DeleteOk(Method, gc=False):
    """How many messages went with it."""

    messages: U32 = 0


@declared(50, 50)
class Unbind(Method, gc=False):
    """The opposite of a bind with the same arguments; always answered."""

    ticket: U16 = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: TableArg = {}


@declared(50, 51)
class UnbindOk(Method, gc=False):
    """Unbound."""
