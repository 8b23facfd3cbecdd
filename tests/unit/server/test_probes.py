"""Probes: figures reach the engine, sooner near a limit; a failing probe is the worst figure."""

import pytest

from penstock.server.probes import Probes

GIB = 1 << 30


class Engine:
    def __init__(self):
        self.figures = []

    def set_alarm(self, name, value):
        self.figures.append((name, value))


class Scene:
    def __init__(self, loop):
        self.engine = Engine()
        self.rss = 100
        self.free = 100 * GIB
        self.looks = 0
        self.probes = Probes(
            self.engine,
            loop,
            rss_bytes=lambda: self.rss,
            free_bytes=self.read_free,
            memory_limit=1000,
            disk_limit=GIB,
            check_ms=500,
            looked=self.looked,
        )

    def read_free(self):
        if isinstance(self.free, Exception):
            raise self.free
        return self.free

    def looked(self):
        self.looks += 1


@pytest.fixture
def scene(loop):
    return Scene(loop)


def test_the_engine_hears_both_figures_at_start(scene):
    scene.probes.start()
    assert scene.engine.figures == [("memory", 100), ("disk", 100 * GIB)]


def test_far_from_the_limits_a_look_comes_every_interval(scene, loop):
    scene.probes.start()
    for _ in range(3):
        loop.advance(500)
    assert scene.looks == 4


@pytest.mark.parametrize(("rss", "free"), [(801, 100 * GIB), (100, GIB + 1000)])
def test_near_a_limit_looks_come_ten_times_as_often(scene, loop, rss, free):
    scene.rss, scene.free = rss, free
    scene.probes.start()
    loop.advance(50)
    assert scene.looks == 2


def test_a_probe_that_fails_counts_as_the_worst_figure(scene, loop):
    scene.free = OSError(5, "Input/output error")
    scene.probes.start()
    assert scene.engine.figures[-1] == ("disk", 0)
    scene.free = 50 * GIB
    loop.advance(50)
    assert scene.engine.figures[-1] == ("disk", 50 * GIB)


def test_stopped_probes_look_no_more(scene, loop):
    scene.probes.start()
    scene.probes.stop()
    loop.advance(5000)
    assert scene.looks == 1
