"""SQL92 selectors: conditions over a message's properties, compiled once, asked per message.

A selector is three-valued (a missing property is unknown) and a message matches when the result is
exactly true. A value that cannot be compared as the expression wants ("abc" < 5) is no match, and
is counted.

Invariants: an expression is compiled once while it stays in the cache, and a wrong one is refused
once; both are bounded in number and size, so are length and nesting of one expression.
Not here: grammar and meaning of operators (``sql92_parser.py``), where properties come from (the
reader is a port: whoever owns the bytes supplies it, D15).
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.engine.filter.sql92_operands import Properties, Test
from penstock.model.errors import SelectorInvalid
from penstock.model.record import Record

EXPRESSION_CHARS_MAX: Final = 2_048
"""Longer selectors are refused."""

EXPRESSION_WORDS_MAX: Final = 500
"""Names, literals and signs of a selector: each takes some 7 us to compile, so all of them less
than 5 ms, in which nobody else is served."""

_WORD: Final = re.compile(r"'(?:[^']|'')*'|[\w.$]+|[<>]=|<>|\S")

SELECTORS_MAX: Final = 500
"""Compiled expressions kept, whoever uses them; the least recently asked for goes first."""

SELECTORS_CHARS_MAX: Final = 256 * 1024
"""Characters of all of them together; a compiled selector takes up to 100 bytes for each."""

PropertiesReader = Callable[[Record], Properties]
"""A record's properties as texts, the tag included under its usual name."""


class Selector:
    """A compiled expression."""

    __slots__ = ("expression", "test")

    def __init__(self, expression: str, test: Test) -> None:
        self.expression = expression
        self.test = test
        """True, False or None for unknown; raises ``ValueError`` for what cannot be compared."""

    def matches(self, properties: Properties) -> bool:
        """Exactly true; what cannot be compared is no match."""
        try:
            return self.test(properties) is True
        except ValueError:
            return False


class SqlFilter:
    """Asks a selector about records."""

    __slots__ = ("_properties", "_test", "errors", "selector")

    def __init__(self, selector: Selector, properties: PropertiesReader) -> None:
        self.selector = selector
        self.errors = 0
        """Messages that did not match because their values could not be compared."""
        self._test = selector.test
        self._properties = properties

    def matches_entry(self, tag_hash: int) -> bool:
        """Properties are not in the index: everything can match."""
        return True

    def matches_record(self, record: Record) -> bool:
        """Whether the selector is true for the record's properties."""
        try:
            return self._test(self._properties(record)) is True
        except ValueError:
            self.errors += 1
            return False


class SelectorCache:
    """Compiled expressions by their text, wrong ones too: a client asks again and again."""

    __slots__ = ("_charge", "_chars", "_kept", "chars_max", "compiled", "count_max")

    def __init__(
        self,
        count_max: int = SELECTORS_MAX,
        chars_max: int = SELECTORS_CHARS_MAX,
        charge: Callable[[int], None] | None = None,
    ) -> None:
        self.count_max = count_max
        self.chars_max = chars_max
        self._charge = charge
        """Told how many words are compiled, for whoever shares out the time of a turn."""
        self.compiled = 0
        """Expressions compiled so far, well or not."""
        # A selector, or what was wrong with it.
        self._kept: OrderedDict[str, Selector | str] = OrderedDict()
        self._chars = 0

    def __len__(self) -> int:
        return len(self._kept)

    def selector(self, expression: str) -> Selector:
        """The compiled expression; raises ``SelectorInvalid`` saying what to change."""
        found = self._kept.get(expression)
        if found is None:
            found = self._compiled(expression)
        else:
            self._kept.move_to_end(expression)
        if isinstance(found, Selector):
            return found
        raise SelectorInvalid(found)

    def _compiled(self, expression: str) -> Selector | str:
        self.compiled += 1
        if self._charge is not None:
            self._charge(words_of(expression))
        made: Selector | str
        try:
            made = compile_selector(expression)
        except SelectorInvalid as problem:
            made = str(problem)
        if len(expression) <= EXPRESSION_CHARS_MAX:
            self._keep(expression, made)
        return made

    def _keep(self, expression: str, made: Selector | str) -> None:
        self._kept[expression] = made
        self._chars += len(expression)
        while len(self._kept) > self.count_max or self._chars > self.chars_max:
            oldest, _ = self._kept.popitem(last=False)
            self._chars -= len(oldest)


def compile_selector(expression: str) -> Selector:
    """Compile without a cache; raises ``SelectorInvalid``."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise SelectorInvalid(
            f"the selector has {len(expression)} characters, limit {EXPRESSION_CHARS_MAX}; "
            "make it shorter"
        )
    words = words_of(expression)
    if words > EXPRESSION_WORDS_MAX:
        raise SelectorInvalid(
            f"the selector has {words} names, literals and signs, limit {EXPRESSION_WORDS_MAX}; "
            "make it shorter"
        )
    # Here, not above: a broker without selectors never pays for the parser.
    from penstock.engine.filter.sql92_parser import compile_test

    return Selector(expression, compile_test(expression))


def words_of(expression: str) -> int:
    """How many names, literals and signs there are to compile, counted without compiling."""
    return len(_WORD.findall(expression[:EXPRESSION_CHARS_MAX]))
