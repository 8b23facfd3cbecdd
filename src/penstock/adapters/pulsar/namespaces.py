"""Tenants, namespaces and policies of Pulsar: what exists, and which rules hold for a topic.

A topic belongs to a namespace ``tenant/name``, a namespace to a tenant; both are rows of the
catalog. ``public/default`` is there without one. Virtual hosts of RabbitMQ and namespaces of
RocketMQ are none of these (D9).

Policies are named by field. Of each the nearest counts: the topic's, the namespace's, then what the
broker's settings say (``effective``). Bodies of REST have the same structs as rows.

What the engine can do of them is laid over the rules of living topics (``PulsarOverlay``), also of
those that other protocols made in a namespace: what policies name is replaced, the rest stays; only
retention may not become shorter, because readers of other protocols live by it. Nothing of that is
stored with the topics. Topics that are hidden (D9) have none of it.

Bounds: ``pulsar.tenants_max``, ``pulsar.namespaces_max``, ``pulsar.topic_policies_max``. Changes
are durable once ``Engine.after_durable`` calls back, which is for whoever answers to wait for.

Not here: how topics are spelled, who asks for what holds (producers, consumers, schemas), REST.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict, replace

from penstock.adapters.pulsar.naming import SUBSCRIPTION_PREFIX
from penstock.engine.host import Mode
from penstock.engine.topic import PolicyOverlay, Topic, TopicPolicy
from penstock.flow.quota import QuotaPolicy
from penstock.flow.rate import DispatchRate
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.names import NAME_BYTES_MAX, TopicName
from penstock.wire.pulsar.names import DEFAULT_NAMESPACE, space_of

if TYPE_CHECKING:
    from penstock.engine.broker import Engine
    from penstock.engine.subscription.subscription import Subscription
    from penstock.settings.protocols import PulsarSettings

DEFAULT_TENANT: Final = "public"

TENANT_KIND: Final = "pulsar_tenant"
NAMESPACE_KIND: Final = "pulsar_namespace"
TOPIC_POLICIES_KIND: Final = "pulsar_topic_policies"

EFFECTIVE_KEPT: Final = 10_000
"""Topics whose merged policies are remembered; then all are forgotten and merged anew."""

_NAME: Final = re.compile(r"[-=:.\w]+", re.ASCII)
"""Of tenants and namespaces, Pulsar's rule."""

STORAGE_QUOTA: Final = "destination_storage"
AGE_QUOTA: Final = "message_age"


class _Rule(msgspec.Struct, frozen=True, rename="camel"):
    """A policy of several figures, with Pulsar's names for them in JSON."""


class RetentionRule(_Rule, frozen=True):
    """How long and how much is kept of what every subscription has acked; -1 = no end."""

    retention_time_in_minutes: int = 0
    retention_size_in_mb: int = msgspec.field(default=0, name="retentionSizeInMB")


class QuotaRule(_Rule, frozen=True):
    """How far the slowest subscription may be behind, and what becomes of producers then."""

    limit_size: int = -1
    """Bytes; negative = none."""
    limit_time: int = -1
    """Seconds; not positive = none."""
    policy: str = "producer_request_hold"


class PublishRate(_Rule, frozen=True):
    """Of all producers of a topic together, in a second; not positive = no limit."""

    publish_throttling_rate_in_msg: int = -1
    publish_throttling_rate_in_byte: int = -1


class DispatchRule(_Rule, frozen=True):
    """Of all consumers together; not positive = no limit."""

    dispatch_throttling_rate_in_msg: int = -1
    dispatch_throttling_rate_in_byte: int = -1
    relative_to_publish_rate: bool = False
    """Known, and without effect here."""
    rate_period_in_second: int = 1

    @property
    def rate(self) -> DispatchRate:
        """As the engine has it."""
        return DispatchRate(
            max(0, self.dispatch_throttling_rate_in_msg),
            max(0, self.dispatch_throttling_rate_in_byte),
            max(1, self.rate_period_in_second) * 1000,
        )


class SubscribeRate(_Rule, frozen=True):
    """How often one consumer may subscribe; not positive = as often as it likes."""

    subscribe_throttling_rate_per_consumer: int = -1
    rate_period_in_second: int = 30


class AutoTopicCreation(_Rule, frozen=True):
    """Whether a client makes a topic by using it, and what it is then."""

    allow_auto_topic_creation: bool = True
    topic_type: str = "non-partitioned"
    default_num_partitions: int = 1

    @property
    def partitions(self) -> int:
        """Of a new topic; 0 = it is not partitioned."""
        return max(1, self.default_num_partitions) if self.topic_type == "partitioned" else 0


class AutoSubscriptionCreation(_Rule, frozen=True):
    """Whether a consumer makes its subscription by using it."""

    allow_auto_subscription_creation: bool = True


class InactiveTopicRule(_Rule, frozen=True):
    """When a topic that nobody uses goes."""

    inactive_topic_delete_mode: str = "delete_when_no_subscriptions"
    max_inactive_duration_seconds: int = 60
    delete_while_inactive: bool = False


ANY_DELAY_MS: Final = 1 << 60
"""No time of delivery is farther away."""


class DelayedDeliveryRule(_Rule, frozen=True):
    """Whether times of delivery are honoured, how exactly, and the latest allowed."""

    tick_time: int = 1000
    """Milliseconds; a message due within one is delivered."""
    active: bool = True
    max_delivery_delay_in_millis: int = 0
    """0 = any."""


class PersistenceRule(_Rule, frozen=True):
    """Copies that Pulsar's storage makes: remembered and told, without effect here."""

    bookkeeper_ensemble: int = 1
    bookkeeper_write_quorum: int = 1
    bookkeeper_ack_quorum: int = 1
    managed_ledger_max_mark_delete_rate: float = 0.0


class Policies(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a namespace or a topic says; None = nothing, ask further out."""

    retention: RetentionRule | None = None
    message_ttl_s: int | None = None
    """0 = for ever."""
    backlog_quotas: dict[str, QuotaRule] | None = None
    """By type: ``destination_storage``, ``message_age``."""
    deduplication: bool | None = None
    schema_compatibility_strategy: str | None = None
    schema_validation_enforced: bool | None = None
    is_allow_auto_update_schema: bool | None = None
    publish_rate: PublishRate | None = None
    dispatch_rate: DispatchRule | None = None
    subscription_dispatch_rate: DispatchRule | None = None
    subscribe_rate: SubscribeRate | None = None
    max_unacked_messages_per_consumer: int | None = None
    max_unacked_messages_per_subscription: int | None = None
    subscription_types_enabled: list[str] | None = None
    auto_topic_creation: AutoTopicCreation | None = None
    auto_subscription_creation: AutoSubscriptionCreation | None = None
    max_producers_per_topic: int | None = None
    max_consumers_per_topic: int | None = None
    max_consumers_per_subscription: int | None = None
    inactive_topic: InactiveTopicRule | None = None
    delayed_delivery: DelayedDeliveryRule | None = None
    max_message_size: int | None = None
    persistence: PersistenceRule | None = None


NO_POLICIES: Final = Policies()


class EffectivePolicies(msgspec.Struct, frozen=True):
    """What holds for one topic: every field of ``Policies`` has its value."""

    retention: RetentionRule
    message_ttl_s: int
    backlog_quotas: dict[str, QuotaRule]
    deduplication: bool
    schema_compatibility_strategy: str
    schema_validation_enforced: bool
    is_allow_auto_update_schema: bool
    publish_rate: PublishRate
    dispatch_rate: DispatchRule
    subscription_dispatch_rate: DispatchRule
    subscribe_rate: SubscribeRate
    max_unacked_messages_per_consumer: int
    """0 = no limit; so for all that follow with max in their names."""
    max_unacked_messages_per_subscription: int
    subscription_types_enabled: list[str]
    auto_topic_creation: AutoTopicCreation
    auto_subscription_creation: AutoSubscriptionCreation
    max_producers_per_topic: int
    max_consumers_per_topic: int
    max_consumers_per_subscription: int
    inactive_topic: InactiveTopicRule
    delayed_delivery: DelayedDeliveryRule
    max_message_size: int
    """Of a message as it is sent; 0 = what the broker takes."""
    persistence: PersistenceRule


class Tenant(msgspec.Struct, frozen=True, rename="camel"):
    """A row of kind ``pulsar_tenant``; nobody asks for roles or clusters here."""

    admin_roles: list[str] = []
    allowed_clusters: list[str] = []


class TopicPoliciesRow(msgspec.Struct, frozen=True):
    """A row of kind ``pulsar_topic_policies``.

    It speaks of one topic, not of whoever has the name after another protocol deleted that one.
    """

    name: TopicName
    topic_id: int
    """0 = of a topic without a log."""
    policies: Policies


class Namespaces:
    """All tenants and namespaces, and the policies of every topic."""

    def __init__(self, engine: Engine, settings: PulsarSettings) -> None:
        self._engine: Final = engine
        self._settings: Final = settings
        self._broker: Final = _broker_policies(settings)
        self._tenants: Final[dict[str, Tenant]] = {DEFAULT_TENANT: Tenant()}
        self._namespaces: Final[dict[str, Policies]] = {DEFAULT_NAMESPACE: NO_POLICIES}
        self._topics: Final[dict[TopicName, TopicPoliciesRow]] = {}
        self._effective: Final[dict[TopicName, EffectivePolicies]] = {}
        self._watchers: Final[list[Callable[[str, TopicName | None], None]]] = []
        # Bounded by the topics there are.
        self._unapplied: Final[dict[TopicName, None]] = {}
        self._restore()
        engine.watch_creations(self._created)
        engine.watch_removals(lambda topic: self._forget_topic(topic.name))
        self._apply([topic.name for topic in engine.topics()])

    # Tenants.

    @property
    def tenants(self) -> list[str]:
        return sorted(self._tenants)

    def tenant_exists(self, tenant: str) -> bool:
        return tenant in self._tenants

    def tenant(self, tenant: str) -> Tenant:
        """Raises ``NotFound``."""
        found = self._tenants.get(tenant)
        if found is None:
            raise NotFound("Tenant does not exist")
        return found

    def create_tenant(self, tenant: str, row: Tenant | None = None) -> None:
        """Raises ``AlreadyExists``, also when there are too many; ``ValueError`` for a bad name."""
        if tenant in self._tenants:
            raise AlreadyExists("Tenant already exist")
        _check_name("Tenant", tenant)
        _check_room("tenants", len(self._tenants), self._settings.tenants_max)
        self._put_tenant(tenant, row or Tenant())

    def update_tenant(self, tenant: str, row: Tenant) -> None:
        """Raises ``NotFound``."""
        self.tenant(tenant)
        self._put_tenant(tenant, row)

    def delete_tenant(self, tenant: str) -> None:
        """Raises ``NotFound``; ``AlreadyExists`` while it has namespaces."""
        self.tenant(tenant)
        if self.namespaces_of(tenant):
            raise AlreadyExists("The tenant still has active namespaces")
        del self._tenants[tenant]
        self._engine.define(TENANT_KIND, tenant, None)

    # Namespaces.

    def exists(self, namespace: str) -> bool:
        return namespace in self._namespaces

    def namespaces_of(self, tenant: str) -> list[str]:
        return sorted([each for each in self._namespaces if each.partition("/")[0] == tenant])

    def create(self, namespace: str, policies: Policies = NO_POLICIES) -> None:
        """Raises ``NotFound`` without its tenant, ``AlreadyExists``, ``ValueError``."""
        tenant, _, name = namespace.partition("/")
        if not self.tenant_exists(tenant):
            raise NotFound("Tenant does not exist")
        if self.exists(namespace):
            raise AlreadyExists("Namespace already exists")
        _check_name("Namespace", name)
        if len(namespace.encode()) > NAME_BYTES_MAX:
            raise ValueError(f"Namespace name is longer than {NAME_BYTES_MAX} bytes")
        _check_room("namespaces", len(self._namespaces), self._settings.namespaces_max)
        self._put_namespace(namespace, policies)

    def delete(self, namespace: str) -> None:
        """Raises ``NotFound``. Its topics are the caller's business."""
        if not self.exists(namespace):
            raise NotFound("Namespace does not exist")
        if namespace == DEFAULT_NAMESPACE:
            raise AlreadyExists(f"Namespace {DEFAULT_NAMESPACE} is built in and cannot be deleted")
        del self._namespaces[namespace]
        self._engine.define(NAMESPACE_KIND, namespace, None)
        self._changed(namespace)

    # Policies.

    def policies(self, namespace: str) -> Policies:
        """What a namespace itself says; raises ``NotFound``."""
        found = self._namespaces.get(namespace)
        if found is None:
            raise NotFound("Namespace does not exist")
        return found

    def set_policies(self, namespace: str, **changes: Any) -> None:
        """Other values for some fields of a namespace; None = it says nothing of that."""
        self._put_namespace(namespace, replace(self.policies(namespace), **changes))

    def topic_policies(self, name: TopicName) -> Policies:
        """What a topic itself says."""
        row = self._topics.get(name)
        return NO_POLICIES if row is None else row.policies

    def set_topic_policies(self, name: TopicName, **changes: Any) -> None:
        """The same for a topic; raises ``AlreadyExists`` when too many have policies."""
        topic = self._engine.topic(name)
        wanted = replace(self.topic_policies(name), **changes)
        if wanted == NO_POLICIES:
            self._forget_topic(name)
            return
        if name not in self._topics:
            count_max = self._settings.topic_policies_max
            _check_room("topic_policies", len(self._topics), count_max)
        row = TopicPoliciesRow(name, 0 if topic is None else topic.topic_id, wanted)
        self._topics[name] = row
        self._engine.define(TOPIC_POLICIES_KIND, _topic_key(name), msgspec.json.encode(row))
        self._changed(namespace_of_topic(name), name)

    def effective(self, name: TopicName) -> EffectivePolicies:
        """What holds for a topic, also for one that is not there yet."""
        found = self._effective.get(name)
        if found is None:
            if len(self._effective) >= EFFECTIVE_KEPT:
                self._effective.clear()
            found = self._effective[name] = _over(self._broker, self._said(name))
        return found

    def effective_of_namespace(self, namespace: str) -> EffectivePolicies:
        """What holds for a topic there that says nothing itself."""
        return _over(self._broker, self._namespaces.get(namespace, NO_POLICIES))

    @property
    def deletes_inactive_topics(self) -> bool:
        """Whether a topic that is made now may be deleted for want of use."""
        rules = [each.inactive_topic for each in self._namespaces.values()]
        return any(
            each.delete_while_inactive for each in (self._broker.inactive_topic, *rules) if each
        )

    def watch(self, watcher: Callable[[str, TopicName | None], None]) -> None:
        """Call after each change of policies: of a namespace, or of one topic of it."""
        self._watchers.append(watcher)

    # Living topics and subscriptions.

    @property
    def is_applying(self) -> bool:
        """True while a change is not in effect for some topics: whoever answers goes on with it."""
        return bool(self._unapplied)

    def apply_some(self) -> None:
        """The next piece of that; others have their turns in between."""
        part = list(islice(self._unapplied, TOPICS_AT_A_TIME))
        for name in part:
            del self._unapplied[name]
        self._apply(part)

    def limit(self, name: TopicName, subscription: Subscription) -> None:
        """Give a subscription of Pulsar the limits that hold for its topic.

        What is unacked is limited where several share a durable subscription, as in Pulsar.
        """
        policies = self.effective(name)
        options = subscription.options
        is_shared = options.mode in (Mode.SHARED, Mode.KEY_SHARED) and options.is_durable
        unacked_max = policies.max_unacked_messages_per_subscription if is_shared else 0
        if subscription.unacked_max != unacked_max and not subscription.is_owner_limited:
            subscription.limit_unacked(unacked_max)
        rate = policies.subscription_dispatch_rate.rate
        if subscription.dispatch_rate.is_set or rate.is_set:
            subscription.limit_dispatch(rate)
        delays = policies.delayed_delivery
        subscription.ignore_delays(delays.tick_time if delays.active else ANY_DELAY_MS)

    def _created(self, topic: Topic) -> None:
        self._apply([topic.name])

    def _apply(self, names: Iterable[TopicName]) -> None:
        changes: list[tuple[Topic, PolicyOverlay | None]] = []
        for name in names:
            topic = self._engine.topic(name)
            if topic is None or name.is_hidden:
                continue
            wanted = PulsarOverlay(self._said(name))
            overlay = None if wanted.policies == NO_POLICIES else wanted
            if topic.overlay != overlay:
                changes.append((topic, overlay))
            for subscription in topic.subscriptions.values():
                if subscription.name.startswith(SUBSCRIPTION_PREFIX):
                    self.limit(name, subscription)
        if changes:
            self._engine.overlay_policies(changes)

    def _said(self, name: TopicName) -> Policies:
        """What the namespace and the topic say together."""
        outer = self._namespaces.get(namespace_of_topic(name), NO_POLICIES)
        return merge(outer, self.topic_policies(name))

    # Parts.

    def _put_tenant(self, tenant: str, row: Tenant) -> None:
        self._tenants[tenant] = row
        self._engine.define(TENANT_KIND, tenant, msgspec.json.encode(row))

    def _put_namespace(self, namespace: str, policies: Policies) -> None:
        self._namespaces[namespace] = policies
        self._engine.define(NAMESPACE_KIND, namespace, msgspec.json.encode(policies))
        self._changed(namespace)

    def _forget_topic(self, name: TopicName) -> None:
        if self._topics.pop(name, None) is not None:
            self._engine.define(TOPIC_POLICIES_KIND, _topic_key(name), None)
            self._changed(namespace_of_topic(name), name)

    def _changed(self, namespace: str, name: TopicName | None = None) -> None:
        if name is None:
            self._effective.clear()
            space = space_of(namespace)
            topics = [each.name for each in self._engine.topics() if each.name.space == space]
            self._unapplied.update(dict.fromkeys(topics))
            self.apply_some()
        else:
            self._effective.pop(name, None)
            self._apply([name])
        for watcher in self._watchers:
            watcher(namespace, name)

    def _restore(self) -> None:
        definitions = self._engine.definitions
        for tenant, body in definitions(TENANT_KIND).items():
            self._tenants[tenant] = msgspec.json.decode(body, type=Tenant)
        for namespace, body in definitions(NAMESPACE_KIND).items():
            self._namespaces[namespace] = msgspec.json.decode(body, type=Policies)
        for key, body in definitions(TOPIC_POLICIES_KIND).items():
            row = msgspec.json.decode(body, type=TopicPoliciesRow)
            topic = self._engine.topic(row.name)
            if row.topic_id == (0 if topic is None else topic.topic_id):
                self._topics[row.name] = row
            else:
                self._engine.define(TOPIC_POLICIES_KIND, key, None)


# ---- living topics ------------------------------------------------------------------------------

TOPICS_AT_A_TIME: Final = 500
"""Topics that a change of a namespace is brought to in one go: some milliseconds."""

NO_END_MS: Final = 1 << 53

QUOTA_POLICIES: Final = {
    "producer_request_hold": QuotaPolicy.HOLD,
    "producer_exception": QuotaPolicy.EXCEPTION,
    "consumer_backlog_eviction": QuotaPolicy.EVICT,
}


class PulsarOverlay(msgspec.Struct, frozen=True):
    """What policies mean for the engine's rules of a topic."""

    policies: Policies

    def __call__(self, own: TopicPolicy) -> TopicPolicy:
        """The owner's rules, with what the policies name replaced."""
        said, changes = self.policies, {**self._retention(own), **self._quotas()}
        if said.message_ttl_s is not None:
            changes["message_ttl_ms"] = said.message_ttl_s * 1000
        if said.publish_rate is not None:
            rate = said.publish_rate
            changes["publish_messages_per_s"] = max(0, rate.publish_throttling_rate_in_msg)
            changes["publish_bytes_per_s"] = max(0, rate.publish_throttling_rate_in_byte)
        if said.dispatch_rate is not None:
            changes["dispatch_rate"] = said.dispatch_rate.rate
        if said.max_message_size is not None:
            changes["message_bytes_max"] = said.max_message_size
        return replace(own, **changes)

    def _retention(self, own: TopicPolicy) -> dict[str, Any]:
        rule = self.policies.retention
        if rule is None or not rule.retention_time_in_minutes or not rule.retention_size_in_mb:
            return {}
        minutes, size_mb = rule.retention_time_in_minutes, rule.retention_size_in_mb
        retention_ms = NO_END_MS if minutes < 0 else minutes * 60_000
        if own.retention_ms >= retention_ms:
            return {}
        size = max(0, size_mb) << 20
        if own.retention_ms:
            # The owner's readers need what it keeps: a size of ours would take it from them.
            size = max(size, own.retention_bytes_max) if own.retention_bytes_max else 0
        return {"retention_ms": retention_ms, "retention_bytes_max": size}

    def _quotas(self) -> dict[str, Any]:
        quotas = self.policies.backlog_quotas
        if quotas is None:
            return {}
        size, age = quotas.get(STORAGE_QUOTA), quotas.get(AGE_QUOTA)
        found: dict[str, Any] = {}
        if size is not None:
            found["quota_bytes_max"] = max(0, size.limit_size)
            found["quota_policy"] = QUOTA_POLICIES[size.policy]
        if age is not None:
            found["quota_age_ms_max"] = max(0, age.limit_time) * 1000
            found["quota_age_policy"] = QUOTA_POLICIES[age.policy]
        return found


# ---- what is in effect --------------------------------------------------------------------------


def namespace_of_topic(name: TopicName) -> str:
    """The namespace of a topic; of one in another protocol's space, a name that does not exist."""
    return name.space or DEFAULT_NAMESPACE


def merge(outer: Policies, inner: Policies) -> Policies:
    """What the inner one says, and where it says nothing, the outer one; quotas type by type."""
    if inner == NO_POLICIES:
        return outer
    said = {name: value for name, value in asdict(inner).items() if value is not None}
    if outer.backlog_quotas and inner.backlog_quotas:
        said["backlog_quotas"] = {**outer.backlog_quotas, **inner.backlog_quotas}
    return replace(outer, **said)


def _over(broker: EffectivePolicies, policies: Policies) -> EffectivePolicies:
    said = {name: value for name, value in asdict(policies).items() if value is not None}
    return replace(broker, **said) if said else broker


def _broker_policies(settings: PulsarSettings) -> EffectivePolicies:
    return EffectivePolicies(
        retention=RetentionRule(),
        message_ttl_s=0,
        backlog_quotas={},
        deduplication=settings.deduplication,
        schema_compatibility_strategy=settings.schema_compatibility_strategy,
        schema_validation_enforced=settings.schema_validation_enforced,
        is_allow_auto_update_schema=settings.allow_auto_update_schema,
        publish_rate=PublishRate(),
        dispatch_rate=DispatchRule(),
        subscription_dispatch_rate=DispatchRule(),
        subscribe_rate=SubscribeRate(
            settings.subscribe_rate_per_consumer, settings.subscribe_rate_period_s
        ),
        max_unacked_messages_per_consumer=settings.max_unacked_messages_per_consumer,
        max_unacked_messages_per_subscription=settings.max_unacked_messages_per_subscription,
        subscription_types_enabled=settings.subscription_types,
        auto_topic_creation=AutoTopicCreation(
            settings.allow_auto_topic_creation,
            settings.allow_auto_topic_creation_type,
            settings.default_num_partitions,
        ),
        auto_subscription_creation=AutoSubscriptionCreation(
            settings.allow_auto_subscription_creation
        ),
        max_producers_per_topic=settings.max_producers_per_topic,
        max_consumers_per_topic=settings.max_consumers_per_topic,
        max_consumers_per_subscription=settings.max_consumers_per_subscription,
        inactive_topic=InactiveTopicRule(
            settings.inactive_topics_delete_mode,
            settings.inactive_topics_s_max,
            settings.delete_inactive_topics,
        ),
        delayed_delivery=DelayedDeliveryRule(
            settings.delayed_delivery_tick_ms,
            settings.delayed_delivery,
            settings.delayed_delivery_ms_max,
        ),
        max_message_size=0,
        persistence=PersistenceRule(),
    )


def _topic_key(name: TopicName) -> str:
    return f"{name.domain}://{namespace_of_topic(name)}/{name.name}"


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} name is not valid")


def _check_room(what: str, count: int, count_max: int) -> None:
    if count >= count_max:
        raise AlreadyExists(f"there are {count} {what} already (pulsar.{what}_max)")
