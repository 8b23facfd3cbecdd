"""Group switches: what an operator has turned off for a group.

A group without settings of its own has everything on. Not here: where they are kept over a restart
(the adapter defines them), what a refused client is told (the adapter's words).
"""

from collections.abc import Iterator
from typing import Final

import msgspec

GROUPS_MAX: Final = 10_000
"""Groups with switches of their own."""


class GroupSwitches(msgspec.Struct, frozen=True):
    """What a group may do."""

    is_consuming: bool = True
    """False: its members get nothing."""
    is_broadcast_allowed: bool = True
    """False: members that want every message each get nothing."""
    is_notified: bool = True
    """False: members are not told that others came or went; they find out by asking."""


ALL_ON: Final = GroupSwitches()


class GroupSwitchRegistry:
    """The switches of all groups."""

    __slots__ = ("_groups", "groups_max")

    def __init__(self, *, groups_max: int = GROUPS_MAX) -> None:
        self.groups_max = groups_max
        self._groups: dict[str, GroupSwitches] = {}

    def get(self, group: str) -> GroupSwitches:
        return self._groups.get(group, ALL_ON)

    def set(self, group: str, switches: GroupSwitches) -> bool:
        """Change them; False when there is no room for another group."""
        if switches == ALL_ON:
            self._groups.pop(group, None)
            return True
        if group not in self._groups and len(self._groups) >= self.groups_max:
            return False
        self._groups[group] = switches
        return True

    def refusal(self, group: str, *, is_broadcast: bool) -> str | None:
        """Why a member of this group may not read, or None when it may."""
        switches = self.get(group)
        if not switches.is_consuming:
            return f"consuming is turned off for the group '{group}'"
        if is_broadcast and not switches.is_broadcast_allowed:
            return f"broadcasting is turned off for the group '{group}'"
        return None

    def items(self) -> Iterator[tuple[str, GroupSwitches]]:
        """All groups with something turned off."""
        yield from list(self._groups.items())
