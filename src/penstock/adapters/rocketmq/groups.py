"""Administration of consumer groups: create or change (200), delete (207), list (201), show (352).

Switches: ``consumeEnable`` off refuses every pull of the group (16), ``consumeBroadcastEnable`` off
those of broadcasting members, ``notifyConsumerIdsChangedEnable`` off keeps members untold.

Changes are answered once they are durable. Deleting a group leaves its offsets unless they are to
go, too; members that are still there stay members, and their next heartbeat makes the group anew.
Not here: the configurations (``group_book.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.group_book import GROUPS_MAX, GroupBook, problem_with_group
from penstock.adapters.rocketmq.mode import Modes
from penstock.adapters.rocketmq.offset_book import OffsetBook
from penstock.adapters.rocketmq.replies import Answer, system_error
from penstock.adapters.rocketmq.requests import Handler
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig, decode_body, encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import GroupConfigHeader, GroupNameHeader, parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session


def delete_group(house: House, group: str, *, is_forgetting: bool) -> bool:
    """Forget a group, and its offsets if ``is_forgetting``; False when nobody knew it."""
    is_known = house.part(GroupBook).delete(group)
    house.locks.forget(group)
    house.part(Modes).forget_group(group)
    if is_forgetting:
        book = house.part(OffsetBook)
        for topic in book.topics_of(group):
            book.forget(topic, group)
    return is_known


def _put(session: Session, command: Command) -> None:
    config = decode_body(command.body, SubscriptionGroupConfig)
    problem = problem_with_group(config.group_name)
    if problem is not None:
        raise Answer(session.house.settings.invalid_parameter_code, problem)
    if not session.house.part(GroupBook).put(config):
        raise system_error(f"there are {GROUPS_MAX} groups; delete one first")
    session.house.engine.after_durable(lambda: session.answer(command))


def _delete(session: Session, command: Command) -> None:
    header = parse(GroupNameHeader, command)
    is_forgetting = header.clean_offset or header.remove_offset
    delete_group(session.house, header.group_name, is_forgetting=is_forgetting)
    session.house.engine.after_durable(lambda: session.answer(command))


def _list(session: Session, command: Command) -> None:
    table = session.house.part(GroupBook).all()
    body = {
        "dataVersion": {"stateVersion": 0, "timestamp": 0, "counter": len(table)},
        "subscriptionGroupTable": table,
    }
    session.answer(command, body=encode_body(body))


def _show(session: Session, command: Command) -> None:
    group = parse(GroupConfigHeader, command).group
    config = session.house.part(GroupBook).get(group)
    if config is None:
        raise Answer(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"No group in this broker. group: {group}",
        )
    session.answer(command, body=encode_body(config))


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _put,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _delete,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _list,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _show,
}
