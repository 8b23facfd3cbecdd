"""``penstock why`` about Pulsar: why a consumer gets nothing, and why a producer has to wait.

Every state is brought about over a socket, in a broker that runs, and looked for in ``/api/flow``
and in the sentences of ``why``: which consumer, of which subscription, for what reason, and on whom
it depends. What is said is of the last moments (``server/view.py``: a page is as old as it takes to
make a few of them); only a machine that is drowned in other work makes a test wait for it.
"""

import itertools
import json
import re
import shutil

import pytest
from click.testing import CliRunner

from kit.pulsar_peer import PulsarPeer, PulsarRest
from penstock.cli.why import command
from penstock.client.pulsar import Client, InitialPosition
from penstock.testing.running import eventually, running_broker

AT_ONCE = ("--set", "flow.behind_ms=0")
"""Whoever waits is behind: two dozen states are brought about over sockets, and five seconds for
each would be two minutes. In which time each is found with the setting a broker comes with is asked
on the manual clock (``test_exam_pulsar.py``)."""
HOUR_MS = 3_600_000
LARGE = b"x" * 100_000

NUMBERS = itertools.count(1)


class Place:
    """A broker, and a topic of its own in it."""

    def __init__(self, broker):
        self.broker = broker
        self.rest = PulsarRest(f"http://{broker.endpoints['http']}")
        self.name = f"t{next(NUMBERS)}"
        self.topic = f"persistent://public/default/{self.name}"
        self._peers = []

    def peer(self):
        peer = PulsarPeer(self.broker.address("pulsar"))
        peer.connect(client_version="till")
        self._peers.append(peer)
        return peer

    def close(self):
        for peer in self._peers:
            peer.close()

    def policy(self, name, value):
        self.rest.done("POST", f"persistent/public/default/{self.name}/{name}", value)

    def partitioned(self):
        """It has two partitions, both of which are returned, and is meant by the first."""
        self.rest.done("PUT", f"persistent/public/default/{self.name}/partitions", 2)
        topics = [f"{self.topic}-partition-{number}" for number in range(2)]
        self.topic = topics[0]
        return topics

    def publish(self, *payloads, **metadata):
        self.peer().producer(self.topic).publish_all(payloads, **metadata)

    def consumer(self, name, kind="Shared", permits=100, **fields):
        """From the first message on, on a connection of its own."""
        fields = {"initialPosition": "Earliest", "consumer_name": name, **fields}
        consumer = self.peer().consumer(self.topic, "clerks", kind, **fields)
        if permits:
            consumer.flow(permits)
        return consumer

    def asked(self, *arguments):
        result = CliRunner().invoke(command, [*arguments, "--data", str(self.broker.data)])
        assert result.exit_code == 0, result.exception
        return result.output

    def page(self):
        return json.loads(self.asked("--json"))

    @property
    def subscription(self):
        return f"{self.name}/pulsar/clerks"

    def consumers(self):
        """Those of its subscription in ``/api/flow``, which may be some moments old."""
        stages = [each for each in self.page()["stages"] if each["name"] == self.subscription]
        return [consumer for stage in stages for consumer in stage["consumers"]]

    def seen(self, name):
        found = [each for each in self.consumers() if each["name"].startswith(f"{name} of ")]
        return found[0] if found else {"blocked_by": None}

    def withheld(self, name, *reasons):
        """Those are soon the reasons for which a consumer gets nothing; what ``why`` says."""
        eventually(
            lambda: self.seen(name)["blocked_by"] == list(reasons),
            what=f"{name} gets nothing because of {reasons}; {self.seen(name)}",
        )
        return self.about(self.seen(name)["name"])

    def about(self, name):
        """The first line of ``why NAME``."""
        return self.asked(name).splitlines()[0]

    def finding(self):
        """What the broker says of the subscription, unasked."""
        found = [each for each in self.page()["findings"] if self.subscription in each["sentence"]]
        return found[0]["sentence"] if found else ""


@pytest.fixture(scope="module")
def broker():
    with running_broker(
        *AT_ONCE, "--set", "pulsar.active_consumer_failover_delay_ms=100"
    ) as started:
        yield started


@pytest.fixture
def place(broker):
    found = Place(broker)
    yield found
    found.close()


@pytest.fixture
def small(request):
    """A place in a broker with settings of its own."""
    flags = [flag for each in request.param for flag in ("--set", each)]
    with running_broker(*AT_ONCE, *flags) as started:
        found = Place(started)
        yield found
        found.close()


# Consumers


def test_no_permits(place):
    place.publish(*[b"x"] * 10)
    place.consumer("ann", permits=3).messages(3)
    said = place.withheld("ann", "demand")
    assert said.startswith("consumer ann of clerks on pulsar-")
    assert said.endswith(f" in subscription {place.subscription} does not ask for messages.")
    wanted = (
        f"7 messages are ready in subscription {place.subscription}, but no consumer asks for "
        r"messages: nobody pulls \(consumer ann of clerks on pulsar-\d+ [0-9.:]+\)\."
    )
    assert re.fullmatch(wanted, place.finding())


@pytest.fixture
def client(place):
    host, port = place.broker.address("pulsar")
    with Client(f"pulsar://{host}:{port}") as found:
        yield found


def subscribed(place, client, **options):
    """By Penstock's own client, which says why it takes no more."""
    return client.subscribe(
        place.topic,
        "clerks",
        consumer_name="ann",
        receiver_queue_size=4,
        initial_position=InitialPosition.EARLIEST,
        **options,
    )


def hears(place, cause):
    """The broker is told within seconds, and names the consumer for it."""
    eventually(
        lambda: (place.seen("ann").get("says") or {}).get("cause") == cause,
        what=f"{cause} is heard of; {place.seen('ann')}",
    )


def test_our_client_says_that_its_application_takes_nothing_and_then_that_it_does(place, client):
    place.publish(*[b"x"] * 10)
    consumer = subscribed(place, client)
    hears(place, "not-received")
    assert place.seen("ann")["says"]["waiting"] == 4
    said = place.finding()
    assert "6 messages are ready" in said
    assert "4 messages" in said
    assert "receiver queue" in said
    for _ in range(10):
        consumer.acknowledge(consumer.receive(10_000))
    eventually(lambda: not place.finding(), what="all is well again")
    hears(place, None)


def test_our_client_says_that_it_is_paused(place, client):
    consumer = subscribed(place, client)
    consumer.pause()
    hears(place, "paused")
    place.publish(*[b"x"] * 10)
    eventually(
        lambda: "is paused by its application" in place.finding(),
        what=f"{place.page()['findings']}",
    )
    assert "is paused by its application" in place.about(place.seen("ann")["name"])


def test_unacked_messages(place):
    place.publish(*[b"x"] * 10)
    place.policy("maxUnackedMessagesOnConsumer", 4)
    place.consumer("ann").messages(4)
    said = place.withheld("ann", "unsettled")
    assert said == place.finding()
    assert f"6 messages are ready in subscription {place.subscription}; consumer ann of c" in said
    assert said.endswith(" is slow: it has 4 unsettled messages, its limit is 4.")


def test_unacked_messages_of_all_consumers_together(place):
    place.publish(*[b"x"] * 10)
    place.policy("maxUnackedMessagesOnSubscription", 4)
    place.consumer("ann").messages(4)
    place.consumer("ben")
    said = place.withheld("ben", "subscription-unsettled")
    assert said.endswith("waits: all consumers together have to settle first.")
    assert "together have as many unsettled as it allows (consumers ann of cl" in place.finding()


@pytest.mark.parametrize("small", [("flow.unacked_consumer_bytes_max=300000",)], indirect=True)
@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_unacked_bytes(small, kind):
    small.publish(*[LARGE] * 5)
    small.consumer("ann", kind).messages(3)
    said = small.withheld("ann", "bytes")
    assert said == small.finding()
    assert re.search(r"ann of .* is slow: it has 29\d.* KiB of unsettled messages, its lim", said)
    assert "is at its limit of bytes: it has to settle first" in small.asked("ann of clerks")


@pytest.mark.parametrize("small", [("flow.unsent_bytes_max=200000",)], indirect=True)
def test_a_client_that_does_not_read(small):
    """Its socket and the system's buffers are full: more than some MB."""
    ann = small.consumer("ann", permits=1000)
    small.publish(*[LARGE * 10] * 15)
    said = small.withheld("ann", "unsent")
    assert said == small.finding()
    assert said.endswith(" is slow: it does not read what it was sent.")
    ben = small.consumer("ben")
    ben.message()
    ann.peer.close()


def test_keys_that_another_one_has_yet_to_settle(place):
    keys = [f"k{number}" for number in range(50)]
    producer = place.peer().producer(place.topic)
    for key in keys:
        producer.publish(b"x", partition_key=key)
    ann = place.consumer("ann", "Key_Shared")
    held = [each.id for each in ann.messages(len(keys))]
    ben = place.consumer("ben", "Key_Shared")
    for key in keys:
        producer.publish(b"x", partition_key=key)
    said = place.withheld("ben", "draining")
    wanted = r"waits until the former owner of its keys has settled \(for consumer ann of cl.*\)\."
    assert re.search(wanted, said)
    assert place.seen("ben")["waits_for"] == place.seen("ann")["name"]
    assert re.search(r"\(consumer ben of cl.*, for consumer ann of cl.*\)\.", place.finding())
    ann.acked(*held)
    ben.message()


def test_keys_of_consumers_that_ask_for_nothing(place):
    """What is parked for them is bounded: 2,000 entries a consumer."""
    place.consumer("ann", "Key_Shared", permits=0)
    ben = place.consumer("ben", "Key_Shared", permits=5000)
    producer = place.peer().producer(place.topic)
    keys = (f"k{number}" for number in itertools.count())
    key = next(key for key in keys if not is_for(ben, producer, key))
    producer.publish_all([b"x"] * 4000, partition_key=key)
    said = place.withheld("ben", "look-ahead")
    assert said.endswith("waits: too much is parked for the keys of others.")
    assert re.search(r"consumers of other keys .* \(consumer ben of clerks", place.finding())
    ben.peer.gather()


def is_for(consumer, producer, key):
    """Whether a message of that key comes to this one."""
    producer.publish(b"x", partition_key=key)
    return bool(consumer.peer.gather())


@pytest.mark.parametrize(
    "small",
    [("topics.delayed_in_memory_max=40", "topics.delayed_on_disk_max=0")],
    indirect=True,
)
def test_no_room_to_put_delayed_messages_aside(small):
    ann = small.consumer("ann", permits=5)
    at_ms = 4_000_000_000_000 + HOUR_MS
    small.publish(*[b"late"] * 100, deliver_at_time=at_ms)
    small.publish(b"now")
    said = small.withheld("ann", "delayed-room")
    assert said.endswith("waits: no room to put delayed messages aside.")
    assert re.search(r"delayed_on_disk_max\) \(consumer ann of clerks .*\)\.", small.finding())
    ann.peer.expect_nothing()


def test_a_dispatch_rate(place):
    place.publish(*[b"x"] * 10)
    rate = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 60}
    place.policy("dispatchRate", rate)
    place.consumer("ann").message()
    said = place.withheld("ann", "rate")
    assert said.endswith(
        f" in subscription {place.subscription} waits: the dispatch rate is used up."
    )
    assert "but its dispatch rate is used up (consumer ann of clerks on " in place.finding()


def test_another_consumer_is_active(place):
    place.partitioned()
    place.publish(b"x")
    ann = place.consumer("ann", "Failover")
    place.consumer("ben", "Failover")
    ann.peer.expect("active_consumer_change", is_active=True)
    ann.message()
    said = place.withheld("ben", "inactive")
    assert re.search(r" stands by: another is active \(for consumer ann of clerks, .*\)\.", said)
    assert not place.finding(), "the active one has taken all there is"


@pytest.mark.parametrize(
    "small", [("pulsar.active_consumer_failover_delay_ms=600000",)], indirect=True
)
def test_another_consumer_is_to_take_over_first(small):
    small.partitioned()
    small.publish(b"x")
    small.consumer("ann", "Failover")
    small.consumer("ben", "Failover")
    assert small.withheld("ann", "inactive").endswith("is to take over in a moment.")
    assert re.search(r"stands by: .* \(for consumer ann of cl", small.withheld("ben", "inactive"))
    assert "another consumer is to take over first (consumers ann of clerks" in small.finding()


def test_who_stands_by_says_in_which_partition(place):
    topics = place.partitioned()
    peer = place.peer()
    consumers = [
        peer.consumer(topic, "clerks", "Failover", consumer_name=name)
        for topic in topics
        for name in ("ann", "ben")
    ]
    for _ in consumers:
        peer.expect("active_consumer_change")

    def standing():
        found = [each for each in place.consumers() if "inactive" in each["blocked_by"]]
        return {each["name"].partition(" on ")[0] for each in found}

    wanted = {"ben of clerks, partition 0,", "ann of clerks, partition 1,"}
    eventually(lambda: standing() == wanted)


def test_nothing_to_read(place):
    place.consumer("ann")
    said = place.withheld("ann", "nothing-ready")
    assert said.endswith(" waits: there is nothing to read for it.")
    assert not place.finding()


def test_a_consumer_that_is_served_has_no_reason(place):
    """A message that is on its way is no riddle."""
    ann = place.consumer("ann", permits=1)
    place.publish(b"x")
    ann.message()
    ann.flow(1)
    assert place.withheld("ann", "nothing-ready")


# Producers


def held_rows(place, name):
    """Stages of that name that are held: kind, reason, culprit."""
    rows = [each for each in place.page()["stages"] if name in each["name"]]
    return [(each["kind"], each["reason"], each["culprit"]) for each in rows if each["reason"]]


def test_a_producer_held_by_a_quota_is_named_with_who_has_not_acked(place):
    place.consumer("ann", permits=0)
    quota = {"limitSize": 5000, "policy": "producer_request_hold"}
    place.policy("backlogQuota", quota)
    peer = place.peer()
    producer = peer.producer(place.topic, "shop")
    for _ in range(10):
        producer.send(b"x" * 1000)
    stage = f"till/producer shop of {place.name}"
    wanted = (
        rf"backlog of topic '{place.name}' holds \d+ bytes, quota 5000 \(hold\); "
        "subscription pulsar/clerks has not settled it"
    )
    ((_, reason, culprit),) = eventually(lambda: held_rows(place, stage))
    assert reason == "quota"
    assert re.fullmatch(wanted, culprit)
    said = place.about(stage)
    assert re.match(
        rf"channel pulsar-\d+ [0-9.:]+ {stage} is held by a limit \(quota\): {wanted}[.;]", said
    )


def test_a_producer_held_by_a_rate_is_named(place):
    peer = place.peer()
    producer, other = peer.producer(place.topic, "shop"), peer.producer(f"{place.topic}-b", "news")
    place.policy("publishRate", {"publishThrottlingRateInMsg": 1})
    for _ in range(5):
        producer.send()
    other.send()
    stage = f"till/producer shop of {place.name}"
    rows = eventually(lambda: held_rows(place, stage))
    assert rows == [("channel", "rate", f"publish rate of topic '{place.name}' is used up")]
    assert f"{stage} is held by a limit (rate): publish rate of topic" in place.about(stage)
    assert not held_rows(place, "producer news")


def test_a_producer_held_by_an_alarm_is_named_with_it(place):
    limits = place.rest.call("GET", "/api/flow/limits").json
    total = shutil.disk_usage(place.broker.data).total
    place.rest.done("PUT", "/api/flow/limits", {"disk": f"{total}"})
    try:
        producer = place.peer().producer(place.topic, "shop")
        producer.send()
        stage = f"till/producer shop of {place.name}"
        rows = eventually(lambda: held_rows(place, stage))
        assert [row[:2] for row in rows] == [("channel", "disk")]
        first, _, who, alarm, *_ = place.asked().splitlines()
        assert first.startswith("The disk alarm holds 1 publishing connection: ")
        assert re.fullmatch(r"  connection pulsar-\d+ [0-9.:]+ till", who)
        assert alarm.startswith("  -> disk alarm: ")
    finally:
        place.rest.done("PUT", "/api/flow/limits", {"disk": f"{limits['disk']['limit_bytes']}"})
    producer.receipt()


def test_names_are_those_that_clients_gave(place):
    peer = place.peer()
    peer.producer(place.topic, "shop")
    host, port = peer.socket.getsockname()

    def names():
        found = [each["name"] for each in place.page()["stages"]]
        found = [each for each in found if f"{host}:{port}" in each]
        return found if len(found) == 2 else None

    connection, producer = eventually(names)
    assert re.fullmatch(rf"pulsar-\d+ {host}:{port} till", connection)
    assert producer == f"{connection}/producer shop of {place.name}"
