"""What a broker's assignment changes: queues to pull, queues to pop, queues to leave.

With broker-side assignment a member asks (request 400) what to read of each topic. The answer says
for every queue *how*: a group can be switched between PULL and POP (request 401) while it runs, and
a queue that changes its mode is left in the old one before it begins in the new one.

    None   the broker cannot say now: keep what there is
    []     nothing for this member: leave everything

Not here: starting and stopping (``pop.py``, the push consumer), asking (``Calls``).
"""

from collections.abc import Collection, Sequence

import msgspec

from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import QueueAssignment, RequestMode


class Assigned(msgspec.Struct, gc=False, frozen=True):
    """The queues of one topic by mode."""

    pull: frozenset[QueueRef] = frozenset()
    pop: frozenset[QueueRef] = frozenset()

    @property
    def mode(self) -> RequestMode | None:
        """The one mode all its queues have; None when it has none or both."""
        if bool(self.pull) == bool(self.pop):
            return None
        return RequestMode.POP if self.pop else RequestMode.PULL


class Changes(msgspec.Struct, gc=False, frozen=True):
    """What is to be done, in this order: stop, then start."""

    stop_pull: frozenset[QueueRef] = frozenset()
    stop_pop: frozenset[QueueRef] = frozenset()
    start_pull: frozenset[QueueRef] = frozenset()
    start_pop: frozenset[QueueRef] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.stop_pull or self.stop_pop or self.start_pull or self.start_pop)


def assigned(topic: str, answer: Sequence[QueueAssignment]) -> Assigned:
    """The answer of a broker by mode; what is not of this topic is not ours to read."""
    pull: set[QueueRef] = set()
    pop: set[QueueRef] = set()
    for each in answer:
        queue = each.message_queue
        if queue.topic == topic:
            into = pop if each.mode is RequestMode.POP else pull
            into.add(QueueRef(queue.topic, queue.broker_name, queue.queue_id))
    return Assigned(frozenset(pull), frozenset(pop))


def changes(
    pulled: Collection[QueueRef], popped: Collection[QueueRef], wanted: Assigned | None
) -> Changes:
    """From what is read now to what the broker wants; None keeps all."""
    if wanted is None:
        return Changes()
    pulled, popped = frozenset(pulled), frozenset(popped)
    return Changes(
        stop_pull=pulled - wanted.pull,
        stop_pop=popped - wanted.pop,
        start_pull=wanted.pull - pulled,
        start_pop=wanted.pop - popped,
    )
