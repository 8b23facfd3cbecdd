"""Patterns of a topic exchange as a tree of words.

``*`` stands for one word, ``#`` for any number of them, none included; words are what lies between
dots, and an empty key has no words. A key is matched by walking all branches at once, word by word:
the set of nodes that what was read so far can have led to. A node is in it at most once, so even
``#.#.#`` costs at most nodes times words.

Invariant: a node without destinations and children is removed, so the tree is never larger than
its patterns.
"""

from __future__ import annotations

from typing import Final

from penstock.adapters.amqp.binding import Destination

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
    """The patterns of one exchange."""

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
        reached = _with_nothing_read([self._root])
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
            reached = _with_nothing_read(list(following))
            looked += len(reached)
            if not reached:
                break
        return [destination for node in reached for destination in node.destinations], looked


def _with_nothing_read(nodes: list[_Node]) -> list[_Node]:
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
    """The words of a key or a pattern."""
    return key.split(".") if key else []
