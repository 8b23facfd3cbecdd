"""What happened to a group, as values: the adapter tells peers and logs in its own words."""

from enum import Enum

import msgspec


class NoticeKind(Enum):
    """What a notice says."""

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


class Notice(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened to one group."""

    kind: NoticeKind
    group: str
    client_id: str = ""
    connection: int = 0
    topics: tuple[str, ...] = ()
    audience: tuple[int, ...] = ()
    """Connections that are to be told."""
    text: str = ""
