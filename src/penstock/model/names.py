"""Names: which a client may give, and topics' one namespace for all protocols (D9).

A topic is known by (space, name) and its domain: Pulsar's topics without a log may have the name of
one with a log, and are other topics. RabbitMQ's vhost ``/``, Pulsar's ``public/default`` and "no
namespace" of RocketMQ are all space ``""``. How a protocol spells a name is the business of its
adapter; this file knows only the neutral form and which names are internal.
"""

import re
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

Domain = Literal["persistent", "non-persistent"]
"""Whether a topic is over the log; Pulsar's words, which are a part of its names."""

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"

NAME_BYTES_MAX: Final = 255
"""RabbitMQ's shortstr limit, the tightest of the three that is not about spelling."""

HIDDEN_PREFIXES: Final = ("%RETRY%", "%DLQ%", "rmq_sys_", "amq.gen-", "penstock.")
"""Names that other protocols' listings leave out (D9)."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class TopicName(NamedTuple):
    """A topic's full name; ``str()`` gives ``space/name`` or just ``name`` in the default space.

    Of a topic without a log it also says that.
    """

    space: str
    name: str
    domain: Domain = PERSISTENT

    def __str__(self) -> str:
        named = f"{self.space}/{self.name}" if self.space else self.name
        return named if self.domain == PERSISTENT else f"{self.domain}://{named}"

    @property
    def id(self) -> str:
        """``topic/NAME``, ``topic/NAME@SPACE``: what programs call it (``object_id``)."""
        return f"topic/{self.id_part}"

    @property
    def id_part(self) -> str:
        """The same as a part of other ids; a topic without a log says so last."""
        parts = [quote(self.name, safe="")]
        if self.space or self.domain != PERSISTENT:
            parts.append(quote(self.space, safe=""))
        if self.domain != PERSISTENT:
            parts.append(self.domain)
        return "@".join(parts)

    @property
    def is_hidden(self) -> bool:
        """True for names that belong to Penstock or to one protocol's own machinery."""
        return self.name.startswith(HIDDEN_PREFIXES)


def topic_of_id(topic_id: str) -> TopicName:
    """The topic that is called so by programs (``TopicName.id``)."""
    name, *rest = topic_id.removeprefix("topic/").split("@")
    space = unquote(rest[0]) if rest else ""
    domain: Domain = NON_PERSISTENT if len(rest) > 1 else PERSISTENT
    return TopicName(space, unquote(name), domain)


def object_id(kind: str, *parts: object) -> str:
    """The stable id of a thing that people know by a name: ``connection/14``, ``query/etl``.

    Names are percent-encoded, so no two things share an id whatever they are called.
    """
    return "/".join([kind, *[quote(str(part), safe="") for part in parts]])


def topic_name(name: str, space: str = "", domain: Domain = PERSISTENT) -> TopicName:
    """A checked topic name; raises ``ValueError`` saying what is wrong with it."""
    for part, text in (("name", name), ("space", space)):
        if len(text.encode()) > NAME_BYTES_MAX:
            raise ValueError(f"topic {part} is longer than {NAME_BYTES_MAX} bytes: {text[:40]}...")
        problem = control_problem(f"topic {part}", text)
        if problem is not None:
            raise ValueError(problem)
    if not name:
        raise ValueError("a topic needs a name of at least one character")
    return TopicName(space, name, domain)


def control_problem(what: str, name: str) -> str | None:
    """The sentence for a new name with a control character (C0 or DEL); None when it has none.

    Terminals obey them and logs break at them. Whoever makes a thing asks, in every protocol; what
    has such a name already stays as it is.
    """
    if _CONTROL.search(name) is None:
        return None
    return f"{what} {name[:80]!r} has a control character; remove it"
