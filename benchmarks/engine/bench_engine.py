"""A broker core on a real disk, driven by hand: what the in-process benchmarks measure.

The same store, engine and settings as ``penstock up``, without sockets, loop and thread: turns are
taken in a plain loop and commits run in between, so that a figure is the core's and nothing else's.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from penstock.engine.broker import Engine
from penstock.engine.connection import Channel
from penstock.engine.ports import Confirmation
from penstock.engine.pull import Pull, PullResult
from penstock.engine.subscription.consumer import Consumer, Delivery
from penstock.flow.reason import Reason
from penstock.model.ids import ConnectionId
from penstock.model.refusal import Refusal
from penstock.server.lifecycle import SystemClock
from penstock.server.opening import lock_directory, open_engine
from penstock.settings.load import Given, Settings, load_settings


def bench_settings(directory: Path, **given: str) -> Settings:
    """Settings of ``penstock up`` with defaults, on ``directory``."""
    values = {"broker.data": str(directory), **{k.replace("__", "."): v for k, v in given.items()}}
    flags = tuple(Given(key, value, "bench") for key, value in values.items())
    return load_settings(flags, environ={}, config=None)


class BenchCore:
    """An opened data directory and its engine."""

    def __init__(self, settings: Settings) -> None:
        directory, lock = lock_directory(settings.broker.data)
        self._lock = lock
        self._opened = open_engine(directory, lock, settings, SystemClock(), None)
        self.engine: Engine = self._opened.engine
        # Far from any figure that an alarm could be raised by.
        self.engine.set_alarm("memory", 0)
        self.engine.set_alarm("disk", 1 << 50)
        self._ids = itertools.count(1)

    def connection_id(self) -> ConnectionId:
        """An id of its own for each connection."""
        return ConnectionId(next(self._ids))

    def commit(self) -> None:
        """One commit, start to end, in this thread."""
        job = self.engine.take_sync_job()
        if job is not None:
            job.run()
            self.engine.synced(job, None)

    def run_dry(self) -> None:
        """Turns and commits until nothing is left to do."""
        while True:
            self.engine.turn()
            self.commit()
            if not self.engine.needs_turn:
                return

    def close(self) -> None:
        """A clean stop."""
        self._opened.store.close(self.engine.final_cursors())
        self._lock.release()

    def abandon(self) -> None:
        """Let go of the directory as a killed process would."""
        self._opened.store.release()
        self._lock.release()


class BenchOutlet:
    """A peer that counts; what it was handed is settled by the benchmark."""

    def __init__(self) -> None:
        self.confirms = 0
        self.refusals: list[Refusal] = []
        self.deliveries: list[Delivery] = []

    def confirmed(self, _channel: Channel, confirmations: list[Confirmation]) -> None:
        """Count."""
        self.confirms += len(confirmations)

    def refused(self, _channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        """A benchmark that is refused measures nothing: the caller looks."""
        self.refusals += [refusal for _, refusal in refusals]

    def deliver(self, _consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Keep until settled."""
        self.deliveries += deliveries

    def cancelled(self, _consumer: Consumer, _cause: str) -> None:
        """Does not happen here."""

    def active_changed(self, _consumer: Consumer, _is_active: bool) -> None:
        """Does not happen here."""

    def gate_changed(self, _is_open: bool, _reasons: dict[Reason, str]) -> None:
        """The benchmark asks ``may_read`` instead."""

    def answered(self, _pull: Pull, _result: PullResult) -> None:
        """Does not happen here."""
