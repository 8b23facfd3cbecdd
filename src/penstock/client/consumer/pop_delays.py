"""When a popped message that failed comes back, and when it is given up.

A failed message is not sent anywhere: its invisible time is changed, and the broker hands it out
again when that has passed. The waits grow with the number of deliveries. After 16 of them the
message's age decides: the wait that fits its age, until it is older than twice the longest wait;
then it is acknowledged, so that it does not go round for ever.

Ordered groups wait the same short time at every failure: the queue stands still meanwhile.

Not here: who asks the broker (``pop.py``); retries of pulled messages (``send_back.py``).
"""

from bisect import bisect_right
from typing import Final

DELAYS_S: Final = (
    10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""RocketMQ's ``popDelayLevel``."""

RECONSUME_TIMES_MAX: Final = 16
AGE_MS_MAX: Final = DELAYS_S[-1] * 1000 * 2
"""Older than this after ``RECONSUME_TIMES_MAX`` deliveries: acknowledged, 4 hours."""

SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30_000


def delay_ms(reconsume_times: int, level: int = 0) -> int:
    """How long a failed message stays invisible; ``level`` is the listener's wish, 0 = none."""
    at = level if level > 0 else reconsume_times
    return DELAYS_S[min(max(at, 0), len(DELAYS_S) - 1)] * 1000


def retry_delay_ms(
    reconsume_times: int,
    age_ms: int,
    *,
    level: int = 0,
    reconsume_times_max: int = RECONSUME_TIMES_MAX,
) -> int | None:
    """The wait before the next delivery of a failed message; None = give it up, acknowledge it."""
    if reconsume_times < reconsume_times_max:
        return delay_ms(reconsume_times, level)
    if age_ms > AGE_MS_MAX:
        return None
    # The first wait that is longer than the message is old.
    return delay_ms(0, bisect_right(DELAYS_S, age_ms / 1000))


def suspend_ms(wished_ms: int) -> int:
    """How long an ordered queue stands still after a failure."""
    return min(max(wished_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)
