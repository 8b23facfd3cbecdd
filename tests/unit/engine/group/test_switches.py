"""What an operator turned off for a group."""

from penstock.engine.group.switches import ALL_ON, GROUPS_MAX, SwitchBoard, Switches


def test_everything_is_on_unless_turned_off():
    board = SwitchBoard()
    assert board.get("g") == Switches(True, True, True)
    assert board.refusal("g", is_broadcast=True) is None


def test_a_group_that_may_not_consume_is_refused_by_name():
    board = SwitchBoard()
    board.set("g", Switches(is_consuming=False))
    assert board.refusal("g", is_broadcast=False) == "consuming is turned off for the group 'g'"
    assert board.refusal("other", is_broadcast=False) is None


def test_turning_broadcasting_off_stops_only_those_who_broadcast():
    board = SwitchBoard()
    board.set("g", Switches(is_broadcast_allowed=False))
    assert "broadcasting" in board.refusal("g", is_broadcast=True)
    assert board.refusal("g", is_broadcast=False) is None


def test_groups_with_everything_on_take_no_room():
    board = SwitchBoard(groups_max=1)
    off = Switches(is_notified=False)
    assert board.set("g", off)
    assert not board.set("h", off)
    assert board.set("h", ALL_ON)
    assert list(board.items()) == [("g", off)]
    assert board.set("g", ALL_ON)
    assert board.set("h", off)
    assert GROUPS_MAX == 10_000
