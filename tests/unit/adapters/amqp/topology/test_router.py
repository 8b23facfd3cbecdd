"""Routing: every exchange type, exchanges bound to exchanges, alternates, what is remembered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.amqp.peer import AmqpBench
from kit.amqp.topology import Topology, message
from penstock.adapters.amqp.topology.dead_letter import letter_head
from penstock.adapters.amqp.topology.router import (
    BCC,
    CC,
    COPIES_MAX,
    DIRECT_REPLY_PREFIX,
    REMEMBERED_COPIES_MAX,
    ROUTES_KEPT,
    ROUTES_MAX,
    PublishRoutes,
    copy_keys,
    with_copies,
)
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.queue import Bind, Declare
from penstock.wire.amqp.origin import PublishHead, publish_record, secret_keys
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties

EXCHANGES = ["e0", "e1", "e2", "e3"]
QUEUES = ["q0", "q1", "q2"]
KEYS = ["a", "b"]


@pytest.fixture
def topology() -> Topology:
    return Topology()


def test_the_default_exchange_leads_to_the_queue_of_that_name(topology: Topology) -> None:
    topology.queue("orders")
    assert topology.where("", "orders") == ["orders"]
    assert topology.where("", "other") == []
    assert topology.vhost.router.route("", "other").is_empty


def test_a_queue_made_by_another_protocol_later_is_found(topology: Topology) -> None:
    assert topology.where("", "late") == []
    topology.bench.topic("late")
    assert topology.where("", "late") == ["late"]


def test_a_topic_of_another_protocol_may_grow_under_a_known_route(topology: Topology) -> None:
    topic = topology.bench.topic("wide")
    router = topology.vhost.router
    assert router.route("", "wide") is router.route("", "wide")
    topology.bench.engine.grow_topic(topic.name, 3)
    route = router.route("", "wide")
    found = {queue for _ in range(6) for queue in route.targets(message("", "wide"))}
    assert found == set(topic.queues)


def test_direct_fanout_and_topic_decide_by_key(topology: Topology) -> None:
    for name in ("one", "two"):
        topology.queue(name)
        topology.bind("amq.fanout", name, "whatever")
        topology.bind("amq.direct", name, name)
        topology.bind("amq.topic", name, f"{name}.*")
    assert topology.where("amq.fanout", "x") == ["one", "two"]
    assert topology.where("amq.direct", "one") == ["one"]
    assert topology.where("amq.direct", "three") == []
    assert topology.where("amq.topic", "two.a") == ["two"]


def test_a_queue_gets_one_copy_however_many_bindings_match(topology: Topology) -> None:
    topology.queue("q")
    for key in ("a.*", "#", "a.b"):
        topology.bind("amq.topic", "q", key)
    topology.bind("amq.direct", "q", "k", {"n": 1})
    topology.bind("amq.direct", "q", "k", {"n": 2})
    assert topology.where("amq.topic", "a.b") == ["q"]
    assert topology.where("amq.direct", "k") == ["q"]


def test_headers_are_looked_at_message_by_message(topology: Topology) -> None:
    topology.queue("red")
    topology.bind("amq.headers", "red", "", {"x-match": "any", "colour": "red", "size": 3})
    route = topology.vhost.router.route("amq.headers", "")
    assert not route.is_constant
    assert route.queues is None
    assert topology.where("amq.headers", "", {"colour": "red"}) == ["red"]
    assert topology.where("amq.headers", "", {"colour": "blue"}) == []
    assert topology.where("amq.headers", "") == []


def test_exchanges_are_followed_and_cycles_end(topology: Topology) -> None:
    topology.queue("q")
    for name in ("a", "b", "c"):
        topology.exchange(name, "fanout")
    topology.link("a", "b")
    topology.link("b", "c")
    topology.link("c", "a")
    topology.bind("c", "q")
    assert [topology.where(each) for each in "abc"] == [["q"]] * 3


def test_an_exchange_behind_a_headers_exchange_is_followed(topology: Topology) -> None:
    topology.queue("q")
    topology.queue("always")
    topology.exchange("in", "fanout")
    topology.exchange("out", "direct")
    topology.bind("in", "always")
    topology.link("in", "amq.match")
    topology.link("amq.match", "out", "", {"go": True})
    topology.bind("out", "q", "k")
    topology.bind("out", "always", "k")
    assert topology.where("in", "k", {"go": True}) == ["always", "q"]
    assert topology.where("in", "k", {"go": False}) == ["always"]
    record = message("in", "k", {"go": True})
    found = topology.vhost.router.route("in", "k").queues_for(record)
    assert sorted(queue.name for queue in found) == ["always", "q"]


def test_the_alternate_gets_what_nothing_matches_and_so_on(topology: Topology) -> None:
    topology.queue("rest")
    topology.exchange("last", "fanout")
    topology.exchange("second", "direct", arguments={"alternate-exchange": "last"})
    topology.exchange("first", "direct", arguments={"alternate-exchange": "second"})
    topology.bind("last", "rest")
    assert topology.where("first", "x") == ["rest"]
    topology.queue("q")
    topology.bind("first", "q", "x")
    assert topology.where("first", "x") == ["q"]


def test_the_alternate_of_a_headers_exchange_gets_the_rest(topology: Topology) -> None:
    topology.queue("rest")
    topology.queue("q")
    topology.exchange("h", "headers", arguments={"alternate-exchange": "amq.fanout"})
    topology.bind("h", "q", "", {"a": 1})
    topology.bind("amq.fanout", "rest")
    assert topology.where("h", "", {"a": 1}) == ["q"]
    assert topology.where("h", "", {"a": 2}) == ["rest"]


def test_alternates_in_a_circle_or_missing_end_nowhere(topology: Topology) -> None:
    topology.exchange("a", "direct", arguments={"alternate-exchange": "b"})
    topology.exchange("b", "direct", arguments={"alternate-exchange": "a"})
    topology.exchange("c", "direct", arguments={"alternate-exchange": "not there"})
    assert topology.where("a", "x") == []
    assert topology.where("c", "x") == []


def test_several_keys_are_a_union(topology: Topology) -> None:
    for name in QUEUES:
        topology.queue(name)
        topology.bind("amq.direct", name, name)
    assert topology.where("amq.direct", ["q0", "q2", "q0"]) == ["q0", "q2"]


def test_all_keys_count_at_every_exchange_on_the_way(topology: Topology) -> None:
    topology.queue("q")
    topology.exchange("first", "direct")
    topology.exchange("second", "direct")
    topology.link("first", "second", "public")
    topology.bind("second", "q", "secret")
    assert topology.where("first", ["public", "secret"]) == ["q"]
    assert topology.where("first", ["secret"]) == []


def test_the_alternate_gets_what_none_of_the_keys_matches(topology: Topology) -> None:
    topology.queue("q")
    topology.queue("rest")
    topology.exchange("other", "fanout")
    topology.exchange("e", "direct", arguments={"alternate-exchange": "other"})
    topology.bind("e", "q", "a")
    topology.bind("other", "rest")
    assert topology.where("e", ["a", "b"]) == ["q"]
    assert topology.where("e", ["b", "c"]) == ["rest"]


def test_missing_and_internal_exchanges_are_refused_to_publishers(topology: Topology) -> None:
    topology.exchange("inner", "fanout", is_internal=True)
    topology.queue("q")
    topology.bind("inner", "q")
    for exchange, code in (("none", ReplyCode.NOT_FOUND), ("inner", ReplyCode.ACCESS_REFUSED)):
        for _ in range(2):
            with pytest.raises(AmqpError) as problem:
                topology.vhost.router.route(exchange, "k")
            assert problem.value.code is code
    topology.exchange("outer", "fanout")
    topology.link("outer", "inner")
    assert topology.where("outer") == ["q"]
    dead = topology.vhost.router.route_dead("inner", ("k",))
    assert [queue.name for queue in dead.queues or ()] == ["q"]
    with pytest.raises(AmqpError, match="no exchange 'none' in vhost '/'"):
        topology.vhost.router.route_dead("none", ("k",))


def test_priorities_choose_a_queue_per_message(topology: Topology) -> None:
    queue = topology.queue("p", x_max_priority=3)
    route = topology.vhost.router.route("", "p")
    assert not route.is_constant
    assert not route.is_empty
    assert route.targets(message("", "p", priority=2)) == (queue.topic.queues[2],)
    assert route.targets(message("", "p")) == (queue.topic.queues[0],)


def test_a_known_route_is_one_object_whatever_the_key(topology: Topology) -> None:
    topology.queue("q")
    topology.bind("amq.topic", "q", "#")
    router = topology.vhost.router
    for key in ("a", "b"):
        assert router.route("amq.topic", key).steps > 1
    assert router.route("amq.topic", "a") is router.route("amq.topic", "b")
    assert router.route("amq.topic", "a").steps == 1


def test_a_change_voids_what_is_known(topology: Topology) -> None:
    topology.queue("q")
    topology.exchange("e", "topic")
    assert topology.where("e", "a") == []
    topology.bind("e", "q", "a")
    assert topology.where("e", "a") == ["q"]
    found = topology.vhost.queues.get("q")
    assert found is not None
    topology.vhost.queues.delete(found)
    assert topology.where("e", "a") == []


def test_memory_for_routes_is_bounded(topology: Topology) -> None:
    topology.queue("q")
    topology.bind("amq.fanout", "q")
    for number in range(ROUTES_KEPT + 50):
        topology.vhost.router.route("amq.fanout", str(number))
    assert len(topology.vhost.router._routes) == ROUTES_KEPT


links = st.lists(
    st.tuples(st.sampled_from(EXCHANGES), st.sampled_from(EXCHANGES), st.sampled_from(KEYS)),
    max_size=8,
)
ends = st.lists(
    st.tuples(st.sampled_from(EXCHANGES), st.sampled_from(QUEUES), st.sampled_from(KEYS)),
    max_size=6,
)
shared = Topology("graphs")
for each in QUEUES:
    shared.queue(each)


@given(
    st.lists(st.sampled_from(["direct", "fanout", "headers"]), min_size=4, max_size=4),
    st.lists(st.sampled_from([None, *EXCHANGES]), min_size=4, max_size=4),
    links,
    ends,
)
def test_graphs_of_exchanges_lead_where_a_naive_search_leads(
    kinds: list[str],
    alternates: list[str | None],
    linked: list[tuple[str, str, str]],
    ended: list[tuple[str, str, str]],
) -> None:
    for name in EXCHANGES:
        if name in shared.vhost.exchanges:
            shared.vhost.bindings.drop_exchange(shared.vhost.exchanges[name])
    kind_of = dict(zip(EXCHANGES, kinds, strict=True))
    alternate_of = dict(zip(EXCHANGES, alternates, strict=True))
    for name, alternate in alternate_of.items():
        arguments = {} if alternate is None else {"alternate-exchange": alternate}
        shared.exchange(name, kind_of[name], arguments=arguments)
    for source, target, key in linked:
        shared.link(source, target, key, {"h": key})
    for source, queue, key in ended:
        shared.bind(source, queue, key, {"h": key})

    def reached(start: str, key: str, header: str) -> set[str]:
        seen: set[str] = set()
        queues: set[str] = set()
        todo = [start]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            wanted = {"direct": [key], "fanout": KEYS, "headers": [header]}[kind_of[name]]
            onward = [b for a, b, k in linked if a == name and k in wanted]
            arrived = [b for a, b, k in ended if a == name and k in wanted]
            queues.update(arrived)
            todo += onward
            if not onward and not arrived and alternate_of[name] is not None:
                todo.append(str(alternate_of[name]))
        return queues

    for key in KEYS:
        for header in KEYS:
            found = shared.where("e0", key, {"h": header})
            assert found == sorted(reached("e0", key, header))


# ---- publish routes -----------------------------------------------------------------------------
# The routes of publishers: remembered, forgotten with the topology, bounded.


@pytest.fixture
def vhost():
    bench = AmqpBench()
    peer = bench.client()
    peer.call(1, Declare(queue="q"))
    for key in ("a.#", "*.b", "#"):
        peer.call(1, Bind(queue="q", exchange="amq.topic", routing_key=key))
    return bench.broker.vhosts["/"]


@pytest.fixture
def routes(vhost):
    return PublishRoutes(vhost.router)


def test_a_route_is_found_once_and_then_known(routes):
    head = letter_head("", "q")
    assert routes.known(head) is None
    found = routes.find(head)
    assert routes.known(head) is not None
    assert found.queues == routes.known(head).queues


def test_the_first_publish_pays_for_the_matching_and_the_later_ones_for_their_copies(routes):
    head = letter_head("amq.topic", "a.b")
    assert routes.find(head).steps > 1
    assert routes.known(head).steps == 1


def test_different_keys_to_the_same_queues_share_a_route(routes):
    heads = [letter_head("amq.topic", f"a.{number}") for number in range(3)]
    for head in heads:
        routes.find(head)
    assert len({id(routes.known(head)) for head in heads}) == 1


def test_a_change_of_topology_forgets_everything(routes, vhost):
    head = letter_head("", "q")
    routes.find(head)
    routes.of_keys("", ("q", "r"))
    vhost.router.forget()
    assert routes.known(head) is None
    assert len(routes) == 0


def test_routes_to_nobody_are_looked_for_each_time(routes):
    assert routes.find(letter_head("", "nowhere")).is_empty
    assert routes.of_keys("", ("nowhere", "neither")).is_empty
    assert len(routes) == 0


def test_memory_is_bounded(routes):
    for number in range(ROUTES_MAX + 1):
        routes.find(letter_head("amq.topic", f"a.{number}"))
        routes.of_keys("amq.topic", (f"a.{number}", "b"))
    assert len(routes) <= 2 * ROUTES_MAX


def test_routes_of_very_many_copies_are_not_remembered(routes):
    routes.of_keys("", ("q", *[str(number) for number in range(REMEMBERED_COPIES_MAX)]))
    assert len(routes) == 0


def test_direct_replies_have_no_route(routes):
    assert routes.find(letter_head("", DIRECT_REPLY_PREFIX + "x")) is None
    assert routes.find(letter_head("amq.topic", DIRECT_REPLY_PREFIX + "x")) is not None


def test_what_may_not_be_published_is_an_error(routes):
    with pytest.raises(AmqpError, match="NOT_FOUND"):
        routes.find(letter_head("nowhere", "k"))
    with pytest.raises(AmqpError, match="NOT_IMPLEMENTED"):
        routes.find(PublishHead("", "q", False, True, b"\x00\x01q"))


# ---- copies -------------------------------------------------------------------------------------
# CC and BCC: further keys; who was copied in secret is for no reader to see.


HEAD = letter_head("e", "k")


def record(**headers):
    raw = encode_properties(Properties(headers=headers, delivery_mode=2, message_id="m"))
    return publish_record(HEAD, raw, b"body", 5)


def test_all_keys_count_each_once_the_published_one_first():
    _, keys = with_copies(HEAD, record(CC=["a", "k", "b"], BCC=["c", "a"]), 5)
    assert keys == ("k", "a", "b", "c")


def test_bcc_is_in_no_header_and_everything_else_is():
    stored, _ = with_copies(HEAD, record(CC=["a"], BCC=["c"], other=1), 5)
    properties = decode_properties(stored.properties)
    assert properties.headers == {"CC": ["a"], "other": 1}
    assert (properties.delivery_mode, properties.message_id, stored.body) == (2, "m", b"body")
    assert secret_keys(stored) == ("c",)
    assert secret_keys(record(CC=["a"])) == ()


def test_without_bcc_the_record_is_the_one_that_came():
    came = record(CC=["a"])
    assert with_copies(HEAD, came, 5)[0] is came


def test_what_is_no_text_in_the_array_is_passed_over():
    assert copy_keys(record(CC=["a", 7, None]).properties, CC) == ("a",)


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_a_header_that_is_no_array_is_refused(name):
    with pytest.raises(AmqpError, match=f"PRECONDITION_FAILED - invalid message: header {name}"):
        with_copies(HEAD, record(**{name: "a"}), 5)


def test_no_headers_no_copies():
    assert copy_keys(b"\0\0", BCC) == ()


def test_too_many_copies_are_refused():
    keys = [str(number) for number in range(COPIES_MAX)]
    assert len(with_copies(HEAD, record(CC=keys), 5)[1]) == COPIES_MAX + 1
    with pytest.raises(AmqpError, match=f"at most {COPIES_MAX}"):
        with_copies(HEAD, record(CC=keys, BCC=["one too many"]), 5)
