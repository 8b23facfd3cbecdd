"""From the protocol header to an open virtual host (sheet 1.4).

    client: header     start-ok            tune-ok        open
    server:      start        (login) tune        (check)      (enter)  open-ok

Invariants: nothing of the engine is touched before open-ok; what the client settles for is never
above what was offered (530). A refused login is told only to clients that announced they understand
it; others are simply cut off.
Not here: how long it may take (``server/pump.py``), users (``users.py``).
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.adapters.amqp.login import Credentials, credentials
from penstock.wire.amqp.codes import FRAME_MAX_MIN, AmqpError, ReplyCode
from penstock.wire.amqp.methods.connection import Open, OpenOk, Start, StartOk, Tune, TuneOk
from penstock.wire.amqp.methods.method import Method

if TYPE_CHECKING:
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.session import Session
    from penstock.adapters.amqp.vhost import VirtualHost

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


class Step(Enum):
    """What is awaited."""

    GREETING = "protocol header"
    STARTING = "start-ok"
    TUNING = "tune-ok"
    OPENING = "open"
    DONE = "nothing"


class Handshake:
    """One connection's way in."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.step = Step.GREETING

    def greet(self) -> None:
        """The header came and is right; only the first time counts."""
        if self.step is Step.GREETING:
            self.step = Step.STARTING
            self._session.say(Start(server_properties=server_properties(self._session.house)))

    def take(self, method: Method) -> None:
        """The next method of the client."""
        if self.step is Step.STARTING and isinstance(method, StartOk):
            self._started(method)
        elif self.step is Step.TUNING and isinstance(method, TuneOk):
            self._tuned(method)
        elif self.step is Step.OPENING and isinstance(method, Open):
            self._opened(method)
        else:
            text = f"unexpected method, awaited is {self.step.value}"
            raise AmqpError(ReplyCode.CHANNEL_ERROR, text)

    def _started(self, method: StartOk) -> None:
        session = self._session
        session.introduce(method.client_properties)
        given = credentials(method.mechanism, method.response)
        user = None if given is None else self._login(given)
        if user is None:
            if FAILURE_CLOSE in session.client_capabilities:
                raise _refused(method.mechanism)
            session.wants_close = True
            return
        session.user = user
        session.auth_mechanism = method.mechanism
        settings = session.house.settings
        self.step = Step.TUNING
        session.say(Tune(settings.channel_max, settings.frame_max, settings.heartbeat_s))

    def _login(self, given: Credentials) -> Any:
        return self._session.house.users.login(given.user, given.password, self._session.peer.host)

    def _tuned(self, method: TuneOk) -> None:
        settings = self._session.house.settings
        check_limit("channel_max", method.channel_max, CHANNEL_MAX_MIN, settings.channel_max)
        check_limit("frame_max", method.frame_max, FRAME_MAX_MIN, settings.frame_max)
        self._session.tune(method.channel_max, method.frame_max, method.heartbeat)
        self.step = Step.OPENING

    def _opened(self, method: Open) -> None:
        session = self._session
        name = method.virtual_host
        vhost: VirtualHost | None = session.house.vhost(name)
        if vhost is None:
            raise AmqpError(ReplyCode.NOT_ALLOWED, f"vhost {name} not found")
        if not session.house.users.may_enter(session.user, name):
            text = f"access to vhost '{name}' refused for user '{session.user.name}'"
            raise AmqpError(ReplyCode.NOT_ALLOWED, text)
        self.step = Step.DONE
        session.enter(vhost)
        session.say(OpenOk())


def check_limit(name: str, value: int, low: int, high: int) -> None:
    """Refuse what a client settled for unless it is within the limits; 0 = it wants none."""
    if value and value < low:
        word, kind, limit = "lower", "minimum", low
    elif not value or value > high:
        word, kind, limit = "higher", "maximum", high
    else:
        return
    detail = "" if value else " (no limit)"
    text = f"negotiated {name} = {value}{detail} is {word} than the {kind} allowed value ({limit})"
    raise AmqpError(ReplyCode.NOT_ALLOWED, text)


def server_properties(house: House) -> dict[str, Any]:
    """Whom we say we are: the name clients know, and ours beside it."""
    settings = house.settings
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": house.cluster_name,
        "copyright": "The authors of Penstock",
        "information": f"Penstock {__version__}, which speaks as {settings.server_product}",
        "platform": f"Python {sys.version.split()[0]}",
        "product": settings.server_product,
        "version": settings.server_version,
    }


def _refused(mechanism: str) -> AmqpError:
    text = (
        f"Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile."
    )
    return AmqpError(ReplyCode.ACCESS_REFUSED, text)
