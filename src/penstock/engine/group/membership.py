"""Who is in which group: heartbeats in, events out.

A client that sends heartbeats is a member, of as many groups as it names. It leaves by saying so,
by the end of its connection (at once), or by silence (``MEMBER_MS_MAX``, looked at every
``SCAN_MS``). A group that nobody is in is remembered for ``GROUP_KEPT_MS``, so that a client which
comes back finds what was known about it.

One registry serves members that read, another one those that send (they want no topics, and nobody
is told of them). Time comes in, and what happened comes back as ``GroupEvent`` values: the adapter
tells peers and logs in its own words.

Invariants: a connection is at most one member of a group; ``CHANGED`` comes at most once for a
group and call, and never for a broadcasting group; groups, members of one, topics of one and groups
of one connection are bounded.
Not here: what operators turned off (``switches.py``), who reads which queue (``assignment.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

import msgspec

MEMBER_MS_MAX: Final = 120_000
"""Silence after which a member is gone; clients send every 30 s."""

SCAN_MS: Final = 10_000
"""How often the silent are looked for."""

GROUP_KEPT_MS: Final = 600_000
"""How long a group without members is remembered after its last change."""


class MembershipLimits(msgspec.Struct, frozen=True):
    """Bounds of one registry."""

    groups_max: int = 10_000
    members_per_group_max: int = 10_000
    topics_per_group_max: int = 1_000
    groups_per_connection_max: int = 1_000


class Membership:
    """The groups of one kind."""

    __slots__ = ("_connections", "_groups", "_is_notified", "_scan_ms", "limits")

    def __init__(
        self,
        limits: MembershipLimits | None = None,
        *,
        is_notified: Callable[[str], bool] = lambda _group: True,
    ) -> None:
        self.limits = limits or MembershipLimits()
        self._is_notified = is_notified
        self._groups: dict[str, Group] = {}
        # connection -> the groups it is in
        self._connections: dict[int, set[str]] = {}
        self._scan_ms: int | None = None

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    # Reading.

    def group(self, name: str) -> Group | None:
        """A group that has members, or had some not long ago."""
        return self._groups.get(name)

    def client_ids(self, name: str) -> list[str] | None:
        """The members' ids, sorted; None when there are none."""
        group = self._groups.get(name)
        return None if group is None or group.is_empty else group.client_ids

    def wanted(self, name: str, topic: str) -> TopicSubscription | None:
        """What a group wants of a topic."""
        group = self._groups.get(name)
        return None if group is None else group.wanted.get(topic)

    def groups_wanting(self, topic: str) -> list[str]:
        """The groups with members that read a topic."""
        return [each.name for each in self if topic in each.wanted and not each.is_empty]

    def groups_of(self, connection: int) -> frozenset[str]:
        """The groups a connection is in."""
        return frozenset(self._connections.get(connection, ()))

    def pick(self, name: str) -> Member | None:
        """Some member of a group, another one each time; None when there is none."""
        group = self._groups.get(name)
        return None if group is None else group.pick()

    # Coming.

    def heartbeat(
        self,
        name: str,
        client: Client,
        now_ms: int,
        *,
        wanted: Sequence[TopicSubscription] | None = None,
        traits: GroupTraits | None = None,
    ) -> list[GroupEvent]:
        """A client says that it is a member, and what the group wants (None: nothing new)."""
        refusal = self._refusal(name, client, wanted)
        if refusal:
            return [GroupEvent(GroupEventKind.REFUSED, name, *_who(client), text=refusal)]
        forgotten: list[GroupEvent] = []
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= self.limits.groups_max:
                forgotten = self._make_room()
                if not forgotten:
                    text = f"there are {self.limits.groups_max} groups, and no room for '{name}'"
                    return [GroupEvent(GroupEventKind.REFUSED, name, *_who(client), text=text)]
            group = self._groups[name] = Group(name, now_ms)
        if group.is_empty and wanted is not None:
            group.wanted = _versions_forgotten(group.wanted)
        if self._scan_ms is None:
            self._scan_ms = now_ms + SCAN_MS
        if traits is not None:
            group.traits = traits
        heard, is_changed = self._heard(group, client, now_ms)
        events = forgotten + heard
        if wanted is not None:
            touched, is_new = group.want(wanted)
            is_changed |= is_new
            if touched:
                events.append(GroupEvent(GroupEventKind.WANTS, name, topics=tuple(touched)))
        group.changed_ms = now_ms
        return events + self._changed(group) if is_changed else events

    def _heard(self, group: Group, client: Client, now_ms: int) -> tuple[list[GroupEvent], bool]:
        member = group.members.get(client.connection)
        events = []
        if member is not None and member.client_id == client.client_id:
            member.client = client
            member.seen_ms = now_ms
            return [], False
        if member is not None:
            events.append(GroupEvent(GroupEventKind.LEFT, group.name, *_who(member.client)))
        if group.by_client_id(client.client_id) is not None:
            text = f"the client id '{client.client_id}' is used by more than one connection"
            events.append(
                GroupEvent(GroupEventKind.DUPLICATE, group.name, *_who(client), text=text)
            )
        group.members[client.connection] = Member(client, now_ms, now_ms)
        self._connections.setdefault(client.connection, set()).add(group.name)
        events.append(GroupEvent(GroupEventKind.JOINED, group.name, *_who(client)))
        return events, True

    # Going.

    def leave(self, name: str, connection: int, now_ms: int) -> list[GroupEvent]:
        group = self._groups.get(name)
        if group is None or connection not in group.members:
            return []
        return self._gone(group, [connection], GroupEventKind.LEFT, now_ms)

    def disconnected(self, connection: int, now_ms: int) -> list[GroupEvent]:
        """A connection is closed: whoever was behind it is gone from all groups at once."""
        events = []
        for name in sorted(self._connections.get(connection, ())):
            events += self._gone(self._groups[name], [connection], GroupEventKind.LEFT, now_ms)
        return events

    def forget(self, name: str) -> list[GroupEvent]:
        """A group is deleted, whoever is in it."""
        group = self._groups.pop(name, None)
        if group is None:
            return []
        for connection in group.connections:
            self._drop_connection(connection, name)
        return [GroupEvent(GroupEventKind.FORGOTTEN, name, audience=group.connections)]

    # Time.

    @property
    def next_deadline_ms(self) -> int | None:
        """When ``due`` has something to look at; None while there are no groups."""
        return self._scan_ms

    def due(self, now_ms: int) -> list[GroupEvent]:
        """Look for the silent, and for groups that nobody came back to."""
        if self._scan_ms is None or now_ms < self._scan_ms:
            return []
        events: list[GroupEvent] = []
        for group in self:
            silent = [
                connection
                for connection, member in group.members.items()
                if now_ms - member.seen_ms > MEMBER_MS_MAX
            ]
            if silent:
                events += self._gone(group, silent, GroupEventKind.EXPIRED, now_ms)
            elif group.is_empty and now_ms - group.changed_ms > GROUP_KEPT_MS:
                events += self.forget(group.name)
        self._scan_ms = now_ms + SCAN_MS if self._groups else None
        return events

    def _gone(
        self, group: Group, connections: list[int], kind: GroupEventKind, now_ms: int
    ) -> list[GroupEvent]:
        events = []
        for connection in connections:
            member = group.members.pop(connection)
            self._drop_connection(connection, group.name)
            events.append(GroupEvent(kind, group.name, *_who(member.client)))
        group.changed_ms = now_ms
        return events + self._changed(group)

    def _changed(self, group: Group) -> list[GroupEvent]:
        is_told = not group.traits.is_broadcast and self._is_notified(group.name)
        if group.is_empty or not is_told:
            return []
        return [GroupEvent(GroupEventKind.CHANGED, group.name, audience=group.connections)]

    def _drop_connection(self, connection: int, name: str) -> None:
        names = self._connections[connection]
        names.discard(name)
        if not names:
            del self._connections[connection]

    def _refusal(
        self, name: str, client: Client, wanted: Sequence[TopicSubscription] | None
    ) -> str | None:
        """Which bound is reached, if one is."""
        limits = self.limits
        group = self._groups.get(name)
        topics_max = limits.topics_per_group_max
        if wanted is not None and len(wanted) > topics_max:
            return f"the group '{name}' wants {len(wanted)} topics, limit {topics_max}"
        if group is not None and client.connection in group.members:
            return None
        if group is not None and len(group.members) >= limits.members_per_group_max:
            return (
                f"the group '{name}' has {limits.members_per_group_max} members; no more can join"
            )
        groups_max = limits.groups_per_connection_max
        if len(self._connections.get(client.connection, ())) >= groups_max:
            return f"the connection is in {groups_max} groups, and can join no other"
        return None

    def _make_room(self) -> list[GroupEvent]:
        """Forget the group that has been empty for longest; whoever lives is not pushed out."""
        empty = [group for group in self._groups.values() if group.is_empty]
        return self.forget(min(empty, key=lambda each: each.changed_ms).name) if empty else []


def _who(client: Client) -> tuple[str, int]:
    return client.client_id, client.connection


def _versions_forgotten(wanted: dict[str, TopicSubscription]) -> dict[str, TopicSubscription]:
    lowest = -(1 << 63)
    return {
        topic: TopicSubscription(topic, each.expression, each.language, lowest)
        for topic, each in wanted.items()
    }


# ---- one group ---------------------------------------------------------------------------------


class TopicSubscription(msgspec.Struct, frozen=True, gc=False):
    """A topic that a group reads, and which of its messages."""

    topic: str
    expression: str = "*"
    language: str = "tag"
    """How the expression is to be read: ``tag`` or ``sql92``."""
    version: int = 0
    """The higher one holds."""


class GroupTraits(msgspec.Struct, frozen=True, gc=False):
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
        return self.client.client_id

    @property
    def connection(self) -> int:
        return self.client.connection


class Group:
    """One group: its members by connection, and the topics they want.

    Members are known by connection, not by client id: two connections with one id are two members,
    and a mistake that is reported (``duplicates``). What a group wants is one set for all members,
    as the newest of them said it: a topic's expression changes only with a higher version; a topic
    that a member leaves out is wanted no more. A group that nobody is in forgets the versions:
    whoever comes first decides anew.
    """

    __slots__ = ("_next_pick", "changed_ms", "members", "name", "traits", "wanted")

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.traits = GroupTraits()
        self.members: dict[int, Member] = {}
        """By connection, in the order of joining."""
        self.wanted: dict[str, TopicSubscription] = {}
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

    def want(self, wanted: Iterable[TopicSubscription]) -> tuple[list[str], bool]:
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


# ---- events ------------------------------------------------------------------------------------


class GroupEventKind(Enum):
    """What an event says."""

    JOINED = "joined"
    """A client was heard of for the first time on this connection."""
    LEFT = "left"
    """It said so, its connection closed, or it changed its id."""
    EXPIRED = "expired"
    """It was silent for too long: its connection should be closed."""
    WANTS = "wants"
    """What the group wants changed: ``topics`` were added, removed or got another expression."""
    CHANGED = "changed"
    """Members or topics are others than before: tell the ``audience``. Once for each call."""
    DUPLICATE = "duplicate"
    """Two connections use one client id: queues will be divided wrongly until one of them stops."""
    FORGOTTEN = "forgotten"
    """Nobody came back: nothing about the group is kept any more."""
    REFUSED = "refused"
    """A bound is reached; ``text`` says which. Nothing was registered."""


class GroupEvent(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened to one group."""

    kind: GroupEventKind
    group: str
    client_id: str = ""
    connection: int = 0
    topics: tuple[str, ...] = ()
    audience: tuple[int, ...] = ()
    """Connections that are to be told."""
    text: str = ""
