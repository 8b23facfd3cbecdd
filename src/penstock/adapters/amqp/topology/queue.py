"""A queue as AMQP sees it: a topic with its subscription ``amqp`` and ``x-`` arguments (D10, D11).

A topic that another protocol made is a queue, too, as soon as somebody asks for it by name. Its
subscription is made when a client declares the queue or wants messages of it, and begins at the
end: a publisher alone changes nothing for the topic.

A new argument is a name in ``KNOWN``, a row of ``_CHECKS`` and a field that ``meaning_of``
fills; a new overflow policy is a row of ``OVERFLOWS`` (``policies.py``) and what the engine does
then (``engine/topic.py``).

Invariants: ``owner`` is set exactly for exclusive queues; a deleted queue stays deleted, a new one
of the same name is another object.
Not here: making, finding and deleting queues (``queue_registry.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from penstock.adapters.amqp.statistics import DeliveryCounters
from penstock.adapters.amqp.topology.policies import (
    NO_POLICY,
    OVERFLOWS,
    TIMER_MS_MAX,
    EffectivePolicy,
    with_policy,
)
from penstock.engine.host import Mode, Start, SubscriptionOptions
from penstock.engine.topic import AT_ONCE_MS, NONE_MAX, TopicPolicy
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import Timestamp

if TYPE_CHECKING:
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.engine.subscription.subscription import Subscription
    from penstock.engine.topic import Topic
    from penstock.model.ids import ConnectionId

SUBSCRIPTION: Final = "amqp"
"""Every AMQP consumer of a topic reads through this one (D11)."""
QUEUE_TYPE: Final = "x-queue-type"
CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"


class QueueUser(Protocol):
    """Who asks; exclusive queues belong to a connection."""

    @property
    def connection_id(self) -> ConnectionId: ...

    @property
    def maker(self) -> str:
        """For whom a queue counts; empty = for an operator."""
        ...


class AmqpQueue:
    """One queue of a virtual host: what AMQP knows of a topic beyond what the engine does.

    Messages, cursors and limits are the engine's; here are arguments, ownership, consumers and
    what is counted for them.
    """

    __slots__ = (
        "_context",
        "arguments",
        "consumers",
        "counters",
        "exclusive_consumer",
        "had_consumer",
        "in_effect",
        "is_auto_delete",
        "is_deleted",
        "is_durable",
        "is_foreign",
        "name",
        "on_gone",
        "owner",
        "policy",
        "settings",
        "takes_policies",
        "topic",
        "vhost_name",
    )

    def __init__(
        self,
        context: AmqpContext,
        vhost_name: str,
        topic: Topic,
        *,
        arguments: dict[str, Any] | None = None,
        settings: QueueArguments | None = None,
        owner: ConnectionId | None = None,
        is_auto_delete: bool = False,
        is_foreign: bool = False,
    ) -> None:
        self._context: Final = context
        self.vhost_name: Final = vhost_name
        self.topic: Final = topic
        self.name: Final = topic.name.name
        self.arguments: Final[dict[str, Any]] = arguments or {}
        """As they were declared, those without a meaning included."""
        self.settings: Final = settings or QueueArguments()
        """What they mean."""
        self.takes_policies: Final = settings is not None
        """False where nobody declared anything, or nobody can say what was declared."""
        self.policy = NO_POLICY
        self.in_effect = self.arguments
        """What was declared, with what policies make of it."""
        self.is_durable: Final = topic.is_durable
        self.owner: Final = owner
        """The connection that may use it, if it is exclusive."""
        self.is_auto_delete: Final = is_auto_delete
        self.is_foreign: Final = is_foreign
        """True when another protocol made the topic."""
        self.counters: Final = DeliveryCounters()
        """What its consumers were given and acknowledged."""
        self.is_deleted = False
        self.on_gone: list[Callable[[], None]] = []
        """Called once when it is gone."""
        self.consumers = 0
        """Those that client commands made and did not end yet."""
        self.had_consumer = False
        self.exclusive_consumer = False
        """True while one consumer asked to be the only one."""

    def __repr__(self) -> str:
        return f"<AmqpQueue {self.name!r} in {self.vhost_name!r}>"

    @property
    def resource(self) -> str:
        return resource_of(self.name, self.vhost_name)

    @property
    def kind(self) -> str:
        """``classic`` or ``quorum``."""
        return self.settings.kind

    @property
    def is_deleting(self) -> bool:
        """True while it is being deleted and dead letters of it must be stored first."""
        return self.topic.is_deleting and not self.is_deleted

    @property
    def is_exclusive(self) -> bool:
        return self.owner is not None

    @property
    def subscription(self) -> Subscription:
        """The reader behind all its consumers; made now if this is the first who wants one."""
        found = self.topic.subscriptions.get(SUBSCRIPTION)
        if found is not None:
            return found
        options = SubscriptionOptions(
            mode=self.settings.mode,
            is_durable=self.is_durable,
            sees_unsynced=True,
            start=Start.LATEST if self.is_foreign else Start.EARLIEST,
            delivery_limit=self.settings.delivery_limit,
        )
        return self._context.engine.create_subscription(self.topic.name, SUBSCRIPTION, options)

    @property
    def ready(self) -> int:
        """Messages that wait for a consumer."""
        found = self.topic.subscriptions.get(SUBSCRIPTION)
        if found is None:
            return 0
        return sum(found.ready(queue.queue_id) for queue in self.topic.queues)

    @property
    def unacked(self) -> int:
        """Messages that consumers have and did not settle yet."""
        found = self.topic.subscriptions.get(SUBSCRIPTION)
        if found is None:
            return 0
        return sum(found.unacked(queue.queue_id) for queue in self.topic.queues)

    def set_policy(self, policy: EffectivePolicy) -> TopicPolicy:
        """Other policies are in effect; what that means for its topic, where it makes itself so."""
        self.policy = policy
        self.in_effect = with_policy(self.arguments, policy.definition)
        wanted, topic = meaning_of(self.kind, self.in_effect), self.topic
        return msgspec.structs.replace(
            topic.own_policy,
            message_ttl_ms=wanted.policy.message_ttl_ms,
            expires_ms=wanted.policy.expires_ms,
            length_max=wanted.policy.length_max,
            bytes_max=wanted.policy.bytes_max,
            overflow=wanted.policy.overflow,
            # What was declared is the subscription's; the engine takes the smaller.
            delivery_limit=wanted.delivery_limit if "delivery-limit" in policy.definition else 0,
        )

    def purge(self) -> int:
        """Drop every ready message; how many those were."""
        subscription = self.subscription
        return sum(subscription.purge(queue.queue_id) for queue in self.topic.queues)

    def touch(self) -> None:
        """Somebody declared it or got from it: ``x-expires`` counts from now."""
        self.topic.touch(self._context.clock.monotonic_ms())

    def check_access(self, client: QueueUser) -> None:
        """405 when it is another connection's."""
        if self.owner is not None and self.owner != client.connection_id:
            raise self.locked()

    def check_declared_again(
        self, *, is_durable: bool, owner: ConnectionId | None, is_auto_delete: bool,
        arguments: dict[str, Any],
    ) -> None:  # fmt: skip
        """405 or 406 unless a second declaration says the same as the first."""
        if self.is_foreign:
            # What another protocol made has no arguments of ours, and is nobody's own (D10).
            if owner is not None:
                raise self.locked()
            check_foreign(self.resource, arguments)
            return
        if self.owner != owner:
            raise self.locked()
        check_flag(self.resource, "durable", self.is_durable, is_durable)
        check_flag(self.resource, "auto_delete", self.is_auto_delete, is_auto_delete)
        check_equivalent_arguments(self.resource, self.arguments, arguments, KNOWN[self.kind])

    def locked(self) -> AmqpError:
        """The error of whoever may not use it."""
        text = (
            f"cannot obtain exclusive access to locked {self.resource}. It could be originally "
            "declared on another connection or the exclusive property value does not match that "
            "of the original declaration."
        )
        return AmqpError(ReplyCode.RESOURCE_LOCKED, text)


def check_foreign(resource: str, arguments: dict[str, Any]) -> None:
    """406 unless a declaration suits a topic that another protocol made."""
    check_equivalent_arguments(resource, {}, arguments, KNOWN[CLASSIC])
    for name, value in arguments.items():
        if name.startswith("x-") and name != QUEUE_TYPE:
            text = (
                f"inequivalent arg '{name}' for {resource}: received '{value}' but "
                "current is none; another protocol made this topic"
            )
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)


def resource_of(name: str, vhost: str) -> str:
    return f"queue '{name}' in vhost '{vhost}'"


def no_queue(name: str, vhost: str) -> AmqpError:
    """404 for a queue that does not exist."""
    return AmqpError(ReplyCode.NOT_FOUND, f"no {resource_of(name, vhost)}")


# ---- arguments ----------------------------------------------------------------------------------
# Checked as RabbitMQ does, turned into what the engine has:
#
# | x-message-ttl, x-expires                       TopicPolicy: message_ttl_ms, expires_ms
# | x-max-length, x-max-length-bytes, x-overflow   length_max, bytes_max, overflow (plus ``hold``)
# | x-max-priority                                 max_priority: a topic of P+1 queues (D10)
# | x-single-active-consumer                       Mode.SINGLE_ACTIVE
# | x-delivery-limit (quorum)                      delivery_limit of the subscription
# | x-dead-letter-exchange, -routing-key           for ``dead_letter.py``
# | x-queue-mode, x-queue-version, locators        checked, and otherwise without meaning
#
# An argument that only another type of queue knows is refused, one that nobody knows is kept and
# means nothing. Every refusal is 406 in RabbitMQ's words.

PRIORITY_MAX: Final = 255
_COMMON: Final = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-single-active-consumer",
    QUEUE_TYPE,
    "x-queue-leader-locator",
    "x-queue-master-locator",
)
KNOWN: Final = {
    CLASSIC: (*_COMMON, "x-max-priority", "x-queue-mode", "x-queue-version"),
    QUORUM: (
        *_COMMON,
        "x-delivery-limit",
        "x-dead-letter-strategy",
        "x-quorum-initial-group-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
    ),
}
"""What each type of queue understands; also what a second declaration must repeat."""
_STREAM_ONLY: Final = ("x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size")
_MODULES: Final = {CLASSIC: "rabbit_classic_queue", QUORUM: "rabbit_quorum_queue"}


class QueueArguments(msgspec.Struct, frozen=True):
    """What a declaration's arguments ask for."""

    kind: str = CLASSIC
    policy: TopicPolicy = TopicPolicy()
    mode: Mode = Mode.SHARED
    delivery_limit: int = 0
    dead_letter_exchange: str | None = None
    """None = none; "" = the default exchange."""
    dead_letter_routing_key: str | None = None
    """None = that of the message."""


def read_arguments(resource: str, arguments: Mapping[str, Any]) -> QueueArguments:
    """What they mean; raises 406 naming the argument. ``resource``: as texts call the queue."""
    _check_exchange_name(resource, arguments)
    kind = _kind(resource, arguments)
    known = KNOWN[kind]
    for name, check in _CHECKS:
        if name in arguments and name in known:
            problem = check(arguments[name], arguments)
            if problem:
                raise _invalid(resource, name, problem)
    others_only = {*KNOWN[CLASSIC], *KNOWN[QUORUM], *_STREAM_ONLY}.difference(known)
    for name in arguments:
        if name in others_only:
            text = f"invalid arg '{name}' for {resource} of queue type {_MODULES[kind]}"
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
    return meaning_of(kind, arguments)


def meaning_of(kind: str, arguments: Mapping[str, Any]) -> QueueArguments:
    """What arguments that were checked ask for."""
    limit = arguments.get("x-delivery-limit")
    is_single = bool(arguments.get("x-single-active-consumer", False))
    return QueueArguments(
        kind,
        _policy(arguments),
        Mode.SINGLE_ACTIVE if is_single else Mode.SHARED,
        0 if limit is None else limit or NONE_MAX,
        arguments.get("x-dead-letter-exchange"),
        arguments.get("x-dead-letter-routing-key"),
    )


def _policy(arguments: Mapping[str, Any]) -> TopicPolicy:
    # In a policy 0 means "not asked for", so a limit of nothing has another number.
    ttl_ms = arguments.get("x-message-ttl")
    length_max = arguments.get("x-max-length")
    bytes_max = arguments.get("x-max-length-bytes")
    return TopicPolicy(
        message_ttl_ms=0 if ttl_ms is None else ttl_ms or AT_ONCE_MS,
        expires_ms=arguments.get("x-expires", 0),
        length_max=0 if length_max is None else length_max or NONE_MAX,
        bytes_max=0 if bytes_max is None else bytes_max or NONE_MAX,
        overflow=OVERFLOWS[arguments.get("x-overflow", "drop-head")],
        max_priority=arguments.get("x-max-priority", 0),
    )


def _kind(resource: str, arguments: Mapping[str, Any]) -> str:
    kind = arguments.get(QUEUE_TYPE, CLASSIC)
    if not isinstance(kind, str):
        raise _invalid(resource, QUEUE_TYPE, _unacceptable(kind))
    if kind == STREAM:
        text = "streams are not built here; declare a classic or quorum queue"
        raise _invalid(resource, QUEUE_TYPE, text)
    if kind not in KNOWN:
        raise _invalid(resource, QUEUE_TYPE, f"\"unsupported queue type '{kind}'\"")
    return kind


def _check_exchange_name(resource: str, arguments: Mapping[str, Any]) -> None:
    name = "x-dead-letter-exchange"
    value = arguments.get(name, "")
    if not isinstance(value, str):
        text = f"invalid type '{type_word(value)}' for arg '{name}' in {resource}"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)


# Each check gives what is wrong, in Erlang's way of writing it; empty when nothing is.


def _unacceptable(value: Any) -> str:
    return f"{{unacceptable_type,{type_word(value)}}}"


def _integer(value: Any, _arguments: Mapping[str, Any]) -> str:
    return "" if is_integer(value) else f'"expected integer, got {type_word(value)}"'


def _natural(value: Any, arguments: Mapping[str, Any]) -> str:
    return _integer(value, arguments) or (f"{{value_negative,{value}}}" if value < 0 else "")


def _positive(value: Any, arguments: Mapping[str, Any]) -> str:
    return _natural(value, arguments) or ("" if value else "{value_zero,0}")


def _timer(value: Any, arguments: Mapping[str, Any]) -> str:
    too_big = f"{{value_too_big,{value}}}"
    return _natural(value, arguments) or (too_big if value > TIMER_MS_MAX else "")


def _expiry(value: Any, arguments: Mapping[str, Any]) -> str:
    return _timer(value, arguments) or _positive(value, arguments)


def _priority(value: Any, arguments: Mapping[str, Any]) -> str:
    too_big = f"{{max_value_exceeded,{value}}}"
    return _natural(value, arguments) or (too_big if value > PRIORITY_MAX else "")


def _bool(value: Any, _arguments: Mapping[str, Any]) -> str:
    return "" if isinstance(value, bool) else _unacceptable(value)


def _text(value: Any, _arguments: Mapping[str, Any]) -> str:
    return "" if isinstance(value, str) else _unacceptable(value)


def _routing_key(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    has_exchange = "x-dead-letter-exchange" in arguments
    return "" if has_exchange else "routing_key_but_no_dlx_defined"


def _overflow(value: Any, _arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in OVERFLOWS else "invalid_overflow"


def _strategy(value: Any, _arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in ("at-most-once", "at-least-once") else "invalid_dlx_strategy"


def _mode(value: Any, _arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in ("default", "lazy") else f"\"unsupported queue mode '{value}'\""


def _version(value: Any, arguments: Mapping[str, Any]) -> str:
    unsupported = f"\"unsupported queue version '{value}'\""
    return _natural(value, arguments) or ("" if value in (1, 2) else unsupported)


Check = Callable[[Any, Mapping[str, Any]], str]
_CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("x-expires", _expiry),
    ("x-message-ttl", _timer),
    ("x-dead-letter-routing-key", _routing_key),
    ("x-dead-letter-strategy", _strategy),
    ("x-max-length", _natural),
    ("x-max-length-bytes", _natural),
    ("x-max-in-memory-length", _natural),
    ("x-max-in-memory-bytes", _natural),
    ("x-max-priority", _priority),
    ("x-overflow", _overflow),
    ("x-queue-mode", _mode),
    ("x-queue-version", _version),
    ("x-single-active-consumer", _bool),
    ("x-delivery-limit", _natural),
    ("x-quorum-initial-group-size", _positive),
    ("x-queue-leader-locator", _text),
    ("x-queue-master-locator", _text),
)


def _invalid(resource: str, name: str, problem: str) -> AmqpError:
    text = f"invalid arg '{name}' for {resource}: {problem}"
    return AmqpError(ReplyCode.PRECONDITION_FAILED, text)


# ---- equivalence --------------------------------------------------------------------------------
# May a queue that exists be declared again like this? And how RabbitMQ words it when not.
#
# Equal are: both without the argument, or values of one class that are equal; integers compare by
# value, however wide they were written. Arguments nobody knows (``x-foo``) are not compared, and a
# classic queue may or may not say that it is one.
#
# Texts name a missing value ``none`` and one that has no counterpart with its type; the type of an
# integer is guessed from its size, because tables do not keep it.

INT32_MAX: Final = (1 << 31) - 1

_ABSENT: Final = object()
_WORDS: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (Timestamp, "timestamp"),
    (float, "double"),
    (str, "longstr"),
    (bytes, "binary"),
    (Decimal, "decimal"),
    (dict, "table"),
    (list, "array"),
)


def type_word(value: Any) -> str:
    """RabbitMQ's word for the type of a field value."""
    for kind, word in _WORDS:
        if isinstance(value, kind):
            return word
    if isinstance(value, int):
        return "signedint" if -INT32_MAX - 1 <= value <= INT32_MAX else "long"
    return "void"


def is_integer(value: Any) -> bool:
    """True for what was sent as a plain number without a fraction."""
    return isinstance(value, int) and not isinstance(value, (bool, Timestamp))


def are_equal(first: Any, second: Any) -> bool:
    """True when two values mean the same: of one class and equal."""
    if is_integer(first) and is_integer(second):
        return bool(first == second)
    return type_word(first) == type_word(second) and bool(first == second)


def _erlang_text(value: Any) -> str:
    """A value as Erlang prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "undefined" if value is None else str(value)


def check_flag(resource: str, name: str, current: bool, received: bool) -> None:
    """406 when a declaration says otherwise than the first one."""
    if current is not received:
        raise _inequivalent(
            resource, name, f"'{_erlang_text(received)}'", f"'{_erlang_text(current)}'"
        )


def check_equivalent_arguments(
    resource: str,
    current: Mapping[str, Any],
    received: Mapping[str, Any],
    names: Iterable[str],
) -> None:
    """406 for the first of these arguments in which two declarations differ."""
    for name in names:
        before, now = current.get(name, _ABSENT), received.get(name, _ABSENT)
        if before is now or _is_implied_classic(name, before, now):
            continue
        if before is _ABSENT or now is _ABSENT:
            raise _inequivalent(resource, name, _typed(now), _typed(before))
        if not are_equal(before, now):
            raise _inequivalent(
                resource, name, f"'{_erlang_text(now)}'", f"'{_erlang_text(before)}'"
            )


def _is_implied_classic(name: str, before: Any, now: Any) -> bool:
    """True when one names the type and the other means it by saying none."""
    if name != QUEUE_TYPE:
        return False
    return {CLASSIC if value is _ABSENT else str(value) for value in (before, now)} == {CLASSIC}


def _typed(value: Any) -> str:
    if value is _ABSENT:
        return "none"
    return f"the value '{_erlang_text(value)}' of type '{type_word(value)}'"


def _inequivalent(resource: str, name: str, received: str, current: str) -> AmqpError:
    text = f"inequivalent arg '{name}' for {resource}: received {received} but current is {current}"
    return AmqpError(ReplyCode.PRECONDITION_FAILED, text)
