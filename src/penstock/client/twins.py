"""One coroutine method, two ways to call it: blocking, and awaitable from any event loop.

    async def _topics(self) -> list[str]: ...      runs on the client's loop
    topics = blocking(_topics)
    topics_async = awaitable(_topics)

Both keep signature, documentation and types of the coroutine.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.client.loop import client_loop

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def blocking(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """A method that runs the coroutine on the client's loop and waits for it."""

    @wraps(call)
    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client_loop().run(call(self, *args, **kwargs))

    return twin


def awaitable(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Awaitable[T]]:
    """A method whose result is awaited on whichever event loop is running."""

    @wraps(call)
    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return client_loop().on(call(self, *args, **kwargs))

    return twin
