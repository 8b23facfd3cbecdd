"""How each type of exchange chooses among its bindings.

A ``Matcher`` holds the bindings of one source exchange. Direct, fanout and topic need the routing
key only, so what they say can be remembered; a headers exchange looks into every message.

``match`` gives destinations (some may come twice: the router makes them unique) and how many
bindings or nodes were looked at.

Not here: the default exchange, which has no bindings (``router.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from penstock.adapters.amqp.binding import Binding, BindingKey, Destination
from penstock.adapters.amqp.headers_match import HeadersMatch
from penstock.adapters.amqp.topic_trie import TopicTrie

Match = tuple[list[Destination], int]


class Matcher(Protocol):
    """The bindings of one exchange, ready for questions."""

    needs_headers: bool
    """True when the routing key does not decide."""

    def add(self, binding: Binding) -> None:
        """A binding that was not there; raises ``AmqpError`` when its arguments make no sense."""
        ...

    def remove(self, binding: Binding) -> None:
        """A binding that was there."""
        ...

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
        """One more."""
        self._by_key.setdefault(binding.routing_key, {})[binding.key] = binding.destination

    def remove(self, binding: Binding) -> None:
        """One less."""
        same = self._by_key[binding.routing_key]
        del same[binding.key]
        if not same:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, _headers: Mapping[str, Any]) -> Match:
        """Those with that key."""
        found = self._by_key.get(routing_key)
        return (list(found.values()), len(found)) if found else ([], 1)


class FanoutMatcher:
    """Every binding, whatever its key."""

    __slots__ = ("_all",)
    needs_headers = False

    def __init__(self) -> None:
        self._all: dict[BindingKey, Destination] = {}

    def add(self, binding: Binding) -> None:
        """One more."""
        self._all[binding.key] = binding.destination

    def remove(self, binding: Binding) -> None:
        """One less."""
        del self._all[binding.key]

    def match(self, _routing_key: str, _headers: Mapping[str, Any]) -> Match:
        """All of them."""
        return list(self._all.values()), len(self._all)


class TopicMatcher:
    """The routing key fits the binding's pattern."""

    __slots__ = ("_trie",)
    needs_headers = False

    def __init__(self) -> None:
        self._trie = TopicTrie()

    def add(self, binding: Binding) -> None:
        """One more."""
        self._trie.add(binding.routing_key, binding.destination)

    def remove(self, binding: Binding) -> None:
        """One less."""
        self._trie.remove(binding.routing_key, binding.destination)

    def match(self, routing_key: str, _headers: Mapping[str, Any]) -> Match:
        """Those whose pattern fits."""
        return self._trie.match(routing_key)


class HeadersMatcher:
    """The headers fit the binding's arguments."""

    __slots__ = ("_all",)
    needs_headers = True

    def __init__(self) -> None:
        self._all: dict[BindingKey, tuple[HeadersMatch, Destination]] = {}

    def add(self, binding: Binding) -> None:
        """One more."""
        self._all[binding.key] = (HeadersMatch(binding.arguments), binding.destination)

    def remove(self, binding: Binding) -> None:
        """One less."""
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
