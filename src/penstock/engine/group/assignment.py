"""Which queues a member shall read, decided by the broker for members that ask.

"Nothing for you" and "no answer, keep what you have" are different answers: the first empties the
member, the second is given whenever the broker does not know enough, because a member that drops
its queues for a moment of ignorance stops a whole group.

Not here: the strategies (``model/assignment.py``), the mode of a group (``consume_mode.py``).
"""

from collections.abc import Sequence

import msgspec

from penstock.engine.group.consume_mode import ConsumeMode, ModeSetting
from penstock.model.assignment import STRATEGIES, QueueRef, Strategy, pop_share


class Allotment(msgspec.Struct, frozen=True):
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


def allot(
    member: str,
    queues: Sequence[QueueRef] | None,
    members: Sequence[str] | None,
    *,
    strategy: str,
    setting: ModeSetting,
    is_broadcast: bool = False,
    is_balanced: bool = True,
) -> Allotment:
    """The queues of one member.

    ``queues`` and ``members`` are None when topic or group are unknown. A broadcasting member reads
    everything; so does everybody when the broker does not balance (``is_balanced``).
    """
    if queues is None:
        return _keep(setting, "the topic is not known here")
    if is_broadcast or not is_balanced:
        return Allotment(tuple(sorted(queues)), setting.mode)
    if members is None:
        return _keep(setting, "the group has no members here")
    divide = STRATEGIES.get(strategy)
    if divide is None:
        known = ", ".join(STRATEGIES)
        return _keep(setting, f"the strategy {strategy[:40]!r} is not known; known are {known}")
    try:
        return Allotment(tuple(_divided(divide, member, queues, members, setting)), setting.mode)
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


def _keep(setting: ModeSetting, reason: str) -> Allotment:
    return Allotment(None, setting.mode, reason)
