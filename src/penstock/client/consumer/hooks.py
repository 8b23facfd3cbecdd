"""Hooks around consumption: called before and after each call of the listener.

They run where the listener runs (worker thread or its loop), so a slow hook slows consumption and
nothing else. A hook that raises is logged and changes nothing.

Not here: filter hooks (``subscription.py``), message trace, which is one of these (``trace.py``).
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from penstock.client.consumer.results import Finished
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)


class ConsumeHook(Protocol):
    """What a hook has."""

    def before(self, group: str, queue: QueueRef, messages: Sequence[ReceivedMessage]) -> object:
        """Before the listener; what it returns comes back in ``after``."""
        ...

    def after(self, group: str, queue: QueueRef, finished: Finished, context: object) -> None:
        """After the listener, with what became of it."""
        ...


class Hooks:
    """The hooks of one consumer, in the order they were added."""

    def __init__(self, group: str, hooks: Sequence[ConsumeHook] = ()) -> None:
        self._group = group
        self.all = list(hooks)

    def add(self, hook: ConsumeHook) -> None:
        """One more."""
        self.all.append(hook)

    def before(self, queue: QueueRef, messages: Sequence[ReceivedMessage]) -> list[object]:
        """Call all; returns their contexts."""
        contexts: list[object] = []
        for hook in self.all:
            try:
                contexts.append(hook.before(self._group, queue, messages))
            except Exception:
                _log.exception("consume hook failed before", extra={"group": self._group})
                contexts.append(None)
        return contexts

    def after(self, queue: QueueRef, finished: Finished, contexts: list[object]) -> None:
        """Call all with what became of it."""
        for hook, context in zip(self.all, contexts, strict=False):
            try:
                hook.after(self._group, queue, finished, context)
            except Exception:
                _log.exception("consume hook failed after", extra={"group": self._group})
