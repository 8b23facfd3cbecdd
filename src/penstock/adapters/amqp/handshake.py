"""The way in: what the broker says of itself, who the client is, what both settle for.

| client: header     start-ok            tune-ok        open
| server:      start        (login) tune        (check)      (enter)  open-ok

PLAIN is ``NUL user NUL password``; AMQPLAIN is a field table without its length, with LOGIN and
PASSWORD. Whether they are true, ``users.py`` knows.

Invariants: nothing of the engine is touched before open-ok; what the client settles for is never
above what was offered (530). A refused login is told only to clients that announced they understand
it; others are simply cut off.
Not here: the order of the steps (``states.py``), how long they may take (``server/pump.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock import __version__
from penstock.wire.amqp.codes import FRAME_MAX_MIN, AmqpError, ReplyCode
from penstock.wire.amqp.table import decode_entries

if TYPE_CHECKING:
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.adapters.amqp.users import User, Users
    from penstock.settings.protocols import AmqpSettings
    from penstock.wire.amqp.methods.connection import StartOk, TuneOk

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
"""What RabbitMQ 3.13 announces; clients use nothing that is not in here."""
FAILURE_CLOSE: Final = "authentication_failure_close"
CHANNEL_MAX_MIN: Final = 1


def server_properties(context: AmqpContext) -> dict[str, Any]:
    """Whom we say we are: the name clients know, and ours beside it."""
    settings = context.settings
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": context.cluster_name,
        "copyright": "The authors of Penstock",
        "information": f"Penstock {__version__}, which speaks as {settings.server_product}",
        "platform": "Python",  # not which: a peer that has not logged in needs no list of its holes
        "product": settings.server_product,
        "version": settings.server_version,
    }


def login(users: Users, method: StartOk, host: str, capabilities: frozenset[str]) -> User | None:
    """The user; None when the client is to be cut off, 403 when it understands a refusal."""
    given = credentials(method.mechanism, method.response)
    user = None if given is None else users.login(given.user, given.password, host)
    if user is None and FAILURE_CLOSE in capabilities:
        text = (
            f"Login was refused using authentication mechanism {method.mechanism}. "
            "For details see the broker logfile."
        )
        raise AmqpError(ReplyCode.ACCESS_REFUSED, text)
    return user


def claimed_user(method: StartOk) -> str:
    """Whom the client says it is, for the log; never its password."""
    try:
        given = credentials(method.mechanism, method.response)
    except AmqpError:
        return ""
    return given.user if given is not None else ""


class Credentials(NamedTuple):
    """A name and a claim to it."""

    user: str
    password: str


def credentials(mechanism: str, response: bytes) -> Credentials | None:
    """What the response says; None when it says nothing, 503 for a mechanism we do not have."""
    if mechanism == "PLAIN":
        parts = response.decode("utf-8", "surrogateescape").split("\0")
        return Credentials(parts[1], parts[2]) if len(parts) == 3 else None
    if mechanism == "AMQPLAIN":
        try:
            table = decode_entries(response, 0, len(response))
        except (AmqpError, IndexError):
            return None
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(user, str) and isinstance(password, str):
            return Credentials(user, password)
        return None
    text = f"unknown authentication mechanism '{mechanism}'"
    raise AmqpError(ReplyCode.COMMAND_INVALID, text)


def check_tuning(method: TuneOk, settings: AmqpSettings) -> None:
    """Refuse what a client settled for unless it is within what was offered."""
    check_limit("channel_max", method.channel_max, CHANNEL_MAX_MIN, settings.channel_max)
    check_limit("frame_max", method.frame_max, FRAME_MAX_MIN, settings.frame_max)


def check_limit(name: str, value: int, low: int, high: int) -> None:
    """Raise 530 unless a value is within the limits; 0 = the client wants none."""
    if value and value < low:
        word, kind, limit = "lower", "minimum", low
    elif not value or value > high:
        word, kind, limit = "higher", "maximum", high
    else:
        return
    detail = "" if value else " (no limit)"
    text = f"negotiated {name} = {value}{detail} is {word} than the {kind} allowed value ({limit})"
    raise AmqpError(ReplyCode.NOT_ALLOWED, text)


def opened_vhost(
    vhosts: dict[str, VirtualHost], users: Users, user: User, name: str
) -> VirtualHost:
    """The virtual host a client asks for; raises 530 when there is none, or not for this user."""
    vhost = vhosts.get(name)
    if vhost is None:
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"vhost {name} not found")
    if not users.may_enter(user, name):
        text = f"access to vhost '{name}' refused for user '{user.name}'"
        raise AmqpError(ReplyCode.NOT_ALLOWED, text)
    return vhost
