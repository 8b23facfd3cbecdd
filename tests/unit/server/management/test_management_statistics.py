"""Figures of the management API: the same for everybody who looks, and RabbitMQ's meaning."""

import pytest

from kit.amqp.management_tool import ManagementTool as Tool
from penstock.engine.sampler import WINDOW_MS
from penstock.wire.amqp.frames import method_frame
from penstock.wire.amqp.methods.basic import Ack, Consume, Qos
from penstock.wire.amqp.methods.queue import Declare, DeclareOk, Delete


def sampled(bench, ms=WINDOW_MS):
    bench.advance(ms)
    bench.engine.sampler.due(bench.clock.monotonic_ms())


def publish(peer, *bodies):
    for body in bodies:
        peer.publish(1, "", "q", body)
    peer.turn()


def test_dashboards_do_not_ruin_each_others_rates(bench, tool):
    peer, other = bench.client(), Tool(bench)
    peer.call(1, Declare(0, "q"))
    sampled(bench)
    publish(peer, *[b"x"] * 20)
    sampled(bench)
    for each in (tool, other, tool):
        queue = each.get("/api/queues/%2F/q")
        assert queue["message_stats"]["publish_details"] == {"rate": 4.0}
        assert queue["messages_details"] == {"rate": 4.0}
        assert each.get("/api/channels")[0]["message_stats"]["publish_details"] == {"rate": 4.0}
        page = each.get("/api/overview")
        assert page["message_stats"]["publish_details"] == {"rate": 4.0}
        assert page["queue_totals"]["messages_ready_details"] == {"rate": 4.0}
        assert each.get("/api/vhosts/%2F")["messages_details"] == {"rate": 4.0}


def test_utilisation_is_the_share_of_time_in_which_no_message_had_to_wait(bench, tool):
    peer = bench.client()
    peer.call(1, Declare(0, "q"))
    peer.call(1, Qos(0, 1))
    assert tool.get("/api/queues/%2F/q")["consumer_utilisation"] is None, "without a consumer"
    peer.call(1, Consume(0, "q", "tag"))
    sampled(bench)
    publish(peer, b"1", b"2")
    assert tool.get("/api/queues/%2F/q")["consumer_utilisation"] == 0.0, "only this moment known"
    bench.advance(1_000)
    peer.send(1, Ack(1))
    peer.turn()
    sampled(bench, WINDOW_MS - 1_000)
    queue = tool.get("/api/queues/%2F/q")
    assert queue["consumer_utilisation"] == pytest.approx(0.8)
    assert queue["consumer_capacity"] == queue["consumer_utilisation"]
    sampled(bench)
    assert tool.get("/api/queues/%2F/q")["consumer_utilisation"] == 1.0


def test_bytes_are_those_of_bodies(bench, tool):
    peer = bench.client()
    peer.call(1, Declare(0, "q"))
    peer.call(1, Qos(0, 1))
    publish(peer, b"1", b"22", b"333")
    peer.call(1, Consume(0, "q", "tag"))
    peer.turn()
    queue = tool.get("/api/queues/%2F/q")
    assert (queue["message_bytes_ready"], queue["message_bytes_unacknowledged"]) == (5, 1)
    assert queue["message_bytes"] == 6


def test_what_consumers_got_is_counted_everywhere(bench, tool):
    peer = bench.client()
    peer.call(1, Declare(0, "q"))
    publish(peer, b"1", b"2")
    peer.call(1, Consume(0, "q", "tag"))
    peer.turn()
    peer.send(1, Ack(1))
    peer.turn()
    for path in ("queues/%2F/q", "overview", "vhosts/%2F"):
        stats = tool.get(f"/api/{path}")["message_stats"]
        assert (stats["deliver"], stats["deliver_get"], stats["ack"]) == (2, 2, 1), path
    (channel,) = tool.get("/api/channels")
    assert channel["message_stats"]["ack"] == 1


def test_publishes_to_nowhere_are_in_the_overview(bench, tool):
    peer = bench.client()
    peer.publish(1, "", "nowhere", b"x")
    peer.publish(1, "", "nowhere", b"x", is_mandatory=True)
    peer.turn()
    stats = tool.get("/api/overview")["message_stats"]
    assert (stats["publish"], stats["drop_unroutable"], stats["return_unroutable"]) == (2, 1, 1)


def test_what_comes_and_goes_is_counted(bench, tool):
    sampled(bench)
    peer = bench.client()
    peer.call(1, Declare(0, "q"))
    peer.call(1, Declare(0, "q"))
    peer.call(1, Delete(0, "q"))
    peer.session.closed("gone")
    sampled(bench)
    churn = tool.get("/api/overview")["churn_rates"]
    assert {name: number for name, number in churn.items() if isinstance(number, int)} == {
        "connection_created": 1, "connection_closed": 1,
        "channel_created": 1, "channel_closed": 1,
        "queue_declared": 2, "queue_created": 1, "queue_deleted": 1,
    }  # fmt: skip
    assert churn["queue_declared_details"] == {"rate": 0.4}


def test_bytes_of_a_connection_are_counted_both_ways(bench, tool):
    peer = bench.client()
    (before,) = tool.get("/api/connections")
    peer.call(1, Declare(0, "q"))
    (after,) = tool.get("/api/connections")
    assert after["recv_oct"] - before["recv_oct"] == len(method_frame(1, Declare(0, "q")))
    assert after["send_oct"] - before["send_oct"] == len(method_frame(1, DeclareOk("q", 0, 0)))
    assert (after["recv_cnt"], after["send_cnt"]) > (before["recv_cnt"], before["send_cnt"])
    assert after["recv_oct_details"] == {"rate": 0.0}


def test_fields_that_tools_look_for_are_there(bench, tool):
    peer = bench.client()
    peer.call(1, Declare(0, "q"))
    (connection,) = tool.get("/api/connections")
    assert (connection["auth_mechanism"], connection["ssl_cipher"]) == ("PLAIN", None)
    (node,) = tool.get("/api/nodes")
    assert 0 < node["fd_used"] <= node["fd_total"]
    assert node["sockets_used"] < node["sockets_total"]
    assert {each["name"] for each in node["exchange_types"]} >= {"direct", "topic"}
    assert tool.get("/api/exchanges/%2F/amq.topic")["incoming"] == []
    assert tool.get("/api/queues/%2F/q")["deliveries"] == []
    assert tool.get("/api/overview")["sample_retention_policies"]["basic"] == [5]
