"""The routes of a virtual host's publishers, remembered by what a publish says of itself.

A head that was seen before costs one look-up; everything is forgotten when the topology changes.
Routes without a queue are not remembered: another protocol may make the topic they lead to, and
nobody here would hear of it.

Bound: ``ROUTES_MAX`` of each kind, all channels together: thousands of channels are one memory.
Not here: finding them (``router.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.direct_reply import KEY_PREFIX
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.origin import PublishHead

if TYPE_CHECKING:
    from penstock.adapters.amqp.router import ExchangeRoute
    from penstock.adapters.amqp.vhost import VirtualHost

ROUTES_MAX: Final = 4096
"""Routes that are remembered; then it begins anew."""
COPIES_MAX: Final = 16
"""Routing keys of one publish from which on its route is found each time."""


class PublishRoutes:
    """The memory of one virtual host."""

    __slots__ = ("_by_head", "_by_keys", "_version", "_vhost")

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost = vhost
        self._version = vhost.version
        self._by_head: dict[PublishHead, ExchangeRoute] = {}
        self._by_keys: dict[tuple[str, tuple[str, ...]], ExchangeRoute] = {}

    def __len__(self) -> int:
        return len(self._by_head) + len(self._by_keys)

    def known(self, head: PublishHead) -> ExchangeRoute | None:
        """The route of a head seen lately."""
        if self._vhost.version != self._version:
            self.forget()
        return self._by_head.get(head)

    def find(self, head: PublishHead) -> ExchangeRoute | None:
        """The route of a head not seen lately; None = it is a direct reply.

        Raises 404 for a missing exchange, 403 for an internal one, 540 for immediate.
        """
        if head.is_immediate:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
        if not head.exchange and head.routing_key.startswith(KEY_PREFIX):
            return None
        router = self._vhost.router
        route = router.route(head.exchange, head.routing_key)
        if not route.is_empty:
            if len(self._by_head) >= ROUTES_MAX:
                self._by_head.clear()
            # Asked again, it is the one that others use and that costs what it costs from now on.
            self._by_head[head] = router.route(head.exchange, head.routing_key)
        return route

    def of_keys(self, exchange: str, keys: tuple[str, ...]) -> ExchangeRoute:
        """The route of a publish with several routing keys."""
        route = self._by_keys.get((exchange, keys))
        if route is None:
            route = self._vhost.router.route_all(exchange, keys)
            if not route.is_empty and len(keys) <= COPIES_MAX:
                if len(self._by_keys) >= ROUTES_MAX:
                    self._by_keys.clear()
                self._by_keys[exchange, keys] = route
        return route

    def forget(self) -> None:
        """The topology changed."""
        self._by_head.clear()
        self._by_keys.clear()
        self._version = self._vhost.version
