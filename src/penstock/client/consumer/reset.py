"""An operator moves a group to other offsets (request 220, from brokers that leave it to clients).

Every member is told about all queues, and moves those it owns: they are stopped, the new offset is
stored as it is (back or forward), and a rebalance starts them again there. RocketMQ's client lets
ten seconds pass in between, for listeners to end; here stopping waits for the ordered ones, and
results of others find their queue dropped.

Invariant: no result of a call that began before the reset moves an offset after it.
Not here: brokers that reset by themselves (a pull then says where to go on).
"""

import logging
from collections.abc import Callable, Mapping

from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.consumer.offsets.table import Offsets
from penstock.client.consumer.rebalance import Rebalancer
from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)


async def reset_offsets(
    wanted: Mapping[QueueRef, int],
    *,
    owned: Callable[[], Mapping[QueueRef, AssignedQueue]],
    rebalancer: Rebalancer,
    offsets: Offsets,
) -> dict[QueueRef, int]:
    """Move the owned ones of these queues; returns them. Rebalance at once after this."""
    moved: dict[QueueRef, int] = {}

    async def move(queues: list[QueueRef]) -> None:
        for queue in queues:
            moved[queue] = wanted[queue]
            lingering = owned().get(queue)
            if lingering is not None:
                # An ordered listener still runs. It keeps the broker's lock until it ends; what
                # it comes to is not noted any more.
                lingering.is_locked = False
            offsets.note(queue, wanted[queue], is_increase_only=False)
        await offsets.persist(queues)
        for queue in queues:
            offsets.forget(queue)

    await rebalancer.while_stopped(list(wanted), move)
    if moved:
        _log.info("offsets reset", extra={"queues": len(moved)})
    return moved
