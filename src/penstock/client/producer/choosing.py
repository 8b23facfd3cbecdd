"""The queue of one try: the one that was given, the one of its key, or the next in turn.

Not here: the turns and the hash (``selection.py``).
"""

from collections.abc import Sequence

from penstock.client.errors import NoRoute
from penstock.client.producer.selection import QueueTurns, queue_of_key, selected
from penstock.client.producer.send import Send
from penstock.model.assignment import QueueRef


def choose(send: Send, queues: Sequence[QueueRef], turns: QueueTurns, now_ms: int) -> QueueRef:
    """Where a try goes; raises ``NoRoute`` or ``InvalidMessage``.

    A send that must go to one queue remembers it: its tries (it has one) and hooks see no other.
    """
    if send.pinned is not None:
        return send.pinned
    if not queues:
        raise NoRoute(send.topic, "none of its queues can be written to")
    message = send.message
    if send.selector is not None:
        send.pinned = selected(send.selector, queues, message)
    elif message.ordering_key:
        send.pinned = queue_of_key(queues, message.ordering_key)
    else:
        return turns.pick(send.topic, queues, send.avoided, now_ms)
    return send.pinned
