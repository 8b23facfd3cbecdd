"""Policies: arguments for many queues and exchanges at once, by patterns of their names.

A policy has a name, a pattern, what it applies to, a priority and a definition: keys as the ``x-``
arguments have them, without the ``x-``. Policies are of users or of operators. At most one of each
is in effect for an object: the one of the highest priority whose pattern is found in the name, of
equals the first by name. A policy with a key that a type of queue does not know is not for queues
of that type at all, as in RabbitMQ.

    argument, policy         numbers: the smaller; others: the argument of the declaration
    policy, operator policy  numbers: the smaller; others: the operator's

In effect are the keys of ``QUEUE_KEYS`` and ``EXCHANGE_KEYS``; those of ``IGNORED_KEYS`` are known
to RabbitMQ and mean nothing here, every other is refused. A new key is a row of ``_CHECKS``.

Every change is in effect for objects that live before it is answered. Thousands of them take a
while, so they are looked at a slice at a time (``PolicySweep``), with turns of the broker between.

Bounds: ``amqp.policies_max`` policies of all vhosts together, ``amqp.arguments_bytes_max`` of each
definition, ``VHOST_STEPS_MAX`` of the patterns of one vhost: names are chosen by clients.
Not here: what an effective policy does to a queue (``queue_registry.py``) or an exchange
(``vhost.py``).
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from penstock.engine.spark.topic_search import PATTERN_CHARACTERS_MAX, ways
from penstock.engine.topic import Overflow
from penstock.model.names import NAME_BYTES_MAX

if TYPE_CHECKING:
    from penstock.engine.broker import Engine

_log = logging.getLogger(__name__)

EXCHANGE: Final = "exchange"
ALL: Final = "all"
_QUEUES: Final = frozenset(("classic", "quorum", "stream"))
APPLY_TO: Final[Mapping[str, frozenset[str]]] = {
    ALL: _QUEUES | {EXCHANGE},
    "queues": _QUEUES,
    "exchanges": frozenset((EXCHANGE,)),
    "classic_queues": frozenset(("classic",)),
    "quorum_queues": frozenset(("quorum",)),
    "streams": frozenset(("stream",)),
}
"""What a policy can be for: types of queues, and exchanges. There are no streams here."""

TIMER_MS_MAX: Final = 4_294_967_295
"""RabbitMQ's largest time: 49.7 days."""
NUMBER_MAX: Final = (1 << 63) - 1
PRIORITY_MAX: Final = (1 << 31) - 1

OVERFLOWS: Final = {
    "drop-head": Overflow.DROP_HEAD,
    "reject-publish": Overflow.REJECT,
    "reject-publish-dlx": Overflow.REJECT_DEAD_LETTER,
    "hold": Overflow.HOLD,
}


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy, of a user or of an operator, as it is stored and as JSON has it."""

    name: str
    pattern: str
    definition: dict[str, Any]
    priority: int = 0
    apply_to: str = msgspec.field(default=ALL, name="apply-to")

    @property
    def ignored(self) -> list[str]:
        """Keys that mean nothing here."""
        return [key for key in self.definition if key in IGNORED_KEYS]


class EffectivePolicy(msgspec.Struct, frozen=True):
    """What is in effect for an object: at most one policy of each kind, and what they say."""

    name: str | None = None
    operator: str | None = None
    definition: dict[str, Any] = {}


NO_POLICY: Final = EffectivePolicy()


def merged_definition(user: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    """What both say together: an operator restricts, and has the last word."""
    merged = {**user, **operator}
    for key in user.keys() & operator.keys():
        if key in NUMBER_KEYS:
            merged[key] = min(user[key], operator[key])
        elif key == "target-group-size":
            merged[key] = max(user[key], operator[key])
    return merged


def with_policy(arguments: dict[str, Any], definition: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a queue as they are in effect; the same object when they are as declared."""
    changed: dict[str, Any] = {}
    for key in definition.keys() & QUEUE_KEYS:
        name, value = f"x-{key}", definition[key]
        declared = arguments.get(name)
        if declared is None or (key in NUMBER_KEYS and value < declared):
            changed[name] = value
    return {**arguments, **changed} if changed else arguments


# ---- patterns -----------------------------------------------------------------------------------
# Found anywhere in a name, unless they say otherwise. Their time is bounded before they are used
# (``ways``): for each alone, and for all of a vhost together, because every name that a client
# declares is looked for in all of them.

PATTERN_STEPS_MAX: Final = 2 * NAME_BYTES_MAX**2
"""Of one pattern in one name: a millisecond in the worst of names."""
VHOST_STEPS_MAX: Final = 16 * NAME_BYTES_MAX**2
"""Of all patterns in one name: some milliseconds in the worst of names."""
_ANYTHING_BEFORE: Final = re.compile(r"^\^?\.\*(?![?+*{])")
_ANYTHING_BEHIND: Final = re.compile(r"(?<!\\)\.\*\$?$")


PATTERNS_KEPT: Final = 2048
"""Read patterns that are remembered, twice what ``amqp.policies_max`` is: one takes some 60 us."""


@lru_cache(maxsize=PATTERNS_KEPT)
def read_pattern(text: str) -> tuple[re.Pattern[str], int]:
    """The pattern, and in how many steps it is looked for; raises ``ValueError``."""
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters")
    # Found anywhere: "anything" before or behind says nothing, and would be tried at every place.
    wanted = _ANYTHING_BEHIND.sub("", _ANYTHING_BEFORE.sub("", text))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            pattern = re.compile(wanted)
    except (re.error, OverflowError, RecursionError) as problem:
        raise ValueError(f"pattern {text!r} is no regular expression: {problem}") from None
    is_anchored = wanted.startswith("^") and "|" not in wanted
    steps = ways(wanted) * (1 if is_anchored else NAME_BYTES_MAX)
    if steps > PATTERN_STEPS_MAX:
        raise ValueError(
            f"pattern {text!r} may take too long: at most one of * and + besides .* at its ends, "
            "two behind ^, and none in a group that is repeated itself; begin it with ^"
        )
    return pattern, steps


# ---- keys ---------------------------------------------------------------------------------------
# Each check gives what a value has to be; empty when it is.


def _number(low: int, high: int = NUMBER_MAX) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return "" if is_number and low <= value <= high else f"a number from {low} to {high}"

    return check


def _one_of(*words: Any) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        is_known = not isinstance(value, (bool, float)) and value in words
        return "" if is_known else f"one of {', '.join(str(word) for word in words)}"

    return check


def _name(value: Any) -> str:
    is_name = isinstance(value, str) and len(value.encode("utf-8", "replace")) <= NAME_BYTES_MAX
    return "" if is_name else f"a text of at most {NAME_BYTES_MAX} bytes"


def _anything(_value: Any) -> str:
    return ""


_HA_KEYS: Final = frozenset(
    (
        "ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown",
        "ha-promote-on-failure",
    )
)  # fmt: skip
_CHECKS: Final[Mapping[str, Callable[[Any], str]]] = {
    "message-ttl": _number(0, TIMER_MS_MAX),
    "expires": _number(1, TIMER_MS_MAX),
    "max-length": _number(0),
    "max-length-bytes": _number(0),
    "overflow": _one_of(*OVERFLOWS),
    "dead-letter-exchange": _name,
    "dead-letter-routing-key": _name,
    "delivery-limit": _number(0),
    "alternate-exchange": _name,
    "queue-mode": _one_of("default", "lazy"),
    "queue-version": _one_of(1, 2),
    "queue-leader-locator": _one_of("client-local", "balanced", "random", "least-leaders"),
    "queue-master-locator": _one_of("client-local", "random", "min-masters"),
    "dead-letter-strategy": _one_of("at-most-once", "at-least-once"),
    "max-in-memory-length": _number(0),
    "max-in-memory-bytes": _number(0),
    "consumer-timeout": _number(0),
    "max-age": _name,
    "max-segment-size": _number(0),
    "stream-max-segment-size-bytes": _number(0),
    "initial-cluster-size": _number(0),
    "target-group-size": _number(1),
    **dict.fromkeys(_HA_KEYS, _anything),
}
"""Every key there is; RabbitMQ's own for mirrors, which nothing here has, are not looked at."""
NUMBER_KEYS: Final = frozenset(
    (
        "message-ttl", "expires", "max-length", "max-length-bytes", "max-in-memory-length",
        "max-in-memory-bytes", "consumer-timeout", "delivery-limit",
    )
)  # fmt: skip
"""Of these the smallest is in effect."""
QUEUE_KEYS: Final = frozenset(
    (
        "message-ttl", "expires", "max-length", "max-length-bytes", "overflow",
        "dead-letter-exchange", "dead-letter-routing-key", "delivery-limit",
    )
)  # fmt: skip
EXCHANGE_KEYS: Final = frozenset(("alternate-exchange",))
IGNORED_KEYS: Final = _CHECKS.keys() - QUEUE_KEYS - EXCHANGE_KEYS
OPERATOR_KEYS: Final = NUMBER_KEYS | _HA_KEYS | {"overflow", "queue-version", "target-group-size"}
"""What an operator's policy may say, as in RabbitMQ: limits, and nothing about names."""
_STREAM_KEYS: Final = frozenset(
    ("max-age", "max-segment-size", "stream-max-segment-size-bytes", "initial-cluster-size")
)
_UNSUITED: Final[Mapping[str, frozenset[str]]] = {
    "classic": _STREAM_KEYS | {"queue-leader-locator", "delivery-limit", "dead-letter-strategy"},
    "quorum": _STREAM_KEYS | _HA_KEYS | {"queue-mode", "queue-master-locator"},
}
"""Keys that a type of queue does not know: with one of them a policy is not for that type."""


def check_patterns(policies: Iterable[PreparedPolicy], there: PolicyTable | None) -> None:
    """Raise ``ValueError`` unless the patterns of all of these can be in one vhost."""
    steps = {} if there is None else there.steps_by_name()
    for is_operator, rule, _ in policies:
        steps[is_operator, rule.policy.name] = rule.steps
    if sum(steps.values()) > VHOST_STEPS_MAX:
        raise ValueError(
            "all patterns of one vhost together may take too long; let more of them begin with ^, "
            "and have no * or + in their midst"
        )


def _check_policy(policy: Policy, *, is_operator: bool, bytes_max: int) -> None:
    word = "operator policy" if is_operator else "policy"
    called = f"{word} {policy.name[:80]!r}"
    if not policy.name or _name(policy.name) or not policy.name.isprintable():
        raise ValueError(f"{called}: a name has 1 to {NAME_BYTES_MAX} bytes, all printable")
    if policy.apply_to not in APPLY_TO:
        raise ValueError(
            f"{called}: apply-to is {policy.apply_to[:80]!r}; use one of {', '.join(APPLY_TO)}"
        )
    if abs(policy.priority) > PRIORITY_MAX:
        raise ValueError(f"{called}: priority is {policy.priority}; at most {PRIORITY_MAX}")
    if not policy.definition:
        raise ValueError(f"{called}: the definition is empty; give at least one key")
    allowed = OPERATOR_KEYS if is_operator else _CHECKS.keys()
    unknown = sorted(policy.definition.keys() - allowed)
    if unknown:
        shown = ", ".join(repr(key[:80]) for key in unknown[:5])
        raise ValueError(
            f"{called}: {shown} is not known here; a definition has {', '.join(sorted(allowed))}"
        )
    for key, value in policy.definition.items():
        wanted = _CHECKS[key](value)
        if wanted:
            raise ValueError(f"{called}: {key} is {str(value)[:80]!r}; it must be {wanted}")
    size = len(msgspec.json.encode(policy.definition))
    if size > bytes_max:
        raise ValueError(f"{called}: {size} bytes, {bytes_max} are allowed (arguments_bytes_max)")


# ---- policies of a vhost ------------------------------------------------------------------------

POLICY_KIND: Final = "amqp.policy"
OPERATOR_POLICY_KIND: Final = "amqp.operator_policy"
EFFECTIVE_KEPT: Final = 4096
"""Pairs of a policy and an operator policy whose merged definition is remembered."""


class _Rule(NamedTuple):
    """A policy, ready to be asked."""

    policy: Policy
    pattern: re.Pattern[str]
    steps: int
    kinds: frozenset[str]


class PreparedPolicy(NamedTuple):
    """A policy that was checked: putting it into effect takes no time to speak of."""

    is_operator: bool
    rule: _Rule
    row: bytes
    """As the catalog keeps it."""


def prepare_policy(policy: Policy, *, is_operator: bool, bytes_max: int) -> PreparedPolicy:
    """All that can be done with one by itself; raises ``ValueError`` when it cannot be."""
    _check_policy(policy, is_operator=is_operator, bytes_max=bytes_max)
    return PreparedPolicy(is_operator, _rule(policy), msgspec.msgpack.encode(policy))


class PolicyTable:
    """The policies of one vhost: kept in the catalog, and asked for the name of an object."""

    def __init__(self, engine: Engine, vhost: str) -> None:
        self._engine: Final = engine
        self._vhost: Final = vhost
        self._rules: Final[dict[bool, dict[str, _Rule]]] = {False: {}, True: {}}
        """By name; of users, and of operators (True)."""
        self._order: Final[dict[bool, list[_Rule]]] = {False: [], True: []}
        self._effective: Final[dict[tuple[str, str], EffectivePolicy]] = {}
        prefix = self._key("")
        for is_operator in (False, True):
            for key, body in engine.definitions(_kind(is_operator)).items():
                if key.startswith(prefix):
                    self._restore(msgspec.msgpack.decode(body, type=Policy), is_operator)
        self._changed()

    def __len__(self) -> int:
        return sum(len(rules) for rules in self._rules.values())

    @property
    def steps(self) -> int:
        """What one name costs in the worst case."""
        return sum(rule.steps for rules in self._rules.values() for rule in rules.values())

    def get(self, name: str, *, is_operator: bool) -> Policy | None:
        found = self._rules[is_operator].get(name)
        return None if found is None else found.policy

    def all(self, *, is_operator: bool) -> list[Policy]:
        """In the order in which they are asked."""
        return [rule.policy for rule in self._order[is_operator]]

    def new_names(self, names: Iterable[tuple[bool, str]]) -> int:
        """How many of these (is_operator, name) are not there yet, each once."""
        return sum(name not in self._rules[is_operator] for is_operator, name in set(names))

    def steps_by_name(self) -> dict[tuple[bool, str], int]:
        """What each pattern costs, by (is_operator, name)."""
        return {
            (kind, name): rule.steps
            for kind, rules in self._rules.items()
            for name, rule in rules.items()
        }

    def put(self, policies: Iterable[PreparedPolicy]) -> None:
        """All at once, each new or instead of the one of its name."""
        for is_operator, rule, row in policies:
            name = rule.policy.name
            self._rules[is_operator][name] = rule
            self._engine.define(_kind(is_operator), self._key(name), row)
        self._changed()

    def delete(self, name: str, *, is_operator: bool) -> bool:
        """False when there was none."""
        if self._rules[is_operator].pop(name, None) is None:
            return False
        self._engine.define(_kind(is_operator), self._key(name), None)
        self._changed()
        return True

    def drop(self) -> None:
        """The vhost goes."""
        for is_operator, rules in self._rules.items():
            for name in list(rules):
                self.delete(name, is_operator=is_operator)

    def effective(self, kind: str, name: str) -> EffectivePolicy:
        """What is in effect for an object: a type of queue or ``EXCHANGE``, and its name."""
        user = self._match(kind, name, is_operator=False)
        operator = self._match(kind, name, is_operator=True)
        if user is None and operator is None:
            return NO_POLICY
        key = (user.name if user else "", operator.name if operator else "")
        found = self._effective.get(key)
        if found is None:
            if len(self._effective) >= EFFECTIVE_KEPT:
                self._effective.clear()
            merged = merged_definition(
                user.definition if user else {}, operator.definition if operator else {}
            )
            found = self._effective[key] = EffectivePolicy(
                user.name if user else None, operator.name if operator else None, merged
            )
        return found

    def _restore(self, policy: Policy, is_operator: bool) -> None:
        try:
            self._rules[is_operator][policy.name] = _rule(policy)
        except (ValueError, KeyError) as problem:
            # Another version accepted it: the row stays, and is in effect for nobody.
            _log.warning("a stored policy", extra={"policy": policy.name, "why": str(problem)})

    def _match(self, kind: str, name: str, *, is_operator: bool) -> Policy | None:
        for rule in self._order[is_operator]:
            if kind in rule.kinds and rule.pattern.search(name):
                return rule.policy
        return None

    def _changed(self) -> None:
        self._effective.clear()
        for is_operator, rules in self._rules.items():
            self._order[is_operator] = sorted(
                rules.values(), key=lambda rule: (-rule.policy.priority, rule.policy.name)
            )

    def _key(self, name: str) -> str:
        return f"{self._vhost}\0{name}"


def _kind(is_operator: bool) -> str:
    return OPERATOR_POLICY_KIND if is_operator else POLICY_KIND


def _rule(policy: Policy) -> _Rule:
    kinds = APPLY_TO[policy.apply_to]
    keys = policy.definition.keys()
    suited = {kind for kind in kinds if keys.isdisjoint(_UNSUITED.get(kind, frozenset()))}
    return _Rule(policy, *read_pattern(policy.pattern), frozenset(suited))


# ---- living objects -----------------------------------------------------------------------------

OBJECTS_AT_A_TIME: Final = 200
"""Queues and exchanges looked at in one go; then others have their turn."""
_OBJECT_STEPS: Final = VHOST_STEPS_MAX // OBJECTS_AT_A_TIME
"""What an object costs besides patterns, in their steps."""
_RULE_STEPS: Final = 32
"""What a pattern costs at least."""

T = TypeVar("T", bound=Hashable)


class PolicySweep(Generic[T]):
    """Looks at living objects after a change, a slice at a time.

    Who asks: whoever changed a policy; who waits: those that gave ``after`` a callback. A change
    while others are under way adds what is not waiting already, so every object is looked at in
    its turn. Bound: the objects there are.
    """

    def __init__(self, table: PolicyTable, apply: Callable[[list[T]], None]) -> None:
        self._table: Final = table
        self._apply: Final = apply
        self._todo: Final[dict[T, None]] = {}
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_running(self) -> bool:
        return bool(self._todo)

    def begin(self, objects: Iterable[T]) -> None:
        """Look at all of these again; the first slice at once."""
        self._todo.update(dict.fromkeys(objects))
        self.run_slice()

    def run_slice(self) -> None:
        steps = _OBJECT_STEPS + _RULE_STEPS * len(self._table) + self._table.steps
        count = max(1, VHOST_STEPS_MAX // steps)
        part = list(islice(self._todo, count))
        for each in part:
            del self._todo[each]
        self._apply(part)
        if not self._todo:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def stop(self) -> None:
        """There is nothing left to look at."""
        self._todo.clear()
        self.run_slice()

    def after(self, callback: Callable[[], None]) -> None:
        """Call back when every change so far is in effect."""
        if self._todo:
            self._waiting.append(callback)
        else:
            callback()
