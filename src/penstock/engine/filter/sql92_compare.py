"""Comparisons of a selector: two operands in, one three-valued test out.

Rules for "unknown" (a missing property):

===============  =======================================================================
``=``            left unknown -> unknown; left known, right unknown -> false; both -> true
``< <= > >=``    either unknown -> unknown
``IN``           unknown -> unknown
``CONTAINS`` ..  unknown, no text or nothing to look for -> false, also with ``NOT``
===============  =======================================================================

Order is for numbers only: two properties are read as decimals, a property beside a number literal
as that literal's type. Left is evaluated before right; an ``Incomparable`` ends the evaluation.

Not here: AND, OR, NOT (``sql92_logic.py``).
"""

import operator
from collections.abc import Callable

from penstock.engine.filter.sql92_operands import (
    Number,
    Operand,
    Properties,
    Property,
    Test,
    Text,
    Truth,
    Unknown,
    reader_of,
    to_decimal,
    to_truth,
)

Order = Callable[[int | float, int | float], bool]

GREATER: Order = operator.gt
GREATER_OR_EQUAL: Order = operator.ge
LESS: Order = operator.lt
LESS_OR_EQUAL: Order = operator.le

Value = str | int | float | bool | None
Getter = Callable[[Properties], Value]


def equal(left: Operand, right: Operand) -> Test:
    """``left = right``."""
    if isinstance(left, Property) and isinstance(right, Text):
        return _property_is_text(left.name, right.value)
    if isinstance(left, Property) and isinstance(right, Number):
        return _ordered_property(left.name, right, operator.eq)
    return _equal_values(_getter(left, right), _getter(right, left))


def ordered(left: Operand, right: Operand, order: Order) -> Test:
    """``left < right`` and its like."""
    if isinstance(left, Property) and isinstance(right, Number):
        return _ordered_property(left.name, right, order)
    if isinstance(left, Number) and isinstance(right, Property):
        return _ordered_property(right.name, left, _MIRRORED[order])
    if isinstance(left, Property) and isinstance(right, Property):
        return _ordered_properties(left.name, right.name, order)
    if isinstance(left, Number) and isinstance(right, Number):
        return constant(order(*_widened(left, right)))
    return constant(None)


def is_unknown(operand: Operand) -> Test:
    """``operand IS NULL``: never unknown itself."""
    if isinstance(operand, Property):
        name = operand.name
        return lambda properties: properties.get(name) is None
    if isinstance(operand, Truth):
        test = operand.test
        return lambda properties: test(properties) is None
    return constant(isinstance(operand, Unknown))


def one_of(name: str, texts: frozenset[str], is_wanted: bool) -> Test:
    """``name IN (...)``, or ``NOT IN`` when not ``is_wanted``."""

    def test(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in texts) is is_wanted

    return test


def looks_like(
    operand: Operand, probe: Callable[[str, str], bool], needle: str, is_wanted: bool
) -> Test:
    """``operand CONTAINS needle``, or another way of looking, or its ``NOT``."""
    if not needle:
        return constant(False)
    if isinstance(operand, Text):
        return constant(probe(operand.value, needle) is is_wanted)
    if not isinstance(operand, Property):
        return _false_after(operand)
    name = operand.name

    def test(properties: Properties) -> bool:
        text = properties.get(name)
        return text is not None and probe(text, needle) is is_wanted

    return test


def constant(value: bool | None) -> Test:
    """Always the same."""
    return lambda _properties: value


_MIRRORED: dict[Order, Order] = {
    GREATER: LESS,
    GREATER_OR_EQUAL: LESS_OR_EQUAL,
    LESS: GREATER,
    LESS_OR_EQUAL: GREATER_OR_EQUAL,
}


def _property_is_text(name: str, wanted: str) -> Test:
    def test(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else text == wanted

    return test


def _ordered_property(name: str, number: Number, order: Order) -> Test:
    value, read = number.value, reader_of(number)

    def test(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else order(read(text), value)

    return test


def _ordered_properties(left: str, right: str, order: Order) -> Test:
    def test(properties: Properties) -> bool | None:
        first = properties.get(left)
        second = properties.get(right)
        if first is None or second is None:
            return None
        return order(to_decimal(first), to_decimal(second))

    return test


def _equal_values(left: Getter, right: Getter) -> Test:
    def test(properties: Properties) -> bool | None:
        first, second = left(properties), right(properties)
        if first is None:
            return None if second is not None else True
        # A truth equals no number, though Python thinks True == 1.
        return isinstance(first, bool) is isinstance(second, bool) and first == second

    return test


def _getter(operand: Operand, other: Operand) -> Getter:
    """What yields the operand's value in a type that is comparable with the other's."""
    if isinstance(operand, Truth):
        return operand.test
    if isinstance(operand, Unknown):
        return lambda _properties: None
    if isinstance(operand, Number):
        value = _widened(operand, other)[0] if isinstance(other, Number) else operand.value
        return lambda _properties: value
    read = _text_reader(other)
    if isinstance(operand, Text):
        text = operand.value
        # Converted per message, because a literal that does not convert is an error of evaluation.
        return (lambda _properties: read(text)) if read else (lambda _properties: text)
    name = operand.name

    def value_of(properties: Properties) -> Value:
        text = properties.get(name)
        return text if read is None or text is None else read(text)

    return value_of


def _text_reader(other: Operand) -> Callable[[str], Value] | None:
    if isinstance(other, Number):
        return reader_of(other)
    return to_truth if isinstance(other, Truth) else None


def _widened(left: Number, right: Number) -> tuple[int | float, int | float]:
    if left.bits and right.bits:
        return left.value, right.value
    return float(left.value), float(right.value)


def _false_after(operand: Operand) -> Test:
    """False, but not before the operand had its chance to fail."""
    if not isinstance(operand, Truth):
        return constant(False)
    inner = operand.test

    def test(properties: Properties) -> bool:
        inner(properties)
        return False

    return test
