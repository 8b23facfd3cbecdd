"""Class 40, exchange. Sheet: amqp.md 1.3; unbind-ok really is 51."""

from penstock.wire.amqp.methods.method import U16, Bit, Method, ShortStr, TableArg, declared


@declared(40, 10)
class Declare(Method, gc=False):
    """Make an exchange, or look whether it is there."""

    ticket: U16 = 0
    exchange: ShortStr = ""
    kind: ShortStr = "direct"
    is_passive: Bit = False
    is_durable: Bit = False
    is_auto_delete: Bit = False
    is_internal: Bit = False
    is_nowait: Bit = False
    arguments: TableArg = {}


@declared(40, 11)
class DeclareOk(Method, gc=False):
    """It is there."""


@declared(40, 20)
class Delete(Method, gc=False):
    """Remove an exchange."""

    ticket: U16 = 0
    exchange: ShortStr = ""
    if_unused: Bit = False
    is_nowait: Bit = False


@declared(40, 21)
class DeleteOk(Method, gc=False):
    """It is gone."""


@declared(40, 30)
class Bind(Method, gc=False):
    """What the source gets goes on to the destination."""

    ticket: U16 = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    is_nowait: Bit = False
    arguments: TableArg = {}


@declared(40, 31)
class BindOk(Method, gc=False):
    """Bound."""


@declared(40, 40)
class Unbind(Method, gc=False):
    """The opposite of a bind with the same arguments."""

    ticket: U16 = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    is_nowait: Bit = False
    arguments: TableArg = {}


@declared(40, 51)
class UnbindOk(Method, gc=False):
    """Unbound."""
