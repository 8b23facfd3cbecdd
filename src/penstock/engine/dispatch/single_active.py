"""Single active: one consumer at a time, in the order in which they came.

Unlike failover nobody is displaced: neither a name nor a priority lets a later one go first, and
what the active one holds stays with it when it leaves.
"""

from penstock.engine.consumer import Consumer
from penstock.engine.dispatch.failover import Failover


class SingleActive(Failover):
    """Consumers in the order in which they joined."""

    __slots__ = ()

    def join(self, consumer: Consumer) -> Consumer | None:
        """Behind everybody else; nobody is displaced."""
        self.consumers.append(consumer)
        if consumer is self.active:
            self._tell(None, consumer)
        return None
