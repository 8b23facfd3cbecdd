"""Matching of a headers exchange: the arguments of a binding against the headers of a message.

``x-match`` says how: ``all`` (default) and ``any`` leave out names that begin with ``x-``,
``all-with-x`` and ``any-with-x`` do not (``x-match`` itself is never compared). An argument matches
when the header has a value of the same class (any integer with any integer, but no number with
text) that is equal; an argument without a value asks only that the header is there. ``all`` of
nothing matches everything, ``any`` of nothing matches nothing.

Not here: where the headers come from (``router.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import Timestamp

X_MATCH: Final = "x-match"
MANNERS: Final = ("all", "any", "all-with-x", "any-with-x")
_ABSENT: Final = object()
_CLASSES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (Timestamp, "timestamp"),
    (int, "int"),
    (float, "float"),
    (str, "longstr"),
    (bytes, "binary"),
    (Decimal, "decimal"),
    (dict, "table"),
    (list, "array"),
    (type(None), "void"),
)


class HeadersMatch:
    """The condition of one binding, made ready."""

    __slots__ = ("_conditions", "_is_any")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        manner = check_manner(arguments)
        with_x = manner.endswith("-with-x")
        self._is_any = manner.startswith("any")
        self._conditions = [
            # Every class of field values is one type of ours, and a table has no others.
            (name, type(value), value)
            for name, value in arguments.items()
            if name != X_MATCH and (with_x or not name.startswith("x-"))
        ]

    def matches(self, headers: Mapping[str, Any]) -> bool:
        """True when a message with these headers is wanted."""
        is_any = self._is_any
        for name, kind, value in self._conditions:
            found = headers.get(name, _ABSENT)
            is_met = found is not _ABSENT and (
                value is None or (type(found) is kind and found == value)
            )
            if is_met is is_any:
                return is_any
        return not is_any


def check_manner(arguments: Mapping[str, Any]) -> str:
    """The ``x-match`` of a binding; raises 406 for one that does not exist."""
    manner = arguments.get(X_MATCH, "all")
    if not isinstance(manner, str):
        raise AmqpError(
            ReplyCode.PRECONDITION_FAILED,
            f"Invalid x-match field type {class_of(manner)} (value {manner}); expected longstr",
        )
    if manner not in MANNERS:
        raise AmqpError(
            ReplyCode.PRECONDITION_FAILED,
            f'Invalid x-match field value "{manner}"; expected all, any, all-with-x, or any-with-x',
        )
    return manner


def class_of(value: Any) -> str:
    """RabbitMQ's word for the class of a field value."""
    for kind, name in _CLASSES:
        if isinstance(value, kind):
            return name
    return "undefined"
