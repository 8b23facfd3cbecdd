"""Policies of namespaces and topics over REST: one table, because most look alike.

A row names a field of ``Policies``, what it is called in the paths of a namespace and of a topic
and among all policies of a namespace, and what may be said of it. GET tells what is said at that
level, nothing (204) when that is nothing, and with ``?applied=true`` what is in effect; POST (PUT
for a schema's strategy) says something, DELETE says nothing any more. Backlog quotas are one policy
for each type and have their own handlers.

A change is answered once it holds for all topics and is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, get_args, get_type_hints

import msgspec

from penstock.adapters.pulsar.namespaces import (
    AGE_QUOTA,
    NO_POLICIES,
    QUOTA_POLICIES,
    STORAGE_QUOTA,
    AutoTopicCreation,
    EffectivePolicies,
    InactiveTopicRule,
    Policies,
    QuotaRule,
    RetentionRule,
)
from penstock.model.names import NON_PERSISTENT, PERSISTENT, TopicName
from penstock.server.pulsar_rest.request import (
    ANY,
    CLUSTER,
    Handler,
    RestContext,
    RestError,
    RestRequest,
    RouteTable,
    decoded,
    of_topic,
)
from penstock.settings.protocols import (
    COMPATIBILITY_STRATEGIES,
    INACTIVE_MODES,
    SUBSCRIPTION_TYPES,
    TOPIC_TYPES,
)
from penstock.wire.pulsar.names import PulsarName

UNDEFINED: Final = "UNDEFINED"
"""A namespace says nothing about compatibility."""
PARTITIONS_MAX: Final = 10_000
"""Of a topic that is made by its first use; the broker's limit of queues may be lower."""

Scope = str | TopicName
"""A namespace, or a topic of ours."""


# ---- what may be said ---------------------------------------------------------------------------


def _accept(_value: Any) -> None: ...


def _natural(value: int) -> None:
    if not 0 <= value < 2**31:
        raise RestError(412, f"the value is {value}; it must be 0 (no limit) or more")


def _retention(rule: RetentionRule) -> None:
    minutes, megabytes = rule.retention_time_in_minutes, rule.retention_size_in_mb
    if minutes < -1 or megabytes < -1 or bool(minutes) != bool(megabytes):
        raise RestError(
            400,
            "Invalid retention policy: time and size are both 0, or both set; -1 is without limit",
        )


def _strategy(value: str) -> None:
    if value not in (*COMPATIBILITY_STRATEGIES, UNDEFINED):
        raise RestError(400, f"a strategy is one of {', '.join(COMPATIBILITY_STRATEGIES)}")


def _types(value: list[str]) -> None:
    unknown = sorted(set(value) - set(SUBSCRIPTION_TYPES))
    if unknown:
        raise RestError(400, f"types of subscriptions are {', '.join(SUBSCRIPTION_TYPES)}")


def _auto_topics(rule: AutoTopicCreation) -> None:
    if not rule.allow_auto_topic_creation:
        return
    if rule.topic_type not in TOPIC_TYPES:
        raise RestError(412, f"topicType is one of {', '.join(TOPIC_TYPES)}")
    if not 0 < rule.default_num_partitions <= PARTITIONS_MAX:
        raise RestError(412, f"defaultNumPartitions is 1 to {PARTITIONS_MAX}")


def _inactive(rule: InactiveTopicRule) -> None:
    if rule.inactive_topic_delete_mode not in INACTIVE_MODES:
        raise RestError(400, f"inactiveTopicDeleteMode is one of {', '.join(INACTIVE_MODES)}")
    if rule.max_inactive_duration_seconds <= 0:
        raise RestError(412, "maxInactiveDurationSeconds must be more than 0")


class Policy(NamedTuple):
    """How one field of ``Policies`` is named, and what may be said of it."""

    field: str
    of_namespace: str = ""
    """In the path of a namespace; empty = there is no such path, as for the next two."""
    of_topic: str = ""
    among_all: str = ""
    """Among all policies of a namespace."""
    by_cluster: bool = False
    """There it is a map with our cluster in it."""
    check: Callable[[Any], None] = _accept
    method: str = "POST"
    unsaid: Any = None
    """What a namespace that says nothing tells."""
    query: str = ""
    """A topic's is said in this parameter, not in a body."""

    @property
    def kind(self) -> Any:
        """The type of its values."""
        return get_args(_HINTS[self.field])[0]


_HINTS: Final = get_type_hints(Policies)

POLICIES: Final = (
    Policy("retention", "retention", "retention", "retention_policies", check=_retention),
    Policy("message_ttl_s", "messageTTL", "messageTTL", "message_ttl_in_seconds", check=_natural,
           query="messageTTL"),
    Policy("deduplication", "deduplication", "deduplicationEnabled", "deduplicationEnabled"),
    Policy("schema_compatibility_strategy", "schemaCompatibilityStrategy",
           "schemaCompatibilityStrategy", "schema_compatibility_strategy", check=_strategy,
           method="PUT", unsaid=UNDEFINED),
    Policy("schema_validation_enforced", "schemaValidationEnforced", "schemaValidationEnforced",
           "schema_validation_enforced", unsaid=False),
    Policy("is_allow_auto_update_schema", "isAllowAutoUpdateSchema", "",
           "is_allow_auto_update_schema", unsaid=True),
    Policy("publish_rate", "publishRate", "publishRate", "publishMaxMessageRate", by_cluster=True),
    Policy("dispatch_rate", "dispatchRate", "dispatchRate", "topicDispatchRate", by_cluster=True),
    Policy("subscription_dispatch_rate", "subscriptionDispatchRate", "subscriptionDispatchRate",
           "subscriptionDispatchRate", by_cluster=True),
    Policy("subscribe_rate", "subscribeRate", "subscribeRate", "clusterSubscribeRate",
           by_cluster=True),
    Policy("max_unacked_messages_per_consumer", "maxUnackedMessagesPerConsumer",
           "maxUnackedMessagesOnConsumer", "max_unacked_messages_per_consumer", check=_natural),
    Policy("max_unacked_messages_per_subscription", "maxUnackedMessagesPerSubscription",
           "maxUnackedMessagesOnSubscription", "max_unacked_messages_per_subscription",
           check=_natural),
    Policy("subscription_types_enabled", "subscriptionTypesEnabled", "subscriptionTypesEnabled",
           "subscription_types_enabled", check=_types),
    Policy("auto_topic_creation", "autoTopicCreation", "", "autoTopicCreationOverride",
           check=_auto_topics),
    Policy("auto_subscription_creation", "autoSubscriptionCreation", "autoSubscriptionCreation",
           "autoSubscriptionCreationOverride"),
    Policy("max_producers_per_topic", "maxProducersPerTopic", "maxProducers",
           "max_producers_per_topic", check=_natural),
    Policy("max_consumers_per_topic", "maxConsumersPerTopic", "maxConsumers",
           "max_consumers_per_topic", check=_natural),
    Policy("max_consumers_per_subscription", "maxConsumersPerSubscription",
           "maxConsumersPerSubscription", "max_consumers_per_subscription", check=_natural),
    Policy("inactive_topic", "inactiveTopicPolicies", "inactiveTopicPolicies",
           "inactive_topic_policies", check=_inactive),
    Policy("delayed_delivery", "delayedDelivery", "delayedDelivery", "delayed_delivery_policies"),
    Policy("max_message_size", "", "maxMessageSize", check=_natural),
    Policy("persistence", "persistence", "persistence", "persistence"),
)  # fmt: skip


# ---- one policy ---------------------------------------------------------------------------------


async def show(policy: Policy, api: RestContext, request: RestRequest, scope: Scope) -> Any:
    """What is said there, or in effect."""
    if request.is_set("applied"):
        return getattr(_effective(api, scope), policy.field)
    said = getattr(_said(api, scope), policy.field)
    return policy.unsaid if said is None and isinstance(scope, str) else said


async def change(policy: Policy, api: RestContext, request: RestRequest, scope: Scope) -> None:
    value: Any
    if policy.query and not isinstance(scope, str) and policy.query in request.query:
        value = request.number(policy.query)
    else:
        value = decoded(await request.body(), policy.kind)
    policy.check(value)
    if isinstance(value, RetentionRule):
        quotas = _said(api, scope).backlog_quotas or {}
        _check_quota(
            quotas.get(STORAGE_QUOTA),
            value,
            "Retention Quota must exceed configured "
            "backlog quota for topic. Please increase retention quota and retry",
        )
    await _say(api, scope, policy.field, None if value == UNDEFINED else value)


async def remove(policy: Policy, api: RestContext, _request: RestRequest, scope: Scope) -> None:
    await _say(api, scope, policy.field, None)


# ---- backlog quotas -----------------------------------------------------------------------------


class GivenQuota(QuotaRule, frozen=True):
    """As it comes: older tools say ``limit`` where newer ones say ``limitSize``."""

    limit: int | None = None


async def show_quotas(
    api: RestContext, request: RestRequest, scope: Scope
) -> dict[str, GivenQuota]:
    if request.is_set("applied"):
        return _shown_quotas(_effective(api, scope).backlog_quotas)
    return _shown_quotas(_said(api, scope).backlog_quotas)


async def change_quota(api: RestContext, request: RestRequest, scope: Scope) -> None:
    kind = _quota_kind(request)
    rule = _quota(decoded(await request.body(), GivenQuota))
    said = _said(api, scope)
    _check_rule(kind, rule, said.retention)
    await _say(api, scope, "backlog_quotas", {**(said.backlog_quotas or {}), kind: rule})


async def remove_quota(api: RestContext, request: RestRequest, scope: Scope) -> None:
    kind = _quota_kind(request)
    quotas = {**(_said(api, scope).backlog_quotas or {})}
    quotas.pop(kind, None)
    await _say(api, scope, "backlog_quotas", quotas or None)


def _shown_quotas(quotas: dict[str, QuotaRule] | None) -> dict[str, GivenQuota]:
    return {
        kind: GivenQuota(each.limit_size, each.limit_time, each.policy, limit=each.limit_size)
        for kind, each in (quotas or {}).items()
    }


def _quota(given: GivenQuota) -> QuotaRule:
    size = given.limit_size
    if given.limit is not None and size == -1:
        size = given.limit
    return QuotaRule(size, given.limit_time, given.policy)


def _check_rule(kind: str, rule: QuotaRule, retention: RetentionRule | None) -> None:
    if rule.policy not in QUOTA_POLICIES:
        raise RestError(400, f"policy is one of {', '.join(QUOTA_POLICIES)}")
    if retention is not None and kind == STORAGE_QUOTA:
        _check_quota(
            rule,
            retention,
            "Backlog Quota exceeds configured retention quota for topic. "
            "Please increase retention quota and retry",
        )


def _check_quota(quota: QuotaRule | None, retention: RetentionRule, reason: str) -> None:
    """What is kept must be more than what may wait."""
    kept = retention.retention_size_in_mb << 20
    if quota is not None and 0 < kept <= quota.limit_size:
        raise RestError(412, reason)


def _quota_kind(request: RestRequest) -> str:
    kind = request.query.get("backlogQuotaType", STORAGE_QUOTA)
    if kind not in (STORAGE_QUOTA, AGE_QUOTA):
        raise RestError(400, f"backlogQuotaType is {STORAGE_QUOTA} or {AGE_QUOTA}")
    return kind


# ---- all of a namespace -------------------------------------------------------------------------


async def show_all(
    api: RestContext, _request: RestRequest, tenant: str, name: str
) -> dict[str, Any]:
    said = api.broker.namespaces.policies(f"{tenant}/{name}")
    found: dict[str, Any] = {
        "auth_policies": {
            "namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {},
        },
        "replication_clusters": [CLUSTER],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "backlog_quota_map": _shown_quotas(said.backlog_quotas),
        "deleted": False,
    }  # fmt: skip
    for policy in POLICIES:
        if not policy.among_all:
            continue
        value = getattr(said, policy.field)
        if policy.by_cluster:
            found[policy.among_all] = {} if value is None else {CLUSTER: value}
        else:
            found[policy.among_all] = policy.unsaid if value is None else value
    return found


def given_policies(said: dict[str, Any]) -> Policies:
    """The policies with which a namespace is made; what we do not know is left out."""
    found: dict[str, Any] = {}
    for policy in POLICIES:
        value = said.get(policy.among_all) if policy.among_all else None
        if policy.by_cluster and isinstance(value, dict):
            value = value.get(CLUSTER)
        if value is None or value in (UNDEFINED, []):
            continue
        found[policy.field] = decoded(msgspec.json.encode(value), policy.kind)
        policy.check(found[policy.field])
    quotas = said.get("backlog_quota_map")
    if quotas:
        given = decoded(msgspec.json.encode(quotas), dict[str, GivenQuota])
        found["backlog_quotas"] = {kind: _quota(each) for kind, each in given.items()}
        for kind, each in found["backlog_quotas"].items():
            _check_rule(kind, each, found.get("retention"))
    return Policies(**found) if found else NO_POLICIES


# ---- parts --------------------------------------------------------------------------------------


def _said(api: RestContext, scope: Scope) -> Policies:
    namespaces = api.broker.namespaces
    if isinstance(scope, str):
        return namespaces.policies(scope)
    return namespaces.topic_policies(scope)


def _effective(api: RestContext, scope: Scope) -> EffectivePolicies:
    namespaces = api.broker.namespaces
    if isinstance(scope, str):
        api.check_namespace(scope)
        return namespaces.effective_of_namespace(scope)
    return namespaces.effective(scope)


async def _say(api: RestContext, scope: Scope, field: str, value: Any) -> None:
    namespaces = api.broker.namespaces
    if isinstance(scope, str):
        namespaces.set_policies(scope, **{field: value})
    else:
        namespaces.set_topic_policies(scope, **{field: value})
    await api.in_effect()


def _for_namespace(handler: Handler) -> Handler:
    async def call(api: RestContext, request: RestRequest, tenant: str, name: str) -> Any:
        api.check_namespace(f"{tenant}/{name}")
        return await handler(api, request, f"{tenant}/{name}")

    return call


def _for_topic(handler: Handler) -> Handler:
    async def call(api: RestContext, request: RestRequest, name: PulsarName) -> Any:
        return await handler(api, request, api.existing(name))

    return call


def _routes() -> RouteTable:
    found: RouteTable = {("GET", ("namespaces", ANY, ANY)): show_all}

    def add(method: str, of_namespace: str, topic_word: str, handler: Handler) -> None:
        if of_namespace:
            found[method, ("namespaces", ANY, ANY, of_namespace)] = _for_namespace(handler)
        for domain in (PERSISTENT, NON_PERSISTENT) if topic_word else ():
            pattern = (domain, ANY, ANY, ANY, topic_word)
            found[method, pattern] = of_topic(_for_topic(handler), domain)

    for policy in POLICIES:
        for method, handler in (("GET", show), (policy.method, change), ("DELETE", remove)):
            add(method, policy.of_namespace, policy.of_topic, partial(handler, policy))
    add("GET", "backlogQuotaMap", "backlogQuotaMap", show_quotas)
    add("POST", "backlogQuota", "backlogQuota", change_quota)
    add("DELETE", "backlogQuota", "backlogQuota", remove_quota)
    return found


POLICY_ROUTES: Final = _routes()
