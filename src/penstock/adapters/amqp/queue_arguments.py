"""The ``x-`` arguments of a queue: checked as RabbitMQ does, turned into what the engine has.

    x-message-ttl, x-expires                       TopicPolicy: message_ttl_ms, expires_ms
    x-max-length, x-max-length-bytes, x-overflow   length_max, bytes_max, overflow (plus ``hold``)
    x-max-priority                                 max_priority: a topic of P+1 queues (D10)
    x-single-active-consumer                       Mode.SINGLE_ACTIVE
    x-delivery-limit (quorum)                      delivery_limit of the subscription
    x-dead-letter-exchange, -routing-key           for whoever buries (``burial.py``)
    x-queue-mode, x-queue-version, locators        checked, and otherwise without meaning

An argument that only another type of queue knows is refused, one that nobody knows is kept and
means nothing. Every refusal is 406 in RabbitMQ's words.

Not here: comparing two declarations (``equivalence.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from penstock.adapters.amqp.equivalence import CLASSIC, QUEUE_TYPE, is_integer, type_word
from penstock.engine.host import Mode
from penstock.engine.topic import AT_ONCE_MS, NONE_MAX, Overflow, TopicPolicy
from penstock.wire.amqp.codes import AmqpError, ReplyCode

QUORUM: Final = "quorum"
STREAM: Final = "stream"
TIMER_MS_MAX: Final = 4_294_967_295
"""RabbitMQ's largest time: 49.7 days."""
PRIORITY_MAX: Final = 255

OVERFLOWS: Final = {
    "drop-head": Overflow.DROP_HEAD,
    "reject-publish": Overflow.REJECT,
    "reject-publish-dlx": Overflow.REJECT_DEAD_LETTER,
    "hold": Overflow.HOLD,
}
_COMMON: Final = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-single-active-consumer",
    QUEUE_TYPE,
    "x-queue-leader-locator",
    "x-queue-master-locator",
)
KNOWN: Final = {
    CLASSIC: (*_COMMON, "x-max-priority", "x-queue-mode", "x-queue-version"),
    QUORUM: (
        *_COMMON,
        "x-delivery-limit",
        "x-dead-letter-strategy",
        "x-quorum-initial-group-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
    ),
}
"""What each type of queue understands; also what a second declaration must repeat."""
_STREAM_ONLY: Final = ("x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size")
_MODULES: Final = {CLASSIC: "rabbit_classic_queue", QUORUM: "rabbit_quorum_queue"}

Table = dict[str, Any]


class QueueArguments(msgspec.Struct, frozen=True):
    """What a declaration's arguments ask for."""

    kind: str = CLASSIC
    policy: TopicPolicy = TopicPolicy()
    mode: Mode = Mode.SHARED
    delivery_limit: int = 0
    dead_letter_exchange: str | None = None
    """None = none; "" = the default exchange."""
    dead_letter_routing_key: str | None = None
    """None = that of the message."""


def read_arguments(resource: str, arguments: Mapping[str, Any]) -> QueueArguments:
    """What they mean; raises 406 naming the argument. ``resource``: as texts call the queue."""
    _check_exchange_name(resource, arguments)
    kind = _kind(resource, arguments)
    known = KNOWN[kind]
    for name, check in _CHECKS:
        if name in arguments and name in known:
            problem = check(arguments[name], arguments)
            if problem:
                raise _invalid(resource, name, problem)
    strangers = {*KNOWN[CLASSIC], *KNOWN[QUORUM], *_STREAM_ONLY}.difference(known)
    for name in arguments:
        if name in strangers:
            text = f"invalid arg '{name}' for {resource} of queue type {_MODULES[kind]}"
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
    limit = arguments.get("x-delivery-limit")
    is_single = bool(arguments.get("x-single-active-consumer", False))
    return QueueArguments(
        kind,
        _policy(arguments),
        Mode.SINGLE_ACTIVE if is_single else Mode.SHARED,
        0 if limit is None else limit or NONE_MAX,
        arguments.get("x-dead-letter-exchange"),
        arguments.get("x-dead-letter-routing-key"),
    )


def _policy(arguments: Mapping[str, Any]) -> TopicPolicy:
    # In a policy 0 means "not asked for", so a limit of nothing has another number.
    ttl_ms = arguments.get("x-message-ttl")
    length_max = arguments.get("x-max-length")
    bytes_max = arguments.get("x-max-length-bytes")
    return TopicPolicy(
        message_ttl_ms=0 if ttl_ms is None else ttl_ms or AT_ONCE_MS,
        expires_ms=arguments.get("x-expires", 0),
        length_max=0 if length_max is None else length_max or NONE_MAX,
        bytes_max=0 if bytes_max is None else bytes_max or NONE_MAX,
        overflow=OVERFLOWS[arguments.get("x-overflow", "drop-head")],
        max_priority=arguments.get("x-max-priority", 0),
    )


def _kind(resource: str, arguments: Mapping[str, Any]) -> str:
    kind = arguments.get(QUEUE_TYPE, CLASSIC)
    if not isinstance(kind, str):
        raise _invalid(resource, QUEUE_TYPE, _unacceptable(kind))
    if kind == STREAM:
        text = "streams are not built here; declare a classic or quorum queue"
        raise _invalid(resource, QUEUE_TYPE, text)
    if kind not in KNOWN:
        raise _invalid(resource, QUEUE_TYPE, f"\"unsupported queue type '{kind}'\"")
    return kind


def _check_exchange_name(resource: str, arguments: Mapping[str, Any]) -> None:
    name = "x-dead-letter-exchange"
    value = arguments.get(name, "")
    if not isinstance(value, str):
        text = f"invalid type '{type_word(value)}' for arg '{name}' in {resource}"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)


# Each check gives what is wrong, in Erlang's way of writing it; empty when nothing is.


def _unacceptable(value: Any) -> str:
    return f"{{unacceptable_type,{type_word(value)}}}"


def _integer(value: Any, _arguments: Mapping[str, Any]) -> str:
    return "" if is_integer(value) else f'"expected integer, got {type_word(value)}"'


def _natural(value: Any, arguments: Mapping[str, Any]) -> str:
    return _integer(value, arguments) or (f"{{value_negative,{value}}}" if value < 0 else "")


def _positive(value: Any, arguments: Mapping[str, Any]) -> str:
    return _natural(value, arguments) or ("" if value else "{value_zero,0}")


def _timer(value: Any, arguments: Mapping[str, Any]) -> str:
    too_big = f"{{value_too_big,{value}}}"
    return _natural(value, arguments) or (too_big if value > TIMER_MS_MAX else "")


def _expiry(value: Any, arguments: Mapping[str, Any]) -> str:
    return _timer(value, arguments) or _positive(value, arguments)


def _priority(value: Any, arguments: Mapping[str, Any]) -> str:
    too_big = f"{{max_value_exceeded,{value}}}"
    return _natural(value, arguments) or (too_big if value > PRIORITY_MAX else "")


def _bool(value: Any, _arguments: Mapping[str, Any]) -> str:
    return "" if isinstance(value, bool) else _unacceptable(value)


def _text(value: Any, _arguments: Mapping[str, Any]) -> str:
    return "" if isinstance(value, str) else _unacceptable(value)


def _routing_key(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    has_exchange = "x-dead-letter-exchange" in arguments
    return "" if has_exchange else "routing_key_but_no_dlx_defined"


def _overflow(value: Any, _arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in OVERFLOWS else "invalid_overflow"


def _strategy(value: Any, _arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in ("at-most-once", "at-least-once") else "invalid_dlx_strategy"


def _mode(value: Any, _arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in ("default", "lazy") else f"\"unsupported queue mode '{value}'\""


def _version(value: Any, arguments: Mapping[str, Any]) -> str:
    unsupported = f"\"unsupported queue version '{value}'\""
    return _natural(value, arguments) or ("" if value in (1, 2) else unsupported)


Check = Callable[[Any, Mapping[str, Any]], str]
_CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("x-expires", _expiry),
    ("x-message-ttl", _timer),
    ("x-dead-letter-routing-key", _routing_key),
    ("x-dead-letter-strategy", _strategy),
    ("x-max-length", _natural),
    ("x-max-length-bytes", _natural),
    ("x-max-in-memory-length", _natural),
    ("x-max-in-memory-bytes", _natural),
    ("x-max-priority", _priority),
    ("x-overflow", _overflow),
    ("x-queue-mode", _mode),
    ("x-queue-version", _version),
    ("x-single-active-consumer", _bool),
    ("x-delivery-limit", _natural),
    ("x-quorum-initial-group-size", _positive),
    ("x-queue-leader-locator", _text),
    ("x-queue-master-locator", _text),
)


def _invalid(resource: str, name: str, problem: str) -> AmqpError:
    text = f"invalid arg '{name}' for {resource}: {problem}"
    return AmqpError(ReplyCode.PRECONDITION_FAILED, text)
