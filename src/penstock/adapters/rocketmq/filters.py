"""Filters of pulls: what a subscription says, compiled once and kept (sheet 2.8).

A pull brings its expression along, or the group registered one with a heartbeat; either way the
same text gives the same filter object, so an expression is read once and not once per pull. Tags
are judged by their hash in the index first, by the string after; SQL92 by all properties, whichever
protocol sent the message (D15). A retry topic mixes messages of several topics: with the option
on, each is judged by what its group wants of the topic it came from.

Invariants: kept filters are bounded; a filter that cannot be built is an error with words for
people, never a filter that lets everything through.
Not here: which code a bad one gets (``pull.py``), the languages (``engine/filter``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from penstock.adapters.rocketmq.naming import RETRY_PREFIX
from penstock.engine.filter.bit_maps import BitMaps
from penstock.engine.filter.filters import ChosenFilter, Filter, Prefilter, tag_filter
from penstock.engine.filter.sql92 import SelectorCache, SqlFilter
from penstock.engine.group.membership import TopicSubscription
from penstock.engine.topic import Queue
from penstock.model.errors import SelectorInvalid
from penstock.model.record import Record, Wire
from penstock.wire.rocketmq.properties import TAGS, parse_properties

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker

FILTERS_MAX: Final = 1_000
"""Filters kept, whoever uses them; the least recently asked for goes first."""

TAG: Final = "TAG"
RETRY_TOPIC: Final = "RETRY_TOPIC"
"""Property of a message that came back: where it was sent first."""

WantedOf = Callable[[str, str], TopicSubscription | None]
"""(group, topic) -> what the group registered for it."""


@runtime_checkable
class PropertyReader(Protocol):
    """The part of a protocol's facts that selectors need."""

    def properties(self, record: Record) -> dict[str, str]: ...


def language_of(expression_type: str | None) -> str:
    """The language as groups register it: nothing said means tags."""
    return (expression_type or TAG).lower()


class FilterCache:
    """Builds filters and keeps them."""

    __slots__ = ("_facts", "_kept", "_selectors", "is_filtering_retries", "is_sql_allowed")

    def __init__(self, broker: RocketmqBroker) -> None:
        self._facts: Mapping[int, object] = broker.engine.facts
        self._selectors = SelectorCache(charge=broker.engine.request_queue.charge)
        self._kept: OrderedDict[tuple[str, str], Filter | None] = OrderedDict()
        self.is_sql_allowed = broker.settings.is_sql_allowed
        """RocketMQ's ``enablePropertyFilter``."""
        self.is_filtering_retries = broker.settings.is_filtering_retries
        """RocketMQ's ``filterSupportRetry``."""

    def __len__(self) -> int:
        return len(self._kept)

    def build(self, expression: str, language: str) -> Filter | None:
        """The filter of an expression, None for everything; raises ``SelectorInvalid``."""
        key = (language, expression)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        made = self._made(expression, language)
        self._kept[key] = made
        if len(self._kept) > FILTERS_MAX:
            self._kept.popitem(last=False)
        return made

    def refusal(self, language: str) -> str | None:
        """Why the broker takes no filters of this language; None when it does."""
        if language == "tag" or self.is_sql_allowed:
            return None
        name = language.upper()
        return f"The broker does not support consumer to filter message by {name}"

    def for_topic(
        self, topic: str, group: str, chosen: Filter | None, wanted: WantedOf
    ) -> Filter | None:
        """The filter that holds on a topic: on a retry topic it may be that of the origin."""
        if not self.is_filtering_retries or not topic.startswith(RETRY_PREFIX):
            return chosen

        def choose(record: Record) -> Filter | None:
            origin = self.properties(record).get(RETRY_TOPIC, "")
            registered = wanted(group, origin)
            if registered is None:
                return None
            try:
                return self.build(registered.expression, registered.language)
            except SelectorInvalid:
                return None

        return ChosenFilter(choose)

    def properties(self, record: Record) -> Mapping[str, str]:
        """What a selector may name, whichever protocol sent the message."""
        if record.wire == Wire.ROCKETMQ:
            return parse_properties(record.properties)
        reader = self._facts.get(record.wire)
        if isinstance(reader, PropertyReader):
            return reader.properties(record)
        return {TAGS: record.tag.decode("utf-8", "replace")} if record.shape.tag_len else {}

    def _made(self, expression: str, language: str) -> Filter | None:
        if language == "tag":
            return tag_filter(expression)
        if language == "sql92":
            return SqlFilter(self._selectors.selector(expression), self.properties)
        raise SelectorInvalid(
            f"the expression type {language[:40]!r} is not known; use TAG or SQL92"
        )


def map_name(group: str, topic: str) -> str:
    """The key of a group's bits on a topic, RocketMQ's."""
    return f"{group}#{topic}"


class FilterBitMaps:
    """Bloom bit maps of registered SQL92 subscriptions; none while they are turned off (sheet 2.8).

    The selector of a group on a topic (``group#topic``) is asked once at the append; its pulls then
    skip what did not match without reading it. Only registered subscriptions have maps: an
    expression that comes with a pull may be another one each time. Maps never change what a pull
    gives, only what it reads; a map is asked only with the selector it was made from.
    """

    def __init__(self, broker: RocketmqBroker) -> None:
        self.maps: BitMaps | None = None
        self._names: dict[str, set[str]] = {}
        """group -> topics with a registration; bounded by what groups may want."""
        if broker.settings.is_bit_mapping:
            self.maps = BitMaps(broker.service(FilterCache).properties)
            broker.engine.watch_appends(self.maps.appended)

    def prefilter(
        self, group: str, topic: str, queue: Queue, chosen: Filter | None
    ) -> Prefilter | None:
        """What a pull of this subscription may ask before it reads; mapped from now on."""
        if self.maps is None or not isinstance(chosen, SqlFilter):
            return None
        name = map_name(group, topic)
        if self.maps.register(name, chosen.selector, (queue.queue_id,)) is None:
            return None
        self._names.setdefault(group, set()).add(topic)
        return self.maps.prefilter(name, queue.queue_id)

    def changed(self, group: str, topics: Iterable[str]) -> None:
        """What the group wants of these topics is no more what it was."""
        known = self._names.get(group)
        if self.maps is None or known is None:
            return
        for topic in known.intersection(topics):
            self.maps.unregister(map_name(group, topic))
            known.discard(topic)

    def forgotten(self, group: str) -> None:
        self.changed(group, tuple(self._names.get(group, ())))
        self._names.pop(group, None)
