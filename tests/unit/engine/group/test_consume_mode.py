"""Modes of consuming per (topic, group)."""

from penstock.engine.group.consume_mode import (
    SETTINGS_MAX,
    SHARE_UNSET,
    ConsumeMode,
    ConsumeModes,
    ModeSetting,
)

POP_2 = ModeSetting(ConsumeMode.POP, 2)


def test_without_a_setting_queues_are_divided_and_nothing_is_shared():
    setting = ConsumeModes().get("t", "g")
    assert (setting.mode, setting.share) == (ConsumeMode.PULL, -1)
    assert SHARE_UNSET == -1


def test_the_usual_can_be_another():
    assert ConsumeModes(POP_2).get("t", "g") is POP_2


def test_a_setting_is_for_one_group_on_one_topic():
    modes = ConsumeModes()
    assert modes.set("t", "g", POP_2)
    assert modes.get("t", "g") is POP_2
    assert modes.get("t", "other").mode is modes.get("other", "g").mode is ConsumeMode.PULL
    assert list(modes.items()) == [("t", "g", POP_2)]


def test_removing_goes_back_to_the_usual():
    modes = ConsumeModes()
    for topic, group in [("t", "g"), ("t", "h"), ("u", "g"), ("u", "h")]:
        modes.set(topic, group, POP_2)
    assert modes.remove("t", "g")
    assert not modes.remove("t", "g")
    modes.remove_topic("u")
    assert list(modes.items()) == [("t", "h", POP_2)]
    modes.remove_group("h")
    assert len(modes) == 0


def test_settings_are_bounded_and_known_ones_can_still_change():
    modes = ConsumeModes(settings_max=1)
    assert modes.set("t", "g", POP_2)
    assert not modes.set("t", "h", POP_2)
    assert modes.set("t", "g", ModeSetting(ConsumeMode.POP, 3))
    assert SETTINGS_MAX == 10_000
