"""Which queues a member shall read, decided by the broker for members that ask.

"Nothing for you" and "no answer, keep what you have" are different answers: the first empties the
member, the second is given whenever the broker does not know enough, because a member that drops
its queues for a moment of ignorance stops a whole group.

A group reads a topic in one of two ways: queues divided among members (PULL), or messages handed
out (POP). With POP a queue may be shared: ``share`` is how many members after its own queues' owner
help with them; 0 and below means that everybody helps everywhere.

Not here: the strategies (``model/assignment.py``), where modes are kept over a restart (the adapter
defines them; ``items`` gives them all).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import msgspec

from penstock.model.assignment import STRATEGIES, QueueRef, Strategy, pop_share


class Assignment(msgspec.Struct, frozen=True):
    """The answer to one member."""

    queues: tuple[QueueRef, ...] | None
    """None = keep what you have; empty = none."""
    mode: ConsumeMode
    reason: str = ""
    """Why there is no answer, for the log."""

    @property
    def is_keep(self) -> bool:
        """True when the member shall go on as it is."""
        return self.queues is None


def assign(
    member: str,
    queues: Sequence[QueueRef] | None,
    members: Sequence[str] | None,
    *,
    strategy: str,
    setting: ModeSetting,
    is_broadcast: bool = False,
    is_balanced: bool = True,
) -> Assignment:
    """The queues of one member.

    ``queues`` and ``members`` are None when topic or group are unknown. A broadcasting member reads
    everything; so does everybody when the broker does not balance (``is_balanced``).
    """
    if queues is None:
        return _keep(setting, "the topic is not known here")
    if is_broadcast or not is_balanced:
        return Assignment(tuple(sorted(queues)), setting.mode)
    if members is None:
        return _keep(setting, "the group has no members here")
    divide = STRATEGIES.get(strategy)
    if divide is None:
        known = ", ".join(STRATEGIES)
        return _keep(setting, f"the strategy {strategy[:40]!r} is not known; known are {known}")
    try:
        return Assignment(tuple(_divided(divide, member, queues, members, setting)), setting.mode)
    except ValueError as problem:
        return _keep(setting, str(problem))


def _divided(
    divide: Strategy,
    member: str,
    queues: Sequence[QueueRef],
    members: Sequence[str],
    setting: ModeSetting,
) -> list[QueueRef]:
    if setting.mode is ConsumeMode.POP:
        return pop_share(divide, member, queues, members, setting.share)
    return divide(member, queues, members)


def _keep(setting: ModeSetting, reason: str) -> Assignment:
    return Assignment(None, setting.mode, reason)


# ---- consume modes -----------------------------------------------------------------------------


SETTINGS_MAX: Final = 10_000
"""(topic, group) pairs with a setting of their own."""

SHARE_UNSET: Final = -1


class ConsumeMode(Enum):
    """Who decides which message goes where."""

    PULL = "pull"
    """Members divide the queues and pull from their own."""
    POP = "pop"
    """Members ask, the broker hands out messages of shared queues."""


class ModeSetting(msgspec.Struct, frozen=True):
    """The mode of one group on one topic."""

    mode: ConsumeMode = ConsumeMode.PULL
    share: int = SHARE_UNSET


class ConsumeModeRegistry:
    """The settings that differ from the usual one."""

    __slots__ = ("_settings", "settings_max", "usual")

    def __init__(
        self, usual: ModeSetting | None = None, *, settings_max: int = SETTINGS_MAX
    ) -> None:
        self.usual = usual or ModeSetting()
        self.settings_max = settings_max
        self._settings: dict[tuple[str, str], ModeSetting] = {}

    def __len__(self) -> int:
        return len(self._settings)

    def get(self, topic: str, group: str) -> ModeSetting:
        """What holds for this group on this topic."""
        return self._settings.get((topic, group), self.usual)

    def set(self, topic: str, group: str, setting: ModeSetting) -> bool:
        """Change it; False when there is no room for another one."""
        key = (topic, group)
        if key not in self._settings and len(self._settings) >= self.settings_max:
            return False
        self._settings[key] = setting
        return True

    def remove(self, topic: str, group: str) -> bool:
        """Back to the usual; False when it was that already."""
        return self._settings.pop((topic, group), None) is not None

    def remove_topic(self, topic: str) -> None:
        """The topic is gone, and all groups' settings for it."""
        for key in [key for key in self._settings if key[0] == topic]:
            del self._settings[key]

    def remove_group(self, group: str) -> None:
        for key in [key for key in self._settings if key[1] == group]:
            del self._settings[key]

    def items(self) -> Iterator[tuple[str, str, ModeSetting]]:
        """All of them: topic, group, setting."""
        for (topic, group), setting in list(self._settings.items()):
            yield topic, group, setting
