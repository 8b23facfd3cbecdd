"""What may happen next, and how often.

A step is one small thing a peer, the disk, the clock or an operator does. Chance comes from the
world's generator only, and every step leaves a line in the trace.
"""

from collections.abc import Callable
from typing import Final

from kit.simulation import committing, consuming, operating, publishing
from kit.simulation.world import World

STEPS: Final[tuple[tuple[float, Callable[[World], None]], ...]] = (
    (12, publishing.publish),
    (13, committing.turn),
    (9, committing.sync),
    (16, consuming.act),
    (12, consuming.grant),
    (4, consuming.read),
    (18, committing.advance),
    (0.5, publishing.connect_publisher),
    (0.4, publishing.disconnect_publisher),
    (1.0, consuming.attach),
    (0.8, consuming.detach),
    (0.3, consuming.subscribe),
    (0.2, operating.unsubscribe),
    (0.3, consuming.move),
    (0.4, operating.create_topic),
    (0.15, operating.delete_topic),
    (0.5, operating.alarm),
    (0.2, operating.fill_disk),
    (0.15, operating.break_write),
    (0.03, operating.break_sync),
    (0.1, operating.kill),
    (0.1, operating.cut_power),
)
