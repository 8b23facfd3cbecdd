"""Whatever a tool sends, the management API answers: no mistake of ours, and no half change."""

from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.amqp.management_tool import ManagementTool
from kit.amqp.peer import AmqpBench

BENCH = AmqpBench()
TOOL = ManagementTool(BENCH)

names = st.sampled_from(["/", "q", "e", "amq.topic", "amq.default", "", "n" * 300, "\0", "\u00e9"])
firsts = st.sampled_from(
    ["overview", "queues", "exchanges", "bindings", "users", "vhosts", "definitions", "channels",
     "connections", "permissions", "health"]
)  # fmt: skip
words = firsts | st.sampled_from(["get", "publish", "contents", "e", "q", "source", "bindings"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
fields = st.sampled_from(
    ["name", "type", "durable", "auto_delete", "arguments", "routing_key", "payload", "properties",
     "count", "ackmode", "encoding", "truncate", "tags", "password", "password_hash", "queues",
     "exchanges", "bindings", "vhosts", "payload_encoding", "x-match"]
)  # fmt: skip
likely = st.sampled_from(["direct", "topic", "headers", "q", True, 1, "ack_requeue_true", {}, []])
bodies = st.one_of(
    st.binary(max_size=20),
    values,
    st.dictionaries(fields, likely | values, max_size=5),
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["GET", "PUT", "POST", "DELETE"]),
    firsts,
    st.lists(names | words, max_size=5),
    bodies,
)
def test_every_request_has_an_answer(
    method: str, first: str, rest: list[str], body: object
) -> None:
    path = "/".join(["/api", first, *[quote(part, safe="") for part in rest]])
    status, _ = TOOL(method, path, body)
    assert status < 500 or status == 503


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["queues", "exchanges"]), names, st.dictionaries(fields, likely | values))
def test_what_was_refused_is_not_there(kind: str, name: str, body: dict[str, object]) -> None:
    path = f"/api/{kind}/%2F/{quote(name, safe='')}"
    was_there = TOOL("GET", path)[0] == 200
    status, _ = TOOL("PUT", path, body)
    assert status in (201, 204, 400, 403, 404, 405)
    assert (TOOL("GET", path)[0] == 200) is (was_there or status == 201)


def test_a_deep_body_is_refused() -> None:
    for body in (b"[" * 100_000, b'{"arguments":' * 5_000):
        assert TOOL("PUT", "/api/queues/%2F/q", body)[0] == 400
