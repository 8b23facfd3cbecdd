"""SET_MESSAGE_REQUEST_MODE: how a group reads a topic, by pull or by pop (sheet 1.8).

Settings are rows of kind ``rocketmq.mode`` and survive a restart. A group switches between both
without losing its place, because pops and pull offsets move the same subscription. Members notice
with their next QUERY_ASSIGNMENT.

Retry topics are always pulled, so their mode cannot be set.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.rocketmq.naming import RETRY_PREFIX
from penstock.adapters.rocketmq.replies import no_permission, system_error
from penstock.engine.group.assignment import ConsumeMode, ModeSetting
from penstock.wire.rocketmq.bodies import RequestMode, SetRequestModeBody, decode_body
from penstock.wire.rocketmq.codes import RequestCode

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session
    from penstock.wire.rocketmq.command import Command

_log = logging.getLogger(__name__)

MODE_KIND: Final = "rocketmq.mode"

MODES: Final = {RequestMode.PULL: ConsumeMode.PULL, RequestMode.POP: ConsumeMode.POP}


class _Row(msgspec.Struct, frozen=True):
    topic: str
    group: str
    mode: ConsumeMode
    share: int


class Modes:
    """The modes of all groups, in the catalog and in ``house.modes``."""

    def __init__(self, house: House) -> None:
        self._engine = house.engine
        self._modes = house.modes
        for key, body in house.engine.definitions(MODE_KIND).items():
            try:
                row = msgspec.json.decode(body, type=_Row)
            except msgspec.DecodeError as problem:
                _log.error("a mode cannot be read", extra={"key": key, "problem": str(problem)})
                continue
            self._modes.set(row.topic, row.group, ModeSetting(row.mode, row.share))

    def set(self, topic: str, group: str, setting: ModeSetting) -> None:
        """Change the mode of a group on a topic; raises ``Answer``."""
        if topic.startswith(RETRY_PREFIX):
            raise no_permission("retry topic is not allowed to set mode")
        if not topic or not group:
            raise system_error("a mode needs a topic and a consumer group")
        if not self._modes.set(topic, group, setting):
            raise system_error(
                f"{self._modes.settings_max} modes are set already; reset one of them first"
            )
        row = _Row(topic, group, setting.mode, setting.share)
        # No name has a separator of this kind.
        self._engine.define(MODE_KIND, f"{topic}@{group}", msgspec.json.encode(row))
        _log.info(
            "a group's mode was set",
            extra={"topic": topic, "group": group, "mode": setting.mode.value},
        )

    def forget_topic(self, topic: str) -> None:
        """The topic is gone, and all groups' modes on it."""
        self._forget([group for name, group, _ in self._modes.items() if name == topic], topic)

    def forget_group(self, group: str) -> None:
        """The group is gone."""
        for topic in [topic for topic, name, _ in self._modes.items() if name == group]:
            self._forget([group], topic)

    def _forget(self, groups: list[str], topic: str) -> None:
        for group in groups:
            self._modes.remove(topic, group)
            self._engine.define(MODE_KIND, f"{topic}@{group}", None)


def set_mode(session: Session, command: Command) -> None:
    """SET_MESSAGE_REQUEST_MODE; answered once it would survive a crash."""
    body = decode_body(command.body, SetRequestModeBody)
    setting = ModeSetting(MODES[body.mode], body.pop_share_queue_num)
    session.house.part(Modes).set(body.topic, body.consumer_group, setting)
    session.house.engine.after_durable(lambda: session.answer(command))


HANDLERS: Final[dict[int, Handler]] = {RequestCode.SET_MESSAGE_REQUEST_MODE: set_mode}
