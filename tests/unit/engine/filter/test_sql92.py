"""SQL92 selectors, rule by rule; the law over all expressions is in tests/property."""

import subprocess
import sys

import pytest

from penstock.engine.filter.sql92 import (
    EXPRESSION_CHARS_MAX,
    EXPRESSION_WORDS_MAX,
    SELECTORS_CHARS_MAX,
    SELECTORS_MAX,
    SelectorCache,
    SqlFilter,
    compile_selector,
    words_of,
)
from penstock.model.errors import SelectorInvalid
from penstock.model.record import neutral_record

T, F, U = True, False, None
ERROR = "error"

# a is a text, n a number, d a decimal, t a truth, e is empty; nothing else is set.
MESSAGE = {"a": "hello", "n": "5", "d": "5.5", "t": "TRUE", "f": "no", "e": "", "big": "3000000000"}


def value(expression, message=MESSAGE):
    try:
        return compile_selector(expression).test(message)
    except ValueError:
        return ERROR


def table(*rows):
    return pytest.mark.parametrize(("expression", "expected"), rows)


@table(
    ("a = 'hello'", T),
    ("a = 'Hello'", F),
    ("a <> 'hello'", F),
    ("a <> 'other'", T),
    ("missing = 'x'", U),
    ("missing <> 'x'", U),
    ("'x' = missing", F),
    ("'x' <> missing", T),
    ("a = missing", F),
    ("missing = a", U),
    ("missing = absent", T),
    ("missing <> absent", F),
    ("e = ''", T),
    ("'it''s' = 'it''s'", T),
)
def test_equality_is_unknown_on_the_left_and_false_on_the_right(expression, expected):
    assert value(expression) is expected


@table(
    ("amqp.app_id = 'till'", T),
    ("amqp.app_id = 'till' AND amqp.priority > 2.5", T),
    ("amqp.priority BETWEEN .5 AND 5.", T),
    ("not.paid = 'x'", T),
    ("amqp.missing IS NULL", T),
)
def test_names_may_have_dots_inside(expression, expected):
    message = {"amqp.app_id": "till", "amqp.priority": "3", "not.paid": "x"}
    assert value(expression, message) is expected


@table(
    ("n = 5", T),
    ("5 = n", T),
    ("n <> 5", F),
    ("n = 5.0", T),
    ("n = -5", F),
    ("n = 5L", T),
    ("d = 5.5", T),
    ("d = 5", ERROR),
    ("a = 5", ERROR),
    ("big = 5", ERROR),
    ("big = 3000000000", T),
    ("n = 3000000000", F),
    ("5 = 5.0", T),
    ("5 = 3000000000", F),
    ("'5' = 5", T),
    ("t = TRUE", T),
    ("TRUE = t", T),
    ("t = FALSE", F),
    ("f = FALSE", T),
    ("5 = TRUE", F),
    ("(n = 5) = TRUE", T),
    ("(n = 5) = (a = 'hello')", T),
    ("(missing = 5) = TRUE", U),
    ("(n = 5) = 1", F),
)
def test_a_text_is_converted_to_the_type_of_what_it_is_compared_with(expression, expected):
    assert value(expression) is expected


@table(
    ("n > 4", T),
    ("n > 5", F),
    ("n >= 5", T),
    ("n < 6", T),
    ("n <= 4", F),
    ("4 < n", T),
    ("n > -1", T),
    ("n > 4.5", T),
    ("d > 5", ERROR),
    ("d > 5.0", T),
    ("a > 5", ERROR),
    ("missing > 5", U),
    ("n > missing", U),
    ("d > n", T),
    ("n > a", ERROR),
    ("n > -missing", U),
    ("7 > 5.5", T),
)
def test_order_is_for_numbers_and_unknown_when_a_side_is_missing(expression, expected):
    assert value(expression) is expected


@table(
    ("n BETWEEN 5 AND 6", T),
    ("n BETWEEN 6 AND 7", F),
    ("n NOT BETWEEN 6 AND 7", T),
    ("n NOT BETWEEN 5 AND 7", F),
    ("n NOT BETWEEN 7 AND 6", T),
    ("missing BETWEEN 1 AND 2", U),
    ("n BETWEEN missing AND 2", F),
    ("n BETWEEN missing AND 7", U),
    ("n BETWEEN -1 AND -5", F),
    ("a BETWEEN 1 AND 2", ERROR),
    ("n BETWEEN 1 AND 9 AND a = 'hello'", T),
)
def test_between_is_two_comparisons(expression, expected):
    assert value(expression) is expected


@table(
    ("a IN ('x', 'hello')", T),
    ("a IN ('x')", F),
    ("a NOT IN ('x')", T),
    ("a NOT IN ('hello')", F),
    ("missing IN ('x')", U),
    ("missing NOT IN ('x')", U),
    ("n IN ('5')", T),
    ("(a) IN ('hello')", T),
)
def test_in_looks_among_texts(expression, expected):
    assert value(expression) is expected


@table(
    ("a CONTAINS 'ell'", T),
    ("a NOT CONTAINS 'ell'", F),
    ("a STARTSWITH 'he'", T),
    ("a NOT STARTSWITH 'lo'", T),
    ("a ENDSWITH 'lo'", T),
    ("a NOT ENDSWITH 'lo'", F),
    ("missing CONTAINS 'x'", F),
    ("missing NOT CONTAINS 'x'", F),
    ("missing NOT STARTSWITH 'x'", F),
    ("missing NOT ENDSWITH 'x'", F),
    ("a CONTAINS ''", F),
    ("a NOT CONTAINS ''", F),
    ("5 CONTAINS '5'", F),
    ("5 NOT CONTAINS 'x'", F),
    ("(n = 5) NOT ENDSWITH 'x'", F),
    ("'axb' CONTAINS 'x'", T),
    ("'axb' NOT CONTAINS 'u'", T),
    ("(a > 5) CONTAINS 'x'", ERROR),
)
def test_looking_into_a_text_is_false_also_with_not_when_there_is_no_text(expression, expected):
    assert value(expression) is expected


@table(
    ("a IS NULL", F),
    ("a IS NOT NULL", T),
    ("missing IS NULL", T),
    ("missing IS NOT NULL", F),
    ("(missing = 1) IS NULL", T),
    ("5 IS NULL", F),
    ("-a IS NULL", T),
    ("NULL IS NULL", T),
    ("e IS NULL", F),
)
def test_is_null_is_never_unknown(expression, expected):
    assert value(expression) is expected


TRUTHS = {"TRUE": T, "FALSE": F, "NULL": U}


@pytest.mark.parametrize(
    ("operator", "rows"),
    [("AND", "TFU FFF UFU"), ("OR", "TTT TFU TUU")],
)
def test_and_and_or_follow_their_tables(operator, rows):
    letters = {"T": T, "F": F, "U": U}
    for left, row in zip(TRUTHS, rows.split(), strict=True):
        for right, letter in zip(TRUTHS, row, strict=True):
            assert value(f"{left} {operator} {right}") is letters[letter], (left, right)


@table(("NOT TRUE", F), ("NOT FALSE", T), ("NOT NULL", U), ("NOT NOT TRUE", T))
def test_not_of_unknown_is_unknown(expression, expected):
    assert value(expression) is expected


@table(("a", F), ("t", F), ("missing", U), ("NOT t", T), ("NOT missing", U), ("t OR TRUE", T))
def test_a_bare_property_is_never_true(expression, expected):
    assert value(expression) is expected


@table(
    ("TRUE OR FALSE AND FALSE", T),
    ("(TRUE OR FALSE) AND FALSE", F),
    ("NOT FALSE AND FALSE", F),
    ("NOT n = TRUE", T),
    ("NOT (n = 5)", F),
    ("a = 'hello' = TRUE", T),
    ("n = 5 IS NULL", F),
    ("n + 1 = 6", "syntax"),
    ("a LIKE 'h%'", "syntax"),
)
def test_precedence_is_or_and_equality_comparison_sign(expression, expected):
    if expected == "syntax":
        with pytest.raises(SelectorInvalid, match="unexpected"):
            compile_selector(expression)
    else:
        assert value(expression) is expected


@table(
    ("a = 'hello' OR a > 5", T),
    ("a > 5 OR a = 'hello'", ERROR),
    ("a = 'x' AND a > 5", F),
    ("a > 5 AND a = 'x'", ERROR),
    ("missing = 'x' AND a > 5", ERROR),
)
def test_what_is_decided_is_not_looked_at_further_and_cannot_fail(expression, expected):
    assert value(expression) is expected


@table(
    ("A = 'hello'", U),
    ("a is not null aNd n In ('5')", T),
    ("inner = 1 OR order_by IS NULL", T),
    ("$x_1 IS NULL", T),
    ("n /* five */ = -- no doubt\n 5", T),
    ("n = 5 -- to the end", T),
    ("n=5 and(a='hello')", T),
    ("n<>6", T),
    ("d = 5.5E0 AND n = 5. AND n > .5 AND n < 1e3", T),
    ("n = + 5 AND n = - - 5", T),
    ("a = '--'", F),
)
def test_spelling(expression, expected):
    assert value(expression) is expected


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "too early"),
        ("a =", "too early"),
        ("5", "not a condition"),
        ("'x'", "not a condition"),
        ("-a", "not a condition"),
        ("a AND 5", "not a condition"),
        ("NOT 'x'", "not a condition"),
        ("a < 'x'", "no order"),
        ("'x' >= a", "no order"),
        ("a < TRUE", "no order"),
        ("a < NULL", "no order"),
        ("a > 1 > 2", "no order"),
        ("a BETWEEN 'a' AND 'b'", "no order"),
        ("a NOT BETWEEN 1 AND NULL", "no order"),
        ("a = NULL", "IS NULL"),
        ("NULL <> a", "IS NULL"),
        ("TRUE = 5", "cannot be compared"),
        ("5 IN ('5')", "IN asks for a property"),
        ("(a = 1) NOT IN ('5')", "IN asks for a property"),
        ("a IN (5)", "unexpected '5'"),
        ("a IN ()", "unexpected"),
        ("a CONTAINS b", "unexpected 'b'"),
        ("a BETWEEN 10 AND 0", "never true"),
        ("a BETWEEN 5.5 AND 5", "never true"),
        ("a = 9223372036854775808", "64 bits"),
        ("a = 1e400", "too large"),
        ("in = 1", "unexpected 'in'"),
        ("a = 007", "unexpected"),
        ("a = 'x", "unexpected character"),
        ("a = 1 /* open", "unexpected character"),
        ("a = 1 b", "unexpected 'b' at line 1, column 7"),
        ("a == 1", "unexpected '='"),
        ("a != 1", "unexpected character '!'"),
        ("a. = 1", "unexpected character '.'"),
        ("a .b = 1", "unexpected character '.'"),
        ("a..b = 1", "unexpected character '.'"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_a_reason(expression, why):
    with pytest.raises(SelectorInvalid, match=why):
        compile_selector(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 200 + "a = 1" + ")" * 200,
        "NOT " * 400 + "a",
        "- " * 400 + "5 = a",
        "a = " * 200 + "1",
        "a CONTAINS 'x' " + "CONTAINS 'x' " * 150,
    ],
)
def test_deep_nesting_is_refused_and_not_a_crash(expression):
    with pytest.raises(SelectorInvalid, match="100 levels of nesting"):
        compile_selector(expression)


@pytest.mark.parametrize("expression", ["(" * 10_000, "(" * 10_000 + "a=1" + ")" * 10_000])
def test_ten_thousand_parentheses_are_refused_by_length(expression):
    with pytest.raises(SelectorInvalid, match=f"limit {EXPRESSION_CHARS_MAX}"):
        compile_selector(expression)


@pytest.mark.parametrize(
    "expression",
    ["a=1" + " AND a=1" * 125, "a IN (" + "'x'," * 300 + "'x')", "((" * 300 + "a" + "))" * 300],
)
def test_what_takes_long_to_compile_is_refused_by_its_words_before_it_is_compiled(expression):
    assert words_of(expression) > EXPRESSION_WORDS_MAX
    with pytest.raises(SelectorInvalid, match=f"limit {EXPRESSION_WORDS_MAX}; make it shorter"):
        compile_selector(expression)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a=1 AND amqp.app_id <> 'it''s'", 7),
        ("size>=-1.5 OR $x IN ('a b','c')", 12),
        ("-- nothing\na IS NOT NULL", 7),
    ],
)
def test_the_words_of_a_selector_are_counted_without_compiling(expression, expected):
    assert words_of(expression) == expected


def test_every_compilation_is_charged_once_with_its_words():
    charged = []
    cache = SelectorCache(charge=charged.append)
    for _ in range(2):
        cache.selector("a = 1 AND b = 2")
    with pytest.raises(SelectorInvalid):
        cache.selector("a =")
    assert charged == [7, 2]


def test_long_chains_are_not_deep():
    terms = " OR ".join(f"n = {number}" for number in range(6, 120))
    assert value(terms) is F
    assert value(terms + " OR n = 5") is T


def test_a_filter_counts_what_could_not_be_compared():
    read = {b"good": {"a": "7"}, b"bad": {"a": "seven"}, b"none": {}}
    filter_ = SqlFilter(compile_selector("a > 5"), lambda record: read[record.body])
    wanted = [body for body in read if filter_.matches_record(neutral_record(body))]
    assert (wanted, filter_.errors) == ([b"good"], 1)
    assert filter_.matches_entry(0)


def test_properties_that_cannot_be_read_are_no_match():
    filter_ = SqlFilter(compile_selector("a IS NULL"), lambda record: {"a": record.body.decode()})
    assert not filter_.matches_record(neutral_record(b"\xff"))
    assert filter_.errors == 1


def test_an_expression_is_compiled_once_and_a_wrong_one_refused_once():
    cache = SelectorCache()
    assert cache.selector("a = 1") is cache.selector("a = 1")
    for _ in range(2):
        with pytest.raises(SelectorInvalid, match="too early"):
            cache.selector("a =")
    assert (cache.compiled, len(cache)) == (2, 2)


def test_the_cache_forgets_what_was_not_asked_for_longest():
    cache = SelectorCache(count_max=2)
    first = cache.selector("a = 1")
    cache.selector("a = 2")
    assert cache.selector("a = 1") is first
    cache.selector("a = 3")
    assert (len(cache), cache.selector("a = 1") is first) == (2, True)
    cache.selector("a = 2")
    assert cache.compiled == 4


def test_the_cache_is_bounded_in_characters_too_and_keeps_nothing_oversized():
    cache = SelectorCache(chars_max=20)
    cache.selector("a = 'xxxxxxxx'")
    cache.selector("a = 'yyyyyyyy'")
    assert len(cache) == 1
    with pytest.raises(SelectorInvalid):
        cache.selector("x" * (EXPRESSION_CHARS_MAX + 1))
    assert len(cache) == 1
    assert (SelectorCache().count_max, SelectorCache().chars_max) == (
        SELECTORS_MAX,
        SELECTORS_CHARS_MAX,
    )


def test_a_broker_without_selectors_never_loads_the_parser():
    script = (
        "import sys, penstock.engine.filter.sql92, penstock.engine.filter.bit_maps;"
        "sys.exit('lark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
