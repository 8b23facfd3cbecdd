r"""What an error of Spark's comes down to: the sentence of whoever raised it.

    Traceback ... ValueError: no such customer    ->  ValueError: no such customer
    ... BadOption: there is no option 'x'         ->  there is no option 'x'      (our own sentence)
    [CAST_INVALID_INPUT] ... == SQL (line 1 ...)  ->  [CAST_INVALID_INPUT] ... (line 1, position 8)
    Job aborted ... \tat ... Caused by: java...   ->  the last cause, without its stack

Spark wraps what a task or a Python worker says into its own words, a stack of the JVM, the query's
offsets and its plan. Whoever runs a query wants the one sentence that says what to do.

Pure: texts in, texts out; imports nothing of Spark.
"""

import re
from typing import Final

SLOW_START: Final = "failed to connect back"
"""Spark gives a Python process ten seconds to start, which no setting changes: on a machine that is
drowned in other work the next start finds it warm."""
CHARACTERS_MAX: Final = 1000

_PYTHON: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?:(?:[ \t].*)?\n)+?((?:[\w.]+\.)?)(\w+(?:: .*)?)\n?"
    r"((?:(?!\s*SQLSTATE|\s*at |\s*$|===|Traceback).*\n?)*)"
)
"""Module, class and message of what a traceback ends with, and the message's other lines."""
_JVM: Final = re.compile(
    r"(?:^Caused by: |^: |^Exception in thread \"[^\"]*\" |\(\S+ executor \S+\): )"
    r"((?:[\w$]+\.)+)([\w$]+(?:: .*)?)"
)
_END: Final = re.compile(r"\s*SQLSTATE:|\n== SQL|\n=== Streaming Query|\n\s*at |\n'|\n\+- ")
"""Behind what Spark has to say comes what only its makers read."""
_PLACE: Final = re.compile(r"\bline (\d+),? pos(?:ition)? (\d+)")
_OF_SPARK: Final = re.compile(r"^(?:org\.apache\.spark\.(?:[\w$]+\.)*[\w$]+: )+")


def cause_of(problem: BaseException | str) -> str:
    """One line, at most ``CHARACTERS_MAX``."""
    text = str(problem)
    if SLOW_START in text:
        return f"a Python worker of Spark {SLOW_START} in time: this machine is too busy"
    text = text.partition("=== Streaming Query ===")[0]
    return " ".join((_of_python(text) or _of_spark(text)).split())[:CHARACTERS_MAX]


def _of_python(text: str) -> str:
    """What the last traceback ends with, wherever it stands; what we raise speaks for itself."""
    found = _PYTHON.findall(text)
    if not found:
        return ""
    module, first, rest = found[-1]
    name, has_message, message = first.partition(": ")
    said = f"{message if module.startswith('penstock.') and has_message else first} {rest}"
    return said if said.strip() else name


def _of_spark(text: str) -> str:
    causes = [found for line in text.splitlines() for found in _JVM.findall(line)]
    place = _PLACE.search(text)
    said = text
    if causes:
        module, sentence = causes[-1]
        is_sparks = module.startswith("org.apache.spark.") and ": " in sentence
        said = sentence.partition(": ")[2] if is_sparks else sentence
    said = _END.split(_OF_SPARK.sub("", said.strip()), maxsplit=1)[0].rstrip(" ;")
    if place is None or _PLACE.search(said):
        return said
    return f"{said} (line {place[1]}, position {place[2]})"
