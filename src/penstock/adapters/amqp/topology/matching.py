"""Bindings, and how each type of exchange chooses among them.

A new exchange type is a ``Matcher`` here and a row of ``MATCHERS``; nothing else knows the types.
Direct, fanout and topic decide by the routing key alone, so the router may remember their answer; a
headers exchange looks into every message.

Invariant: two bindings are the same when source, destination, routing key and arguments are, these
whatever their order and however wide their integers came.
Not here: which bindings there are (``exchange.py``); following them from exchange to exchange, and
the default exchange, which has none (``router.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote_plus

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import Timestamp, encode_table

FINGERPRINT_BYTES: Final = 16


class Destination(NamedTuple):
    """Where a binding leads; a queue and an exchange may have the same name."""

    is_queue: bool
    name: str

    @property
    def kind(self) -> str:
        """The word for it in texts and in the management JSON."""
        return "queue" if self.is_queue else "exchange"


def to_queue(name: str) -> Destination:
    return Destination(True, name)


def to_exchange(name: str) -> Destination:
    return Destination(False, name)


class BindingKey(NamedTuple):
    """What makes a binding the one it is."""

    source: str
    destination: Destination
    routing_key: str
    fingerprint: str
    """Of the arguments; empty when there are none."""


class Binding:
    """What a source exchange gets goes on to a queue or another exchange; immutable."""

    __slots__ = ("arguments", "destination", "is_durable", "key", "routing_key", "source")

    def __init__(
        self,
        source: str,
        destination: Destination,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        *,
        is_durable: bool = False,
    ) -> None:
        self.source: Final = source
        self.destination: Final = destination
        self.routing_key: Final = routing_key
        self.arguments: Final[dict[str, Any]] = arguments or {}
        self.is_durable: Final = is_durable
        """Both ends are durable: it outlives the process."""
        self.key: Final = BindingKey(source, destination, routing_key, _fingerprint(self.arguments))

    def __repr__(self) -> str:
        return f"<Binding {self.source!r} -{self.routing_key}-> {self.destination}>"

    @property
    def properties_key(self) -> str:
        """Its name below source and destination in management paths, quoted as RabbitMQ does."""
        routing_key = quote_plus(self.routing_key).replace("~", "%7E")
        if not self.key.fingerprint:
            return routing_key or "~"
        return f"{routing_key}~{self.key.fingerprint}"


def _fingerprint(arguments: dict[str, Any]) -> str:
    """A short text that is equal for equal arguments, whatever their order."""
    if not arguments:
        return ""
    table = encode_table(dict(sorted(arguments.items())))
    return blake2b(table, digest_size=FINGERPRINT_BYTES).hexdigest()


# ---- matchers -----------------------------------------------------------------------------------

Match = tuple[list[Destination], int]
"""Destinations (some may come twice: the router makes them unique), and how many bindings or nodes
were looked at."""


class Matcher(Protocol):
    """The bindings of one source exchange, indexed by what its type compares."""

    needs_headers: bool
    """True when the routing key does not decide."""

    def add(self, binding: Binding) -> None:
        """A binding that was not there; raises ``AmqpError`` when its arguments make no sense."""
        ...

    def remove(self, binding: Binding) -> None: ...

    def match(self, routing_key: str, headers: Mapping[str, Any]) -> Match:
        """Where a message goes, and what it cost to find out."""
        ...


class DirectMatcher:
    """The routing key equals that of the binding."""

    __slots__ = ("_by_key",)
    needs_headers = False

    def __init__(self) -> None:
        self._by_key: dict[str, dict[BindingKey, Destination]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.routing_key, {})[binding.key] = binding.destination

    def remove(self, binding: Binding) -> None:
        same = self._by_key[binding.routing_key]
        del same[binding.key]
        if not same:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, _headers: Mapping[str, Any]) -> Match:
        found = self._by_key.get(routing_key)
        return (list(found.values()), len(found)) if found else ([], 1)


class FanoutMatcher:
    """Every binding, whatever its key."""

    __slots__ = ("_all",)
    needs_headers = False

    def __init__(self) -> None:
        self._all: dict[BindingKey, Destination] = {}

    def add(self, binding: Binding) -> None:
        self._all[binding.key] = binding.destination

    def remove(self, binding: Binding) -> None:
        del self._all[binding.key]

    def match(self, _routing_key: str, _headers: Mapping[str, Any]) -> Match:
        return list(self._all.values()), len(self._all)


class TopicMatcher:
    """The routing key fits the binding's pattern: ``*`` is one word, ``#`` any number."""

    __slots__ = ("_trie",)
    needs_headers = False

    def __init__(self) -> None:
        self._trie = TopicTrie()

    def add(self, binding: Binding) -> None:
        self._trie.add(binding.routing_key, binding.destination)

    def remove(self, binding: Binding) -> None:
        self._trie.remove(binding.routing_key, binding.destination)

    def match(self, routing_key: str, _headers: Mapping[str, Any]) -> Match:
        return self._trie.match(routing_key)


class HeadersMatcher:
    """The headers fit the binding's arguments."""

    __slots__ = ("_all",)
    needs_headers = True

    def __init__(self) -> None:
        self._all: dict[BindingKey, tuple[HeadersMatch, Destination]] = {}

    def add(self, binding: Binding) -> None:
        self._all[binding.key] = (HeadersMatch(binding.arguments), binding.destination)

    def remove(self, binding: Binding) -> None:
        del self._all[binding.key]

    def match(self, _routing_key: str, headers: Mapping[str, Any]) -> Match:
        """Those whose arguments fit; each is looked at."""
        found = [destination for each, destination in self._all.values() if each.matches(headers)]
        return found, len(self._all)


MATCHERS: Final[dict[str, type[Matcher]]] = {
    "direct": DirectMatcher,
    "fanout": FanoutMatcher,
    "topic": TopicMatcher,
    "headers": HeadersMatcher,
}
"""By the type a client names."""


# ---- topic patterns -----------------------------------------------------------------------------
# ``*`` stands for one word, ``#`` for any number of them, none included; words are what lies
# between dots, and an empty key has no words.

ONE_WORD: Final = "*"
ANY_WORDS: Final = "#"


class _Node:
    __slots__ = ("any_words", "children", "destinations", "is_any_words", "one_word", "word")

    def __init__(self, word: str) -> None:
        self.word = word
        self.is_any_words = word == ANY_WORDS
        self.children: dict[str, _Node] = {}
        """By literal word."""
        self.one_word: _Node | None = None
        self.any_words: _Node | None = None
        self.destinations: dict[Destination, int] = {}
        """How many bindings of this very pattern lead there (they may differ in arguments)."""

    def child(self, word: str) -> _Node | None:
        if word == ONE_WORD:
            return self.one_word
        return self.any_words if word == ANY_WORDS else self.children.get(word)

    def put(self, word: str, node: _Node | None) -> None:
        if word == ONE_WORD:
            self.one_word = node
        elif word == ANY_WORDS:
            self.any_words = node
        elif node is None:
            del self.children[word]
        else:
            self.children[word] = node

    @property
    def is_bare(self) -> bool:
        return not (self.destinations or self.children or self.one_word or self.any_words)


class TopicTrie:
    """The patterns of one topic exchange, as a tree of words.

    A key is matched by walking all branches at once, word by word: the set of nodes that what was
    read so far can have led to. A node is in it at most once, so even ``#.#.#`` costs at most nodes
    times words. A node without destinations and children is removed: the tree is never larger than
    its patterns.
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node("")

    def add(self, pattern: str, destination: Destination) -> None:
        """One more binding with this pattern."""
        node = self._root
        for word in words_of(pattern):
            following = node.child(word)
            if following is None:
                following = _Node(word)
                node.put(word, following)
            node = following
        node.destinations[destination] = node.destinations.get(destination, 0) + 1

    def remove(self, pattern: str, destination: Destination) -> None:
        """One binding less; it must be there."""
        path = [self._root]
        for word in words_of(pattern):
            following = path[-1].child(word)
            if following is None:
                raise KeyError(pattern)
            path.append(following)
        left = path[-1].destinations.pop(destination) - 1
        if left:
            path[-1].destinations[destination] = left
        while len(path) > 1 and path[-1].is_bare:
            node = path.pop()
            path[-1].put(node.word, None)

    def match(self, key: str) -> tuple[list[Destination], int]:
        """Destinations of all patterns that match (some may come twice), and nodes looked at."""
        reached = _with_empty_matches([self._root])
        looked = len(reached)
        for word in words_of(key):
            following: dict[_Node, None] = {}
            for node in reached:
                if node.is_any_words:
                    following[node] = None
                found = node.children.get(word)
                if found is not None:
                    following[found] = None
                if node.one_word is not None:
                    following[node.one_word] = None
            reached = _with_empty_matches(list(following))
            looked += len(reached)
            if not reached:
                break
        return [destination for node in reached for destination in node.destinations], looked


def _with_empty_matches(nodes: list[_Node]) -> list[_Node]:
    """These and what is behind a ``#`` that stands for no word."""
    for node in nodes:
        if node.any_words is not None:
            break
    else:
        return nodes
    found = dict.fromkeys(nodes)
    waiting = nodes
    while waiting:
        following = waiting.pop().any_words
        if following is not None and following not in found:
            found[following] = None
            waiting.append(following)
    return list(found)


def words_of(key: str) -> list[str]:
    return key.split(".") if key else []


# ---- headers conditions -------------------------------------------------------------------------
# ``x-match`` says how: ``all`` (default) and ``any`` leave out names that begin with ``x-``,
# ``all-with-x`` and ``any-with-x`` do not (``x-match`` itself is never compared). An argument
# matches when the header has a value of the same class (any integer with any integer, but no number
# with text) that is equal; an argument without a value asks only that the header is there. ``all``
# of nothing matches everything, ``any`` of nothing matches nothing.

X_MATCH: Final = "x-match"
X_MATCH_KINDS: Final = ("all", "any", "all-with-x", "any-with-x")
_ABSENT: Final = object()
_CLASSES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (Timestamp, "timestamp"),
    (int, "int"),
    (float, "float"),
    (str, "longstr"),
    (bytes, "binary"),
    (Decimal, "decimal"),
    (dict, "table"),
    (list, "array"),
    (type(None), "void"),
)


class HeadersMatch:
    """The arguments of one binding to a headers exchange, as conditions on a message's headers."""

    __slots__ = ("_conditions", "_is_any")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        kind = x_match_of(arguments)
        with_x = kind.endswith("-with-x")
        self._is_any = kind.startswith("any")
        self._conditions = [
            # Every class of field values is one type of ours, and a table has no others.
            (name, type(value), value)
            for name, value in arguments.items()
            if name != X_MATCH and (with_x or not name.startswith("x-"))
        ]

    def matches(self, headers: Mapping[str, Any]) -> bool:
        is_any = self._is_any
        for name, kind, value in self._conditions:
            found = headers.get(name, _ABSENT)
            is_met = found is not _ABSENT and (
                value is None or (type(found) is kind and found == value)
            )
            if is_met is is_any:
                return is_any
        return not is_any


def x_match_of(arguments: Mapping[str, Any]) -> str:
    """The ``x-match`` of a binding; raises 406 for one that does not exist."""
    kind = arguments.get(X_MATCH, "all")
    if not isinstance(kind, str):
        raise AmqpError(
            ReplyCode.PRECONDITION_FAILED,
            f"Invalid x-match field type {class_of(kind)} (value {kind}); expected longstr",
        )
    if kind not in X_MATCH_KINDS:
        raise AmqpError(
            ReplyCode.PRECONDITION_FAILED,
            f'Invalid x-match field value "{kind}"; expected all, any, all-with-x, or any-with-x',
        )
    return kind


def class_of(value: Any) -> str:
    """RabbitMQ's word for the class of a field value."""
    for kind, name in _CLASSES:
        if isinstance(value, kind):
            return name
    return "undefined"
