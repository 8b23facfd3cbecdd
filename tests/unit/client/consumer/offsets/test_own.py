"""A user's own store, plain or with coroutines."""

import asyncio

import pytest

from penstock.client.consumer.offsets import UserOffsetStore
from penstock.client.errors import ClientError
from penstock.model.assignment import QueueRef

A = QueueRef("t", "b", 0)


class Plain:
    """Functions."""

    def __init__(self):
        self.kept = {}

    def read(self, queue):
        return self.kept.get(queue)

    def write(self, offsets):
        self.kept.update(offsets)


class Awaitable(Plain):
    """Coroutines."""

    async def read(self, queue):
        return super().read(queue)

    async def write(self, offsets):
        super().write(offsets)


class Broken(Plain):
    """A database that is away."""

    def read(self, queue):
        raise OSError("away")

    write = read


@pytest.mark.parametrize("kind", [Plain, Awaitable])
def test_functions_and_coroutines_are_both_good(kind):
    own = kind()
    store = UserOffsetStore(own)
    assert asyncio.run(store.read(A)) is None
    assert asyncio.run(store.write({A: 4})) == [A]
    assert asyncio.run(store.read(A)) == 4


def test_a_store_that_raises_keeps_nothing_and_is_asked_again_later(caplog):
    store = UserOffsetStore(Broken())
    assert asyncio.run(store.write({A: 4})) == ()
    with pytest.raises(ClientError, match="away"):
        asyncio.run(store.read(A))


def test_something_without_read_and_write_is_refused():
    with pytest.raises(TypeError, match="read"):
        UserOffsetStore(object())
