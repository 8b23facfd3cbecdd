"""The demo's Pulsar till: pulsar-client as anybody would use it, and our own client."""

import queue

import pytest

from kit.pulsar_peer import PulsarRest
from penstock.demo.story import TOPIC
from penstock.demo.story.publishers import PULSAR_WINDOW, OwnPulsarPublisher, PulsarPublisher
from penstock.demo.story.shop import SendOutcome
from penstock.testing.running import BrokerProcess, eventually

library = pytest.importorskip("pulsar", reason="the wheel pulsar-client is not installed")

ORDERS = 300
ANSWER_S_MAX = 20
QUOTA = f"persistent/public/default/{TOPIC}/backlogQuota"


@pytest.fixture
def broker(tmp_path):
    with BrokerProcess(tmp_path / "data", flags=("--set", "flow.hold_ms_max=300")) as process:
        yield process


@pytest.fixture(params=[PulsarPublisher, OwnPulsarPublisher])
def publisher(broker, request):
    found = request.param(broker.endpoints["pulsar"])
    yield found
    found.close()


@pytest.fixture
def consumer(broker):
    quiet = library.ConsoleLogger(library.LoggerLevel.Error)
    client = library.Client(f"pulsar://{broker.endpoints['pulsar']}", logger=quiet)
    yield client.subscribe(TOPIC, "s")
    client.close()


def fates_of(fates, count):
    return [fates.get(timeout=ANSWER_S_MAX) for _ in range(count)]


def place(publisher, fates, count):
    for number in range(count):
        publisher.send(f"order-{number}", b"%d" % number, lambda fate, _reason: fates.put(fate))


def received(consumer, count):
    return [consumer.receive(timeout_millis=ANSWER_S_MAX * 1000) for _ in range(count)]


def test_orders_are_confirmed_and_carry_key_and_tag(publisher, consumer):
    fates = queue.SimpleQueue()
    place(publisher, fates, ORDERS)
    assert fates_of(fates, ORDERS) == [SendOutcome.CONFIRMED] * ORDERS
    found = received(consumer, ORDERS)
    assert [each.data() for each in found] == [b"%d" % number for number in range(ORDERS)]
    assert (found[7].partition_key(), found[7].properties()) == ("order-7", {"TAGS": "new"})


def test_orders_that_are_held_for_too_long_are_kept_and_come_once(broker, publisher, consumer):
    """The broker closes the producer; the client comes again with all that has no receipt."""
    rest, fates = PulsarRest(f"http://{broker.endpoints['http']}"), queue.SimpleQueue()
    rest.done("POST", QUOTA, {"limitSize": 100, "policy": "producer_request_hold"})
    place(publisher, fates, 1)
    assert fates_of(fates, 1) == [SendOutcome.CONFIRMED]
    place(publisher, fates, PULSAR_WINDOW)
    assert not publisher.has_room

    def is_held():
        return any(each["reason"] == "quota" for each in rest.get("/api/flow").json["stages"])

    eventually(is_held)
    eventually(lambda: not is_held(), what="it is closed")
    assert fates.empty()
    rest.done("DELETE", QUOTA)
    assert set(fates_of(fates, PULSAR_WINDOW)) == {SendOutcome.CONFIRMED}
    bodies = [each.data() for each in received(consumer, 1 + PULSAR_WINDOW)]
    assert bodies == [b"0", *[b"%d" % number for number in range(PULSAR_WINDOW)]]


def test_what_is_refused_is_told_so(broker, publisher, consumer):
    rest, fates = PulsarRest(f"http://{broker.endpoints['http']}"), queue.SimpleQueue()
    rest.done("POST", QUOTA, {"limitSize": 100, "policy": "producer_exception"})
    place(publisher, fates, 1)
    assert fates_of(fates, 1) == [SendOutcome.CONFIRMED]
    place(publisher, fates, 3)
    assert fates_of(fates, 3) == [SendOutcome.REFUSED] * 3
