"""May a queue that exists be declared again like this? And how RabbitMQ words it when not.

Equal are: both without the argument, or values of one class that are equal; integers compare by
value, however wide they were written. Arguments nobody knows (``x-foo``) are not compared, and a
classic queue may or may not say that it is one.

Texts name a missing value ``none`` and one that has no counterpart with its type; the type of an
integer is guessed from its size, because tables do not keep it.

Not here: whether a value makes sense at all (``queue_arguments.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import Timestamp

INT32_MAX: Final = (1 << 31) - 1
QUEUE_TYPE: Final = "x-queue-type"
CLASSIC: Final = "classic"

_ABSENT: Final = object()
_WORDS: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (Timestamp, "timestamp"),
    (float, "double"),
    (str, "longstr"),
    (bytes, "binary"),
    (Decimal, "decimal"),
    (dict, "table"),
    (list, "array"),
)


def type_word(value: Any) -> str:
    """RabbitMQ's word for the type of a field value."""
    for kind, word in _WORDS:
        if isinstance(value, kind):
            return word
    if isinstance(value, int):
        return "signedint" if -INT32_MAX - 1 <= value <= INT32_MAX else "long"
    return "void"


def is_integer(value: Any) -> bool:
    """True for what was sent as a plain number without a fraction."""
    return isinstance(value, int) and not isinstance(value, (bool, Timestamp))


def are_equal(first: Any, second: Any) -> bool:
    """True when two values mean the same: of one class and equal."""
    if is_integer(first) and is_integer(second):
        return bool(first == second)
    return type_word(first) == type_word(second) and bool(first == second)


def shown(value: Any) -> str:
    """A value as Erlang prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "undefined" if value is None else str(value)


def check_flag(resource: str, name: str, current: bool, received: bool) -> None:
    """406 when a declaration says otherwise than the first one."""
    if current is not received:
        raise _inequivalent(resource, name, f"'{shown(received)}'", f"'{shown(current)}'")


def check_arguments(
    resource: str,
    current: Mapping[str, Any],
    received: Mapping[str, Any],
    names: Iterable[str],
) -> None:
    """406 for the first of these arguments in which two declarations differ."""
    for name in names:
        before, now = current.get(name, _ABSENT), received.get(name, _ABSENT)
        if before is now or _is_classic_unsaid(name, before, now):
            continue
        if before is _ABSENT or now is _ABSENT:
            raise _inequivalent(resource, name, _typed(now), _typed(before))
        if not are_equal(before, now):
            raise _inequivalent(resource, name, f"'{shown(now)}'", f"'{shown(before)}'")


def _is_classic_unsaid(name: str, before: Any, now: Any) -> bool:
    """True when one says what the other takes for granted."""
    if name != QUEUE_TYPE:
        return False
    return {CLASSIC if value is _ABSENT else str(value) for value in (before, now)} == {CLASSIC}


def _typed(value: Any) -> str:
    if value is _ABSENT:
        return "none"
    return f"the value '{shown(value)}' of type '{type_word(value)}'"


def _inequivalent(resource: str, name: str, received: str, current: str) -> AmqpError:
    text = f"inequivalent arg '{name}' for {resource}: received {received} but current is {current}"
    return AmqpError(ReplyCode.PRECONDITION_FAILED, text)
