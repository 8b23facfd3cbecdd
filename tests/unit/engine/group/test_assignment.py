"""What the broker answers a member that asks for its queues: some, none, or "keep yours"."""

import pytest

from penstock.engine.group.assignment import (
    SETTINGS_MAX,
    SHARE_UNSET,
    ConsumeMode,
    ConsumeModeRegistry,
    ModeSetting,
    assign,
)
from penstock.model.assignment import ALL_QUEUES, AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, QueueRef

QUEUES = [QueueRef("t", "b", number) for number in range(4)]
PULL = ModeSetting()
POP_ALL = ModeSetting(ConsumeMode.POP, -1)


def ask(member="c1", queues=QUEUES, members=("c0", "c1"), strategy=AVG, setting=PULL, **options):
    return assign(member, queues, members, strategy=strategy, setting=setting, **options)


def numbers(allotment):
    return [queue.queue for queue in allotment.queues]


def test_a_member_gets_its_part_by_the_strategy_it_names():
    assert numbers(ask()) == [2, 3]
    assert numbers(ask(strategy=AVG_BY_CIRCLE)) == [1, 3]
    assert len(numbers(ask(strategy=CONSISTENT_HASH, members=("c1",)))) == 4


def test_a_stranger_gets_none_and_is_not_told_to_keep():
    allotment = ask(member="x")
    assert (allotment.queues, allotment.is_keep) == ((), False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"queues": None}, "topic"),
        ({"members": None}, "group"),
        ({"strategy": "MACHINE_ROOM"}, "known are AVG"),
        ({"members": ()}, "no members"),
        ({"queues": []}, "no queues"),
        ({"member": ""}, "without an id"),
    ],
)
def test_a_broker_that_does_not_know_enough_says_keep(changes, reason):
    allotment = ask(**changes)
    assert allotment.is_keep
    assert reason in allotment.reason


def test_who_broadcasts_reads_everything_and_so_does_everybody_without_balancing():
    assert numbers(ask(is_broadcast=True, members=None)) == [0, 1, 2, 3]
    assert numbers(ask(is_balanced=False, members=None)) == [0, 1, 2, 3]


def test_with_pop_queues_are_shared():
    assert numbers(ask(setting=POP_ALL)) == [ALL_QUEUES]
    one = ModeSetting(ConsumeMode.POP, 1)
    allotment = ask(setting=one, members=("c0", "c1", "c2"))
    assert (numbers(allotment), allotment.mode) == ([2, 3], ConsumeMode.POP)


# ---- consume mode -------------------------------------------------------------------------------
# Modes of consuming per (topic, group).


POP_2 = ModeSetting(ConsumeMode.POP, 2)


def test_without_a_setting_queues_are_divided_and_nothing_is_shared():
    setting = ConsumeModeRegistry().get("t", "g")
    assert (setting.mode, setting.share) == (ConsumeMode.PULL, -1)
    assert SHARE_UNSET == -1


def test_the_usual_can_be_another():
    assert ConsumeModeRegistry(POP_2).get("t", "g") is POP_2


def test_a_setting_is_for_one_group_on_one_topic():
    modes = ConsumeModeRegistry()
    assert modes.set("t", "g", POP_2)
    assert modes.get("t", "g") is POP_2
    assert modes.get("t", "other").mode is modes.get("other", "g").mode is ConsumeMode.PULL
    assert list(modes.items()) == [("t", "g", POP_2)]


def test_removing_goes_back_to_the_usual():
    modes = ConsumeModeRegistry()
    for topic, group in [("t", "g"), ("t", "h"), ("u", "g"), ("u", "h")]:
        modes.set(topic, group, POP_2)
    assert modes.remove("t", "g")
    assert not modes.remove("t", "g")
    modes.remove_topic("u")
    assert list(modes.items()) == [("t", "h", POP_2)]
    modes.remove_group("h")
    assert len(modes) == 0


def test_settings_are_bounded_and_known_ones_can_still_change():
    modes = ConsumeModeRegistry(settings_max=1)
    assert modes.set("t", "g", POP_2)
    assert not modes.set("t", "h", POP_2)
    assert modes.set("t", "g", ModeSetting(ConsumeMode.POP, 3))
    assert SETTINGS_MAX == 10_000
