"""Unit tests for tenants, namespaces, clusters and look-ups over REST."""

import pytest

from penstock.server.pulsar_rest import namespaces as room

OTHER = "namespaces/public/other"


# ---- tenants


def test_tenants_are_made_changed_and_deleted(bench, rest):
    row = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    rest.done("PUT", "tenants/acme", row)
    assert rest.refused("PUT", "tenants/acme", row) == (409, "Tenant already exist")
    bench.kill()
    assert rest.get("tenants") == ["acme", "public"]
    assert rest.get("tenants/acme") == row
    rest.done("POST", "tenants/acme", {"allowedClusters": []})
    assert rest.get("tenants/acme") == {"adminRoles": [], "allowedClusters": []}
    rest.done("DELETE", "tenants/acme")
    bench.kill()
    assert rest.get("tenants") == ["public"]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_tenant_that_is_not_there(rest, method):
    assert rest.refused(method, "tenants/nobody")[0] == 404


def test_a_tenant_that_cannot_be(rest):
    assert rest("PUT", "tenants/bad%20name").status == 412
    clusters = {"allowedClusters": ["elsewhere"]}
    text = "Clusters [elsewhere] do not exist"
    assert rest.refused("PUT", "tenants/acme", clusters) == (412, text)
    assert rest("PUT", "tenants/acme", b"{x").status == 400
    assert rest.get("tenants") == ["public"]


def test_a_tenant_with_namespaces_stays(rest):
    rest.done("PUT", "tenants/acme")
    rest.done("PUT", "namespaces/acme/app")
    assert rest("DELETE", "tenants/acme").status == 409


# ---- namespaces


def test_namespaces_are_made_and_deleted(bench, rest):
    rest.done("PUT", OTHER)
    assert rest.refused("PUT", OTHER) == (409, "Namespace already exists")
    bench.kill()
    assert rest.get("namespaces/public") == ["public/default", "public/other"]
    rest.done("DELETE", OTHER)
    bench.kill()
    assert rest.refused("GET", OTHER) == (404, "Namespace does not exist")


def test_a_namespace_that_cannot_be(rest):
    assert rest.refused("PUT", "namespaces/nobody/x") == (404, "Tenant does not exist")
    assert rest("PUT", "namespaces/public/bad%20name").status == 412
    assert rest("PUT", OTHER, b"{x").status == 400
    assert rest("PUT", OTHER, {"message_ttl_in_seconds": -1}).status == 412
    assert rest("GET", "namespaces/nobody").status == 404
    assert rest("DELETE", OTHER).status == 404


def test_a_namespace_with_topics_goes_by_force_only(monkeypatch, bench, rest, shop_of):
    monkeypatch.setattr(room, "TOPICS_AT_A_TIME", 2)
    rest.done("PUT", OTHER)
    shop = shop_of("persistent://public/other/used")
    rest.done("PUT", "persistent/public/other/parts/partitions", 3)
    rest.done("PUT", "non-persistent/public/other/fleeting")
    for number in range(3):
        rest.done("PUT", f"persistent/public/other/{number}")
    assert rest.refused("DELETE", OTHER) == (409, "Cannot delete non empty namespace")
    rest.done("DELETE", f"{OTHER}?force=true")
    assert shop.kinds() == ["CLOSE_PRODUCER"]
    bench.kill()
    assert rest.get("namespaces/public") == ["public/default"]
    rest.done("PUT", OTHER)
    assert rest.get(f"{OTHER}/topics?mode=ALL") == []


def test_the_namespace_that_all_protocols_share_stays(rest):
    assert rest("DELETE", "namespaces/public/default").status == 409


def test_clients_of_a_namespace_that_is_unloaded_come_again(monkeypatch, rest, shop, shop_of):
    monkeypatch.setattr(room, "TOPICS_AT_A_TIME", 1)
    rest.done("PUT", OTHER)
    elsewhere = shop_of("persistent://public/other/x")
    second = shop_of("persistent://public/default/second")
    rest.done("PUT", "namespaces/public/default/unload")
    assert (shop.kinds(), second.kinds(), elsewhere.kinds()) == (
        ["CLOSE_PRODUCER"], ["CLOSE_PRODUCER"], [],
    )  # fmt: skip
    assert rest("PUT", "namespaces/public/nowhere/unload").status == 404


def test_what_one_broker_says_of_a_namespace(rest):
    place = "namespaces/public/default"
    assert rest.get(f"{place}/bundles")["numBundles"] == 1
    assert rest.get(f"{place}/replication") == ["standalone"]
    assert rest.get(f"{place}/permissions") == {}
    for what in ("bundles", "replication", "permissions"):
        assert rest("GET", f"namespaces/public/nowhere/{what}").status == 404


# ---- subscriptions of a namespace


@pytest.fixture
def behind(rest, shop_of):
    """Two topics, one of them of two partitions, with backlogs of ``s`` and ``t``."""
    rest.done("PUT", "persistent/public/default/parts/partitions", 2)
    places = ["persistent/public/default/parts", "persistent/public/default/plain"]
    for place in places:
        for name in "st":
            rest.done("PUT", f"{place}/subscription/{name}")
    for local in ("plain", "parts-partition-0", "parts-partition-1"):
        shop_of(f"persistent://public/default/{local}").send(b"x")


def backlogs(rest):
    locals_ = ("plain", "parts-partition-0", "parts-partition-1")
    found = [rest.get(f"persistent/public/default/{each}/stats") for each in locals_]
    return [
        {name: one["msgBacklog"] for name, one in each["subscriptions"].items()} for each in found
    ]


def test_backlogs_of_a_namespace_are_cleared(rest, behind):
    rest.done("POST", "namespaces/public/default/clearBacklog/s")
    assert backlogs(rest) == [{"s": 0, "t": 1}] * 3
    rest.done("POST", "namespaces/public/default/clearBacklog")
    assert backlogs(rest) == [{"s": 0, "t": 0}] * 3
    assert rest("POST", "namespaces/public/nowhere/clearBacklog").status == 404


def test_a_subscription_of_a_namespace_is_deleted(rest, behind):
    rest.done("POST", "namespaces/public/default/unsubscribe/s")
    assert backlogs(rest) == [{"t": 1}] * 3


# ---- brokers, clusters, look-ups


def test_one_broker_in_one_cluster(rest):
    assert rest.get("clusters") == ["standalone"]
    assert rest.get("clusters/standalone")["brokerServiceUrl"] == "pulsar://localhost:6650"
    assert rest.refused("GET", "clusters/other") == (404, "Cluster does not exist")
    assert rest.get("brokers") == rest.get("brokers/standalone") == ["localhost"]
    assert rest.get("brokers/leaderBroker")["brokerId"] == "localhost"
    assert rest.get("brokers/configuration/runtime") == {"clusterName": "standalone"}
    assert rest.get("brokers/configuration") == []
    assert rest.get("brokers/configuration/values") == {}
    assert rest("GET", "brokers/version").body == b"4.0.8"


def test_a_broker_is_well_while_its_log_is(monkeypatch, rest):
    for what in ("health", "ready"):
        assert rest("GET", f"brokers/{what}").body == b"ok"
    monkeypatch.setattr(type(rest.bench.engine), "is_failed", True)
    assert rest("GET", "brokers/health").status == 500


def test_a_topic_is_served_where_the_client_asked(rest):
    place = "/lookup/v2/topic/persistent/public/default/orders"
    found = rest("GET", place, host="localhost:15672").json
    assert (found["brokerUrl"], found["nativeUrl"]) == ("pulsar://localhost:6650",) * 2
    assert (found["httpUrl"], found["brokerUrlSsl"]) == ("http://localhost:15672", "")
    assert rest("GET", place, host="[::1]:1").json["brokerUrl"] == "pulsar://[::1]:6650"
    assert rest("GET", f"{place}/bundle").body == b"0x00000000_0xffffffff"


def test_a_look_up_that_fails(rest):
    unknown = "/lookup/v2/topic/persistent/public/nowhere/x"
    assert rest.refused("GET", unknown) == (404, "Namespace not found")
    place = "/lookup/v2/topic/persistent/public/default/orders"
    text = "the broker do not have tls listener"
    assert rest.refused("GET", f"{place}?listenerName=tls") == (404, text)
    assert rest("GET", place, x_pulsar_listenername="tls").status == 404
