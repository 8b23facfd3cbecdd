"""A store of the user's own: any object with ``read(queue)`` and ``write(offsets)``.

Both may be coroutines; plain functions run on a thread, since a database call must not hold up the
client's loop. What ``write`` returns does not matter: it has kept everything unless it raised.

Not here: what was settled (``table.py``).
"""

import asyncio
import inspect
import logging
from collections.abc import Collection, Mapping
from typing import Any

from penstock.client.errors import ClientError
from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)


class OwnOffsets:
    """Makes an ``OffsetStore`` of a user's object."""

    def __init__(self, store: Any) -> None:
        for name in ("read", "write"):
            if not callable(getattr(store, name, None)):
                raise TypeError(
                    f"an offset store has read(queue) and write(offsets); {store!r} has no {name}"
                )
        self._store = store

    async def read(self, queue: QueueRef) -> int | None:
        """What the store says; its errors mean "not now"."""
        try:
            found = await _call(self._store.read, queue)
        except Exception as problem:
            raise ClientError(f"the offset store cannot read {queue}: {problem!r}") from problem
        return None if found is None else int(found)

    async def write(self, offsets: Mapping[QueueRef, int]) -> Collection[QueueRef]:
        """Hand over a copy."""
        try:
            await _call(self._store.write, dict(offsets))
        except Exception:
            _log.exception("the offset store cannot write", extra={"queues": len(offsets)})
            return ()
        return list(offsets)


async def _call(function: Any, argument: object) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(argument)
    return await asyncio.to_thread(function, argument)
