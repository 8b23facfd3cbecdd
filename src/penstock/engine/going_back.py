"""Many single messages go back to their places in one step.

A consumer that leaves with tens of thousands of them must not hold up everybody else. What is no
single message in flight, belongs to a key, or was delivered too often, is left to the closer look
of ``settle.py``.
"""

from collections.abc import Callable, Iterable

from penstock.engine.lane import Lane

Give = Callable[[int, int, int], None]
"""(consumer id, messages, bytes): what was charged when they were handed over is returned."""


def singles_back(
    lane: Lane, offsets: Iterable[int], attempts_max: int, *, is_counted: bool, give: Give
) -> tuple[int, list[int]]:
    """How many went back, and the offsets that are none of these."""
    entries = lane.pending.entries
    back: list[int] = []
    odd: list[int] = []
    messages = size = holder = 0
    for offset in offsets:
        held = entries.get(offset)
        if held is None or held.span != 1 or held.slot or held.attempts > attempts_max:
            odd.append(offset)
            continue
        del entries[offset]
        if held.consumer_id != holder:
            give(holder, messages, size)
            holder, messages, size = held.consumer_id, 0, 0
        messages += 1
        size += held.size
        lane.remember(offset, held.attempts + is_counted, is_counted=is_counted)
        back.append(offset)
    give(holder, messages, size)
    lane.pending.messages -= len(back)
    lane.redelivery.back_all(back)
    return len(back), odd
