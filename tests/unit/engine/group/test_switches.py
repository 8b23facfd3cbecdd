"""What an operator turned off for a group."""

from penstock.engine.group.switches import ALL_ON, GROUPS_MAX, GroupSwitches, GroupSwitchRegistry


def test_everything_is_on_unless_turned_off():
    board = GroupSwitchRegistry()
    assert board.get("g") == GroupSwitches(True, True, True)
    assert board.refusal("g", is_broadcast=True) is None


def test_a_group_that_may_not_consume_is_refused_by_name():
    board = GroupSwitchRegistry()
    board.set("g", GroupSwitches(is_consuming=False))
    assert board.refusal("g", is_broadcast=False) == "consuming is turned off for the group 'g'"
    assert board.refusal("other", is_broadcast=False) is None


def test_turning_broadcasting_off_stops_only_those_who_broadcast():
    board = GroupSwitchRegistry()
    board.set("g", GroupSwitches(is_broadcast_allowed=False))
    assert "broadcasting" in board.refusal("g", is_broadcast=True)
    assert board.refusal("g", is_broadcast=False) is None


def test_groups_with_everything_on_take_no_room():
    board = GroupSwitchRegistry(groups_max=1)
    off = GroupSwitches(is_notified=False)
    assert board.set("g", off)
    assert not board.set("h", off)
    assert board.set("h", ALL_ON)
    assert list(board.items()) == [("g", off)]
    assert board.set("g", ALL_ON)
    assert board.set("h", off)
    assert GROUPS_MAX == 10_000
