"""Routes of topics over all brokers, as the name server tells them that this broker joined.

Only topics that somebody asks about are here. A question about one of them is answered at once from
what was told last, which is renewed every 30 s as clients do it; a question about another waits for
the name server, not longer than ``HOLD_MS_MAX``. A name server that is away leaves what is known in
place: brokers do not vanish with it.

Invariants: every question gets exactly one answer; topics and held questions are bounded.
Not here: the socket (``server/join.py``), the name server's own routes (``name_server/routes.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.wire.rocketmq.bodies import TopicRouteData, decode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker

RENEW_MS: Final = 30_000
"""As often as clients ask for routes."""
IDLE_MS_MAX: Final = 120_000
"""A topic that nobody asked about for this long is forgotten; members ask every 20 s."""
HOLD_MS_MAX: Final = 800
"""Java's clients give their first question 1 s."""
TOPICS_MAX: Final = 1_000
"""Renewing them is one request each: some 30 per second."""
TOPIC_CHARS_MAX: Final = 1_024
"""Longer names are nobody's."""
HELD_MAX: Final = 10_000
"""Questions that wait for the name server; the next ones are told "unknown"."""

RouteCallback = Callable[[TopicRouteData | None], None]
"""Gets the route; None = not known."""


class _CachedRoute(msgspec.Struct):
    """One topic."""

    route: TopicRouteData | None = None
    used_ms: int = 0
    renew_ms: int = 0
    """When the name server shall be asked (again)."""
    held: list[tuple[int, RouteCallback]] = msgspec.field(default_factory=list)
    """Deadlines and questions, oldest first."""


class ClusterRoutes:
    """A cache of routes, filled from the name server and renewed while somebody uses them."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._entries: dict[str, _CachedRoute] = {}
        """By topic; the one asked about last is at the end."""
        self._held = 0
        self.on_request: Callable[[], None] = lambda: None
        """Called when the name server should be asked; set by whoever does."""
        broker.timers.add(self)

    # For assignments.

    def fetch(self, topic: str, on_route: RouteCallback) -> None:
        """Call back with the route of a topic, now or soon."""
        now_ms = self._clock.monotonic_ms()
        entry = self._entries.pop(topic, None)
        if entry is None and (len(topic) > TOPIC_CHARS_MAX or not self._has_room()):
            on_route(None)
            return
        entry = self._entries[topic] = entry or _CachedRoute()
        entry.used_ms = now_ms
        if entry.route is not None or self._held >= HELD_MAX:
            on_route(entry.route)
            return
        self._held += 1
        entry.held.append((now_ms + HOLD_MS_MAX, on_route))
        entry.renew_ms = now_ms
        self._broker.timers.reschedule()
        self.on_request()

    # For the connection to the name server (``server/join.py``).

    def next_stale(self) -> str | None:
        """The next topic to ask about: first one that somebody waits for; None = none now."""
        now_ms = self._clock.monotonic_ms()
        found = None
        for topic, entry in list(self._entries.items()):
            if entry.held:
                return topic
            if now_ms >= entry.used_ms + IDLE_MS_MAX:
                del self._entries[topic]
            elif found is None and now_ms >= entry.renew_ms:
                found = topic
        return found

    def next_refresh_ms(self) -> int | None:
        """When there will be a next one, if nobody asks before; monotonic time."""
        return min([entry.renew_ms for entry in self._entries.values()], default=None)

    def on_response(self, topic: str, answer: Command | None) -> None:
        """The name server answered ``route_request(topic)``, or did not (None)."""
        entry = self._entries.get(topic)
        if entry is None:
            return
        entry.renew_ms = self._clock.monotonic_ms() + RENEW_MS
        if answer is not None:
            entry.route = _route(answer, entry.route)
        self._call_back(entry, len(entry.held))

    def on_registered(self) -> None:
        """The name server knows this broker's topics: routes that show them otherwise are old."""
        for topic, entry in self._entries.items():
            config = self._broker.topics.config(topic)
            if self._own_queues(entry.route) != (config.read_queue_nums if config else 0):
                entry.renew_ms = 0

    # Deadlines (``timers.Task``).

    def next_deadline_ms(self) -> int | None:
        """When the first question has waited long enough."""
        if not self._held:
            return None
        return min([entry.held[0][0] for entry in self._entries.values() if entry.held])

    def due(self, now_ms: int) -> None:
        """Questions that waited long enough are told what is known: nothing."""
        for entry in list(self._entries.values()):
            self._call_back(entry, len([each for each in entry.held if each[0] <= now_ms]))

    def _own_queues(self, route: TopicRouteData | None) -> int:
        own = self._broker.broker_name
        datas = route.queue_datas if route is not None else []
        return sum([data.read_queue_nums for data in datas if data.broker_name == own])

    def _call_back(self, entry: _CachedRoute, count: int) -> None:
        ready, entry.held = entry.held[:count], entry.held[count:]
        self._held -= count
        for _, on_route in ready:
            on_route(entry.route)

    def _has_room(self) -> bool:
        """Whether one more topic may be known; the one not asked about for longest makes room."""
        if len(self._entries) < TOPICS_MAX:
            return True
        for topic, entry in self._entries.items():
            if not entry.held:
                del self._entries[topic]
                return True
        return False


def route_request(topic: str) -> Command:
    """GET_ROUTEINFO_BY_TOPIC; older name servers would write JSON that is none."""
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    return Command(int(RequestCode.GET_ROUTEINFO_BY_TOPIC), ext)


def _route(answer: Command, known: TopicRouteData | None) -> TopicRouteData | None:
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        return known
    try:
        return decode_body(answer.body, TopicRouteData)
    except Malformed:
        return known
