"""The reference pages of the clients, made from the code: every class, method and option.

    python -m penstock.cli.client_reference > docs/reference/client.md
    python -m penstock.cli.client_reference pulsar > docs/reference/pulsar-client.md

Options are read from the ``Option`` annotations behind ``**options: Unpack[...]`` of a class, so
that a page in step with the code is the only kind there can be (a test compares them). Pulsar's
classes are made by a ``Client``, whose methods take their options (``PULSAR_OPTIONS``).
"""

import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any, Final, Unpack, get_args, get_origin, get_type_hints, is_typeddict

import penstock.client
import penstock.client.pulsar
from penstock.client.options import Described, InstanceOptions, describe
from penstock.client.pulsar.options import ClientOptions, ConsumerOptions
from penstock.client.pulsar.producer import ProducerOptions
from penstock.client.pulsar.reader import ReaderOptions
from penstock.client.pulsar.table_view import TableViewOptions

HEAD: Final = """\
# Client reference

Made from the code by `python -m penstock.cli.client_reference`; the introduction is
[the client](../client.md). Names are imported from `penstock.client`.

Every class takes its options as keywords and checks them: an unknown name is a `TypeError` that
suggests the nearest one, a value out of range a `ValueError`. Times are in milliseconds (`_ms`),
sizes in bytes (`_bytes`), limits end in `_max`. Defaults are those of RocketMQ 5.

Methods that talk to a broker block; their twins ending in `_async` are awaited instead, from any
event loop.
"""


PULSAR_HEAD: Final = """\
# Pulsar client reference

Made from the code by `python -m penstock.cli.client_reference pulsar`; the introduction is
[the Pulsar client](../pulsar-client.md). Names are imported from `penstock.client.pulsar`.

Options are keywords of the method that makes a thing, and are checked: an unknown name is a
`TypeError` that suggests the nearest one, a value out of range a `ValueError`. Times are in
milliseconds (`_ms`), sizes in bytes (`_bytes`), limits end in `_max`.

Methods that talk to a broker block; their twins ending in `_async` are awaited instead, from any
event loop.
"""
PULSAR_OPTIONS: Final[dict[str, tuple[str, type]]] = {
    "Client": ("Client", ClientOptions),
    "Producer": ("Client.create_producer", ProducerOptions),
    "Consumer": ("Client.subscribe", ConsumerOptions),
    "Reader": ("Client.create_reader", ReaderOptions),
    "TableView": ("Client.create_table_view", TableViewOptions),
}
"""Of Pulsar's classes: what makes one, and the options that takes."""
PULSAR_INNER: Final = frozenset((
    "active_changed", "bury", "end_callbacks", "end_listeners", "fill", "inbox_for",
    "is_closed_before_producers", "open", "parts", "place", "position", "refresh", "shut", "take",
    "to_wire",
))  # fmt: skip
"""What the parts of the client ask of each other, on its own thread."""


def as_markdown() -> str:
    lines = [HEAD]
    shared = {each.name for each in describe(InstanceOptions)}
    for kind in public_classes():
        options = options_of(kind)
        if options is None:
            continue
        own = [each for each in describe(options) if each.name not in shared]
        has_shared = any(each.name in shared for each in describe(options))
        lines += [f"## {kind.__name__}", "", inspect.cleandoc(kind.__doc__ or ""), ""]
        lines += _table(own)
        if has_shared:
            lines += ["And the options of [every connection](#every-connection).", ""]
        lines += _methods(kind)
    lines += ["## Every connection", "", inspect.cleandoc(InstanceOptions.__doc__ or ""), ""]
    lines += _table(describe(InstanceOptions))
    lines += _values()
    # Docstrings quote code as reStructuredText does.
    return "\n".join(lines).replace("``", "`").rstrip() + "\n"


def pulsar_as_markdown() -> str:
    """The page of ``penstock.client.pulsar``."""
    package = penstock.client.pulsar
    lines = [PULSAR_HEAD]
    for name, (maker, options) in PULSAR_OPTIONS.items():
        kind = getattr(package, name)
        lines += [f"## {name}", "", inspect.cleandoc(kind.__doc__ or ""), ""]
        lines += [f"Options of `{maker}`:", "", *_table(describe(options))]
        lines += _methods(kind, PULSAR_INNER)
    for kind in (package.Message, package.ReceivedMessage, package.MessageId):
        lines += [f"## {kind.__name__}", "", inspect.cleandoc(kind.__doc__ or ""), ""]
        lines += _methods(kind, PULSAR_INNER)
    lines += _values(package)
    return "\n".join(lines).replace("``", "`").rstrip() + "\n"


def public_classes(package: ModuleType = penstock.client) -> list[type]:
    """Classes that a package offers, in the order in which it lists them."""
    offered = (getattr(package, name) for name in package.__all__)
    return [each for each in offered if isinstance(each, type)]


def options_of(kind: type) -> type | None:
    """The TypedDict behind ``**options`` of a class; None when it takes no options."""
    maker = next(
        (vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each)), None
    )
    if not inspect.isfunction(maker):
        return None
    hint = get_type_hints(maker, include_extras=True).get("options")
    if get_origin(hint) is not Unpack:
        return None
    (found,) = get_args(hint)
    return found if is_typeddict(found) else None


def _table(options: list[Described]) -> list[str]:
    if not options:
        return []
    lines = ["| option | default | meaning |", "|---|---|---|"]
    lines += [
        f"| `{each.name}` | {_default(each.option.default)} | {each.option.meaning}{_range(each)} |"
        for each in options
    ]
    return [*lines, ""]


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return f"`{str(value)!r}`"
    if isinstance(value, Enum):
        return f"`{type(value).__name__}.{value.name}`"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"`{value:_}`"
    return f"`{getattr(value, '__name__', None) or repr(value)}`"


def _range(each: Described) -> str:
    option = each.option
    if option.choices is not None:
        return " One of " + ", ".join(_default(choice) for choice in option.choices) + "."
    parts = []
    if option.minimum is not None:
        parts.append(f"at least {option.minimum:_}")
    if option.maximum is not None:
        parts.append(f"at most {option.maximum:_}")
    text = ", ".join(parts)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _methods(kind: type, hidden: frozenset[str] = frozenset()) -> list[str]:
    rows = [
        f"| `{name}` | {summary} |"
        for name, summary in _summaries(kind)
        if name.partition("`")[0] not in hidden
    ]
    return ["| method | what it does |", "|---|---|", *rows, ""] if rows else []


def _summaries(kind: type) -> Iterator[tuple[str, str]]:
    """Public methods and properties in the order of the source, parents last; twins as one row."""
    seen: dict[str, str] = {}
    for owner in kind.__mro__[:-1]:
        for name, member in vars(owner).items():
            is_wanted = inspect.isfunction(member) or isinstance(member, property)
            if is_wanted and not name.startswith("_") and name not in seen:
                text = inspect.getdoc(member) or ""
                seen[name] = text.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    for name, summary in seen.items():
        if name.endswith("_async") and name.removesuffix("_async") in seen:
            continue
        twin = f"`, `{name}_async" if f"{name}_async" in seen else ""
        yield name + twin, summary


def _values(package: ModuleType = penstock.client) -> list[str]:
    """Enumerations and errors, which options and methods speak of."""
    kinds = public_classes(package)
    lines = ["## Words", "", "| name | members |", "|---|---|"]
    lines += [
        f"| `{kind.__name__}` | {', '.join(f'`{each.name}`' for each in kind)} |"
        for kind in kinds
        if issubclass(kind, Enum)
    ]
    lines += ["", "## Errors", "", "| error | meaning |", "|---|---|"]
    lines += [
        f"| `{kind.__name__}` | {inspect.cleandoc(kind.__doc__ or '').splitlines()[0]} |"
        for kind in kinds
        if issubclass(kind, Exception)
    ]
    return lines


if __name__ == "__main__":
    print(pulsar_as_markdown() if sys.argv[1:] == ["pulsar"] else as_markdown(), end="")
