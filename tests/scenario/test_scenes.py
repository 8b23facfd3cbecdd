"""Every scene is also a test (D27): it checks itself."""

import asyncio

import pytest

from penstock.demo.scenes import SCENES, load_scene
from penstock.demo.scenes.house import House


@pytest.mark.parametrize("name", SCENES)
def test_the_scene_shows_what_it_claims(name):
    house = House(name, is_silent=True)
    is_good = asyncio.run(house.play(load_scene(name)))
    assert is_good, house.verdict()
    assert len(house.checks) >= 5
