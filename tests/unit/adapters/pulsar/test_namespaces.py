"""Tenants, namespaces and policies: which exist, which rule holds, and what a restart keeps."""

import pytest
from msgspec.structs import replace

from penstock.adapters.pulsar.namespaces import (
    TOPICS_AT_A_TIME,
    AutoTopicCreation,
    DispatchRule,
    Namespaces,
    PublishRate,
    QuotaRule,
    RetentionRule,
    Tenant,
)
from penstock.engine.host import SubscriptionOptions
from penstock.engine.topic import TopicPolicy
from penstock.flow.quota import QuotaPolicy
from penstock.flow.rate import DispatchRate
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.names import NON_PERSISTENT, topic_name
from penstock.settings.protocols import PulsarSettings
from penstock.testing.broker import in_memory_engine
from penstock.wire.pulsar.names import space_of

TOPIC = topic_name("orders")


class Bench:
    def __init__(self, **settings):
        self.settings = PulsarSettings(**settings)
        self.core = in_memory_engine()
        self.open()

    def open(self):
        self.engine = self.core.engine
        self.namespaces = Namespaces(self.engine, self.settings)

    def restart(self):
        self.core.settle()
        self.core = in_memory_engine(self.core.log.storage, self.core.log.catalog)
        self.open()


@pytest.fixture
def bench():
    return Bench()


def test_public_default_is_there_and_nothing_else(bench):
    assert bench.namespaces.exists("public/default")
    assert bench.namespaces.tenants == ["public"]
    assert not bench.namespaces.exists("public/other")
    assert not bench.namespaces.tenant_exists("sample")


def test_the_default_namespace_is_the_space_that_all_protocols_share():
    assert (space_of("public/default"), space_of("t/n")) == ("", "t/n")


def test_a_namespace_needs_its_tenant_and_a_new_name(bench):
    with pytest.raises(NotFound, match="Tenant does not exist"):
        bench.namespaces.create("t/n")
    bench.namespaces.create_tenant("t")
    bench.namespaces.create("t/n")
    with pytest.raises(AlreadyExists, match="Namespace already exists"):
        bench.namespaces.create("t/n")
    with pytest.raises(AlreadyExists, match="Tenant already exist"):
        bench.namespaces.create_tenant("t")
    assert bench.namespaces.namespaces_of("t") == ["t/n"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "x\n"])
def test_a_bad_name_is_refused(bench, name):
    with pytest.raises(ValueError, match="name is not valid"):
        bench.namespaces.create_tenant(name)
    with pytest.raises(ValueError, match="name is not valid"):
        bench.namespaces.create(f"public/{name}")


def test_a_space_has_a_longest_name(bench):
    with pytest.raises(ValueError, match="longer"):
        bench.namespaces.create("public/" + "x" * 255)


def test_a_tenant_goes_when_it_has_no_namespace(bench):
    bench.namespaces.create_tenant("t")
    bench.namespaces.create("t/n")
    with pytest.raises(AlreadyExists, match="active namespaces"):
        bench.namespaces.delete_tenant("t")
    bench.namespaces.delete("t/n")
    bench.namespaces.delete_tenant("t")
    with pytest.raises(NotFound):
        bench.namespaces.delete_tenant("t")
    with pytest.raises(NotFound, match="Namespace does not exist"):
        bench.namespaces.delete("t/n")


def test_what_is_built_in_stays(bench):
    with pytest.raises(AlreadyExists):
        bench.namespaces.delete("public/default")


def test_tenants_namespaces_and_topics_with_policies_are_counted():
    bench = Bench(tenants_max=2, namespaces_max=2, topic_policies_max=1)
    bench.namespaces.create_tenant("t")
    with pytest.raises(AlreadyExists, match="tenants_max"):
        bench.namespaces.create_tenant("u")
    bench.namespaces.create("t/n")
    with pytest.raises(AlreadyExists, match="namespaces_max"):
        bench.namespaces.create("t/m")
    bench.namespaces.set_topic_policies(TOPIC, deduplication=True)
    bench.namespaces.set_topic_policies(TOPIC, deduplication=False)
    with pytest.raises(AlreadyExists, match="topic_policies_max"):
        bench.namespaces.set_topic_policies(topic_name("other"), deduplication=True)


# Which rule holds.


def test_settings_hold_where_nobody_says_otherwise():
    bench = Bench(deduplication=True, max_unacked_messages_per_consumer=7)
    found = bench.namespaces.effective(TOPIC)
    assert found.deduplication
    assert found.max_unacked_messages_per_consumer == 7
    assert found.schema_compatibility_strategy == "FULL"
    assert found.subscription_types_enabled == ["Exclusive", "Shared", "Failover", "Key_Shared"]


def test_a_topic_beats_its_namespace_which_beats_the_settings(bench):
    bench.namespaces.set_policies("public/default", deduplication=True, max_producers_per_topic=3)
    assert bench.namespaces.effective(TOPIC).deduplication
    bench.namespaces.set_topic_policies(TOPIC, deduplication=False)
    found = bench.namespaces.effective(TOPIC)
    assert (found.deduplication, found.max_producers_per_topic) == (False, 3)
    assert bench.namespaces.effective(topic_name("other")).deduplication
    bench.namespaces.set_topic_policies(TOPIC, deduplication=None)
    assert bench.namespaces.effective(TOPIC).deduplication
    bench.namespaces.set_policies("public/default", deduplication=None)
    assert not bench.namespaces.effective(TOPIC).deduplication


def test_quotas_are_merged_by_their_type(bench):
    size, age = QuotaRule(limit_size=10), QuotaRule(limit_time=5, policy="producer_exception")
    bench.namespaces.set_policies("public/default", backlog_quotas={"destination_storage": size})
    bench.namespaces.set_topic_policies(TOPIC, backlog_quotas={"message_age": age})
    assert bench.namespaces.effective(TOPIC).backlog_quotas == {
        "destination_storage": size,
        "message_age": age,
    }


def test_policies_of_another_namespace_do_not_count(bench):
    bench.namespaces.create("public/other")
    bench.namespaces.set_policies("public/other", deduplication=True)
    assert not bench.namespaces.effective(TOPIC).deduplication
    assert bench.namespaces.effective(topic_name("orders", "public/other")).deduplication


def test_policies_of_an_unknown_namespace_are_not_found(bench):
    with pytest.raises(NotFound, match="Namespace does not exist"):
        bench.namespaces.set_policies("t/n", deduplication=True)


def test_who_watches_hears_of_each_change(bench):
    heard = []
    bench.namespaces.watch(lambda namespace, name: heard.append((namespace, name)))
    bench.namespaces.set_policies("public/default", message_ttl_s=5)
    bench.namespaces.set_topic_policies(TOPIC, message_ttl_s=6)
    assert heard == [("public/default", None), ("public/default", TOPIC)]


def test_a_rate_and_a_creation_rule_say_what_the_engine_needs():
    assert DispatchRule(10, -1, rate_period_in_second=2).rate == DispatchRate(10, 0, 2000)
    assert AutoTopicCreation(True, "partitioned", 3).partitions == 3
    assert AutoTopicCreation(True, "non-partitioned", 3).partitions == 0


# What a restart keeps.


def test_everything_is_there_after_a_restart(bench):
    bench.engine.create_topic(TOPIC)
    bench.namespaces.create_tenant("t", Tenant(admin_roles=["me"]))
    bench.namespaces.create("t/n")
    bench.namespaces.create("t/gone")
    bench.namespaces.delete("t/gone")
    bench.namespaces.set_policies("public/default", retention=RetentionRule(10, -1))
    bench.namespaces.set_topic_policies(TOPIC, message_ttl_s=5)
    bench.restart()
    assert bench.namespaces.tenant("t") == Tenant(admin_roles=["me"])
    assert bench.namespaces.namespaces_of("t") == ["t/n"]
    found = bench.namespaces.effective(TOPIC)
    assert (found.retention, found.message_ttl_s) == (RetentionRule(10, -1), 5)


def test_policies_do_not_pass_to_the_next_topic_of_the_name(bench):
    bench.engine.create_topic(TOPIC)
    bench.namespaces.set_topic_policies(TOPIC, message_ttl_s=5)
    bench.engine.delete_topic(TOPIC)
    bench.engine.create_topic(TOPIC)
    assert bench.namespaces.effective(TOPIC).message_ttl_s == 0
    bench.restart()
    assert bench.namespaces.effective(TOPIC).message_ttl_s == 0


def test_a_topic_without_a_log_keeps_its_policies(bench):
    name = topic_name("orders", domain=NON_PERSISTENT)
    bench.namespaces.set_topic_policies(name, max_producers_per_topic=1)
    assert bench.namespaces.effective(TOPIC).max_producers_per_topic == 0
    bench.restart()
    assert bench.namespaces.effective(name).max_producers_per_topic == 1


# What it means for topics that live.


def policy(bench, name=TOPIC):
    return bench.engine.topic(name).policy


def test_policies_become_rules_of_living_topics(bench):
    bench.engine.create_topic(TOPIC)
    bench.namespaces.set_policies(
        "public/default",
        retention=RetentionRule(10, 2),
        message_ttl_s=5,
        backlog_quotas={
            "destination_storage": QuotaRule(limit_size=1000, policy="producer_exception")
        },
        publish_rate=PublishRate(10, -1),
        dispatch_rate=DispatchRule(-1, 50),
        max_message_size=99,
    )
    assert policy(bench) == TopicPolicy(
        retention_ms=600_000,
        retention_bytes_max=2 << 20,
        message_ttl_ms=5000,
        quota_bytes_max=1000,
        quota_policy=QuotaPolicy.EXCEPTION,
        publish_messages_per_s=10,
        dispatch_rate=DispatchRate(0, 50),
        message_bytes_max=99,
    )


def test_they_hold_for_a_topic_that_comes_later_and_after_a_restart(bench):
    bench.namespaces.set_policies("public/default", message_ttl_s=5)
    bench.engine.create_topic(TOPIC)
    assert policy(bench).message_ttl_ms == 5000
    bench.restart()
    assert policy(bench).message_ttl_ms == 5000
    bench.namespaces.set_policies("public/default", message_ttl_s=None)
    assert policy(bench) == TopicPolicy()


def test_they_leave_alone_what_they_do_not_name(bench):
    own = TopicPolicy(length_max=7, message_ttl_ms=1)
    bench.engine.create_topic(TOPIC, policy=own)
    bench.namespaces.set_policies("public/default", publish_rate=PublishRate(10, 20))
    assert policy(bench) == replace(own, publish_messages_per_s=10, publish_bytes_per_s=20)
    bench.namespaces.set_policies("public/default", publish_rate=None)
    assert policy(bench) == own


def test_a_shorter_retention_takes_nothing_from_a_topic_of_another_protocol(bench):
    bench.engine.create_topic(TOPIC, policy=TopicPolicy(retention_ms=3_600_000))
    bench.namespaces.set_policies("public/default", retention=RetentionRule(0, 0))
    assert policy(bench).retention_ms == 3_600_000
    bench.namespaces.set_policies("public/default", retention=RetentionRule(1, 1))
    assert policy(bench) == TopicPolicy(retention_ms=3_600_000)


def test_retention_without_an_end(bench):
    bench.engine.create_topic(TOPIC)
    bench.namespaces.set_policies("public/default", retention=RetentionRule(-1, -1))
    assert policy(bench).retention_ms > 1000 * 365 * 86_400_000
    assert policy(bench).retention_bytes_max == 0
    bench.namespaces.set_policies("public/default", retention=RetentionRule(5, 0))
    assert policy(bench) == TopicPolicy()


def test_a_topic_has_a_quota_by_age_with_an_own_consequence(bench):
    bench.engine.create_topic(TOPIC)
    quotas = {
        "destination_storage": QuotaRule(limit_size=-1),
        "message_age": QuotaRule(limit_time=3, policy="consumer_backlog_eviction"),
    }
    bench.namespaces.set_topic_policies(TOPIC, backlog_quotas=quotas)
    assert policy(bench) == TopicPolicy(quota_age_ms_max=3000, quota_age_policy=QuotaPolicy.EVICT)


def test_hidden_topics_have_none_of_it(bench):
    hidden = topic_name("%RETRY%g")
    bench.engine.create_topic(hidden)
    bench.namespaces.set_policies("public/default", message_ttl_s=5)
    assert policy(bench, hidden) == TopicPolicy()


def test_other_namespaces_have_none_of_it(bench):
    other = topic_name("orders", "public/other")
    bench.engine.create_topic(other)
    bench.namespaces.set_policies("public/default", message_ttl_s=5)
    assert policy(bench, other) == TopicPolicy()


def test_limits_of_subscriptions_follow_policies(bench):
    bench.engine.create_topic(TOPIC)
    mine = bench.engine.create_subscription(TOPIC, "pulsar/s", SubscriptionOptions())
    other = bench.engine.create_subscription(TOPIC, "amqp", SubscriptionOptions())
    before = limits(other)
    bench.namespaces.set_policies(
        "public/default",
        max_unacked_messages_per_subscription=5,
        subscription_dispatch_rate=DispatchRule(3, -1),
    )
    assert limits(mine) == (5, DispatchRate(3))
    assert limits(other) == before
    bench.namespaces.set_policies(
        "public/default",
        max_unacked_messages_per_subscription=None,
        subscription_dispatch_rate=None,
    )
    assert limits(mine) == (200_000, DispatchRate())


def limits(subscription):
    return subscription.unacked_max, subscription.dispatch_rate


def test_many_topics_are_looked_at_in_pieces(bench):
    names = [topic_name(f"t{number}") for number in range(3 * TOPICS_AT_A_TIME)]
    for name in names:
        bench.engine.create_topic(name)
    bench.namespaces.set_policies("public/default", message_ttl_s=5)
    assert bench.namespaces.is_applying
    done = [name for name in names if policy(bench, name).message_ttl_ms]
    assert len(done) == TOPICS_AT_A_TIME
    bench.engine.delete_topic(names[-1])
    while bench.namespaces.is_applying:
        bench.namespaces.apply_some()
    assert all(policy(bench, name).message_ttl_ms for name in names[:-1])
