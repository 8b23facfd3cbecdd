"""What may happen next, and how often.

A step is one small thing a peer, the disk, the clock or an operator does. Chance comes from the
world's generator only, and every step leaves a line in the trace.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kit.simulation import (
    committing,
    consuming,
    delaying,
    direct,
    operating,
    partitions,
    publishing,
    staging,
)
from kit.simulation.world import KINDS, World

Steps = tuple[tuple[float, Callable[[World], None]], ...]

STEPS: Final[Steps] = (
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

PARTITION_STEPS: Final[Steps] = (
    (12, publishing.publish),
    (8, committing.turn),
    (5, partitions.rest),
    (9, committing.sync),
    (16, partitions.act),
    (12, consuming.grant),
    (2, consuming.read),
    (18, committing.advance),
    (0.8, partitions.connect_publisher),
    (0.4, publishing.disconnect_publisher),
    (2.5, partitions.attach),
    (1.5, consuming.detach),
    (1.5, partitions.subscribe_queue),
    (0.7, partitions.unsubscribe_queue),
    (0.3, partitions.grow),
    (0.6, partitions.limit_unacked),
    (0.2, operating.unsubscribe),
    (0.4, operating.create_topic),
    (0.1, operating.delete_topic),
    (0.2, operating.alarm),
    (0.1, operating.fill_disk),
    (0.1, operating.break_write),
    (0.03, operating.break_sync),
    (0.2, operating.kill),
    (0.2, operating.cut_power),
)


@dataclass(frozen=True)
class Family:
    """Seeds of one kind: what their worlds have, and what happens in them.

    Each has its own pinned digests, so that another family is added without touching these.
    """

    name: str
    """In the names of its tests (``tests/scenario/test_simulator.py``)."""
    steps: Steps
    kinds: tuple[str, ...] = KINDS
    """Of topics."""
    pinned: str = ""
    """The file of its digests in ``tests/pinned``, if they are pinned."""
    has_batches: bool = False
    """Whether some publishers send batches that the broker can open."""
    is_spilling: bool = False
    """Whether hardly any delay fits into memory."""
    is_released: bool = False
    """Whether the log must be let go in the end, when everything is read."""


CLASSIC: Final = Family("classic", STEPS, pinned="digests")
DIRECT: Final = Family("direct", (*STEPS, *direct.STEPS))
"""With a topic without a log beside the others."""
SPILLING: Final = Family("spilling", (*STEPS, *delaying.STEPS), is_spilling=True)
"""With delays for most of which memory has no place."""
PARTITIONS: Final = Family(
    "partitions",
    PARTITION_STEPS,
    partitions.KINDS,
    pinned="digests-partitions",
    has_batches=True,
    is_released=True,
)
SINKS: Final = Family("sinks", (*STEPS, *staging.STEPS))
"""With sinks of Spark that write to the topics."""
FAMILIES: Final = (CLASSIC, DIRECT, SPILLING, PARTITIONS, SINKS)
