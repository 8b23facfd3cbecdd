"""What the broker knows of consumer groups apart from who is in them: their configuration.

A group is known once somebody heard of it (auto-created, RocketMQ's usual way) or an operator made
it. Configurations are rows of kind ``rocketmq.group`` in the catalog, so that switches survive a
restart; a group with usual settings has a row, too, because it shall be listed.

Invariant: groups are bounded; beyond the bound a new one is unknown, which pulls answer with 26.
Not here: members (``clients.py``), offsets (``offset_book.py``).
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.naming import DLQ_PREFIX, GROUP_TOPIC_CHARS_MAX, RETRY_PREFIX
from penstock.engine.group.switches import ALL_ON, Switches
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig, decode_body, encode_body
from penstock.wire.rocketmq.command import Malformed

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House

_log = logging.getLogger(__name__)

GROUP_KIND: Final = "rocketmq.group"

GROUPS_MAX: Final = 10_000

GROUP_CHARS_MAX: Final = GROUP_TOPIC_CHARS_MAX - len(RETRY_PREFIX)
"""Its retry topic must have a name."""

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def problem_with_group(group: str) -> str | None:
    """What is wrong with a group's name; None when it will do."""
    if not group.strip():
        return "The specified group is blank."
    if _ALLOWED.fullmatch(group) is None or group.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return (
            f"The specified group[{group[:80]}] contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$"
        )
    if len(group) > GROUP_CHARS_MAX:
        return f"The specified group is longer than group max length {GROUP_CHARS_MAX}."
    return None


class GroupBook:
    """The configurations of all groups."""

    __slots__ = ("_engine", "_groups", "_switches", "groups_max", "is_auto_creating")

    def __init__(self, house: House, *, groups_max: int = GROUPS_MAX) -> None:
        self._engine = engine = house.engine
        self._switches = house.switches
        self.is_auto_creating = house.settings.is_auto_creating_groups
        self.groups_max = groups_max
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        for name, body in engine.definitions(GROUP_KIND).items():
            try:
                self._take(decode_body(body, SubscriptionGroupConfig))
            except Malformed as problem:
                # Losing switches is better than a broker that does not start.
                _log.error(
                    "the settings of a group cannot be read; defaults hold",
                    extra={"group": name, "problem": str(problem)},
                )

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group, if it is known; nothing is created."""
        return self._groups.get(group)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group, created if that is allowed; None = it does not exist (26)."""
        found = self._groups.get(group)
        if found is not None or not self.is_auto_creating:
            return found
        if problem_with_group(group) is not None or len(self._groups) >= self.groups_max:
            return None
        made = SubscriptionGroupConfig(group_name=group)
        self.put(made)
        _log.info("a consumer group was created", extra={"group": group})
        return made

    def put(self, config: SubscriptionGroupConfig) -> bool:
        """Create a group or change it; False when there is no room for another one."""
        name = config.group_name
        if name not in self._groups and len(self._groups) >= self.groups_max:
            return False
        self._take(config)
        self._engine.define(GROUP_KIND, name, encode_body(config))
        return True

    def delete(self, group: str) -> bool:
        """Forget a group; False when nobody knew it."""
        if self._groups.pop(group, None) is None:
            return False
        self._switches.set(group, ALL_ON)
        self._engine.define(GROUP_KIND, group, None)
        return True

    def all(self) -> dict[str, SubscriptionGroupConfig]:
        """Every group, by name."""
        return dict(self._groups)

    def _take(self, config: SubscriptionGroupConfig) -> None:
        self._groups[config.group_name] = config
        self._switches.set(
            config.group_name,
            Switches(
                config.consume_enable,
                config.consume_broadcast_enable,
                config.notify_consumer_ids_changed_enable,
            ),
        )
