"""What it costs the engine to settle a batch in flight: as one range, and offset by offset.

A subscription on queues in memory, one consumer that holds batches; only ``Subscription.settle``
and ``Subscription.settle_ranges`` are timed, with all they do: flight, limits, demand, cursor and
the note that something is to be saved.

    .venv/bin/python benchmarks/micro/settle_ranges.py
    .venv/bin/python benchmarks/micro/settle_ranges.py --batch 1000

The figure is the least of many rounds: what the machine can do when nobody disturbs it.
"""

import argparse
import time

from kit.queues import MemoryHost, MemoryQueue, Taker, consume
from penstock.engine.host import SubscriptionOptions
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Window
from penstock.model.record import Record, Shape

BATCHES = 100
ROUNDS = 30


def held(batch: int) -> tuple[Subscription, Taker]:
    """A consumer with so many batches in flight."""
    host = MemoryHost()
    queue = MemoryQueue(host)
    subscription = Subscription(1, "s", [queue], SubscriptionOptions(), host)
    taker = consume(subscription, Window(BATCHES * batch + 1), name="c")
    queue.append(Record(b"x", Shape(messages=batch)) for _ in range(BATCHES))
    subscription.arrived(1)
    host.run()
    return subscription, taker


def measure(batch: int, *, is_range: bool, is_backwards: bool) -> float:
    """The least time for one batch, in microseconds."""
    least = float("inf")
    for _ in range(ROUNDS):
        subscription, taker = held(batch)
        starts = sorted(taker.offsets, reverse=is_backwards)
        offsets = [list(range(start, start + batch)) for start in starts]
        ranges = [[(start, start + batch)] for start in starts]
        began = time.perf_counter_ns()
        if is_range:
            for each in ranges:
                subscription.settle_ranges(1, each)
        else:
            for each in offsets:
                subscription.settle(1, each)
        least = min(least, (time.perf_counter_ns() - began) / 1000 / len(starts))
        assert not subscription.unacked(1), "something is still in flight"
    return least


def main() -> None:
    """Print one line per way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=100, help="messages in a batch")
    batch = parser.parse_args().batch
    for is_backwards in (False, True):
        for is_range in (True, False):
            us = measure(batch, is_range=is_range, is_backwards=is_backwards)
            way = "one range" if is_range else "by offset"
            order = "backwards" if is_backwards else "in order"
            print(f"batch of {batch}, {way}, {order}: {us:.1f} us")


if __name__ == "__main__":
    main()
