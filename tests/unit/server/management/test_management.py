"""The management API, called as ASGI over an engine in the test's hands."""

import asyncio
from urllib.parse import quote

import pytest

from kit.amqp.management_tool import ManagementTool as Tool
from kit.amqp.peer import AmqpBench
from penstock.flow.crowd import SHOWN_MAX
from penstock.server.management import queues, request
from penstock.wire.amqp.methods.basic import Consume, ConsumeOk, Qos
from penstock.wire.amqp.methods.channel import ConfirmSelect
from penstock.wire.amqp.methods.connection import Close
from penstock.wire.amqp.methods.queue import Declare
from penstock.wire.amqp.properties import Properties, encode_properties

PERSISTENT = encode_properties(Properties(delivery_mode=2))


def put(tool, path, body=None):
    assert tool("PUT", path, body or {})[0] == 201


@pytest.fixture
def pieces(monkeypatch):
    """Queues of each topic whose view was made, in pieces between which others have their turn."""
    made, view, rest = [[]], queues.queue_view, asyncio.sleep

    def looked_at(broker, queue):
        made[-1].append(len(queue.topic.queues))
        return view(broker, queue)

    def rested(seconds):
        made.append([])
        return rest(seconds)

    monkeypatch.setattr(queues, "queue_view", looked_at)
    monkeypatch.setattr(request.asyncio, "sleep", rested)
    return made


# Who may ask.


def test_a_password_is_asked_for(bench):
    for login in ("", "guest:wrong", "nobody:guest", "guest"):
        tool = Tool(bench, login)
        assert tool("GET", "/api/overview")[0] == 401
        assert tool.headers["www-authenticate"].startswith("Basic")


def test_guest_asks_from_this_machine_under_its_own_name_only(tool):
    assert tool("GET", "/api/whoami", client="10.0.0.7")[0] == 401
    assert tool("GET", "/api/whoami", host="evil.example")[0] == 403
    assert tool("GET", "/api/whoami", origin="http://evil.example")[0] == 403
    assert tool("GET", "/api/whoami", origin="http://localhost")[0] == 200


def test_a_user_without_tag_may_not_look_and_one_without_the_right_tag_not_change(bench):
    bench.broker.users.add("plain", "x")
    bench.broker.users.add("looker", "x", ["monitoring"])
    assert Tool(bench, "plain:x")("GET", "/api/queues")[0] == 401
    looker = Tool(bench, "looker:x")
    assert looker("GET", "/api/queues", client="10.0.0.7", host="broker")[0] == 200
    assert looker("PUT", "/api/users/more", {"password": "x"})[0] == 401
    assert looker("GET", "/api/definitions")[0] == 403


# Policies.

LENGTH = {"pattern": "^q", "definition": {"max-length": 5}}


def test_policies_are_put_shown_and_deleted_and_shown_where_they_are_in_effect(tool):
    put(tool, "/api/queues/%2F/q1", {"arguments": {"x-max-length": 9}})
    put(tool, "/api/queues/%2F/other")
    put(tool, "/api/policies/%2F/short", LENGTH)
    more = {"pattern": "1$", "priority": "2", "apply-to": "queues", "definition": {"expires": 9000}}
    put(tool, "/api/operator-policies/%2F/limits", more)
    assert tool("PUT", "/api/policies/%2F/short", LENGTH)[0] == 204
    row = {"vhost": "/", "name": "short", "priority": 0, "apply-to": "all", "ignored": [], **LENGTH}
    assert tool.get("/api/policies") == tool.get("/api/policies/%2F") == [row]
    assert tool.get("/api/policies/%2F/short") == row
    (found,) = tool.get("/api/operator-policies")
    assert (found["name"], found["priority"], found["apply-to"]) == ("limits", 2, "queues")
    shown = tool.get("/api/queues/%2F/q1")
    assert (shown["policy"], shown["operator_policy"]) == ("short", "limits")
    assert shown["effective_policy_definition"] == {"max-length": 5, "expires": 9000}
    assert shown["arguments"] == {"x-max-length": 9}
    other = tool.get("/api/queues/%2F/other")
    assert (other["policy"], other["effective_policy_definition"]) == (None, {})
    assert tool("DELETE", "/api/operator-policies/%2F/limits")[0] == 204
    assert tool("DELETE", "/api/operator-policies/%2F/limits")[0] == 404
    assert tool.get("/api/queues/%2F/q1")["operator_policy"] is None
    for path in ("/api/policies/%2F/none", "/api/policies/none", "/api/operator-policies/none/x"):
        assert tool("GET", path)[0] == 404


def test_an_exchange_shows_its_policy_too(tool):
    order = {"pattern": "^amq.topic$", "definition": {"alternate-exchange": "amq.fanout"}}
    put(tool, "/api/policies/%2F/rest", order)
    shown = tool.get("/api/exchanges/%2F/amq.topic")
    assert (shown["policy"], shown["operator_policy"]) == ("rest", None)
    assert shown["effective_policy_definition"] == order["definition"]
    assert tool.get("/api/exchanges/%2F/amq.direct")["policy"] is None


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ({"pattern": "^q", "definition": {"no-such": 1}}, "'no-such' is not known here"),
        ({"pattern": "^q", "definition": {}}, "definition is empty"),
        ({"pattern": "(a+)+b", "definition": {"expires": 1}}, "may take too long"),
        ({"definition": {"expires": 1}}, "pattern"),
        ({"pattern": "^q", "definition": {"expires": 1}, "apply-to": "cats"}, "apply-to"),
        ({"pattern": "^q", "definition": {"expires": 1}, "priority": "high"}, "priority"),
    ],
)
def test_a_policy_that_cannot_be_is_a_400_with_a_sentence(tool, order, told):
    status, answer = tool("PUT", "/api/policies/%2F/p", order)
    assert status == 400
    assert told in answer["reason"]
    assert tool.get("/api/policies") == []


def test_policymakers_change_policies_and_only_administrators_those_of_operators(bench, tool):
    for tag, statuses in (("management", (403, 403)), ("policymaker", (201, 403))):
        bench.broker.users.add(tag, "x", [tag])
        their = Tool(bench, f"{tag}:x")
        assert their("PUT", "/api/policies/%2F/p", LENGTH)[0] == statuses[0]
        assert their("PUT", "/api/operator-policies/%2F/p", LENGTH)[0] == statuses[1]
    assert Tool(bench, "management:x")("DELETE", "/api/policies/%2F/p")[0] == 403
    assert tool("DELETE", "/api/policies/%2F/p")[0] == 204


# Topology.


def test_exchanges_are_declared_shown_and_deleted(tool):
    put(tool, "/api/exchanges/%2F/e", {"type": "topic", "arguments": {"alternate-exchange": "x"}})
    assert tool("PUT", "/api/exchanges/%2F/e", {"type": "topic", "arguments": {}})[0] == 400
    found = tool.get("/api/exchanges/%2F/e")
    assert (found["name"], found["type"], found["durable"]) == ("e", "topic", True)
    assert found["arguments"] == {"alternate-exchange": "x"}
    names = [each["name"] for each in tool.get("/api/exchanges/%2F")]
    assert names == ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "e"]
    assert tool("DELETE", "/api/exchanges/%2F/e")[0] == 204
    assert tool("DELETE", "/api/exchanges/%2F/e")[0] == 404
    assert tool("DELETE", "/api/exchanges/%2F/amq.topic")[0] == 403
    assert tool("GET", "/api/exchanges/none/e")[0] == 404


def test_bindings_have_names_in_paths(tool):
    put(tool, "/api/queues/%2F/q%2F1")
    base = "/api/bindings/%2F/e/amq.topic/q/q%2F1"
    assert tool("POST", base, {"routing_key": "a.#", "arguments": {"n": 1}})[0] == 201
    location = tool.headers["location"]
    assert location.startswith("q%2F1/a.%2523~")
    assert tool("POST", base, {})[0] == 201
    assert tool.headers["location"] == "q%2F1/~"
    one = tool.get(f"/api/bindings/%2F/e/amq.topic/q/{location}")
    assert one["arguments"] == {"n": 1}
    assert len(tool.get(base)) == 2
    assert len(tool.get("/api/exchanges/%2F/amq.topic/bindings/source")) == 2
    assert [each["source"] for each in tool.get("/api/queues/%2F/q%2F1/bindings")] == [
        "", "amq.topic", "amq.topic",
    ]  # fmt: skip
    assert tool("DELETE", f"/api/bindings/%2F/e/amq.topic/q/{location}")[0] == 204
    assert tool("DELETE", f"/api/bindings/%2F/e/amq.topic/q/{location}")[0] == 404
    assert tool("POST", base, {"routing_key": "b.#", "arguments": []})[0] == 201
    assert tool("DELETE", f"{base}/b.%23")[0] == 204
    default = "/api/bindings/%2F/e/amq.default/q/q%2F1/q%2F1"
    assert tool.get(default)["source"] == ""
    assert tool("DELETE", default)[0] == 400
    assert tool("POST", "/api/bindings/%2F/e/amq.topic/q/none", {})[0] == 404
    assert tool("POST", "/api/bindings/%2F/e/amq.fanout/e/amq.topic", {})[0] == 201
    assert len(tool.get("/api/exchanges/%2F/amq.topic/bindings/destination")) == 1


def test_vhosts_and_users_come_and_go(bench, tool):
    put(tool, "/api/vhosts/team%2Fone")
    put(tool, "/api/users/ada", {"password": "x", "tags": ["management"]})
    assert tool("PUT", "/api/users/ada", {"password_hash": "", "tags": ""})[0] == 204
    assert [each["name"] for each in tool.get("/api/vhosts")] == ["/", "team/one"]
    assert tool.get("/api/users/ada")["tags"] == []
    bench.kill()
    tool = Tool(bench)
    assert [each["name"] for each in tool.get("/api/users")] == ["ada", "guest"]
    assert tool("PUT", "/api/permissions/team%2Fone/ada", {"configure": ".*"})[0] == 204
    assert len(tool.get("/api/permissions")) == 4
    assert len(tool.get("/api/users/ada/permissions")) == 2
    assert [each["user"] for each in tool.get("/api/vhosts/%2F/permissions")] == ["ada", "guest"]
    assert tool.get("/api/permissions/%2F/ada")["configure"] == ".*"
    assert tool("PUT", "/api/permissions/%2F/none", {})[0] == 404
    assert tool("DELETE", "/api/vhosts/team%2Fone")[0] == 204
    assert tool("DELETE", "/api/vhosts/%2F")[0] == 400
    assert tool("DELETE", "/api/users/ada")[0] == 204
    assert tool("GET", "/api/users/ada")[0] == 404


def test_a_deleted_permission_closes_the_vhost_to_its_user_until_it_is_given_again(bench, tool):
    put(tool, "/api/vhosts/team")
    put(tool, "/api/users/ada", {"password": "x", "tags": ["management"]})
    peer = bench.client(user="ada", password="x")
    assert tool("DELETE", "/api/permissions/%2F/ada")[0] == 204
    (close,) = [each for each in peer.methods(0) if isinstance(each, Close)]
    assert close.reply_text == "CONNECTION_FORCED - user 'ada' may not use vhost '/' any more"
    assert tool("DELETE", "/api/permissions/%2F/ada")[0] == 404
    assert tool("GET", "/api/permissions/%2F/ada")[0] == 404
    assert tool("PUT", "/api/users/ada", {"password": "y", "tags": ""})[0] == 204
    bench.kill()
    tool, broker = Tool(bench), bench.broker
    ada = broker.users.login("ada", "y", "10.0.0.1")
    assert [broker.users.may_enter(ada, vhost) for vhost in ("/", "team")] == [False, True]
    assert [each["vhost"] for each in tool.get("/api/users/ada/permissions")] == ["team"]
    document = tool.get("/api/definitions")
    other = AmqpBench()
    assert Tool(other)("POST", "/api/definitions", document)[0] == 204
    assert not other.broker.users.may_enter(ada, "/")
    assert tool("PUT", "/api/permissions/%2F/ada", {"configure": ".*"})[0] == 201
    assert broker.users.may_enter(ada, "/")
    whole = {"user": "ada", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    assert Tool(other)("POST", "/api/definitions", {"permissions": [whole]})[0] == 204
    assert other.broker.users.may_enter(ada, "/")


def test_many_users_are_deleted_at_once(bench, tool):
    for name in ("ada", "bob", "eve"):
        put(tool, f"/api/users/{name}", {"password": "x"})
    peer = bench.client(user="ada", password="x")
    order = {"users": ["ada", "eve", "nobody"]}
    assert Tool(bench, "bob:x")("POST", "/api/users/bulk-delete", order)[0] == 401
    assert tool("POST", "/api/users/bulk-delete", order) == (204, None)
    assert [each["name"] for each in tool.get("/api/users")] == ["bob", "guest"]
    (close,) = [each for each in peer.methods(0) if isinstance(each, Close)]
    assert close.reply_text == "CONNECTION_FORCED - user 'ada' is deleted"
    assert tool("POST", "/api/users/bulk-delete", {})[0] == 400
    assert tool("POST", "/api/users/bulk-delete", {"users": "bob"})[0] == 400


def test_definitions_go_out_and_in(bench, tool):
    put(tool, "/api/queues/%2F/q", {"arguments": {"x-max-length": 3}})
    document = tool.get("/api/definitions")
    other = Tool(AmqpBench())
    assert other("POST", "/api/definitions", document)[0] == 204
    assert other.get("/api/definitions") == document
    assert "users" not in other.get("/api/definitions/%2F")
    assert other("POST", "/api/definitions", {"queues": [{"name": 7}]})[0] == 400


def test_an_import_says_what_of_it_was_ignored_and_so_does_the_log(tool, caplog):
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    document = {
        "queues": [{"name": "q", "vhost": "/"}],
        "permissions": [{"user": "guest", "vhost": "/", **everything}],
    }
    assert tool("POST", "/api/definitions", document) == (204, None)
    assert not caplog.records
    document["permissions"] += [{"user": "ada", "vhost": "/", **everything, "read": ""}]
    keys = {"ha-mode": "all", "max-length": 9}
    document["policies"] = [{"name": "ha", "vhost": "/", "pattern": "^a", "definition": keys}]
    document["topic_permissions"] = [{"user": "ada", "vhost": "/"}]
    status, told = tool("POST", "/api/definitions", document)
    assert status == 200
    assert told["ignored"] == [
        {"kind": "policy_keys", "count": 1, "names": ["ha ha-mode"]},
        {"kind": "permissions", "count": 1, "names": ["ada /"]},
        {"kind": "topic_permissions", "count": 1, "names": ["ada /"]},
    ]
    parts = "policy_keys: 1 (ha ha-mode); permissions: 1 (ada /); topic_permissions: 1 (ada /)"
    reason = f"ignored, for there is no such thing here: {parts}. The rest was imported."
    assert told["reason"] == reason
    (record,) = caplog.records
    assert (record.getMessage(), record.ignored) == ("definitions were imported in part", parts)
    assert tool("POST", "/api/definitions/%2F", document)[0] == 200


def test_an_import_with_one_impossible_part_is_refused_as_a_whole(tool):
    before = tool.get("/api/definitions")
    document = {
        "vhosts": [{"name": "team"}],
        "queues": [{"name": "q", "vhost": "team"}],
        "bindings": [{"source": "amq.topic", "vhost": "team", "destination": "none"}],
    }
    reason = "no queue 'none' in vhost 'team'"
    refusal = (400, {"error": "bad_request", "reason": reason})
    assert tool("POST", "/api/definitions", document) == refusal
    assert tool.get("/api/definitions") == before
    document["bindings"] = []
    assert tool("POST", "/api/definitions", document)[0] == 204
    document["bindings"] = [{"source": "amq.topic", "destination": "none"}]
    assert tool("POST", "/api/definitions/team", document)[1]["reason"] == reason


def test_refusals_have_rabbitmqs_words(tool):
    put(tool, "/api/queues/%2F/q")
    status, told = tool("PUT", "/api/queues/%2F/q", {"durable": False})
    assert (status, told["error"]) == (400, "bad_request")
    assert told["reason"].startswith("inequivalent arg 'durable' for queue 'q' in vhost '/'")
    status, told = tool("POST", "/api/bindings/%2F/e/none/q/q", {})
    assert (status, told["error"]) == (404, "not_found")
    assert told["reason"] == "no exchange 'none' in vhost '/'"


# Queues and messages.


def test_queues_are_declared_shown_purged_and_deleted(tool):
    put(tool, "/api/queues/%2F/q", {"durable": True, "arguments": {"x-max-length": 3}})
    assert tool("PUT", "/api/queues/%2F/q", {"arguments": {"x-max-length": 4}})[0] == 400
    publish(tool, "q", "one")
    publish(tool, "q", "two")
    found = tool.get("/api/queues/%2F/q")
    assert (found["messages"], found["messages_ready"], found["state"]) == (2, 2, "running")
    assert found["arguments"] == {"x-max-length": 3}
    assert found["message_stats"]["publish"] == 2
    assert tool("DELETE", "/api/queues/%2F/q?if-empty=true")[0] == 400
    assert tool("DELETE", "/api/queues/%2F/q/contents")[0] == 204
    assert tool.get("/api/queues/%2F/q")["messages"] == 0
    assert tool("DELETE", "/api/queues/%2F/q")[0] == 204
    assert tool("GET", "/api/queues/%2F/q")[0] == 404


@pytest.mark.parametrize(
    ("claimed", "status"),
    [
        ({"user_id": "guest"}, 200),
        ({"user_id": "somebody"}, 400),
        ({"expiration": "5000"}, 200),
        ({"expiration": "soon"}, 400),
    ],
)
def test_a_message_published_here_may_claim_what_one_of_a_channel_may(tool, claimed, status):
    put(tool, "/api/queues/%2F/q")
    found, said = publish(tool, "q", "x", properties={"delivery_mode": 2, **claimed})
    assert found == status
    if status == 400:
        assert next(iter(claimed.values())) in said["reason"]


def publish(tool, key, payload, **more):
    order = {"routing_key": key, "payload": payload, "properties": {"delivery_mode": 2}, **more}
    return tool("POST", "/api/exchanges/%2F/amq.default/publish", order)


def test_messages_are_published_and_looked_at(tool):
    put(tool, "/api/queues/%2F/q")
    assert publish(tool, "none", "x") == (200, {"routed": False})
    properties = {"content_type": "text/plain", "headers": {"a": [1, "b"]}}
    assert publish(tool, "q", "h\u00e9", properties=properties) == (200, {"routed": True})
    assert publish(tool, "q", "/wA=", payload_encoding="base64", properties=[])[0] == 200
    order = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
    status, (first, second) = tool("POST", "/api/queues/%2F/q/get", order)
    assert status == 200
    assert first["payload"] == "h\u00e9"
    assert first["payload_bytes"] == 3
    assert first["properties"] == properties
    assert (first["routing_key"], first["exchange"]) == ("q", "")
    assert (second["payload"], second["payload_encoding"]) == ("/wA=", "base64")
    order = {"count": "1", "ackmode": "ack_requeue_false", "encoding": "base64", "truncate": 1}
    status, (again,) = tool("POST", "/api/queues/%2F/q/get", order)
    assert (again["redelivered"], again["payload"]) == (True, "aA==")
    assert tool.get("/api/queues/%2F/q")["messages"] == 1


@pytest.mark.parametrize(
    ("path", "order"),
    [
        ("/api/queues/%2F/q/get", {"count": -1}),
        ("/api/queues/%2F/q/get", {"count": "many"}),
        ("/api/queues/%2F/q/get", {"ackmode": "none"}),
        ("/api/exchanges/%2F/amq.default/publish", {"routing_key": "q"}),
        (
            "/api/exchanges/%2F/amq.default/publish",
            {"routing_key": "q", "payload": "!", "payload_encoding": "base64"},
        ),
        (
            "/api/exchanges/%2F/amq.default/publish",
            {"routing_key": "q", "payload": "", "properties": {"priority": "high"}},
        ),
        (
            "/api/exchanges/%2F/amq.default/publish",
            {"routing_key": "q" * 256, "payload": ""},
        ),
    ],
)
def test_senseless_orders_are_refused(tool, path, order):
    put(tool, "/api/queues/%2F/q")
    status, told = tool("POST", path, order)
    assert status == 400
    assert told["reason"]


def test_an_alarm_stops_publishes_by_http_and_shows_in_health(bench, tool):
    put(tool, "/api/queues/%2F/q")
    assert tool("GET", "/api/health/checks/alarms")[0] == 200
    bench.engine.set_alarm("memory", 1 << 60)
    status, told = publish(tool, "q", "x")
    assert (status, told["error"]) == (503, "memory-alarm")
    status, told = tool("GET", "/api/health/checks/alarms")
    assert (status, told["status"]) == (503, "failed")
    assert "memory" in told["reason"]
    assert tool.get("/api/healthchecks/node") == told
    assert tool.get("/api/nodes")[0]["mem_alarm"]
    assert tool.get("/api/queues/%2F/q")["messages"] == 0


# Clients.


def test_connections_channels_and_consumers_are_shown(bench, tool):
    peer = bench.client(connection_name="reports", product="test")
    peer.call(1, Declare(0, "q"))
    peer.call(1, Qos(0, 7))
    assert isinstance(peer.call(1, Consume(0, "q", "tag")), ConsumeOk)
    peer.open(2)
    peer.call(2, ConfirmSelect())
    (connection,) = tool.get("/api/connections")
    assert connection["user_provided_name"] == "reports"
    assert connection["client_properties"]["product"] == "test"
    assert (connection["state"], connection["channels"], connection["user"]) == (
        "running", 2, "guest",
    )  # fmt: skip
    name = quote(connection["name"], safe="")
    assert tool.get(f"/api/connections/{name}")["peer_host"] == "127.0.0.1"
    first, second = tool.get(f"/api/connections/{name}/channels")
    assert (first["prefetch_count"], first["consumer_count"], first["confirm"]) == (7, 1, False)
    assert second["confirm"]
    shown = tool.get(f"/api/channels/{quote(first['name'], safe='')}")
    assert shown["consumer_details"][0]["consumer_tag"] == "tag"
    (consumer,) = tool.get("/api/consumers/%2F")
    assert (consumer["queue"]["name"], consumer["prefetch_count"]) == ("q", 7)
    queue = tool.get("/api/queues/%2F/q")
    assert queue["consumers"] == 1
    assert queue["consumer_utilisation"] == 1.0
    assert queue["consumer_details"][0]["ack_required"]
    assert tool.get("/api/vhosts/%2F/channels") == tool.get("/api/channels")


def test_of_very_many_consumers_a_queue_and_a_channel_show_some_the_active_one_first(bench, tool):
    peer = bench.client()
    arguments = {"x-single-active-consumer": True}
    peer.call(1, Declare(0, "q", is_durable=True, arguments=arguments))
    first = bench.client()
    assert isinstance(first.call(1, Consume(0, "q", "first")), ConsumeOk)
    for number in range(99):
        assert isinstance(peer.call(1, Consume(0, "q", f"t{number}")), ConsumeOk)
    queue = tool.get("/api/queues/%2F/q")
    assert (queue["consumers"], len(queue["consumer_details"])) == (100, SHOWN_MAX)
    assert queue["consumer_details"][0]["consumer_tag"] == "first"
    assert queue["single_active_consumer_tag"] == "first"
    name = queue["consumer_details"][1]["channel_details"]["name"]
    channel = tool.get(f"/api/channels/{quote(name, safe='')}")
    assert (channel["consumer_count"], len(channel["consumer_details"])) == (99, SHOWN_MAX)
    assert len(tool.get("/api/consumers/%2F")) == 100


def test_a_list_of_queues_is_made_in_pieces_and_wide_topics_count_for_many(bench, tool, pieces):
    for number in range(40):
        bench.topic(f"a{number:02}")
    for number in range(6):
        bench.topic(f"wide{number}", queues=500)
    assert len(tool.get("/api/queues")) == 46
    assert [len(each) for each in pieces] == [15, 15, 11, 1, 1, 1, 1, 1]
    assert tool.get("/api/queues/%2F")[-1]["name"] == "wide5"


def test_flow_is_shown_for_every_stage_it_reached(bench, tool):
    peer = bench.client()
    peer.call(1, Declare(0, "hot", is_durable=True))
    while peer.session.is_reading:
        for _ in range(50):
            peer.publish(1, "", "hot", b"x", PERSISTENT)
        bench.turns()
    states = [
        tool.get(f"/api/{each}")[0]["state"] for each in ("connections", "channels", "queues")
    ]
    assert states == ["flow", "flow", "flow"]
    peer.turn()
    bench.advance(1_500)
    states = [
        tool.get(f"/api/{each}")[0]["state"] for each in ("connections", "channels", "queues")
    ]
    assert states == ["flow", "running", "running"]
    bench.advance(4_000)
    assert tool.get("/api/connections")[0]["state"] == "running"


def test_an_operator_closes_a_connection(bench, tool):
    peer = bench.client()
    name = quote(peer.session.name, safe="")
    assert tool("DELETE", f"/api/connections/{name}", x_reason="go home")[0] == 204
    (close,) = [each for each in peer.methods(0) if isinstance(each, Close)]
    assert (close.reply_code, close.reply_text) == (320, "CONNECTION_FORCED - go home")
    assert tool("DELETE", f"/api/connections/{name}")[0] == 404
    assert tool.get("/api/connections") == []


def test_the_overview_counts(bench, tool):
    bench.client()
    put(tool, "/api/queues/%2F/q")
    publish(tool, "q", "x")
    page = tool.get("/api/overview")
    assert page["queue_totals"]["messages_ready"] == 1
    assert page["object_totals"]["connections"] == 1
    assert page["object_totals"]["queues"] == 1
    assert page["rabbitmq_version"].startswith("3.13")
    assert page["listeners"][0]["port"] == 5672
    assert tool.get(f"/api/nodes/{quote(page['node'])}")["running"]
    assert tool("GET", "/api/nodes/other")[0] == 404
    assert tool.get("/api/healthchecks/node/") == {"status": "ok"}
    assert tool.get(f"/api/healthchecks/node/{quote(page['node'])}") == {"status": "ok"}
    assert tool("GET", "/api/healthchecks/node/other")[0] == 404
    assert tool.get("/api/aliveness-test/%2F") == {"status": "ok"}


# Lists.


def test_long_lists_come_in_pages_and_with_chosen_columns(tool):
    for number in range(7):
        put(tool, f"/api/queues/%2F/q{number}")
    page = tool.get("/api/queues?page=2&page_size=3&columns=name,message_stats.publish")
    assert [each["name"] for each in page["items"]] == ["q3", "q4", "q5"]
    assert page["items"][0] == {"name": "q3", "message_stats": {"publish": 0}}
    assert (page["page_count"], page["total_count"], page["item_count"]) == (3, 7, 3)
    found = tool.get("/api/queues?page=1&name=q6")
    assert (found["filtered_count"], found["items"][0]["name"]) == (1, "q6")
    down = tool.get("/api/queues?sort=name&sort_reverse=true")
    assert [each["name"] for each in down][:2] == ["q6", "q5"]
    assert tool("GET", "/api/queues?page=none")[0] == 400


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("^ORDERS", ["orders.de", "orders.eu"]),
        ("eu$", ["Invoices.eu", "orders.eu"]),
        (".*voice.*", ["Invoices.eu"]),
        (".*?voice", ["Invoices.eu"]),
        ("^orders.*|voi", ["Invoices.eu", "orders.de", "orders.eu"]),
        (r"s\..*", ["Invoices.eu", "orders.de", "orders.eu"]),
        (r"orders\.*", ["orders.de", "orders.eu"]),
        ("^o.*r.*s", ["orders.de", "orders.eu"]),
        ("none", []),
    ],
)
def test_names_are_found_by_a_pattern_whatever_their_case(tool, name, found):
    for each in ("orders.eu", "orders.de", "Invoices.eu"):
        put(tool, f"/api/queues/%2F/{each}")
    query = f"name={quote(name, safe='')}&use_regex=true&sort=name"
    assert [each["name"] for each in tool.get(f"/api/queues?{query}")] == found
    page = tool.get(f"/api/queues/%2F?page=1&{query}")
    assert (page["filtered_count"], page["total_count"]) == (len(found), 3)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("(", "no regular expression"),
        ("a{99999999999999999999}", "no regular expression"),
        ("a" * 2_000, "at most 1024 characters"),
        ("(a+)+b", "may take too long"),
        ("a.*b.*c", "may take too long"),
        ("^a|b.*c.*d", "may take too long"),
    ],
)
def test_a_pattern_that_is_none_or_takes_too_long_is_refused(tool, name, reason):
    path = f"/api/queues?page=1&name={quote(name, safe='')}&use_regex=true"
    status, told = tool("GET", path)
    assert status == 400
    assert reason in told["reason"]


def test_without_a_pattern_a_name_is_found_by_any_part_of_it_whatever_its_case(tool):
    put(tool, "/api/queues/%2F/Orders.eu")
    assert len(tool.get("/api/queues?page=1&name=ORDERS.")["items"]) == 1
    assert tool.get("/api/queues?page=1&name=s$&use_regex=false")["items"] == []


def test_text_is_taken_for_numbers_and_booleans_as_rabbitmqs_own_tool_writes_them(tool):
    order = {"durable": "true", "auto_delete": "false", "arguments": [], "node": None}
    put(tool, "/api/queues/%2F/q", order)
    assert tool.get("/api/queues/%2F/q")["durable"] is True
    assert tool("PUT", "/api/queues/%2F/r", {"arguments": [1]})[0] == 400


def test_checks_and_lists_of_what_is_not_here(tool):
    assert tool.get("/api/parameters") == []
    assert tool("DELETE", "/api/parameters/c/%2F/p")[0] == 404
    status, told = tool("PUT", "/api/parameters/c/%2F/p", {"value": {}})
    assert (status, told["reason"]) == (400, "there are no parameters here")
    assert tool.get("/api/health/checks/port-listener/5672") == {"status": "ok"}
    assert tool.get("/api/health/checks/protocol-listener/amqp") == {"status": "ok"}
    assert tool("GET", "/api/health/checks/port-listener/1")[0] == 503


def test_a_deleted_user_is_disconnected(bench, tool):
    put(tool, "/api/users/ada", {"password": "x"})
    peer = bench.client(user="ada", password="x")
    assert tool("DELETE", "/api/users/ada")[0] == 204
    (close,) = [each for each in peer.methods(0) if isinstance(each, Close)]
    assert close.reply_code == 320


def test_unknown_paths_and_methods_are_told_apart(tool):
    assert tool("GET", "/api/queues/%2F/q/none")[0] == 404
    assert tool("POST", "/api/queues/%2F/q")[0] == 405
