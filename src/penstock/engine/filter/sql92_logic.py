"""AND, OR and NOT over true, false and unknown (Kleene's tables), short-circuiting left to right.

Long chains are one test over a tuple, not a tower of pairs: their depth is 1 whatever their length.
"""

from penstock.engine.filter.sql92_operands import Properties, Test


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
    """Not unknown is unknown."""

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
