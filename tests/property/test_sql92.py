"""Compiled selectors against a naive evaluator that walks the tree with explicit tables.

Expressions are grown rule by rule of the grammar, so text needs parentheses only where the grammar
does: a wrong precedence shows as a wrong result. Illegal ones are grown too: both sides must agree
on what cannot be compiled.
"""

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.filter.sql92 import compile_selector
from penstock.model.errors import SelectorInvalid

T, F, U = True, False, None

AND = {
    (T, T): T, (T, F): F, (T, U): U,
    (F, T): F, (F, F): F, (F, U): F,
    (U, T): U, (U, F): F, (U, U): U,
}  # fmt: skip
OR = {
    (T, T): T, (T, F): T, (T, U): T,
    (F, T): T, (F, F): F, (F, U): U,
    (U, T): T, (U, F): U, (U, U): U,
}  # fmt: skip
NOT = {T: F, F: T, U: U}

SYMBOLS = {
    ">": lambda c: c > 0,
    ">=": lambda c: c >= 0,
    "<": lambda c: c < 0,
    "<=": lambda c: c <= 0,
}


Illegal = type("Illegal", (Exception,), {"__doc__": "Cannot be compiled."})
Failed = type("Failed", (Exception,), {"__doc__": "Cannot be evaluated."})


# What may be compiled. A node is (kind, ...); the kinds of its result:

BOOLEAN_KINDS = ("or", "and", "=", "<>", "is", "order", "between", "in", "look", "not")


def bare(node):
    """Without parentheses and plus signs, which change nothing."""
    while node[0] in ("paren", "plus"):
        node = node[1]
    return node


def check(node):
    kind = node[0]
    for child in node[1:]:
        if isinstance(child, tuple):
            check(child)
    if kind in ("or", "and"):
        for child in node[1:]:
            check_condition(child)
    elif kind == "not":
        check_condition(node[1])
    elif kind in ("=", "<>"):
        check_equality(bare(node[1]), bare(node[2]))
    elif kind == "order":
        check_order(node[2], node[3])
    elif kind == "between":
        check_order(node[2], node[3], node[4])
        low, high = bare(node[3]), bare(node[4])
        if (
            node[1]
            and low[0] == high[0] == "number"
            and compare(value(low, {}), value(high, {})) > 0
        ):
            raise Illegal
    elif kind == "in" and bare(node[2])[0] != "property":
        raise Illegal


def check_condition(node):
    if bare(node)[0] not in (*BOOLEAN_KINDS, "truth", "property"):
        raise Illegal


def check_equality(left, right):
    if ("truth", None) in (left, right):
        raise Illegal
    if left[0] == "truth" and right[0] in ("text", "number"):
        raise Illegal


def check_order(*operands):
    for operand in map(bare, operands):
        if operand[0] in ("text", "truth", *BOOLEAN_KINDS):
            raise Illegal


# What it means. Values are (type, value) or None for unknown.


def value(node, properties):
    return VALUES[node[0]](node, properties)


def truth(node, properties):
    """A condition's value: a bare property is never true."""
    kind, result = value(node, properties) or ("Boolean", U)
    return result if kind == "Boolean" else F


def number(node, _properties):
    text = node[1]
    if re.fullmatch(r"\d+", text):
        whole = int(text)
        return ("Integer" if whole < 2**31 else "Long", whole)
    return ("Double", float(text))


def fold(table, node, properties):
    result = truth(node[1], properties)
    for child in node[2:]:
        # Short circuit: what is not looked at cannot fail.
        if result is (F if table is AND else T):
            break
        result = table[(result, truth(child, properties))]
    return boolean(result)


def boolean(result):
    return None if result is U else ("Boolean", result)


def equal(node, properties):
    left, right = value(node[1], properties), value(node[2], properties)
    if left is None and right is not None:
        return None
    if right is None:
        return ("Boolean", left is None)
    return ("Boolean", compare(left, right) == 0)


def inverted(result):
    return None if result is None else ("Boolean", NOT[result[1]])


def is_null(node, properties):
    return boolean((value(node[2], properties) is None) is node[1])


def order(symbol, left, right, properties):
    left, right = value(left, properties), value(right, properties)
    if left is None or right is None:
        return U
    if left[0] == right[0] == "String":
        left, right = ("Double", to_double(left[1])), ("Double", to_double(right[1]))
    return SYMBOLS[symbol](compare(left, right))


def between(node, properties):
    _, is_within, operand, low, high = node
    if is_within:
        first = order(">=", operand, low, properties)
        result = F if first is F else AND[(first, order("<=", operand, high, properties))]
    else:
        first = order("<", operand, low, properties)
        result = T if first is T else OR[(first, order(">", operand, high, properties))]
    return boolean(result)


def contained(node, properties):
    _, is_in, operand, texts = node
    found = value(operand, properties)
    return None if found is None else ("Boolean", (found[1] in texts) is is_in)


def looked(node, properties):
    _, is_like, how, operand, needle = node
    if not needle:
        return ("Boolean", F)
    found = value(operand, properties)
    if found is None or found[0] != "String":
        return ("Boolean", F)
    hit = {
        "CONTAINS": needle in found[1],
        "STARTSWITH": found[1][: len(needle)] == needle,
        "ENDSWITH": found[1][-len(needle) :] == needle,
    }[how]
    return ("Boolean", hit is is_like)


def minus(node, properties):
    found = value(node[1], properties)
    if found is None or found[0] in ("String", "Boolean"):
        return None
    return (found[0], -found[1])


def ordered(node, properties):
    return boolean(order(*node[1:], properties))


VALUES = {
    "or": lambda node, properties: fold(OR, node, properties),
    "and": lambda node, properties: fold(AND, node, properties),
    "=": equal,
    "<>": lambda node, properties: inverted(equal(node, properties)),
    "is": is_null,
    "order": ordered,
    "between": between,
    "in": contained,
    "look": looked,
    "not": lambda node, properties: boolean(NOT[truth(node[1], properties)]),
    "minus": minus,
    "plus": lambda node, properties: value(node[1], properties),
    "paren": lambda node, properties: value(node[1], properties),
    "text": lambda node, _: ("String", node[1]),
    "number": number,
    "truth": lambda node, _: None if node[1] is None else ("Boolean", node[1]),
    "property": lambda node, properties: (
        ("String", properties[node[1]]) if node[1] in properties else None
    ),
}


def compare(left, right):
    """Negative, 0 or positive; types that do not go together are "less"."""
    (left_type, left), (right_type, right) = left, right
    if left_type != right_type:
        if left_type == "String":
            left, left_type = converted(left, right_type), right_type
        elif right_type == "String":
            right, right_type = converted(right, left_type), left_type
        if "Boolean" in (left_type, right_type) and left_type != right_type:
            return -1
        if "Double" in (left_type, right_type):
            left, right = float(left), float(right)
    return (left > right) - (left < right)


def converted(text, kind):
    if kind == "Boolean":
        return text.lower() == "true"
    if kind == "Double":
        return to_double(text)
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise Failed(text)
    whole, bits = int(text), {"Integer": 31, "Long": 63}[kind]
    if not -(2**bits) <= whole < 2**bits:
        raise Failed(text)
    return whole


def to_double(text):
    text = text.strip(" \t\r\n")
    if text.lstrip("+-") == "Infinity":
        return float(text)
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?", text):
        raise Failed(text)
    return float(text.rstrip("fFdD"))


# How expressions grow: any tree at all, and conditions that mostly make sense.

LOOKS = ["CONTAINS", "STARTSWITH", "ENDSWITH"]
NEEDLES = st.sampled_from(["", "a", "b", "5", "it's", "true"])
NAMES = st.sampled_from("abcde").map(lambda name: ("property", name))
NUMBERS = st.sampled_from(["0", "5", "7", "2147483648", "5.0", "5.5", ".5", "1E3"]).map(
    lambda text: ("number", text)
)
TRUTHS = st.sampled_from([True, False, None]).map(lambda each: ("truth", each))
PRIMARY = st.one_of(NAMES, NUMBERS, TRUTHS, NEEDLES.map(lambda text: ("text", text)))


def signed(primary):
    return st.one_of(primary, st.tuples(st.sampled_from(["plus", "minus", "not"]), primary))


def compared(left, right):
    return st.one_of(
        st.tuples(st.just("order"), st.sampled_from(list(SYMBOLS)), left, right),
        st.tuples(st.just("between"), st.booleans(), left, right, right),
        st.tuples(st.just("in"), st.booleans(), left, st.lists(NEEDLES, min_size=1, max_size=3)),
        st.tuples(st.just("look"), st.booleans(), st.sampled_from(LOOKS), left, NEEDLES),
    )


def equated(left, right):
    return st.one_of(
        st.tuples(st.sampled_from(["=", "<>"]), left, right),
        st.tuples(st.just("is"), st.booleans(), left),
    )


def chained(terms):
    ands = st.lists(terms, min_size=1, max_size=3).map(lambda each: joined("and", each))
    return st.lists(ands, min_size=1, max_size=3).map(lambda each: joined("or", each))


def joined(kind, terms):
    return (kind, *terms) if len(terms) > 1 else terms[0]


def any_rule(inner):
    sign = signed(st.one_of(PRIMARY, inner.map(lambda node: ("paren", node))))
    comparison = st.one_of(sign, compared(sign, sign))
    return chained(st.one_of(comparison, equated(comparison, comparison)))


def sensible_rule(inner):
    nested = inner.map(lambda node: ("paren", node))
    return chained(st.one_of(SENSIBLE, nested, st.tuples(st.just("not"), nested)))


SIDES = st.one_of(NUMBERS, NUMBERS.map(lambda each: ("minus", each)), NAMES)
SENSIBLE = st.one_of(compared(NAMES, SIDES), equated(NAMES, st.one_of(PRIMARY, SIDES)), NAMES)
EXPRESSIONS = st.one_of(
    st.recursive(chained(SENSIBLE), sensible_rule, max_leaves=6),
    st.recursive(PRIMARY, any_rule, max_leaves=6),
)
NUMERIC = ["5", "-5", "+5", "7", "0", "5.5", "1e3", ".5", "3000000000"]
ODD = [" 5", "5 ", "5f", "1_0", "0x5", "9223372036854775808", "Infinity", "e", "", "abc"]
TEXTS = st.sampled_from(NUMERIC * 3 + ODD + ["true", "TRUE", "it's", "b", "ab"])
PROPERTIES = st.dictionaries(st.sampled_from("abcde"), TEXTS, min_size=2)


def quoted(text):
    return "'{}'".format(text.replace("'", "''"))


MAYBE_NOT = {True: "", False: "NOT "}


WRITTEN = {
    "or": lambda *terms: " OR ".join(map(written, terms)),
    "and": lambda *terms: " AND ".join(map(written, terms)),
    "=": lambda left, right: f"{written(left)} = {written(right)}",
    "<>": lambda left, right: f"{written(left)} <> {written(right)}",
    "order": lambda symbol, left, right: f"{written(left)} {symbol} {written(right)}",
    "is": lambda yes, operand: f"{written(operand)} IS {MAYBE_NOT[yes]}NULL",
    "between": lambda yes, operand, low, high: (
        f"{written(operand)} {MAYBE_NOT[yes]}BETWEEN {written(low)} AND {written(high)}"
    ),
    "in": lambda yes, operand, texts: (
        f"{written(operand)} {MAYBE_NOT[yes]}IN ({', '.join(map(quoted, texts))})"
    ),
    "look": lambda yes, how, operand, needle: (
        f"{written(operand)} {MAYBE_NOT[yes]}{how} {quoted(needle)}"
    ),
    "truth": lambda each: {True: "TRUE", False: "FALSE", None: "NULL"}[each],
    "text": quoted,
    "number": str,
    "property": str,
    "paren": lambda inner: f"({written(inner)})",
    "plus": lambda inner: f"+ {written(inner)}",
    "minus": lambda inner: f"- {written(inner)}",
    "not": lambda inner: f"NOT {written(inner)}",
}


def written(node):
    return WRITTEN[node[0]](*node[1:])


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS, st.lists(PROPERTIES, min_size=1, max_size=6))
def test_a_compiled_selector_says_what_the_tables_say(tree, messages):
    text = written(tree)
    try:
        check(tree)
        check_condition(tree)
    except Illegal:
        with pytest.raises(SelectorInvalid):
            compile_selector(text)
        return
    selector = compile_selector(text)
    for properties in messages:
        try:
            expected = truth(tree, properties)
        except Failed:
            with pytest.raises(ValueError, match="not"):
                selector.test(properties)
            assert not selector.matches(properties)
        else:
            assert selector.test(properties) is expected, text
            assert selector.matches(properties) is (expected is T)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab5'()=<>-+*/,. \nANDORNOTIN", max_size=40))
def test_no_text_does_anything_but_compile_or_be_refused(text):
    with contextlib.suppress(SelectorInvalid):
        assert compile_selector(text).matches({"a": "5"}) in (True, False)


def test_the_tables_obey_de_morgan():
    for pair in AND:
        assert NOT[AND[pair]] is OR[(NOT[pair[0]], NOT[pair[1]])]
