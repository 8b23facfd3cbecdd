"""What operators see and change of topics and groups, over an engine in memory."""

import pytest

from penstock.engine.host import SubscriptionOptions
from penstock.engine.ports import Publication
from penstock.engine.topic import DirectRoute
from penstock.model.errors import AlreadyExists, NotFound, PenstockError, SettingsError
from penstock.model.names import topic_name
from penstock.model.record import neutral_record
from penstock.model.steps import finished
from penstock.server.admin import Administration
from penstock.testing.broker import in_memory_engine


class Desk:
    """A protocol with one group that nobody has seen read anything."""

    prefix = "rocketmq/"

    def __init__(self, engine):
        self.engine = engine
        self.created = []
        self.deleted = []
        self.resets = []
        self.modes = {}
        self.forgotten = []

    def place(self):
        return {"broker": "a", "cluster": "c", "address": "h:1", "name_server": "h:2"}

    def create_topic(self, name, queues):
        self.engine.create_topic(name, queues=queues)
        self.created.append((name.name, queues))

    def delete_topic(self, topic):
        self.deleted.append(topic.name.name)

    def group_names(self):
        return ["idle", "readers"]

    def members(self, group):
        return [f"{group}@1", f"{group}@2"]

    def has_offset(self, queue, group):
        return queue.number == 0

    def mode(self, topic, group):
        return self.modes.get((topic.name.name, group), ("pull", -1))

    def set_mode(self, topic, group, mode, share):
        self.modes[topic.name.name, group] = (mode, share)

    def reset(self, queue, group, offset):
        self.resets.append((queue.number, group, offset))

    def forget(self, topic, group):
        self.forgotten.append((topic.name.name if topic else None, group))


@pytest.fixture
def core():
    return in_memory_engine()


@pytest.fixture
def desk(core):
    return Desk(core.engine)


@pytest.fixture
def admin(core, desk):
    return Administration(core.engine, core.clock, core.settle, [desk])


def publish(core, topic, bodies, queue=0):
    route = DirectRoute(core.engine.topic(topic_name(topic)).queues[queue])
    outlet = core.connect()
    outlet.channel.publish(
        [Publication(neutral_record(body), route=route, token=n) for n, body in enumerate(bodies)]
    )
    core.settle()


def subscribe(core, topic, name):
    return core.engine.create_subscription(topic_name(topic), name, SubscriptionOptions())


def test_a_topic_is_made_listed_shown_and_deleted(core, admin):
    admin.create_topic("orders", queues=3)
    publish(core, "orders", [b"one", b"two"], queue=1)
    assert [(row.name, row.queues, row.messages) for row in finished(admin.topics()).rows] == [
        ("orders", 3, 2)
    ]
    shown = admin.topic("orders")
    assert [(each.queue, each.end_offset) for each in shown.each_queue] == [(0, 0), (1, 2), (2, 0)]
    assert shown.bytes == sum(each.bytes for each in shown.each_queue) > 0
    admin.delete_topic("orders")
    assert finished(admin.topics()).total == 0


def test_a_protocol_makes_topics_its_own_way_and_hears_of_their_end(admin, desk):
    admin.create_topic("orders", queues=3)
    admin.delete_topic("orders")
    assert (desk.created, desk.deleted) == ([("orders", 3)], ["orders"])
    assert finished(admin.topics()).total == 0


def test_topics_of_one_name_in_two_spaces_are_two(admin):
    admin.create_topic("orders")
    admin.create_topic("orders", "eu", queues=1)
    assert admin.topic("orders", "eu").queues == 1
    admin.delete_topic("orders", "eu")
    assert admin.topic("orders").queues == 4


@pytest.mark.parametrize(
    ("order", "error"),
    [
        (lambda admin: admin.create_topic("there"), AlreadyExists),
        (lambda admin: admin.create_topic("new", queues=0), SettingsError),
        (lambda admin: admin.create_topic("new", queues=1025), SettingsError),
        (lambda admin: admin.create_topic("new\n"), SettingsError),
        (lambda admin: admin.topic("gone"), NotFound),
        (lambda admin: admin.delete_topic("gone"), NotFound),
        (lambda admin: admin.group("gone"), NotFound),
        (lambda admin: admin.reset("gone", "there", to="latest"), NotFound),
        (lambda admin: admin.delete_group("gone"), NotFound),
        (lambda admin: admin.set_mode("g", "gone", mode="pop"), NotFound),
        (lambda admin: admin.set_mode("g", "there", mode="shove"), SettingsError),
    ],
)
def test_what_cannot_be_is_an_error_that_says_so(admin, order, error):
    admin.create_topic("there")
    with pytest.raises(error, match=r"there|queues|control|gone|pull"):
        order(admin)


def test_internal_topics_are_listed_on_request_only(core, admin):
    admin.create_topic("orders")
    admin.create_topic("%RETRY%g")
    subscribe(core, "%RETRY%g", "g")
    assert [row.name for row in finished(admin.topics()).rows] == ["orders"]
    assert finished(admin.topics(with_hidden=True)).total == 2
    named = [row.topic for row in finished(admin.groups(with_hidden=True)).rows]
    assert "%RETRY%g" in named
    assert "%RETRY%g" not in [row.topic for row in finished(admin.groups()).rows]


def test_lag_is_told_in_messages_bytes_and_seconds(core, admin):
    admin.create_topic("orders", queues=2)
    subscription = subscribe(core, "orders", "audit")
    publish(core, "orders", [b"a", b"b", b"c"])
    core.clock.advance(5000)
    publish(core, "orders", [b"d"], queue=1)
    core.clock.advance(1500)
    (view,) = admin.group("audit")
    assert (view.lag_messages, view.lag_seconds, view.mode) == (4, 6.5, "push")
    assert view.lag_bytes == admin.topic("orders").bytes
    assert [each.lag_seconds for each in view.queues] == [6.5, 1.5]
    first = core.engine.topic(topic_name("orders")).queues[0]
    subscription.settle_upto(first.queue_id, 3)
    (view,) = admin.group("audit")
    assert (view.lag_messages, view.lag_seconds) == (1, 1.5)
    assert [each.offset for each in view.queues] == [3, 0]


@pytest.mark.parametrize(
    ("to", "offsets"),
    [("earliest", [0, 0]), ("latest", [3, 1]), (2, [2, 1]), ("time:+4000", [3, 0])],
)
def test_a_group_is_moved_in_all_its_queues(core, admin, to, offsets):
    admin.create_topic("orders", queues=2)
    subscribe(core, "orders", "audit")
    began_ms = core.clock.wall_ms()
    publish(core, "orders", [b"a", b"b", b"c"])
    core.clock.advance(5000)
    publish(core, "orders", [b"d"], queue=1)
    if isinstance(to, str) and to.startswith("time:"):
        to = f"time:{began_ms + 4000}"
    admin.reset("audit", "orders", to=to)
    (view,) = admin.group("audit")
    assert [each.offset for each in view.queues] == offsets


def test_only_the_named_queue_is_moved(core, admin):
    admin.create_topic("orders", queues=2)
    subscribe(core, "orders", "audit")
    publish(core, "orders", [b"a"])
    publish(core, "orders", [b"b"], queue=1)
    admin.reset("audit", "orders", to="latest", queue=1)
    assert [each.offset for each in admin.group("audit")[0].queues] == [0, 1]
    with pytest.raises(SettingsError, match="queues 0 to 1"):
        admin.reset("audit", "orders", to="latest", queue=2)
    with pytest.raises(SettingsError, match="earliest, latest"):
        admin.reset("audit", "orders", to="yesterday")


def test_a_group_that_reads_some_queues_is_shown_moved_and_purged_in_those(core, admin):
    admin.create_topic("orders", queues=3)
    queues = core.engine.topic(topic_name("orders")).queues
    options = SubscriptionOptions()
    core.engine.subscribe_queue(topic_name("orders"), "audit", queues[1].queue_id, options)
    for number in range(3):
        publish(core, "orders", [b"a", b"b"], queue=number)
    (view,) = admin.group("audit")
    assert [(each.queue, each.lag_messages) for each in view.queues] == [(1, 2)]
    assert finished(admin.topics()).rows[0].ready == 2
    assert [each.offset for each in admin.reset("audit", "orders", to=1)] == [1]
    assert admin.purge_topic("orders") == 1
    with pytest.raises(NotFound, match="'audit' does not read"):
        admin.reset("audit", "orders", to=1, queue=0)


def test_groups_of_a_protocol_go_by_their_own_names_and_through_its_desk(core, admin, desk):
    admin.create_topic("orders", queues=2)
    subscribe(core, "orders", "rocketmq/readers")
    publish(core, "orders", [b"a"])
    rows = finished(admin.groups()).rows
    assert [(row.group, row.protocol, row.topic) for row in rows] == [
        ("readers", "rocketmq", "orders"),
        ("idle", "rocketmq", ""),
    ]
    (view,) = admin.group("readers")
    assert view.members == ["readers@1", "readers@2"]
    assert [each.offset for each in view.queues] == [0, -1]
    admin.set_mode("readers", "orders", mode="pop", share=2)
    (view,) = admin.group("readers")
    assert (view.mode, view.share) == ("pop", 2)
    admin.reset("readers", "orders", to="latest", queue=0)
    assert desk.resets == [(0, "readers", 1)]
    assert admin.delete_group("readers") == 1
    assert desk.forgotten == [("orders", "readers"), (None, "readers")]
    assert admin.group("idle")[0].topic == ""


def test_a_subscription_of_the_engine_is_deleted_from_one_topic_or_from_all(core, admin):
    for topic in ("a", "b", "c"):
        admin.create_topic(topic)
        subscribe(core, topic, "audit")
    assert admin.delete_group("audit", "b") == 1
    assert [row.topic for row in finished(admin.groups(contains="audit")).rows] == ["a", "c"]
    assert admin.delete_group("audit") == 2


def test_without_a_protocol_that_knows_modes_there_are_none(core):
    admin = Administration(core.engine, core.clock, core.settle)
    admin.create_topic("orders")
    with pytest.raises(PenstockError, match="--rocketmq"):
        admin.set_mode("g", "orders", mode="pop")


def test_long_listings_come_in_pages(core, admin, monkeypatch):
    monkeypatch.setattr("penstock.server.admin.PAGE_ROWS_MAX", 2)
    for number in range(3):
        admin.create_topic(f"t{number}")
        subscribe(core, f"t{number}", "audit")
    assert [row.name for row in finished(admin.topics()).rows] == ["t0", "t1"]
    assert [row.name for row in finished(admin.topics(offset=2)).rows] == ["t2"]
    seen = []
    while len(seen) < finished(admin.groups()).total:
        seen += [(row.group, row.topic) for row in finished(admin.groups(offset=len(seen))).rows]
    assert seen == [("audit", "t0"), ("audit", "t1"), ("audit", "t2"), ("idle", ""),
                    ("readers", "")]  # fmt: skip


def test_each_protocol_says_what_the_broker_is_in_its_cluster(core, admin):
    assert [each["name_server"] for each in admin.places()] == ["h:2"]
    assert Administration(core.engine, core.clock, core.settle).places() == []
