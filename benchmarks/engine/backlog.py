"""Memory per message of backlog: resident size before and after ten million messages nobody reads.

Measured in a child process of its own, so that nothing else is in the figure; before the first
reading a few thousand messages have gone through, so that what a busy broker has anyway (hot tail,
index tail, buffers) is already there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.engine.bench_engine import BenchCore, BenchOutlet, bench_settings
from penstock.engine.connection import ConnectionOptions
from penstock.engine.host import SubscriptionOptions
from penstock.engine.ports import Publication
from penstock.engine.topic import DirectRoute
from penstock.model.names import topic_name
from penstock.model.record import neutral_record
from penstock.server.lifecycle import settle_heap

WARM_UP: Final = 200_000
LIST: Final = 400
LISTS_PER_COMMIT: Final = 5


class BacklogFigures(NamedTuple):
    """What a backlog costs."""

    messages: int
    before_bytes: int
    after_bytes: int

    @property
    def added_bytes(self) -> int:
        """Resident bytes the backlog added."""
        return self.after_bytes - self.before_bytes


def fill_backlog(
    directory: Path,
    *,
    messages: int,
    body_bytes: int,
    progress: Callable[[int, int], None],
    per_commit: int = LISTS_PER_COMMIT,
) -> BacklogFigures:
    """Publish ``messages`` to a topic whose one subscription never takes any."""
    # Syncs are not what is measured, and ten million messages need many.
    core = BenchCore(bench_settings(directory, storage__durability="os"))
    engine, outlet = core.engine, BenchOutlet()
    connection = engine.connect(
        core.connection_id(), outlet, "bench", ConnectionOptions(pending_publishes_max=0)
    )
    channel = connection.open_channel()
    topic = engine.create_topic(topic_name("bench"))
    engine.create_subscription(topic.name, "nobody", SubscriptionOptions())
    route, body = DirectRoute(topic.queues[0]), b"x" * body_bytes

    def publish(count: int, done: int) -> None:
        for at in range(0, count, LIST):
            channel.publish(
                [
                    Publication(neutral_record(body), route=route, token=done + at + number)
                    for number in range(LIST)
                ]
            )
            engine.turn()
            if at // LIST % per_commit == 0:
                core.commit()
                progress(done + at, messages + WARM_UP)
        core.run_dry()

    publish(WARM_UP, 0)
    settle_heap()
    before = resident_bytes()
    publish(messages, WARM_UP)
    after = resident_bytes()
    assert outlet.confirms == messages + WARM_UP, "not everything was stored"
    core.abandon()
    return BacklogFigures(messages, before, after)


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
