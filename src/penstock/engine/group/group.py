"""One group: its members by connection, and the topics they want.

Members are known by connection, not by client id: two connections with one id are two members, and
a mistake that is reported (``duplicates``).

What a group wants is one set for all members, as the newest of them said it: a topic's expression
changes only with a higher version; a topic that a member leaves out is wanted no more. A group that
nobody is in forgets the versions: whoever comes first decides anew.

Not here: who comes and goes when (``membership.py``).
"""

from collections.abc import Iterable

import msgspec


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """A topic that a group reads, and which of its messages."""

    topic: str
    expression: str = "*"
    language: str = "tag"
    """How the expression is to be read: ``tag`` or ``sql92``."""
    version: int = 0
    """The higher one holds."""


class Traits(msgspec.Struct, frozen=True, gc=False):
    """How a group reads, as its newest member said."""

    is_broadcast: bool = False
    """Every member reads everything: nobody is told of others, nothing is divided."""
    manner: str = ""
    """The protocol's word for how its members get messages; only handed back."""
    start: str = ""
    """The protocol's word for where a new group begins; only handed back."""


class Client(msgspec.Struct, frozen=True, gc=False):
    """Who a heartbeat comes from."""

    client_id: str
    connection: int
    language: str = ""
    version: int = 0


class Member(msgspec.Struct):
    """A client in a group."""

    client: Client
    joined_ms: int
    seen_ms: int

    @property
    def client_id(self) -> str:
        """Its own name for itself."""
        return self.client.client_id

    @property
    def connection(self) -> int:
        """Where it is spoken to."""
        return self.client.connection


class Group:
    """Members and wishes under one name."""

    __slots__ = ("_next_pick", "changed_ms", "members", "name", "traits", "wanted")

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.traits = Traits()
        self.members: dict[int, Member] = {}
        """By connection, in the order of joining."""
        self.wanted: dict[str, Wanted] = {}
        self.changed_ms = now_ms
        """When it was last heard of or changed."""
        self._next_pick = 0

    @property
    def is_empty(self) -> bool:
        """True when it is only remembered."""
        return not self.members

    @property
    def client_ids(self) -> list[str]:
        """Sorted, as they are divided by; an id on two connections stands twice."""
        return sorted(member.client_id for member in self.members.values())

    @property
    def connections(self) -> tuple[int, ...]:
        """Of all members."""
        return tuple(self.members)

    @property
    def duplicates(self) -> set[str]:
        """Client ids that more than one connection uses."""
        seen: set[str] = set()
        twice: set[str] = set()
        for member in self.members.values():
            (twice if member.client_id in seen else seen).add(member.client_id)
        return twice

    def by_client_id(self, client_id: str) -> Member | None:
        """The member of that name, the one that joined first."""
        for member in self.members.values():
            if member.client_id == client_id:
                return member
        return None

    def pick(self) -> Member | None:
        """Some member, another one each time."""
        if not self.members:
            return None
        self._next_pick = (self._next_pick + 1) % len(self.members)
        return list(self.members.values())[self._next_pick]

    def want(self, wanted: Iterable[Wanted]) -> tuple[list[str], bool]:
        """Take over what a member wants: the topics it concerns, and whether the set changed."""
        news = {each.topic: each for each in wanted}
        gone = [topic for topic in self.wanted if topic not in news]
        for topic in gone:
            del self.wanted[topic]
        touched, is_new = gone, bool(gone)
        for topic, new in news.items():
            old = self.wanted.get(topic)
            if old is not None and new.version <= old.version:
                continue
            self.wanted[topic] = new
            if old is None:
                is_new = True
                touched.append(topic)
            # A higher version alone is no news: members raise it whenever they divide queues.
            elif (old.expression, old.language) != (new.expression, new.language):
                touched.append(topic)
        return touched, is_new
