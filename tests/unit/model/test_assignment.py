"""Strategies of dividing queues, against tables made by hand."""

import hashlib

import pytest

from penstock.model.assignment import (
    ALL_QUEUES,
    AVG,
    AVG_BY_CIRCLE,
    CONFIG,
    CONSISTENT_HASH,
    MACHINE_ROOM,
    MACHINE_ROOM_NEARBY,
    RING_POINTS,
    STRATEGIES,
    QueueRef,
    average,
    average_by_circle,
    consistent_hash,
    fixed,
    machine_room,
    machine_room_nearby,
    pop_share,
)


def queues(count, broker="b", topic="t"):
    return [QueueRef(topic, broker, number) for number in range(count)]


def numbers(taken):
    return [queue.queue for queue in taken]


def members(count):
    return [f"c{number}" for number in range(count)]


def shares(strategy, queue_count, member_count):
    everybody = members(member_count)
    return [numbers(strategy(me, queues(queue_count), everybody)) for me in everybody]


@pytest.mark.parametrize(
    ("queue_count", "member_count", "expected"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, 4, [[0], [1], [2], [3]]),
        (2, 4, [[0], [1], [], []]),
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (3, 1, [[0, 1, 2]]),
    ],
)
def test_avg_gives_contiguous_blocks(queue_count, member_count, expected):
    assert shares(average, queue_count, member_count) == expected


@pytest.mark.parametrize(
    ("queue_count", "member_count", "expected"),
    [
        (8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (2, 4, [[0], [1], [], []]),
        (4, 4, [[0], [1], [2], [3]]),
    ],
)
def test_avg_by_circle_deals_out_like_cards(queue_count, member_count, expected):
    assert shares(average_by_circle, queue_count, member_count) == expected


def test_queues_are_sorted_by_topic_broker_and_number_and_members_by_id():
    mixed = [QueueRef("t", "b2", 0), QueueRef("t", "b1", 10), QueueRef("t", "b1", 2)]
    assert average("a", mixed, ["z", "a"]) == [QueueRef("t", "b1", 2), QueueRef("t", "b1", 10)]
    assert average("z", mixed, ["z", "a"]) == [QueueRef("t", "b2", 0)]


def test_the_ring_key_is_spelled_as_every_client_spells_it():
    key = QueueRef("T", "B", 3).ring_key
    assert key == "MessageQueue [topic=T, brokerName=B, queueId=3]"
    assert RING_POINTS == 10


def test_consistent_hash_takes_the_next_point_on_the_ring():
    """Made by hand from MD5: only the place of each queue among all points counts."""

    def place(text):
        return int(hashlib.md5(text.encode()).hexdigest()[:8], 16)

    points = sorted((place(f"{member}-{r}"), member) for member in members(3) for r in range(10))
    expected = {member: [] for member in members(3)}
    for queue in queues(16):
        after = [member for at, member in points if at >= place(queue.ring_key)]
        expected[after[0] if after else points[0][1]].append(queue.queue)
    assert shares(consistent_hash, 16, 3) == list(expected.values())


def test_a_member_that_leaves_the_ring_gives_its_queues_away_and_moves_no_others():
    before = {me: consistent_hash(me, queues(32), members(4)) for me in members(4)}
    after = {me: consistent_hash(me, queues(32), members(3)) for me in members(3)}
    assert all(set(before[me]) <= set(after[me]) for me in members(3))


def test_config_gives_what_was_configured_and_checks_nothing():
    strategy = fixed(queues(2))
    assert strategy("", [], []) == queues(2)
    strategy("", [], []).clear()
    assert strategy("", [], []) == queues(2)


def test_machine_room_takes_only_configured_rooms_and_deals_the_rest_singly():
    near, far = queues(5, "hz@b1"), queues(3, "sh@b2")
    others = [*queues(1, "plain"), *queues(1, "a@b@c"), *queues(1, "hz@")]
    strategy = machine_room(["hz"])
    everything = [*far, *near, *others]
    assert [numbers(strategy(me, everything, members(2))) for me in members(2)] == [
        [0, 1, 4],
        [2, 3],
    ]
    assert strategy("c0", far, members(2)) == []


def room(thing):
    return (thing.broker if isinstance(thing, QueueRef) else thing).partition("-")[0]


def test_nearby_divides_a_room_among_its_own_and_orphaned_rooms_among_all():
    nearby = machine_room_nearby(average, room, room)
    everything = [*queues(4, "hz-b"), *queues(2, "sh-b"), *queues(3, "bj-b")]
    everybody = ["hz-1", "hz-2", "sh-1"]
    taken = {
        me: [(q.broker, q.queue) for q in nearby(me, everything, everybody)] for me in everybody
    }
    assert taken == {
        "hz-1": [("hz-b", 0), ("hz-b", 1), ("bj-b", 0)],
        "hz-2": [("hz-b", 2), ("hz-b", 3), ("bj-b", 1)],
        "sh-1": [("sh-b", 0), ("sh-b", 1), ("bj-b", 2)],
    }


def test_nearby_without_a_room_is_an_error():
    nearby = machine_room_nearby(average, lambda _queue: "", room)
    with pytest.raises(ValueError, match="machine room"):
        nearby("hz-1", queues(1), ["hz-1"])


CHECKED = [
    average,
    average_by_circle,
    consistent_hash,
    machine_room(["hz"]),
    machine_room_nearby(average, room, room),
]


@pytest.mark.parametrize("strategy", CHECKED)
@pytest.mark.parametrize(
    ("me", "queue_count", "everybody"), [("", 1, ["a"]), ("a", 0, ["a"]), ("a", 1, [])]
)
def test_nothing_to_divide_is_an_error(strategy, me, queue_count, everybody):
    with pytest.raises(ValueError, match=r"cannot be given|no queues|no members"):
        strategy(me, queues(queue_count), everybody)


@pytest.mark.parametrize("strategy", CHECKED)
def test_a_stranger_gets_nothing(strategy):
    assert strategy("x", queues(4), members(2)) == []


def test_the_names_are_those_on_the_wire():
    assert list(STRATEGIES) == [AVG, AVG_BY_CIRCLE, CONSISTENT_HASH]
    assert (AVG, AVG_BY_CIRCLE) == ("AVG", "AVG_BY_CIRCLE")
    assert (CONSISTENT_HASH, CONFIG) == ("CONSISTENT_HASH", "CONFIG")
    assert (MACHINE_ROOM, MACHINE_ROOM_NEARBY) == ("MACHINE_ROOM", "MACHINE_ROOM_NEARBY")


@pytest.mark.parametrize("share", [-1, 0, 3, 4, 99])
def test_pop_with_everybody_sharing_takes_every_broker_once_as_all_queues(share):
    everything = [*queues(4, "b2"), *queues(2, "b1")]
    taken = pop_share(average, "c0", everything, members(4), share)
    assert taken == [QueueRef("t", "b1", ALL_QUEUES), QueueRef("t", "b2", ALL_QUEUES)]


@pytest.mark.parametrize(
    ("me", "share", "expected"),
    [
        ("c0", 1, [0, 1, 2, 3]),
        ("c3", 1, [6, 7, 0, 1]),
        ("c0", 2, [0, 1, 2, 3, 4, 5]),
        ("c3", 2, [6, 7, 0, 1, 2, 3]),
        ("x", 2, []),
    ],
)
def test_pop_with_a_share_helps_the_next_members_round_the_circle(me, share, expected):
    assert numbers(pop_share(average, me, queues(8), members(4), share)) == expected


def test_pop_with_more_members_than_queues_gives_each_one_queue():
    everybody = members(8)
    taken = [numbers(pop_share(average, me, queues(3), everybody, 2)) for me in everybody]
    assert taken == [[0], [1], [2], [0], [1], [2], [0], [1]]
    assert pop_share(average, "x", queues(3), everybody, 2) == []
