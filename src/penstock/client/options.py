"""Options of the client, declared once: a name, a type, a default, a meaning, a range.

    class ProducerOptions(InstanceOptions, total=False):
        send_timeout_ms: Annotated[int, Option(3000, "How long one send may take.", minimum=1)]

    def __init__(self, name_servers, **options: Unpack[ProducerOptions]) -> None:
        self._options = resolve(ProducerOptions, options)

``resolve`` fills in defaults and checks types and ranges; an unknown name is a ``TypeError`` that
suggests the nearest known one. The reference page is generated from ``describe``.

Not here: what an option does (the module that reads it).
"""

import difflib
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")


class Option(NamedTuple):
    """What stands behind the type of an option."""

    default: Any
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    choices: Sequence[object] | None = None


class Described(NamedTuple):
    """An option as the reference page shows it."""

    name: str
    kind: Any
    """The type as declared, without its ``Annotated``."""
    option: Option


_declared: Final[dict[Any, dict[str, tuple[Any, Option]]]] = {}
"""What each TypedDict declares, read once; there are a handful."""


class InstanceOptions(TypedDict, total=False):
    """Options of everything that talks to brokers; those of the first user of an instance hold."""

    instance_name: Annotated[
        str,
        Option(
            "DEFAULT",
            "Users of one name, one process and the same name servers share connections. Two"
            " consumers of one group in one process need two names.",
        ),
    ]
    unit_name: Annotated[str | None, Option(None, "Last part of the client id, for unit set-ups.")]
    client_ip: Annotated[
        str | None, Option(None, "First part of the client id; found out by default.")
    ]
    poll_name_server_interval_ms: Annotated[
        int, Option(30_000, "How often the routes of all topics in use are asked for.", 10)
    ]
    heartbeat_interval_ms: Annotated[
        int, Option(30_000, "How often brokers hear of this client; they forget after 120 s.", 10)
    ]
    persist_interval_ms: Annotated[int, Option(5_000, "How often consumer offsets are stored.", 10)]
    rebalance_interval_ms: Annotated[
        int, Option(20_000, "How often queues are divided anew, without any notice.", 10)
    ]
    rebalance_spacing_ms: Annotated[
        int, Option(1_000, "Least time between two divisions, however many notices come.", 0)
    ]
    request_timeout_ms: Annotated[
        int, Option(3_000, "How long a question to a name server or broker may take.", 1)
    ]
    connect_timeout_ms: Annotated[int, Option(3_000, "How long connecting may take.", 1)]
    reconnect_wait_min_ms: Annotated[
        int, Option(100, "Wait after the first failure to connect; it doubles.", 1)
    ]
    reconnect_wait_max_ms: Annotated[
        int, Option(3_000, "Longest wait between two attempts to connect.", 1)
    ]
    stop_timeout_ms: Annotated[
        int, Option(3_000, "How long saying good-bye to the brokers may take in all.", 0)
    ]
    access_key: Annotated[
        str | None, Option(None, "Name under which requests are signed, for brokers with ACL.")
    ]
    secret_key: Annotated[str | None, Option(None, "What requests are signed with.")]
    security_token: Annotated[str | None, Option(None, "Token of a temporary access key.")]


def resolve(kind: type[T], given: Mapping[str, object]) -> T:
    """All options of ``kind`` (a TypedDict): those given, checked, and defaults for the rest."""
    known = _known(kind)
    for name in given:
        if name not in known:
            raise TypeError(_unknown(kind, name, known))
    full = {}
    for name, (declared, option) in known.items():
        value = given.get(name, option.default)
        if name in given:
            _check(name, value, declared, option)
        full[name] = value
    return cast("T", full)


def pick(kind: type[T], options: Mapping[str, object]) -> T:
    """Those options of a larger, resolved set that ``kind`` knows."""
    return resolve(kind, {name: options[name] for name in _known(kind) if name in options})


def describe(kind: type) -> list[Described]:
    """Every option of a TypedDict in the order of declaration, parents first."""
    return [Described(name, declared, option) for name, (declared, option) in _known(kind).items()]


def _known(kind: Any) -> dict[str, tuple[Any, Option]]:
    if kind in _declared:
        return _declared[kind]
    found: dict[str, tuple[Any, Option]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        declared, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        option = next((note for note in notes if isinstance(note, Option)), None)
        if option is None:
            raise TypeError(f"option {name} of {kind.__name__} is not declared with an Option")
        found[name] = (declared, option)
    _declared[kind] = found
    return found


def _unknown(kind: type, name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"
    return f"{name!r} is no option of {kind.__name__}{hint}"


def _check(name: str, value: object, declared: Any, option: Option) -> None:
    if value == option.default and type(value) is type(option.default):
        return
    classes = _classes(declared)
    is_wrong_bool = isinstance(value, bool) and classes is not None and bool not in classes
    if classes is not None and (is_wrong_bool or not isinstance(value, classes)):
        wanted = " or ".join(map(_name_of, classes))
        raise TypeError(f"option {name} is {wanted}, not {value!r}")
    if option.choices is not None and value not in option.choices:
        listed = ", ".join(map(repr, option.choices))
        raise ValueError(f"option {name} is one of {listed}, not {value!r}")
    if not isinstance(value, (int, float)):
        return
    if option.minimum is not None and value < option.minimum:
        raise ValueError(f"option {name} is {value}, at least {option.minimum} is needed")
    if option.maximum is not None and value > option.maximum:
        raise ValueError(f"option {name} is {value}, at most {option.maximum} is possible")


def _name_of(kind: type) -> str:
    """As one writes it: of an enumeration all there is to choose from."""
    if issubclass(kind, Enum):
        return " or ".join(f"{kind.__name__}.{each.name}" for each in kind)
    return "None" if kind is type(None) else f"{'an' if kind is int else 'a'} {kind.__name__}"


_WIDER: Final[dict[type, tuple[type, ...]]] = {float: (float, int)}


def _classes(declared: Any) -> tuple[type, ...] | None:
    """Classes a value must be of; None where only a type checker can tell."""
    if declared is None or declared is type(None):
        return (type(None),)
    origin = get_origin(declared)
    if origin in (Union, types.UnionType):
        parts = [_classes(each) for each in get_args(declared)]
        if any(part is None for part in parts):
            return None
        return tuple(each for part in parts if part is not None for each in part)
    found = declared if origin is None else origin
    if not isinstance(found, type) or getattr(found, "_is_protocol", False):
        return None
    return _WIDER.get(found, (found,))
