r"""The grammar of selectors, and the compiler that turns a parse into tests as it goes.

LALR, so no input makes the parser itself recurse; what nests is bounded by ``NESTING_MAX``, because
tests call each other. There is no LIKE and no arithmetic. Precedence, lowest first::

    OR   AND   = <> IS   < <= > >= BETWEEN IN CONTAINS STARTSWITH ENDSWITH   + - NOT

Keywords are case-insensitive and reserved, names of properties are case-sensitive. Names may have
dots inside, which RocketMQ refuses: AMQP's basics are called ``amqp.app_id`` and so on. This module
is imported when the first selector is compiled: lark costs tens of milliseconds.

Not here: operands and how texts become numbers (``sql92_operands.py``), caching (``sql92.py``).
"""

import math
import operator
from collections.abc import Callable
from typing import Final

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken
from msgspec.structs import replace

from penstock.engine.filter.sql92_operands import (
    LARGE_BITS,
    SMALL_BITS,
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
from penstock.model.errors import SelectorInvalid

Order = Callable[[int | float, int | float], bool]

GREATER: Order = operator.gt
GREATER_OR_EQUAL: Order = operator.ge
LESS: Order = operator.lt
LESS_OR_EQUAL: Order = operator.le

Value = str | int | float | bool | None
Getter = Callable[[Properties], Value]

NESTING_MAX: Final = 100
"""Levels of parentheses, signs, NOTs and chained comparisons; a tenth of Python's own limit."""

GRAMMAR: Final = r"""
?start: disjunction
?disjunction: conjunction | conjunction (_OR conjunction)+ -> any_of
?conjunction: equality | equality (_AND equality)+ -> all_of
?equality: comparison
    | equality "=" comparison -> equal
    | equality "<>" comparison -> not_equal
    | equality _IS _NULL -> is_null
    | equality _IS _NOT _NULL -> is_not_null
?comparison: sign
    | comparison ORDER sign -> ordered
    | comparison _BETWEEN sign _AND sign -> between
    | comparison _NOT _BETWEEN sign _AND sign -> not_between
    | comparison _IN "(" STRING ("," STRING)* ")" -> one_of
    | comparison _NOT _IN "(" STRING ("," STRING)* ")" -> none_of
    | comparison LOOK STRING -> looks_like
    | comparison _NOT LOOK STRING -> looks_unlike
?sign: primary
    | "+" sign -> grouped
    | "-" sign -> minus
    | _NOT sign -> negated
?primary: STRING -> text
    | WHOLE -> whole
    | DECIMAL -> decimal
    | _TRUE -> true
    | _FALSE -> false
    | _NULL -> null
    | NAME -> property
    | "(" disjunction ")" -> grouped

ORDER: ">=" | "<=" | /<(?!>)/ | ">"
LOOK.3: /(CONTAINS|STARTSWITH|ENDSWITH)(?![A-Za-z0-9_$]|\.[A-Za-z_$])/i
_OR.3: /OR(?![A-Za-z0-9_$]|\.[A-Za-z_$])/i
_AND.3: /AND(?![A-Za-z0-9_$]|\.[A-Za-z_$])/i
_NOT.3: /NOT(?![A-Za-z0-9_$]|\.[A-Za-z_$])/i
_IS.3: /IS(?![A-Za-z0-9_$]|\.[A-Za-z_$])/i
_IN.3: /IN(?![A-Za-z0-9_$]|\.[A-Za-z_$])/i
_BETWEEN.3: /BETWEEN(?![A-Za-z0-9_$]|\.[A-Za-z_$])/i
_TRUE.3: /TRUE(?![A-Za-z0-9_$]|\.[A-Za-z_$])/i
_FALSE.3: /FALSE(?![A-Za-z0-9_$]|\.[A-Za-z_$])/i
_NULL.3: /NULL(?![A-Za-z0-9_$]|\.[A-Za-z_$])/i
NAME: /[A-Za-z_$][A-Za-z0-9_$]*(\.[A-Za-z_$][A-Za-z0-9_$]*)*/
DECIMAL.2: /([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
WHOLE.1: /(0|[1-9][0-9]*)[lL]?(?![0-9])/
STRING: /'[^']*(''[^']*)*'/
LINE_COMMENT.3: /--[^\r\n]*/
BLOCK_COMMENT.3: /\/\*[^*]*\*+([^*\/][^*]*\*+)*\//
BLANK: /[ \t\n\r\f]+/
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
%ignore BLANK
"""

_ORDERS: Final[dict[str, Order]] = {
    ">": GREATER,
    ">=": GREATER_OR_EQUAL,
    "<": LESS,
    "<=": LESS_OR_EQUAL,
}

_LOOKS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def compile_test(expression: str) -> Test:
    """The test of an expression, or ``SelectorInvalid`` that says where and why."""
    try:
        return _truth(_parse(expression))
    except SelectorInvalid as problem:
        raise SelectorInvalid(f"{problem} in {_shown(expression)}") from None
    except UnexpectedInput as problem:
        raise SelectorInvalid(_where(problem, expression)) from None


@v_args(inline=True)
class _Compiler(Transformer[Token, Operand]):
    """Called by the parser at each reduction: operands in, one operand out."""

    def any_of(self, *terms: Operand) -> Operand:
        return Truth(any_of(tuple(map(_truth, terms))), depth=_deeper(*terms))

    def all_of(self, *terms: Operand) -> Operand:
        return Truth(all_of(tuple(map(_truth, terms))), depth=_deeper(*terms))

    def equal(self, left: Operand, right: Operand) -> Operand:
        return Truth(_equal(left, right), depth=_deeper(left, right))

    def not_equal(self, left: Operand, right: Operand) -> Operand:
        return Truth(negated(_equal(left, right)), depth=_deeper(left, right))

    def is_null(self, operand: Operand) -> Operand:
        return Truth(is_unknown(operand), depth=_deeper(operand))

    def is_not_null(self, operand: Operand) -> Operand:
        return Truth(negated(is_unknown(operand)), depth=_deeper(operand))

    def ordered(self, left: Operand, symbol: Token, right: Operand) -> Operand:
        return Truth(_ordered(left, right, _ORDERS[symbol]), depth=_deeper(left, right))

    def between(self, operand: Operand, low: Operand, high: Operand) -> Operand:
        at_least = _ordered(operand, low, GREATER_OR_EQUAL)
        at_most = _ordered(operand, high, LESS_OR_EQUAL)
        if isinstance(low, Number) and isinstance(high, Number):
            is_literal = low.is_literal and high.is_literal
            if is_literal and ordered(low, high, GREATER)({}):
                raise SelectorInvalid(f"BETWEEN {low.value} AND {high.value} is never true")
        return Truth(all_of((at_least, at_most)), depth=_deeper(operand, low, high))

    def not_between(self, operand: Operand, low: Operand, high: Operand) -> Operand:
        below = _ordered(operand, low, LESS)
        above = _ordered(operand, high, GREATER)
        return Truth(any_of((below, above)), depth=_deeper(operand, low, high))

    def one_of(self, operand: Operand, *texts: Token) -> Operand:
        return _one_of(operand, texts, True)

    def none_of(self, operand: Operand, *texts: Token) -> Operand:
        return _one_of(operand, texts, False)

    def looks_like(self, operand: Operand, look: Token, needle: Token) -> Operand:
        test = looks_like(operand, _LOOKS[look.upper()], _unquoted(needle), True)
        return Truth(test, depth=_deeper(operand))

    def looks_unlike(self, operand: Operand, look: Token, needle: Token) -> Operand:
        test = looks_like(operand, _LOOKS[look.upper()], _unquoted(needle), False)
        return Truth(test, depth=_deeper(operand))

    def minus(self, operand: Operand) -> Operand:
        depth = _deeper(operand)
        if isinstance(operand, Number):
            return replace(operand, value=-operand.value, is_literal=False, depth=depth)
        return Unknown(depth)

    def negated(self, operand: Operand) -> Operand:
        return Truth(negated(_truth(operand)), depth=_deeper(operand))

    def grouped(self, operand: Operand) -> Operand:
        return replace(operand, depth=_deeper(operand))

    def text(self, token: Token) -> Operand:
        return Text(_unquoted(token))

    def whole(self, token: Token) -> Operand:
        # Longer ones overflow anyway, and int() refuses very long ones in its own words.
        value = int(token.rstrip("lL")[: len("9223372036854775807") + 1])
        if value >= 1 << (LARGE_BITS - 1):
            raise SelectorInvalid(f"the number {token[:40]} does not fit into {LARGE_BITS} bits")
        return Number(value, SMALL_BITS if value < 1 << (SMALL_BITS - 1) else LARGE_BITS)

    def decimal(self, token: Token) -> Operand:
        value = float(token)
        if math.isinf(value):
            raise SelectorInvalid(f"the number {token[:40]} is too large")
        return Number(value, 0)

    def true(self) -> Operand:
        return Truth(constant(True), is_literal=True)

    def false(self) -> Operand:
        return Truth(constant(False), is_literal=True)

    def null(self) -> Operand:
        return Truth(constant(None), is_literal=True)

    def property(self, token: Token) -> Operand:
        return Property(str(token))


# The basic lexer keeps keywords reserved everywhere; the contextual one would let `in = 1` pass.
_PARSER: Final = Lark(
    GRAMMAR, parser="lalr", lexer="basic", transformer=_Compiler(), maybe_placeholders=False
)


def _parse(expression: str) -> Operand:
    operand: object = _PARSER.parse(expression)
    assert isinstance(operand, Property | Text | Number | Truth | Unknown)
    return operand


def _truth(operand: Operand) -> Test:
    if isinstance(operand, Truth):
        return operand.test
    if isinstance(operand, Property):
        return bare_property(operand.name)
    raise SelectorInvalid(f"{_named(operand)} is not a condition; compare it with something")


def _equal(left: Operand, right: Operand) -> Test:
    for operand in (left, right):
        if _is_null_literal(operand):
            raise SelectorInvalid("NULL cannot be compared; write IS NULL or IS NOT NULL")
    is_literal = isinstance(right, Text) or (isinstance(right, Number) and right.is_literal)
    if isinstance(left, Truth) and left.is_literal and is_literal:
        raise SelectorInvalid(f"TRUE or FALSE cannot be compared with {_named(right)}")
    return equal(left, right)


def _ordered(left: Operand, right: Operand, order: Order) -> Test:
    for operand in (left, right):
        if isinstance(operand, Text | Truth):
            raise SelectorInvalid(f"{_named(operand)} has no order; only numbers have")
    return ordered(left, right, order)


def _one_of(operand: Operand, texts: tuple[Token, ...], is_wanted: bool) -> Operand:
    if not isinstance(operand, Property):
        raise SelectorInvalid(f"IN asks for a property, not for {_named(operand)}")
    test = one_of(operand.name, frozenset(map(_unquoted, texts)), is_wanted)
    return Truth(test, depth=_deeper(operand))


def _is_null_literal(operand: Operand) -> bool:
    return isinstance(operand, Truth) and operand.is_literal and operand.test({}) is None


def _deeper(*operands: Operand) -> int:
    depth = 1 + max(operand.depth for operand in operands)
    if depth > NESTING_MAX:
        raise SelectorInvalid(f"more than {NESTING_MAX} levels of nesting")
    return depth


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _named(operand: Operand) -> str:
    if isinstance(operand, Property):
        return f"the property {operand.name}"
    if isinstance(operand, Text):
        return f"the text '{operand.value[:40]}'"
    if isinstance(operand, Number):
        return f"the number {operand.value}"
    return "a truth value" if isinstance(operand, Truth) else "a negated value"


def _where(problem: UnexpectedInput, expression: str) -> str:
    if isinstance(problem, UnexpectedEOF) or (
        isinstance(problem, UnexpectedToken) and problem.token.type == "$END"
    ):
        return f"the expression ends too early: {_shown(expression)}"
    if isinstance(problem, UnexpectedToken):
        what = f"unexpected {str(problem.token)[:40]!r}"
    elif isinstance(problem, UnexpectedCharacters):
        what = f"unexpected character {expression[problem.pos_in_stream or 0]!r}"
    else:
        what = "syntax error"
    return f"{what} at line {problem.line}, column {problem.column} of {_shown(expression)}"


def _shown(expression: str) -> str:
    return repr(expression if len(expression) <= 80 else expression[:77] + "...")


# ---- comparisons --------------------------------------------------------------------------------
# Two operands in, one three-valued test out.
#
# Rules for "unknown" (a missing property):
#
# ===============  =======================================================================
# ``=``            left unknown -> unknown; left known, right unknown -> false; both -> true
# ``< <= > >=``    either unknown -> unknown
# ``IN``           unknown -> unknown
# ``CONTAINS`` ..  unknown, no text or nothing to look for -> false, also with ``NOT``
# ===============  =======================================================================
#
# Order is for numbers only: two properties are read as decimals, a property beside a number literal
# as that literal's type. Left is evaluated before right; an ``Incomparable`` ends the evaluation.


def equal(left: Operand, right: Operand) -> Test:
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


# ---- logic --------------------------------------------------------------------------------------
# AND, OR and NOT over true, false and unknown (Kleene's tables), short-circuiting left to right.
#
# Long chains are one test over a tuple, not a tower of pairs: their depth is 1 whatever their
# length.


def all_of(tests: tuple[Test, ...]) -> Test:
    """False as soon as one is false; else unknown if one is unknown; else true."""
    if len(tests) == 2:
        return _both(*tests)

    def test(properties: Properties) -> bool | None:
        result: bool | None = True
        for each in tests:
            value = each(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return test


def any_of(tests: tuple[Test, ...]) -> Test:
    """True as soon as one is true; else unknown if one is unknown; else false."""

    def test(properties: Properties) -> bool | None:
        result: bool | None = False
        for each in tests:
            value = each(properties)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return test


def negated(inner: Test) -> Test:

    def test(properties: Properties) -> bool | None:
        value = inner(properties)
        return None if value is None else not value

    return test


def bare_property(name: str) -> Test:
    """A property used as a truth: texts are not truths, so it is false, or unknown when missing."""
    return lambda properties: None if properties.get(name) is None else False


def _both(left: Test, right: Test) -> Test:
    def test(properties: Properties) -> bool | None:
        first = left(properties)
        if first is False:
            return False
        second = right(properties)
        if second is False:
            return False
        return None if first is None or second is None else True

    return test
