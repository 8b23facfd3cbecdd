"""The upstreams of a process: one for each set of options, kept while the process lives.

Spark uses a worker's process for many tasks, so connections are made once. Each kind of upstream is
imported when it is first needed: none needs what the others do.

Not here: what an upstream does (``upstream.py``).
"""

import os
from typing import Final

from penstock.spark.options import SourceOptions
from penstock.spark.upstream import Upstream

UPSTREAMS_MAX: Final = 32
"""Connections a process keeps; beyond it all are dropped and made anew."""

_open: dict[tuple[int, SourceOptions], Upstream] = {}


def open_upstream(options: SourceOptions) -> Upstream:
    """The upstream of this process for these options; made when it is first asked for."""
    # By process: gRPC's threads do not survive the fork by which Spark makes its workers.
    key = (os.getpid(), options)
    if key not in _open:
        if len(_open) >= UPSTREAMS_MAX:
            drop_upstreams()
        _open[key] = new_upstream(options)
    return _open[key]


def new_upstream(options: SourceOptions) -> Upstream:
    """Another one, for those who close it themselves."""
    if options.is_rocketmq:
        from penstock.spark.rocketmq import RocketMqUpstream

        return RocketMqUpstream(options)
    if options.path:
        from penstock.spark.offline import OfflineUpstream

        return OfflineUpstream(options)
    from penstock.spark.over_flight import FlightUpstream

    return FlightUpstream(options)


def drop_upstreams() -> None:
    """Forget all; those of another process are not ours to close."""
    for (process, _), upstream in list(_open.items()):
        if process == os.getpid():
            upstream.close()
    _open.clear()
