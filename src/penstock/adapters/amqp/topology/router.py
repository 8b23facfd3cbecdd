"""Where a publish goes: exchanges followed to queues, and what was found remembered.

From the named exchange on, every exchange is asked once which of its bindings match; bindings to
other exchanges are followed, and an exchange that has no match hands over to its alternate one.
What comes out is a set of queues: each gets one copy however many ways lead to it, and a cycle
ends where it began. Asking each exchange once makes the order of asking irrelevant. All keys of a
publish (CC and BCC) count at every exchange on the way, whichever of them led there.

    key decides alone         -> ``ExchangeRoute`` with ``queues``, shared by all keys that lead to
                                 the same queues, remembered by (exchange, key)
    a headers exchange on it  -> the part before it is remembered, the rest is asked per message
    priorities, N queues      -> the topic's own route picks the queue per message (D10)

What matching cost (``steps``) is charged to the channel that made it necessary; who finds the route
remembered pays one step per copy.

Invariants: memory is bounded by ``ROUTES_KEPT`` and ``ROUTES_MAX``; nothing is remembered across
``forget``; a queue that is not there is not remembered as missing, since other protocols can make
it.
Not here: which bindings match (``matching.py``), what becomes of CC in dead letters
(``dead_letter.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp.topology.exchange import DEFAULT_EXCHANGE, Exchange, no_exchange
from penstock.engine.topic import KeyRoute, route_to
from penstock.model.record import Record, Wire
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.origin import PublishHead, publish_record, with_secret_keys
from penstock.wire.amqp.properties import edit_properties, locate_properties
from penstock.wire.amqp.table import decode_table, join_table, split_table

if TYPE_CHECKING:
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.engine.ports import Route
    from penstock.engine.topic import Queue

ROUTES_KEPT: Final = 4096
"""Different (exchange, routing key) remembered per vhost; the oldest goes first."""
HEADERS_PER_STEP: Final = 8
"""Comparing the headers of a message with one binding costs a fraction of storing a copy of it."""
DIRECT_REPLY_QUEUE: Final = "amq.rabbitmq.reply-to"
"""The queue that is none: who consumes it gets the replies to its requests."""
DIRECT_REPLY_PREFIX: Final = DIRECT_REPLY_QUEUE + "."
"""Routing keys that name such a requester, not a queue (``amqp/direct_reply.py``)."""
_AMQP: Final = int(Wire.AMQP)
_NO_HEADERS: Final[Mapping[str, Any]] = {}
CC: Final = b"CC"
BCC: Final = b"BCC"
COPIES_MAX: Final = 1000
"""Further keys of one message: each costs a walk through the exchanges, the bytes only a few."""
ROUTES_MAX: Final = 4096
"""Routes that are remembered; then it begins anew."""
REMEMBERED_COPIES_MAX: Final = 16
"""Routing keys of one publish from which on its route is found each time."""


class Router:
    """Finds the routes of publishes and dead letters in one vhost; remembers them until ``forget``.

    It only reads exchanges and queues; their owners change them and call ``forget``.
    """

    def __init__(
        self,
        vhost: str,
        exchanges: Mapping[str, Exchange],
        find_queue: Callable[[str], AmqpQueue | None],
    ) -> None:
        self._vhost: Final = vhost
        self._exchanges: Final = exchanges
        self._find_queue: Final = find_queue
        self.version = 0
        """Grows with every change of topology."""
        self._routes: Final[dict[tuple[str, str], ExchangeRoute]] = {}
        """Of publishers, who may not use internal exchanges."""
        self._dead_routes: Final[dict[tuple[str, str], ExchangeRoute]] = {}
        """Of dead letters, which may."""
        self._shared: Final[dict[tuple[tuple[AmqpQueue, ...], int], ExchangeRoute]] = {}
        """By queues and cost: messages with different keys then go into one publish batch."""

    def route(self, exchange: str, routing_key: str) -> ExchangeRoute:
        """Of a client's publish; raises 404 for a missing exchange, 403 for an internal one."""
        found = self._routes.get((exchange, routing_key))
        if found is not None:
            return found
        self._check_public(exchange)
        return self._find(self._routes, exchange, routing_key)

    def route_all(self, exchange: str, keys: Sequence[str]) -> ExchangeRoute:
        """The route of a publish with several keys (CC, BCC): all their queues, each once."""
        self._check_public(exchange)
        return self._build(self._traverse(exchange, keys))

    def route_dead(self, exchange: str, keys: Sequence[str]) -> ExchangeRoute:
        """The route of a dead letter: as ``route_all``, but internal exchanges are open to it."""
        self._check_exists(exchange)
        if len(keys) != 1:
            return self._build(self._traverse(exchange, keys))
        found = self._dead_routes.get((exchange, keys[0]))
        return found if found is not None else self._find(self._dead_routes, exchange, keys[0])

    def forget(self) -> None:
        """Exchanges, bindings or the set of queues changed: what is remembered is void."""
        self.version += 1
        self._routes.clear()
        self._dead_routes.clear()
        self._shared.clear()

    def follow(self, traversal: _Traversal) -> None:
        """Ask every exchange that the traversal leads to."""
        exchanges = self._exchanges
        while traversal.todo:
            name = traversal.todo.pop()
            if name in traversal.seen:
                continue
            traversal.seen.add(name)
            exchange = exchanges.get(name)
            if exchange is None:
                continue
            if exchange.matcher.needs_headers and traversal.headers is None:
                traversal.headers_exchanges.append(exchange)
            else:
                self.ask(exchange, traversal)

    def ask(self, exchange: Exchange, traversal: _Traversal) -> None:
        """Note where this exchange leads a message with these keys."""
        keys = traversal.keys
        if exchange.name == DEFAULT_EXCHANGE:
            for key in keys:
                traversal.steps += 1
                self._add_queue(key, traversal)
            return
        if exchange.matcher.needs_headers:
            # Asked once: no key changes its answer.
            keys = keys[:1]
        is_matched = False
        for key in keys:
            found, looked = exchange.matcher.match(key, traversal.headers or _NO_HEADERS)
            traversal.steps += looked
            for is_queue, name in found:
                is_matched = True
                if is_queue:
                    self._add_queue(name, traversal)
                else:
                    traversal.todo.append(name)
        if not is_matched and exchange.alternate is not None:
            traversal.todo.append(exchange.alternate)

    def _add_queue(self, name: str, traversal: _Traversal) -> None:
        if name in traversal.queues:
            return
        queue = self._find_queue(name)
        if queue is None:
            traversal.is_cacheable = False
        else:
            traversal.queues[name] = queue

    def _check_exists(self, name: str) -> Exchange:
        found = self._exchanges.get(name)
        if found is None:
            raise no_exchange(name, self._vhost)
        return found

    def _check_public(self, name: str) -> None:
        if self._check_exists(name).is_internal:
            raise AmqpError(
                ReplyCode.ACCESS_REFUSED,
                f"cannot publish to internal exchange '{name}' in vhost '{self._vhost}'",
            )

    def _traverse(self, exchange: str, keys: Sequence[str]) -> _Traversal:
        traversal = _Traversal(keys, None)
        traversal.todo.append(exchange)
        self.follow(traversal)
        return traversal

    def _find(
        self, memory: dict[tuple[str, str], ExchangeRoute], exchange: str, key: str
    ) -> ExchangeRoute:
        """Find and remember a route: the first pays for matching, later ones one step per copy."""
        traversal = self._traverse(exchange, (key,))
        if not traversal.is_cacheable:
            return self._build(traversal)
        if len(memory) >= ROUTES_KEPT:
            del memory[next(iter(memory))]
        if traversal.headers_exchanges:
            route = memory[exchange, key] = self._build(traversal)
            return route
        queues = tuple(traversal.queues.values())
        memory[exchange, key] = self._shared_route(queues, len(queues))
        return self._shared_route(queues, max(traversal.steps, len(queues)))

    def _shared_route(self, queues: tuple[AmqpQueue, ...], steps: int) -> ExchangeRoute:
        """The one route to these queues at this cost: the engine batches by route identity."""
        route = self._shared.get((queues, steps))
        if route is None:
            route = ExchangeRoute(queues, steps)
            if len(self._shared) < ROUTES_KEPT:
                self._shared[queues, steps] = route
        return route

    def _build(self, traversal: _Traversal) -> ExchangeRoute:
        queues = tuple(traversal.queues.values())
        if not traversal.headers_exchanges:
            return ExchangeRoute(queues, max(traversal.steps, len(queues)))
        looked = sum(len(each.bindings) for each in traversal.headers_exchanges)
        steps = traversal.steps + len(queues) + looked // HEADERS_PER_STEP
        return ExchangeRoute(queues, steps, _HeadersSearch(self, traversal))


class ExchangeRoute:
    """The queues of a publish, as far as its key decides; satisfies the engine's ``Route``."""

    __slots__ = ("_fixed", "_pickers", "_search", "is_constant", "is_empty", "queues", "steps")

    def __init__(
        self, queues: tuple[AmqpQueue, ...], steps: int, search: _HeadersSearch | None = None
    ) -> None:
        routes = [_route_to(queue) for queue in queues]
        self._pickers: Final[list[Route[Queue]]] = [each for each in routes if not each.is_constant]
        self._fixed: Final = tuple(
            queue.topic.queues[0]
            for queue, route in zip(queues, routes, strict=True)
            if route.is_constant
        )
        self._search: Final = search
        """How to go on from headers exchanges; None when the key decides."""
        self.is_constant: Final = search is None and not self._pickers
        self.is_empty: Final = search is None and not queues
        """No message ever goes anywhere on it."""
        self.queues: Final = queues if search is None else None
        """All of them when the key decides, else None."""
        self.steps: Final = max(1, steps)

    def targets(self, record: Record, /) -> tuple[Queue, ...]:
        """The queues that get a copy of this message."""
        if self.is_constant:
            return self._fixed
        found = self._fixed
        if self._pickers:
            found += tuple([queue for each in self._pickers for queue in each.targets(record)])
        if self._search is not None:
            found += tuple(
                [
                    target
                    for queue in self._search.queues(headers_of(record))
                    for target in _route_to(queue).targets(record)
                ]
            )
        return found

    def queues_for(self, record: Record) -> tuple[AmqpQueue, ...]:
        """The same as ``targets``, as AMQP sees them."""
        if self._search is None:
            return self.queues or ()
        return self._search.known + tuple(self._search.queues(headers_of(record)))


class _HeadersSearch:
    """What is left to ask per message once the routing key was followed."""

    __slots__ = ("_keys", "_router", "_seen", "_waiting", "known")

    def __init__(self, router: Router, traversal: _Traversal) -> None:
        self._router = router
        self._keys = traversal.keys
        self._waiting = traversal.headers_exchanges
        self._seen = traversal.seen
        self.known = tuple(traversal.queues.values())

    def queues(self, headers: Mapping[str, Any]) -> list[AmqpQueue]:
        """Queues beyond the headers exchanges that are not known already."""
        traversal = _Traversal(self._keys, headers)
        traversal.seen.update(self._seen)
        for exchange in self._waiting:
            self._router.ask(exchange, traversal)
            self._router.follow(traversal)
        known = {queue.name for queue in self.known}
        return [queue for name, queue in traversal.queues.items() if name not in known]


class _Traversal:
    """One walk: where it has been, what it found, what it cost."""

    __slots__ = (
        "headers", "headers_exchanges", "is_cacheable", "keys", "queues", "seen", "steps", "todo",
    )  # fmt: skip

    def __init__(self, keys: Sequence[str], headers: Mapping[str, Any] | None) -> None:
        self.keys: Final = keys
        """Of the publish, CC and BCC included: all of them count at every exchange on the way."""
        self.headers: Final = headers
        """None while only the key is known: then headers exchanges are left for later."""
        self.headers_exchanges: Final[list[Exchange]] = []
        self.queues: Final[dict[str, AmqpQueue]] = {}
        self.seen: Final[set[str]] = set()
        self.todo: Final[list[str]] = []
        self.steps = 0
        self.is_cacheable = True
        """False when a queue was looked for by name and was not there."""


def _route_to(queue: AmqpQueue) -> Route[Queue]:
    """The last hop. A topic of another protocol may grow by queues at any time, unseen by us."""
    return KeyRoute(queue.topic) if queue.is_foreign else route_to(queue.topic)


def headers_of(record: Record) -> Mapping[str, Any]:
    """The headers table of an AMQP message; other protocols' have none to match."""
    if record.shape.wire != _AMQP or not record.shape.props_len:
        return _NO_HEADERS
    properties = record.properties
    try:
        span = locate_properties(properties, 0, len(properties)).spans.get("headers")
        return decode_table(properties, span[0])[0] if span is not None else _NO_HEADERS
    except AmqpError:
        return _NO_HEADERS


# ---- remembered by publishers -------------------------------------------------------------------


class PublishRoutes:
    """Routes of a vhost's publishers, remembered by what a publish says of itself.

    A head that was seen before costs one look-up; everything is forgotten when the topology
    changes. Routes without a queue are not remembered: another protocol may make the topic they
    lead to, and nobody here would hear of it.
    Bound: ``ROUTES_MAX`` of each kind, all channels together.
    """

    __slots__ = ("_by_head", "_by_keys", "_router", "_version")

    def __init__(self, router: Router) -> None:
        self._router = router
        self._version = router.version
        self._by_head: dict[PublishHead, ExchangeRoute] = {}
        self._by_keys: dict[tuple[str, tuple[str, ...]], ExchangeRoute] = {}

    def __len__(self) -> int:
        return len(self._by_head) + len(self._by_keys)

    def known(self, head: PublishHead) -> ExchangeRoute | None:
        """The route of a head seen lately."""
        if self._router.version != self._version:
            self.forget()
        return self._by_head.get(head)

    def find(self, head: PublishHead) -> ExchangeRoute | None:
        """The route of a head not seen lately; None = it is a direct reply.

        Raises 404 for a missing exchange, 403 for an internal one, 540 for immediate.
        """
        if head.is_immediate:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
        if not head.exchange and head.routing_key.startswith(DIRECT_REPLY_PREFIX):
            return None
        router = self._router
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
            route = self._router.route_all(exchange, keys)
            if not route.is_empty and len(keys) <= REMEMBERED_COPIES_MAX:
                if len(self._by_keys) >= ROUTES_MAX:
                    self._by_keys.clear()
                self._by_keys[exchange, keys] = route
        return route

    def forget(self) -> None:
        self._by_head.clear()
        self._by_keys.clear()
        self._version = self._router.version


# ---- CC and BCC ---------------------------------------------------------------------------------
# Further routing keys, as headers of the message. Both are arrays of text; what else is in the
# array is passed over, a header that is no array is an error of the publish (406). The message goes
# to the union of what all its keys match. CC stays in the message for everybody to see. BCC is
# taken out of the headers, so no reader learns of it; its keys are stored beside the message, for
# its dead letters go to all of its keys, as RabbitMQ's do.


def copy_keys(properties: bytes, header: bytes) -> tuple[str, ...]:
    """The routing keys in one of the two headers; raises 406 when it is no array."""
    found = locate_properties(properties, 0, len(properties))
    if header not in found.header_names:
        return ()
    at, end = found.header_names[header]
    table = join_table([(header, properties[at:end])])
    value: Any = decode_table(table)[0][header.decode()]
    if not isinstance(value, list):
        text = f"invalid message: header {header.decode()} must be an array of routing keys"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
    return tuple([key for key in value if isinstance(key, str)])


def with_copies(head: PublishHead, record: Record, now_ms: int) -> tuple[Record, tuple[str, ...]]:
    """The record as it is to be stored, and all its routing keys, each once."""
    properties = record.properties
    public, secret = copy_keys(properties, CC), copy_keys(properties, BCC)
    if len(public) + len(secret) > COPIES_MAX:
        text = f"{len(public) + len(secret)} routing keys in CC and BCC, at most {COPIES_MAX}"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"invalid message: {text}")
    keys = tuple(dict.fromkeys((head.routing_key, *public, *secret)))
    found = locate_properties(properties, 0, len(properties))
    if BCC not in found.header_names:
        return record, keys
    at, end = found.spans["headers"]
    kept = [entry for entry in split_table(properties[at:end]) if entry[0] != BCC]
    properties = edit_properties(properties, {"headers": join_table(kept)})
    stored = publish_record(head, properties, record.body, now_ms)
    return with_secret_keys(stored, secret), keys
