"""Keeps a query's lease alive while Spark works on a batch (F18).

Polls renew the lease by themselves; between two of them lies a whole batch, and a batch may take an
hour. The source's process has nothing to do then, so a thread of it says now and then that the
query lives. A lease that cannot be renewed is only a warning: reads will tell whether data is gone.

Not here: what the lease does (the broker), positions (``query.py``).
"""

import logging
import threading
from typing import Final

from penstock.model.errors import PenstockError
from penstock.spark.offsets import Position
from penstock.spark.upstream import Upstream

KEEP_S: Final = 20.0

_log = logging.getLogger(__name__)


class Keeper:
    """One thread, from ``start`` to ``stop``."""

    def __init__(self, upstream: Upstream, *, every_s: float = KEEP_S) -> None:
        self._upstream: Final = upstream
        self._every_s: Final = every_s
        self._ended: Final = threading.Event()

    def start(self, at: Position) -> None:
        """Take the lease for a query that stands at ``at``, and keep it."""
        self.keep(at)
        threading.Thread(target=self._run, name="penstock-lease", daemon=True).start()

    def stop(self) -> None:
        """End; the lease lives on for its time, so that a query can be started again."""
        self._ended.set()

    def keep(self, at: Position) -> None:
        """Renew the lease now; a position without offsets moves nothing."""
        try:
            broken = self._upstream.keep(at)
        except PenstockError as problem:
            _log.warning("the lease could not be renewed: %s", problem)
            return
        if broken:
            _log.warning("the broker keeps this query's data no longer: %s", broken)

    def _run(self) -> None:
        # Only polls move the position: this thread could be late with it.
        while not self._ended.wait(self._every_s):
            self.keep(Position())
