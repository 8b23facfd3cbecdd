"""Class 10, connection: handshake, tuning, blocked notices, the end. Always on channel 0.

Sheet: amqp.md 1.3, 1.4. Not here: what is negotiated (``adapters/amqp``).
"""

from penstock.wire.amqp.methods.method import (
    U8,
    U16,
    U32,
    Bit,
    LongStr,
    Method,
    ShortStr,
    TableArg,
    declared,
)


@declared(10, 10)
class Start(Method, gc=False):
    """The server's first word."""

    version_major: U8 = 0
    version_minor: U8 = 9
    server_properties: TableArg = {}
    mechanisms: LongStr = b"PLAIN AMQPLAIN"
    locales: LongStr = b"en_US"


@declared(10, 11)
class StartOk(Method, gc=False):
    """Who the client is, and its proof."""

    client_properties: TableArg = {}
    mechanism: ShortStr = "PLAIN"
    response: LongStr = b""
    locale: ShortStr = "en_US"


@declared(10, 20)
class Secure(Method, gc=False):
    """A further question of the mechanism."""

    challenge: LongStr = b""


@declared(10, 21)
class SecureOk(Method, gc=False):
    """Its answer."""

    response: LongStr = b""


@declared(10, 30)
class Tune(Method, gc=False):
    """The server's limits; 0 = none."""

    channel_max: U16 = 0
    frame_max: U32 = 0
    heartbeat: U16 = 0


@declared(10, 31)
class TuneOk(Method, gc=False):
    """What the client settles for."""

    channel_max: U16 = 0
    frame_max: U32 = 0
    heartbeat: U16 = 0


@declared(10, 40)
class Open(Method, gc=False):
    """Enter a virtual host."""

    virtual_host: ShortStr = "/"
    reserved_1: ShortStr = ""
    reserved_2: Bit = False


@declared(10, 41)
class OpenOk(Method, gc=False):
    """The virtual host is open."""

    reserved_1: ShortStr = ""


@declared(10, 50)
class Close(Method, gc=False):
    """The connection ends; class and method say which command was at fault."""

    reply_code: U16 = 200
    reply_text: ShortStr = ""
    failing_class: U16 = 0
    failing_method: U16 = 0


@declared(10, 51)
class CloseOk(Method, gc=False):
    """The last frame of a connection."""


@declared(10, 60)
class Blocked(Method, gc=False):
    """Publishes are held because of an alarm."""

    reason: ShortStr = ""


@declared(10, 61)
class Unblocked(Method, gc=False):
    """They are not held any longer."""


@declared(10, 70)
class UpdateSecret(Method, gc=False):
    """A new proof while the connection lives."""

    new_secret: LongStr = b""
    reason: ShortStr = ""


@declared(10, 71)
class UpdateSecretOk(Method, gc=False):
    """It was taken."""
