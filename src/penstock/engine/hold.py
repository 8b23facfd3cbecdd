"""A hold: why a channel's next publish is not admitted now (D23).

Who holds: an alarm, a rate, a quota, a full topic. Who waits: that channel, with everything behind
the publish that is held, because order within a channel is promised. What ends it: the reason
passing, which is looked at in every turn; or ``hold_ms_max``, after which the publish is refused.

Not here: credit, which is arithmetic between stages and has no time limit of its own (``flow/``).
"""

from typing import Final

import msgspec

from penstock.flow.reason import Reason
from penstock.model.refusal import Refusal, RefusalKind

KINDS: Final = {
    Reason.MEMORY: RefusalKind.MEMORY_ALARM,
    Reason.DISK: RefusalKind.DISK_ALARM,
    Reason.RATE: RefusalKind.RATE,
    Reason.QUOTA: RefusalKind.QUOTA,
    Reason.HELD: RefusalKind.LENGTH_LIMIT,
    Reason.SPARK: RefusalKind.QUOTA,
}
"""What a publish is told that may not wait, or waited under an alarm for too long."""


class Hold(msgspec.Struct, frozen=True):
    """One reason to wait."""

    reason: Reason
    culprit: str
    """Name of the alarm, or of the topic and its limit."""
    until_ms: int | None = None
    """Monotonic time at which it passes by itself, if it does."""

    @property
    def refusal(self) -> Refusal:
        """For a publisher that does not want to wait."""
        return Refusal(KINDS[self.reason], self.culprit, f"{self.culprit}; publish refused")

    def overdue(self, held_ms: int, setting: str = "flow.hold_ms_max") -> Refusal:
        """For a publish that was held as long as it may be, which ``setting`` says."""
        kind = KINDS[self.reason] if self.reason.is_resource else RefusalKind.HELD_TOO_LONG
        text = f"{self.culprit}; publish held for {held_ms} ms ({setting}) and refused"
        return Refusal(kind, self.culprit, text)
