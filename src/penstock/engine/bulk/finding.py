"""Which topics a query means: by name, by pattern, or all that are not hidden (D9)."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from penstock.engine.bulk.orders import BAD_REQUEST, NO_TOPIC, QueryRefused
from penstock.engine.bulk.patterns import topic_pattern
from penstock.model.names import TopicName

if TYPE_CHECKING:
    from penstock.engine.topic import Topic

NAMES_MAX: Final = 10_000


def found_topics(
    known: "Mapping[TopicName, Topic]", names: list[str] | None, pattern: str | None
) -> "list[Topic]":
    """The topics, in the order of their names; raises ``QueryRefused``."""
    if names is not None:
        if len(names) > NAMES_MAX:
            raise QueryRefused(BAD_REQUEST, f"{len(names)} topics are named, limit {NAMES_MAX}")
        found = [_named(known, name) for name in dict.fromkeys(names)]
    else:
        matches = None if pattern is None else topic_pattern(pattern)
        found = [
            topic
            for name, topic in known.items()
            if not name.is_hidden and (matches is None or matches.fullmatch(str(name)))
        ]
    return sorted(found, key=lambda topic: str(topic.name))


def _named(known: "Mapping[TopicName, Topic]", name: str) -> "Topic":
    space, _, last = name.rpartition("/")
    topic = known.get(TopicName("", name)) or known.get(TopicName(space, last))
    if topic is None:
        # A name may hold slashes itself: then no cut at the last one finds it.
        topic = next((each for known_name, each in known.items() if str(known_name) == name), None)
    if topic is not None:
        return topic
    shown = [str(each) for each in known if not each.is_hidden][:NAMES_MAX]
    nearest = get_close_matches(name, shown, n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else "`penstock topics list` shows them"
    raise QueryRefused(NO_TOPIC, f"there is no topic '{name}'; {hint}")
