"""Scenes: short plays in which one mechanism acts and checks itself (D27).

A scene is a file here with ``async def play(house: House) -> None``; it publishes and consumes
through the house's actors, orders faults, says what happens and ends with checks. To add one,
write the file and give it a line in ``SCENES``; every scene is also run as a test.
"""

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.cli.scenes.house import House

SCENES: Final = {
    "store-hold": "the disk stops answering: one publisher is held, one refused, none is lied to",
    "disk-full": "disk alarm and failing writes: publishers wait, consumers drain, nothing is lost",
}
"""Name -> what it shows, in the order in which they are listed."""

Play = Callable[["House"], Awaitable[None]]


def load_scene(name: str) -> Play:
    """The scene's ``play``; its file is named after it."""
    play: Play = import_module(f"penstock.cli.scenes.{name.replace('-', '_')}").play
    return play
