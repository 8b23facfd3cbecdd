"""Unit tests for what all handlers share: bodies, numbers, and long work in pieces."""

import asyncio
import json

import pytest

from penstock.server.pulsar_rest import request as room
from penstock.server.pulsar_rest.request import Pace, RestError, decoded, json_pieces, to_number


def encoded(content):
    async def gather():
        return [piece async for piece in json_pieces(content)]

    return asyncio.run(gather())


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        None,
        "text",
        {"a": {}, "b": [], "c": None},
        {"a": [1, 2, {"b": [3]}], 'quo"te': {"x": {"y": 1.5}}},
        list(range(1_000)),
        [{"name": str(number)} for number in range(101)],
    ],
)
def test_pieces_together_are_what_was_to_be_said(content):
    assert json.loads(b"".join(encoded(content))) == content


def test_pieces_are_not_much_larger_than_they_may_be(monkeypatch):
    monkeypatch.setattr(room, "PIECE_BYTES", 1_000)
    pieces = encoded([f"name {number:06d}" for number in range(10_000)])
    assert len(pieces) > 50
    assert max(map(len, pieces)) < 3_000


def test_long_work_lets_others_have_their_turns():
    turns = []

    async def other(stop):
        while not stop.is_set():
            turns.append(None)
            await asyncio.sleep(0)

    async def work():
        stop = asyncio.Event()
        task = asyncio.create_task(other(stop))
        pace = Pace()
        for _ in range(10 * room.STEPS_AT_A_TIME):
            await pace.step()
        stop.set()
        await task

    asyncio.run(work())
    assert len(turns) >= 10


@pytest.mark.parametrize("text", ["", "x", "1.5", "--1", "1" * 20, "٣", " 1"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(RestError) as refused:
        to_number("it", text)
    assert refused.value.status == 400


def test_members_that_are_null_say_nothing():
    assert decoded(b'{"a": null, "b": 1}', dict[str, int]) == {"b": 1}
