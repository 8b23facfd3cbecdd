"""The routes of publishers: remembered, forgotten with the topology, bounded."""

import pytest

from penstock.adapters.amqp.burial import letter_head
from penstock.adapters.amqp.direct_reply import KEY_PREFIX
from penstock.adapters.amqp.publish_routes import COPIES_MAX, ROUTES_MAX, PublishRoutes
from penstock.testing.amqp_peer import AmqpBench
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.methods.queue import Bind, Declare
from penstock.wire.amqp.origin import PublishHead


@pytest.fixture
def vhost():
    bench = AmqpBench()
    peer = bench.client()
    peer.call(1, Declare(queue="q"))
    for key in ("a.#", "*.b", "#"):
        peer.call(1, Bind(queue="q", exchange="amq.topic", routing_key=key))
    return bench.house.vhosts["/"]


@pytest.fixture
def routes(vhost):
    return PublishRoutes(vhost)


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
    vhost.changed()
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
    routes.of_keys("", ("q", *[str(number) for number in range(COPIES_MAX)]))
    assert len(routes) == 0


def test_direct_replies_have_no_route(routes):
    assert routes.find(letter_head("", KEY_PREFIX + "x")) is None
    assert routes.find(letter_head("amq.topic", KEY_PREFIX + "x")) is not None


def test_what_may_not_be_published_is_an_error(routes):
    with pytest.raises(AmqpError, match="NOT_FOUND"):
        routes.find(letter_head("nowhere", "k"))
    with pytest.raises(AmqpError, match="NOT_IMPLEMENTED"):
        routes.find(PublishHead("", "q", False, True, b"\x00\x01q"))
