"""Every scene is also a test (D27): it checks itself."""

import asyncio

import pytest

from penstock.demo.scenes import SCENES
from penstock.demo.scenes.scene import Scene


@pytest.mark.parametrize("name", SCENES)
def test_the_scene_shows_what_it_claims(name):
    scene = Scene(name, is_silent=True)
    is_good = asyncio.run(scene.play())
    assert [each for each in scene.verdict()["checks"] if not each["is_true"]] == []
    assert is_good
    assert len(scene.checks) >= 5
