"""Classes 20 channel, 30 access (dead, but answered), 85 confirm and 90 tx.

Sheet: amqp.md 1.3. Not here: what a channel remembers (``adapters/amqp``).
"""

from penstock.wire.amqp.methods.method import U16, Bit, LongStr, Method, ShortStr, declared


@declared(20, 10)
class Open(Method, gc=False):
    """Open a channel."""

    reserved_1: ShortStr = ""


@declared(20, 11)
class OpenOk(Method, gc=False):
    """It is open."""

    reserved_1: LongStr = b""


@declared(20, 20)
class Flow(Method, gc=False):
    """Pause or resume deliveries."""

    is_active: Bit = True


@declared(20, 21)
class FlowOk(Method, gc=False):
    """Done."""

    is_active: Bit = True


@declared(20, 40)
class Close(Method, gc=False):
    """The channel ends; class and method say which command was at fault."""

    reply_code: U16 = 200
    reply_text: ShortStr = ""
    failing_class: U16 = 0
    failing_method: U16 = 0


@declared(20, 41)
class CloseOk(Method, gc=False):
    """The channel's number is free again."""


@declared(30, 10)
class AccessRequest(Method, gc=False):
    """A ticket of AMQP 0-8."""

    realm: ShortStr = "/data"
    is_exclusive: Bit = False
    is_passive: Bit = True
    is_active: Bit = True
    can_write: Bit = True
    can_read: Bit = True


@declared(30, 11)
class AccessRequestOk(Method, gc=False):
    """Always the same ticket."""

    ticket: U16 = 1


@declared(85, 10)
class ConfirmSelect(Method, gc=False):
    """Publishes of this channel are confirmed from now on."""

    is_nowait: Bit = False


@declared(85, 11)
class ConfirmSelectOk(Method, gc=False):
    """They are."""


@declared(90, 10)
class TxSelect(Method, gc=False):
    """Publishes and acks wait for a commit from now on."""


@declared(90, 11)
class TxSelectOk(Method, gc=False):
    """They do."""


@declared(90, 20)
class TxCommit(Method, gc=False):
    """Do what waited."""


@declared(90, 21)
class TxCommitOk(Method, gc=False):
    """Done."""


@declared(90, 30)
class TxRollback(Method, gc=False):
    """Forget what waited."""


@declared(90, 31)
class TxRollbackOk(Method, gc=False):
    """Forgotten."""
