"""The whole story of ``penstock demo``: a shop, a broker, a consumer and a Spark pipeline (D27).

A private broker in its own process takes orders from a shop; billing consumes them, and a Spark
pipeline in its own process parses, windows and sums them into Parquet, and writes the large ones
to a topic of their own. Then, in turn, the disk stops answering, billing is slow, and Spark is
slow; each time somebody has to wait, and the view says who and why. At the end every order is
looked for, and the large ones are read back by RocketMQ and AMQP.

* ``story.py``: the order of things: opens, plays the three acts, counts again what Spark wrote.
* ``shop.py`` paces the orders; ``publishers.py`` and ``pika_publisher.py`` send them, and the first
  of them has billing and who reads the large ones back.
* ``processes.py``: the broker's and Spark's processes; ``pipeline.py`` is what Spark runs.
* ``board.py``: what is shown while it goes on.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    orders_per_s: int
    steady_s: float
    slow_order_s: float
    """What one order costs a slow consumer thread."""
    slow_row_s: float
    """What one row costs a slow Spark task."""
    backlog_messages_max: int
    """How far Spark may fall behind before the shop is held: eight seconds of orders, which a query
    that is not slow is not on a busy machine either."""
    held_s: float
    """How long the shop is watched while it is held."""
    batch_target_s: float
    """More than a batch without rows takes on a busy machine: only then do fewer rows help."""


FULL: Final = Size(
    orders_per_s=500,
    steady_s=4,
    slow_order_s=0.05,
    slow_row_s=0.025,
    backlog_messages_max=4000,
    held_s=10,
    batch_target_s=3,
)
SMALL: Final = Size(
    orders_per_s=200,
    steady_s=1,
    slow_order_s=0.1,
    slow_row_s=0.06,
    backlog_messages_max=1600,
    held_s=3,
    batch_target_s=3,
)
"""As a test: the same acts, shorter."""
SIZES: Final = {"full": FULL, "small": SMALL}

QUIET_PER_S: Final = 20
"""Orders a second while everybody waits for Spark: a slow machine must not drown in them."""

TOPIC: Final = "orders"
QUEUES: Final = 4
LARGE_TOPIC: Final = "large-orders"
"""Where Spark writes every order of ``LARGE_CENTS`` and more."""
LARGE_CENTS: Final = 15_000
"""About one order in eight is."""
QUERIES: Final = ("rows", "sums", "large")
"""What the pipeline runs."""
