"""Members come by heartbeat and go by word, by connection or by silence."""

import pytest

from penstock.engine.group.membership import (
    GROUP_KEPT_MS,
    MEMBER_MS_MAX,
    SCAN_MS,
    Client,
    GroupEventKind,
    GroupTraits,
    Membership,
    MembershipLimits,
    TopicSubscription,
)

ORDERS = TopicSubscription("orders", "A || B", version=1)
BILLS = TopicSubscription("bills", version=1)


def client(name="c1", connection=1):
    return Client(name, connection)


def kinds(notices):
    return [notice.kind.value for notice in notices]


def audience(notices):
    (changed,) = [notice for notice in notices if notice.kind is GroupEventKind.CHANGED]
    return changed.audience


@pytest.fixture
def members():
    return Membership()


def test_the_times_are_those_that_clients_count_on():
    assert (MEMBER_MS_MAX, SCAN_MS, GROUP_KEPT_MS) == (120_000, 10_000, 600_000)


def test_the_first_heartbeat_makes_a_member_and_the_next_ones_are_no_news(members):
    first = members.heartbeat("g", client(), 0, wanted=[ORDERS])
    assert kinds(first) == ["joined", "wants", "changed"]
    assert audience(first) == (1,)
    assert members.heartbeat("g", client(), 30_000, wanted=[ORDERS]) == []
    assert members.client_ids("g") == ["c1"]
    assert members.group("g").members[1].seen_ms == 30_000
    assert members.group("g").members[1].joined_ms == 0


def test_everybody_is_told_when_another_one_joins(members):
    members.heartbeat("g", client("c2", 2), 0, wanted=[ORDERS])
    notices = members.heartbeat("g", client("c1", 1), 1, wanted=[ORDERS])
    assert kinds(notices) == ["joined", "changed"]
    assert set(audience(notices)) == {1, 2}
    assert members.client_ids("g") == ["c1", "c2"]


def test_a_client_is_a_member_of_as_many_groups_as_it_names(members):
    members.heartbeat("g", client(), 0)
    members.heartbeat("h", client(), 0)
    assert members.groups_of(1) == {"g", "h"}
    assert len(members) == 2


def test_who_says_good_bye_is_gone_and_the_rest_is_told(members):
    members.heartbeat("g", client("c1", 1), 0)
    members.heartbeat("g", client("c2", 2), 0)
    notices = members.leave("g", 1, 5)
    assert kinds(notices) == ["left", "changed"]
    assert (notices[0].client_id, audience(notices)) == ("c1", (2,))
    assert members.leave("g", 1, 6) == members.leave("nobody", 1, 6) == []


def test_a_closed_connection_leaves_all_its_groups_at_once(members):
    for group in ("g", "h"):
        members.heartbeat(group, client("c1", 1), 0)
        members.heartbeat(group, client("c2", 2), 0)
    notices = members.disconnected(1, 5)
    assert kinds(notices) == ["left", "changed", "left", "changed"]
    assert members.groups_of(1) == frozenset()
    assert members.client_ids("g") == members.client_ids("h") == ["c2"]
    assert members.disconnected(1, 6) == []


def test_the_last_one_leaves_nobody_to_tell(members):
    members.heartbeat("g", client(), 0)
    assert kinds(members.disconnected(1, 5)) == ["left"]
    assert members.client_ids("g") is None
    assert members.group("g").is_empty


def test_silence_for_more_than_two_minutes_ends_a_membership_at_the_next_scan(members):
    members.heartbeat("g", client("c1", 1), 0)
    members.heartbeat("g", client("c2", 2), 100_000)
    assert members.next_deadline_ms == SCAN_MS
    assert members.due(SCAN_MS - 1) == []
    assert members.due(MEMBER_MS_MAX) == []
    assert members.next_deadline_ms == MEMBER_MS_MAX + SCAN_MS
    assert members.due(MEMBER_MS_MAX + 1) == []
    notices = members.due(MEMBER_MS_MAX + SCAN_MS)
    assert kinds(notices) == ["expired", "changed"]
    assert (notices[0].connection, audience(notices)) == (1, (2,))


def test_a_group_is_remembered_for_ten_minutes_after_its_last_member(members):
    members.heartbeat("g", client(), 0, wanted=[ORDERS])
    members.disconnected(1, 1_000)
    assert members.due(1_000 + GROUP_KEPT_MS) == []
    assert members.wanted("g", "orders") == ORDERS
    assert members.groups_wanting("orders") == []
    assert kinds(members.due(1_000 + GROUP_KEPT_MS + SCAN_MS)) == ["forgotten"]
    assert members.group("g") is None
    assert members.next_deadline_ms is None


def test_a_topic_is_wanted_as_the_highest_version_says(members):
    members.heartbeat("g", client("c1", 1), 0, wanted=[TopicSubscription("t", "A", version=5)])
    older = members.heartbeat(
        "g", client("c2", 2), 1, wanted=[TopicSubscription("t", "B", version=4)]
    )
    assert kinds(older) == ["joined", "changed"]
    assert members.wanted("g", "t").expression == "A"
    newer = members.heartbeat(
        "g", client("c2", 2), 2, wanted=[TopicSubscription("t", "B", version=6)]
    )
    assert (kinds(newer), newer[0].topics) == (["wants"], ("t",))
    assert members.wanted("g", "t").expression == "B"


def test_a_higher_version_of_the_same_expression_is_no_news(members):
    members.heartbeat("g", client(), 0, wanted=[TopicSubscription("t", "A", version=5)])
    assert (
        members.heartbeat("g", client(), 1, wanted=[TopicSubscription("t", "A", version=9)]) == []
    )
    assert members.wanted("g", "t").version == 9


def test_topics_that_come_and_go_are_told(members):
    members.heartbeat("g", client(), 0, wanted=[ORDERS])
    notices = members.heartbeat("g", client(), 1, wanted=[BILLS])
    assert kinds(notices) == ["wants", "changed"]
    assert set(notices[0].topics) == {"orders", "bills"}
    assert members.groups_wanting("bills") == ["g"]
    assert members.groups_wanting("orders") == []


def test_a_heartbeat_that_says_nothing_about_topics_leaves_them(members):
    members.heartbeat("g", client(), 0, wanted=[ORDERS])
    assert members.heartbeat("g", client(), 1, wanted=None) == []
    assert members.wanted("g", "orders") == ORDERS
    assert members.wanted("nobody", "orders") is None


def test_whoever_comes_first_to_an_empty_group_decides_anew_whatever_its_version(members):
    members.heartbeat("g", client(), 0, wanted=[TopicSubscription("t", "A", version=100)])
    members.disconnected(1, 1)
    notices = members.heartbeat(
        "g", client("c2", 2), 2, wanted=[TopicSubscription("t", "B", version=7)]
    )
    assert kinds(notices) == ["joined", "wants", "changed"]
    assert members.wanted("g", "t").expression == "B"


def test_a_client_id_on_two_connections_is_reported_and_stands_twice(members):
    members.heartbeat("g", client("same", 1), 0)
    notices = members.heartbeat("g", client("same", 2), 1)
    assert kinds(notices) == ["duplicate", "joined", "changed"]
    assert "'same'" in notices[0].text
    assert members.group("g").duplicates == {"same"}
    assert members.client_ids("g") == ["same", "same"]
    members.disconnected(1, 2)
    assert members.group("g").duplicates == set()


def test_a_connection_that_changes_its_id_is_another_member(members):
    members.heartbeat("g", client("old", 1), 0)
    assert kinds(members.heartbeat("g", client("new", 1), 1)) == ["left", "joined", "changed"]
    assert members.client_ids("g") == ["new"]
    assert members.group("g").by_client_id("old") is None
    assert members.group("g").by_client_id("new").connection == 1


def test_broadcasting_groups_are_not_told(members):
    broadcast = GroupTraits(is_broadcast=True)
    members.heartbeat("g", client("c1", 1), 0, traits=broadcast)
    assert kinds(members.heartbeat("g", client("c2", 2), 0, traits=broadcast)) == ["joined"]
    assert kinds(members.disconnected(1, 1)) == ["left"]


def test_groups_whose_notices_are_turned_off_are_not_told():
    members = Membership(is_notified=lambda group: group != "quiet")
    assert kinds(members.heartbeat("quiet", client(), 0)) == ["joined"]
    assert kinds(members.heartbeat("loud", client(), 0)) == ["joined", "changed"]


def test_picking_takes_another_member_each_time(members):
    assert members.pick("g") is None
    for number in range(3):
        members.heartbeat("g", client(f"c{number}", number), 0)
    assert {members.pick("g").client_id for _ in range(3)} == {"c0", "c1", "c2"}
    members.leave("g", 1, 1)
    assert {members.pick("g").client_id for _ in range(2)} == {"c0", "c2"}


def test_a_deleted_group_is_forgotten_with_its_members(members):
    members.heartbeat("g", client(), 0)
    (notice,) = members.forget("g")
    assert (notice.kind, notice.audience) == (GroupEventKind.FORGOTTEN, (1,))
    assert members.groups_of(1) == frozenset()
    assert members.forget("g") == []


def refused(members, *arguments, **options):
    (notice,) = members.heartbeat(*arguments, **options)
    assert notice.kind is GroupEventKind.REFUSED
    return notice.text


def test_every_bound_refuses_with_its_number_and_registers_nothing():
    members = Membership(MembershipLimits(2, 2, 2, 2))
    assert "3 topics, limit 2" in refused(
        members, "g", client(), 0, wanted=[ORDERS, BILLS, TopicSubscription("x")]
    )
    assert len(members) == 0
    members.heartbeat("g", client("c1", 1), 0)
    members.heartbeat("h", client("c1", 1), 0)
    assert "2 groups" in refused(members, "i", client("c2", 2), 0)
    members.heartbeat("g", client("c2", 2), 0)
    assert "2 members" in refused(members, "g", client("c3", 3), 0)
    assert members.heartbeat("g", client("c2", 2), 1) == []
    assert members.groups_of(3) == frozenset()


def test_one_connection_is_in_a_bounded_number_of_groups():
    members = Membership(MembershipLimits(groups_per_connection_max=1))
    members.heartbeat("g", client(), 0)
    assert "1 groups" in refused(members, "h", client(), 0)
    assert MembershipLimits() == MembershipLimits(10_000, 10_000, 1_000, 1_000)


def test_when_there_is_no_room_the_group_that_is_empty_for_longest_is_forgotten():
    members = Membership(MembershipLimits(groups_max=2))
    members.heartbeat("old", client(), 0)
    members.leave("old", 1, 1)
    members.heartbeat("young", client(), 0)
    members.leave("young", 1, 2)
    notices = members.heartbeat("new", client(), 3)
    assert kinds(notices) == ["forgotten", "joined", "changed"]
    assert notices[0].group == "old"
    assert [group.name for group in members] == ["young", "new"]
