"""Definitions as one JSON document, in RabbitMQ's shape: for backup, and for moving in.

Exported are users (with their hashes, never passwords), vhosts, policies, exchanges, queues and
bindings, all but what nobody can make (the default exchange, ``amq.*``) and what ends with a
connection. Operators' policies are parameters there, as RabbitMQ has it. Imported is the same;
permissions, other parameters and limits of a RabbitMQ export are ignored, for there is nothing here
that they could change, and whoever imports them is told (``ignored_parts``).

The document is checked as a whole before anything is made. What is there already must be
equivalent, as for a client that declares it: then the same document changes nothing a second time.
Reading, checking and making are steps, so that whoever runs them can let others have their turns: a
document of up to ``STEPS_MAX`` steps is one piece, and all or nothing also through a crash. Of a
longer one a crash leaves what was made so far, in the order of the document (users, vhosts,
exchanges, queues, bindings), each part whole; the same document once more makes the rest.
Not here: HTTP (``server/management``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from penstock.adapters.amqp.exchange_commands import (
    check_exchange,
    clean_name,
    declare_exchange,
    known_kind,
)
from penstock.adapters.amqp.management.views import (
    binding_view,
    exchange_view,
    plain,
    policy_view,
    user_view,
)
from penstock.adapters.amqp.topology.exchange import PREDECLARED, Exchange, no_exchange, predeclared
from penstock.adapters.amqp.topology.matching import (
    MATCHERS,
    Binding,
    BindingKey,
    Destination,
    to_exchange,
    to_queue,
)
from penstock.adapters.amqp.topology.policies import (
    ALL,
    Policy,
    PreparedPolicy,
    check_patterns,
    prepare_policy,
)
from penstock.adapters.amqp.topology.queue import (
    KNOWN,
    check_equivalent_arguments,
    check_flag,
    check_foreign,
    no_queue,
    resource_of,
)
from penstock.adapters.amqp.topology.queue_registry import Declaration, check_declaration
from penstock.adapters.amqp.topology.vhost import space_of
from penstock.adapters.amqp.users import SHA256, User, hash_of
from penstock.model.ids import ConnectionId
from penstock.model.names import TopicName, topic_name
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.method import short_bytes
from penstock.wire.amqp.table import encode_table

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import AmqpBroker
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.engine.topic import Topic

ANYTHING: Final = ".*"
OPERATOR_POLICY: Final = "operator_policy"
"""The component of parameters that are operators' policies."""

IGNORED_NAMES_MAX: Final = 10
"""Of each kind; the count is exact."""
IGNORED_NAME_CHARS_MAX: Final = 80
DENIED_VHOSTS_MAX: Final = 10_000
"""Of one user in a document."""


class _Operator:
    """Who declares for the operator: nobody's exclusive queue is its own."""

    connection_id = ConnectionId(0)
    maker = ""


OPERATOR: Final = _Operator()


def export_definitions(
    broker: AmqpBroker, vhost: VirtualHost | None = None
) -> Generator[int, None, dict[str, Any]]:
    """Everything, or what one vhost has (then nothing says which); yields once for each row.

    What is made or goes while turns pass may be in it or not.
    """
    vhosts = list(broker.vhosts.values()) if vhost is None else [vhost]
    document: dict[str, Any] = {
        "rabbit_version": broker.settings.server_version,
        "rabbitmq_version": broker.settings.server_version,
        "product_name": broker.settings.server_product,
        "product_version": broker.settings.server_version,
    }
    if vhost is None:
        users = broker.users.all()
        document["users"] = yield from _listed(map(user_view, users))
        document["vhosts"] = [{"name": each.name} for each in vhosts]
        document["permissions"] = yield from _listed(
            permission_view(user.name, each.name)
            for user in users
            for each in vhosts
            if broker.users.may_enter(user, each.name)
        )
        document["topic_permissions"] = []
        document["global_parameters"] = []
    parts: dict[str, Iterator[dict[str, Any] | None]] = {
        "parameters": (
            _parameter(host, each)
            for host in vhosts
            for each in host.policies.all(is_operator=True)
        ),
        "policies": (
            policy_view(host, each)
            for host in vhosts
            for each in host.policies.all(is_operator=False)
        ),
        "queues": (
            _queue(each) if _is_exported(each) else None for host in vhosts for each in host.queues
        ),
        "exchanges": (
            _exchange(host, each)
            for host in vhosts
            for each in list(host.exchanges.values())
            if not each.is_reserved
        ),
        "bindings": (each for host in vhosts for each in _bindings(host)),
    }
    for kind, rows in parts.items():
        document[kind] = yield from _listed(rows)
        if vhost is not None:
            for row in document[kind]:
                del row["vhost"]
    return document


def _listed(
    rows: Iterator[dict[str, Any] | None],
) -> Generator[int, None, list[dict[str, Any]]]:
    """The rows that are one; looking at another is a step, too."""
    made: list[dict[str, Any]] = []
    for row in rows:
        if row is not None:
            made.append(row)
        yield 1
    return made


STEPS_MAX: Final = 60
"""Steps of an import after which others have their turn; one takes some 40 us."""
MAKE_STEPS: Final = 3
"""What making one part costs; checking it costs one, and so does reading it."""
POLICY_STEPS: Final = 3
"""What preparing a policy costs, most of it reading its pattern."""
POLICIES_A_STEP: Final = 10
"""Policies that come into effect for what one step costs, once they are prepared."""


def import_definitions(
    broker: AmqpBroker, document: Definitions, vhost: VirtualHost | None = None
) -> Generator[int, None, None]:
    """Make what is defined, all of it or nothing; yields what each step costs.

    Raises ``AmqpError`` or ``ValueError`` for the first part that cannot be, before anything is
    made; while parts are made only for what others changed between two steps, and then says so.
    """
    check = _DefinitionsCheck(broker, vhost)
    yield from check.check(document)
    made, parts = 0, document.parts
    try:
        for more, step in _making(broker, document, check.policies, vhost):
            made += more
            yield step
    except (AmqpError, ValueError) as problem:
        raise ValueError(
            f"{problem}; this changed while the document was imported, {made} of its {parts} parts "
            "are made: import it again"
        ) from None


def _making(
    broker: AmqpBroker,
    document: Definitions,
    prepared: dict[str, list[PreparedPolicy]],
    vhost: VirtualHost | None,
) -> Iterator[tuple[int, int]]:
    """Yields how many parts were made, and what that cost."""
    if vhost is None:
        for each in document.users:
            broker.users.put(each.user)
            yield 1, MAKE_STEPS
        for host in document.vhosts:
            make_vhost(broker, host.name)
            yield 1, MAKE_STEPS
        for row in _rows(document.permissions):
            if _is_everything(row):
                broker.users.allow(str(row.get("user")), str(row.get("vhost")))
            yield 1, 1

    def vhost_of(named: str) -> VirtualHost:
        name = named if vhost is None else vhost.name
        found = broker.vhosts.get(name)
        if found is None:
            raise AmqpError(ReplyCode.NOT_FOUND, f"no vhost '{name}'")
        return found

    for named, policies in prepared.items():
        steps = 1 + len(policies) // POLICIES_A_STEP
        # Paid before as well: all of a vhost come into effect at once, so many have a piece alone.
        yield 0, steps
        broker.put_prepared_policies(vhost_of(named), policies)
        yield len(policies), steps
    for exchange in document.exchanges:
        make_exchange(vhost_of(exchange.vhost), exchange)
        yield 1, MAKE_STEPS
    for queue in document.queues:
        make_queue(vhost_of(queue.vhost), queue)
        yield 1, MAKE_STEPS
    for binding in document.bindings:
        make_binding(vhost_of(binding.vhost), binding)
        yield 1, MAKE_STEPS


class IgnoredPart(msgspec.Struct, frozen=True):
    """Parts of one kind that an import has no use for."""

    kind: str
    count: int
    names: list[str]
    """The first ``IGNORED_NAMES_MAX`` of them."""

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.names) else ""
        return f"{self.kind}: {self.count} ({', '.join(self.names)}{more})"


def ignored_parts(document: Definitions, vhost: VirtualHost | None = None) -> list[IgnoredPart]:
    """What an import of the document leaves out, because there is no such thing here.

    A permission to do everything is in effect already. Into one vhost neither users nor vhosts are
    imported, as in RabbitMQ.
    """
    found: dict[str, list[str]] = {}
    if vhost is not None:
        found["users"] = [each.name for each in document.users]
        found["vhosts"] = [each.name for each in document.vhosts]
    found["policy_keys"] = [
        f"{each.name} {key}"
        for policies in _policies(document, vhost).values()
        for _, each in policies
        for key in each.ignored
    ]
    found["permissions"] = _names(
        [each for each in _rows(document.permissions) if not _is_everything(each)], "user", "vhost"
    )
    found["topic_permissions"] = _names(document.topic_permissions, "user", "vhost")
    others = [each for each in _rows(document.parameters) if not _is_operator_policy(each)]
    found["parameters"] = _names(others, "component", "name")
    found["global_parameters"] = _names(document.global_parameters, "name")
    if vhost is None:
        found["user_limits"] = [each.name for each in document.users if each.limits]
        found["vhost_limits"] = [each.name for each in document.vhosts if each.limits]
    return [
        IgnoredPart(
            kind,
            len(names),
            [name[:IGNORED_NAME_CHARS_MAX] for name in names[:IGNORED_NAMES_MAX]],
        )
        for kind, names in found.items()
        if names
    ]


def _rows(part: Any) -> list[Any]:
    """The rows of a part that nothing is made of, whatever its shape."""
    if isinstance(part, list):
        return part
    return [part] if part else []


def _names(part: Any, *fields: str) -> list[str]:
    """What each row is called."""
    return [
        " ".join(str(row[field]) for field in fields if row.get(field))
        if isinstance(row, dict)
        else str(row)
        for row in _rows(part)
    ]


def _is_everything(permission: Any) -> bool:
    return isinstance(permission, dict) and all(
        permission.get(what) == ANYTHING for what in ("configure", "write", "read")
    )


def _is_operator_policy(parameter: Any) -> bool:
    return isinstance(parameter, dict) and parameter.get("component") == OPERATOR_POLICY


def _policies(
    document: Definitions, vhost: VirtualHost | None
) -> dict[str, list[tuple[bool, Policy]]]:
    """(is_operator, policy), by vhost; raises ``ValueError`` for one without the shape of one."""
    found: dict[str, list[tuple[bool, Policy]]] = {}
    for each in document.policies:
        name = each.vhost if vhost is None else vhost.name
        found.setdefault(name, []).append((False, each.policy))
    for row in _rows(document.parameters):
        if _is_operator_policy(row):
            wanted = msgspec.convert(row.get("value"), type=PolicyDefinition, strict=False)
            wanted.name = str(row.get("name", ""))
            name = str(row.get("vhost", "")) if vhost is None else vhost.name
            found.setdefault(name, []).append((True, wanted.policy))
    return found


def _parameter(vhost: VirtualHost, policy: Policy) -> dict[str, Any]:
    value = policy_view(vhost, policy)
    del value["vhost"], value["name"]
    return {
        "vhost": vhost.name,
        "component": OPERATOR_POLICY,
        "name": policy.name,
        "value": value,
    }


def make_vhost(broker: AmqpBroker, name: str) -> VirtualHost:
    check_vhost_name(name)
    return broker.make_vhost(name)


def make_exchange(vhost: VirtualHost, wanted: ExchangeDefinition) -> Exchange:
    return declare_exchange(vhost, wanted.exchange)


def make_queue(vhost: VirtualHost, wanted: QueueDefinition) -> AmqpQueue:
    return vhost.queues.declare(wanted.declaration, OPERATOR)


def make_binding(vhost: VirtualHost, wanted: BindingDefinition) -> str:
    """A binding, new or there already; its name in paths."""
    if wanted.is_implied:
        return wanted.routing_key
    check_source(wanted)
    binding = vhost.bindings.bind(
        wanted.source, wanted.target, wanted.routing_key, dict(wanted.arguments)
    )
    return binding.properties_key


def permission_view(user: str, vhost: str) -> dict[str, str]:
    """What a user may do in a vhost that is not denied to it: everything."""
    return {
        "user": user,
        "vhost": vhost,
        "configure": ANYTHING,
        "write": ANYTHING,
        "read": ANYTHING,
    }


def _is_exported(queue: AmqpQueue) -> bool:
    return not queue.is_exclusive and not queue.is_foreign


def _queue(queue: AmqpQueue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "vhost": queue.vhost_name,
        "type": queue.kind,
        "durable": queue.is_durable,
        "auto_delete": queue.is_auto_delete,
        "arguments": plain(queue.arguments),
    }


def _exchange(vhost: VirtualHost, exchange: Exchange) -> dict[str, Any]:
    row = exchange_view(vhost, exchange)
    del row["policy"], row["operator_policy"], row["effective_policy_definition"]
    return row


def _bindings(vhost: VirtualHost) -> Iterator[dict[str, Any] | None]:
    for each in list(vhost.bindings):
        queue = vhost.queues.get(each.destination.name) if each.destination.is_queue else None
        if each.destination.is_queue and (queue is None or not _is_exported(queue)):
            yield None
            continue
        row = binding_view(vhost, each)
        del row["properties_key"]
        yield row


# ---- the document -------------------------------------------------------------------------------
# As tools write it. Everything may be left out that has a meaning without; a path may say the name
# instead.

Arguments = dict[str, Any] | Annotated[list[Any], msgspec.Meta(max_length=0)]
"""A table; an empty one may come as an empty list, from tools that cannot tell them apart."""


class UserDefinition(msgspec.Struct):
    """One user; ``password`` is for people, ``password_hash`` for exports."""

    name: str = ""
    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str = SHA256
    tags: str | list[str] = ""
    limits: Any = None
    """Ignored, as those of a vhost."""
    denied_vhosts: Annotated[list[str], msgspec.Meta(max_length=DENIED_VHOSTS_MAX)] = []
    """Our own: what permissions of an export cannot say, for without one there is one here."""

    @property
    def user(self) -> User:
        tags = self.tags.split(",") if isinstance(self.tags, str) else self.tags
        names = tuple(tag.strip() for tag in tags if tag.strip())
        if self.password is not None:
            return User(
                self.name, hash_of(self.password), names, denied_vhosts=tuple(self.denied_vhosts)
            )
        return User(
            self.name,
            self.password_hash or "",
            names,
            self.hashing_algorithm,
            tuple(self.denied_vhosts),
        )


class VhostDefinition(msgspec.Struct):
    name: str
    limits: Any = None


class ExchangeDefinition(msgspec.Struct):
    name: str = ""
    vhost: str = ""
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = {}

    @property
    def exchange(self) -> Exchange:
        """The exchange it defines; raises for a type nobody knows or a name no client could say."""
        return Exchange(
            fitting(self.name),
            known_kind(self.type),
            is_durable=self.durable,
            is_auto_delete=self.auto_delete,
            is_internal=self.internal,
            arguments=dict(self.arguments),
        )


class QueueDefinition(msgspec.Struct):
    name: str = ""
    vhost: str = ""
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = {}

    @property
    def declaration(self) -> Declaration:
        """What a client would declare; raises for what JSON can say and no client could."""
        encode_table(dict(self.arguments))
        return Declaration(
            fitting(self.name),
            is_durable=self.durable,
            is_auto_delete=self.auto_delete,
            arguments=dict(self.arguments),
        )


class BindingDefinition(msgspec.Struct):
    source: str = ""
    vhost: str = ""
    destination: str = ""
    destination_type: str = "queue"
    routing_key: str = ""
    arguments: Arguments = {}

    @property
    def is_implied(self) -> bool:
        """True for what every queue has, and exports of RabbitMQ may name."""
        to = self.target
        return not self.source and to.is_queue and self.routing_key == self.destination

    @property
    def target(self) -> Destination:
        is_exchange = self.destination_type in ("exchange", "e")
        return to_exchange(self.destination) if is_exchange else to_queue(self.destination)


class PolicyDefinition(msgspec.Struct):
    """One policy, of a user or of an operator."""

    pattern: str
    definition: Arguments
    name: str = ""
    vhost: str = ""
    priority: int = 0
    apply_to: str = msgspec.field(default=ALL, name="apply-to")

    @property
    def policy(self) -> Policy:
        return Policy(
            name=self.name,
            pattern=self.pattern,
            definition=dict(self.definition),
            priority=self.priority,
            apply_to=self.apply_to,
        )


class Definitions(msgspec.Struct):
    """The document; parts without a shape of their own are ignored (``ignored_parts``)."""

    @property
    def parts(self) -> int:
        """Everything that something is made of."""
        named = len(self.users) + len(self.vhosts) + len(_rows(self.permissions))
        named += len(self.policies) + sum(map(_is_operator_policy, _rows(self.parameters)))
        return named + len(self.exchanges) + len(self.queues) + len(self.bindings)

    users: list[UserDefinition] = []
    vhosts: list[VhostDefinition] = []
    exchanges: list[ExchangeDefinition] = []
    queues: list[QueueDefinition] = []
    bindings: list[BindingDefinition] = []
    permissions: Any = None
    topic_permissions: Any = None
    parameters: Any = None
    global_parameters: Any = None
    policies: list[PolicyDefinition] = []


ROW_BYTES_MAX: Final = 256 * 1024
"""Of one user, queue and so on in the document: read in one go, within some milliseconds."""

_KINDS: Final[dict[str, Any]] = {
    "users": UserDefinition,
    "vhosts": VhostDefinition,
    "exchanges": ExchangeDefinition,
    "queues": QueueDefinition,
    "bindings": BindingDefinition,
    "permissions": Any,
    "topic_permissions": Any,
    "parameters": Any,
    "global_parameters": Any,
    "policies": PolicyDefinition,
}


def read_definitions(body: bytes) -> Generator[int, None, Definitions]:
    """The document in JSON, read row by row; raises what ``msgspec`` raises, or ``ValueError``."""
    document = Definitions()
    parts = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name, kind in _KINDS.items():
        part = parts.get(name)
        if part is None:
            continue
        if bytes(memoryview(part)[:1]) != b"[":
            _check_size(name, part)
            row = msgspec.json.decode(part, type=kind if kind is Any else list[Any], strict=False)
            setattr(document, name, row)
            continue
        rows: list[Any] = []
        for number, row in enumerate(msgspec.json.decode(part, type=list[msgspec.Raw])):
            _check_size(f"{name}[{number}]", row)
            try:
                # Not strict: RabbitMQ's own tool writes numbers and booleans as text.
                rows.append(msgspec.json.decode(row, type=kind, strict=False))
            except msgspec.ValidationError as problem:
                raise ValueError(f"{name}[{number}]: {problem}") from None
            yield 1
        setattr(document, name, rows)
    return document


def _check_size(what: str, part: msgspec.Raw) -> None:
    size = len(memoryview(part))
    if size > ROW_BYTES_MAX:
        raise ValueError(f"{what} has {size} bytes, limit {ROW_BYTES_MAX}; make it shorter")


def fitting(name: str) -> str:
    """A name as a client could say it; raises when it is too long for one."""
    cleaned = clean_name(name)
    short_bytes(cleaned)
    return cleaned


# ---- the check before an import -----------------------------------------------------------------

VHOST_NAME_BYTES_MAX: Final = 255


def check_vhost_name(name: str) -> None:
    """Raise unless a vhost may have this name."""
    if not name or len(name.encode()) > VHOST_NAME_BYTES_MAX or not name.isprintable():
        raise ValueError(f"vhost name {name[:40]!r}: 1 to 255 bytes without control characters")


def check_source(wanted: BindingDefinition) -> None:
    """Raise for a binding of the default exchange, and for a key no client could say."""
    if not wanted.source:
        raise AmqpError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    short_bytes(wanted.routing_key)


class _DefinitionsCheck:
    """Whether a document can be made as a whole, found out without making anything.

    Every part is judged by the same rules as a client's declaration, against what is there and what
    the document itself has before it: vhosts, policies, exchanges, queues and bindings. Limits are
    those that hold when all of it is made. The first part that cannot be is an error that names it.

    Invariant: after a check that raises nothing, making the document raises nothing, as long as
    nobody else changes anything.
    """

    def __init__(self, broker: AmqpBroker, vhost: VirtualHost | None) -> None:
        self._broker = broker
        self._vhost = vhost
        """The one that all of it is for; None = every part names its own."""
        self._new_vhosts: set[str] = set()
        self.policies: Final[dict[str, list[PreparedPolicy]]] = {}
        """By vhost; the check prepares them one by one."""
        self._given = predeclared()
        """What a vhost begins with."""
        self._exchanges: dict[tuple[str, str], Exchange] = {}
        self._queues: dict[tuple[str, str], Declaration] = {}
        self._bindings: set[tuple[str, BindingKey]] = set()

    def check(self, document: Definitions) -> Iterator[int]:
        broker = self._broker
        if self._vhost is None:
            users = broker.users
            new_users = {each.name for each in document.users if users.get(each.name) is None}
            for user in document.users:
                users.check(user.user, len(new_users))
                yield 1
            for vhost in document.vhosts:
                check_vhost_name(vhost.name)
                yield 1
            self._new_vhosts = {each.name for each in document.vhosts}.difference(broker.vhosts)
        broker.limits.check_vhosts(len(self._new_vhosts))
        yield from self._policies(document)
        for exchange in document.exchanges:
            self._exchange(self._vhost_of(exchange.vhost), exchange)
            yield 1
        new_exchanges = len(self._exchanges) + len(PREDECLARED) * len(self._new_vhosts)
        broker.limits.check_exchanges(new_exchanges)
        new_topics = 0
        for queue in document.queues:
            new_topics += self._queue(self._vhost_of(queue.vhost), queue)
            yield 1
        self._check_queues(new_topics)
        for binding in document.bindings:
            self._binding(self._vhost_of(binding.vhost), binding)
            yield 1
        broker.limits.check_bindings(len(self._bindings))

    def _policies(self, document: Definitions) -> Iterator[int]:
        limits, new_policies = self._broker.limits, 0
        wanted = _policies(document, self._vhost)
        for named, policies in wanted.items():
            there = self._broker.vhosts.get(self._vhost_of(named))
            names = {(is_operator, each.name) for is_operator, each in policies}
            new_policies += len(names) if there is None else there.policies.new_names(names)
        limits.check_policies(new_policies)
        bytes_max = limits.arguments_bytes_max
        for named, policies in wanted.items():
            prepared = self.policies.setdefault(named, [])
            for is_operator, each in policies:
                prepared.append(prepare_policy(each, is_operator=is_operator, bytes_max=bytes_max))
                yield POLICY_STEPS
            there = self._broker.vhosts.get(named)
            check_patterns(prepared, None if there is None else there.policies)

    def _vhost_of(self, named: str) -> str:
        """The name of the vhost that a part is in."""
        if self._vhost is not None:
            return self._vhost.name
        if named not in self._broker.vhosts and named not in self._new_vhosts:
            raise AmqpError(ReplyCode.NOT_FOUND, f"no vhost '{named}'")
        return named

    def _exchange(self, vhost: str, wanted: ExchangeDefinition) -> None:
        exchange = wanted.exchange
        known = self._exchange_there(vhost, exchange.name)
        check_exchange(self._broker.limits, vhost, known, exchange)
        if known is None:
            self._exchanges[vhost, exchange.name] = exchange

    def _queue(self, vhost: str, wanted: QueueDefinition) -> int:
        """How many queues of the engine it adds."""
        declaration = wanted.declaration
        name = declaration.name
        topic_name(name, space_of(vhost))
        resource = resource_of(name, vhost)
        first = self._queues.get((vhost, name))
        if first is not None:
            settings = check_declaration(self._broker.limits, vhost, first, name)
            check_flag(resource, "durable", first.is_durable, declaration.is_durable)
            check_flag(resource, "auto_delete", first.is_auto_delete, declaration.is_auto_delete)
            check_equivalent_arguments(
                resource, first.arguments, declaration.arguments, KNOWN[settings.kind]
            )
            return 0
        topic = self._topic(vhost, name)
        if topic is not None:
            self._check_there(vhost, topic, declaration)
            return 0
        settings = check_declaration(self._broker.limits, vhost, declaration, name)
        self._queues[vhost, name] = declaration
        return settings.policy.max_priority + 1

    def _check_there(self, vhost: str, topic: Topic, wanted: Declaration) -> None:
        """Raise unless a declaration equals what is there already."""
        there = self._broker.vhosts.get(vhost)
        queue = None if there is None else there.queues.get(wanted.name)
        if queue is None:
            # The vhost is to be made: what is in its space is another protocol's.
            check_foreign(resource_of(topic.name.name, vhost), wanted.arguments)
            return
        queue.check_declared_again(
            is_durable=wanted.is_durable,
            owner=None,
            is_auto_delete=wanted.is_auto_delete,
            arguments=wanted.arguments,
        )

    def _check_queues(self, more: int) -> None:
        engine, limit = self._broker.engine, self._broker.all_settings.topics.queues_max
        there = sum([len(topic.queues) for topic in engine.topics()]) if more else 0
        if more and there + more > limit:
            text = f"there are {there} queues, {more} more make more than {limit} "
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"{text}(topics.queues_max)")

    def _binding(self, vhost: str, wanted: BindingDefinition) -> None:
        target = wanted.target
        if not wanted.is_implied:
            check_source(wanted)
        if target.is_queue:
            if (vhost, target.name) not in self._queues and not self._topic(vhost, target.name):
                raise no_queue(target.name, vhost)
        elif self._exchange_there(vhost, target.name) is None:
            raise no_exchange(target.name, vhost)
        if wanted.is_implied:
            return
        source = self._exchange_there(vhost, wanted.source)
        if source is None:
            raise no_exchange(wanted.source, vhost)
        binding = Binding(wanted.source, target, wanted.routing_key, dict(wanted.arguments))
        self._broker.limits.check_arguments(binding.arguments)
        # Whether its arguments make sense is told by whoever matches with them.
        MATCHERS[source.kind]().add(binding)
        if binding.key not in source.bindings:
            self._bindings.add((vhost, binding.key))

    def _exchange_there(self, vhost: str, name: str) -> Exchange | None:
        """What has this name now, or has it before this part of the document is made."""
        planned = self._exchanges.get((vhost, name))
        if planned is not None:
            return planned
        there = self._broker.vhosts.get(vhost)
        return (self._given if there is None else there.exchanges).get(name)

    def _topic(self, vhost: str, name: str) -> Topic | None:
        return self._broker.engine.topic(TopicName(space_of(vhost), name))
