"""Laws of dividing: every queue exactly once, and nobody far from the others."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.assignment import (
    ALL_QUEUES,
    QueueRef,
    average,
    average_by_circle,
    consistent_hash,
    machine_room,
    machine_room_nearby,
    pop_share,
)

QUEUES = st.lists(
    st.builds(QueueRef, st.just("t"), st.sampled_from(["r1@b", "r2@b"]), st.integers(0, 20)),
    min_size=1,
    unique=True,
)
MEMBERS = st.lists(st.text("abc12", min_size=1, max_size=4), min_size=1, max_size=9, unique=True)
EVEN = st.sampled_from([average, average_by_circle])


def room_of_member(member):
    return "r1" if member[0] in "ab1" else "r2"


NEARBY = machine_room_nearby(average, lambda queue: queue.broker[:2], room_of_member)
COMPLETE = st.sampled_from(
    [average, average_by_circle, consistent_hash, machine_room(["r1", "r2"]), NEARBY]
)


@given(COMPLETE, QUEUES, MEMBERS)
def test_every_queue_goes_to_exactly_one_member(strategy, queues, members):
    taken = [queue for me in members for queue in strategy(me, queues, members)]
    assert sorted(taken) == sorted(queues)


@given(EVEN, QUEUES, MEMBERS)
def test_nobody_has_two_queues_more_than_another(strategy, queues, members):
    sizes = [len(strategy(me, queues, members)) for me in members]
    assert max(sizes) - min(sizes) <= 1


@given(COMPLETE, QUEUES, MEMBERS, st.randoms())
def test_the_order_in_which_queues_and_members_are_named_does_not_matter(
    strategy, queues, members, chance
):
    before = {me: strategy(me, queues, members) for me in members}
    chance.shuffle(queues)
    chance.shuffle(members)
    assert {me: strategy(me, queues, members) for me in members} == before


@given(EVEN, QUEUES, MEMBERS, st.integers(-1, 10))
def test_with_pop_every_queue_has_somebody_and_nobody_has_one_twice(
    strategy, queues, members, share
):
    covered = set()
    for me in members:
        taken = pop_share(strategy, me, queues, members, share)
        assert len(taken) == len(set(taken))
        covered |= set(taken)
    brokers = {queue.broker for queue in covered if queue.queue == ALL_QUEUES}
    assert all(queue in covered or queue.broker in brokers for queue in queues)


@given(QUEUES, MEMBERS)
def test_with_pop_and_a_share_each_queue_has_share_more_readers(queues, members):
    share = len(members) - 2
    if share < 1 or len(members) > len(queues):
        return
    taken = [each for me in members for each in pop_share(average, me, queues, members, share)]
    assert all(taken.count(queue) == share + 1 for queue in queues)
