"""Probes: figures reach the engine, sooner near a limit; a failing probe is the worst figure."""

import os
import sys

import pytest

from penstock.server.probes import (
    WINDOW_SAMPLES,
    LoopLag,
    Machine,
    Probes,
    disk_bytes,
    peak_rss_bytes,
    run_delays,
    trimmer,
)

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
        self.written = 0
        self.looks = 0
        self.trims = 0
        self.kept = 0
        self.probes = Probes(
            self.engine,
            loop,
            rss_bytes=lambda: self.rss,
            free_bytes=self.read_free,
            written=lambda: self.written,
            memory_limit=1000,
            disk_limit=GIB,
            check_ms=500,
            looked=self.looked,
            trim=self.trim,
        )

    def read_free(self):
        if isinstance(self.free, Exception):
            raise self.free
        return self.free

    def looked(self):
        self.looks += 1

    def writes(self, size):
        """A turn."""
        self.written += size
        self.free -= size
        self.probes.look_after_writes()

    def trim(self):
        self.trims += 1
        self.rss -= self.kept


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


def test_who_writes_faster_than_looks_come_is_noticed_before_the_disk_is_full(scene, loop):
    scene.free, size = 2 * GIB, 1 << 20
    scene.probes.start()
    while scene.engine.figures[-1][1] >= GIB:
        scene.writes(size)
    assert scene.free >= GIB - 2 * size
    assert scene.looks < 20


def test_below_the_limit_writes_bring_no_look_but_time_does(scene, loop):
    scene.free = GIB - 1
    scene.probes.start()
    for _ in range(10):
        scene.writes(1 << 20)
    assert scene.looks == 1
    loop.advance(50)
    assert scene.looks == 2


def test_near_the_limit_freed_memory_goes_back_before_the_figure_counts(scene, loop):
    scene.rss, scene.kept = 1200, 700
    scene.probes.start()
    assert scene.engine.figures[0] == ("memory", 500)
    assert scene.trims == 1


def test_memory_that_is_in_use_is_not_given_back_all_the_time(scene, loop):
    scene.rss = 1200
    scene.probes.start()
    for _ in range(100):
        loop.advance(50)
    assert (scene.trims, scene.looks) == (1, 101)
    assert scene.engine.figures[-2] == ("memory", 1200)
    for _ in range(100):
        loop.advance(50)
    assert scene.trims == 2


def test_far_from_the_limit_the_allocator_keeps_its_pages(scene, loop):
    scene.probes.start()
    for _ in range(100):
        loop.advance(500)
    assert scene.trims == 0


def test_this_system_gives_freed_memory_back():
    if sys.platform != "linux":
        pytest.skip("only the C library of Linux has malloc_trim")
    trim = trimmer()
    machine = Machine()
    try:
        # Blocks below the size that is mapped apart, every second one stays.
        blocks = [bytes(60_000) for _ in range(2_000)]
        kept = blocks[1::2]
        blocks.clear()
        before = machine.rss_bytes()
        trim()
        assert machine.rss_bytes() < before - 30_000_000
        assert len(kept) == 1_000
    finally:
        machine.close()


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


# ---- machine ------------------------------------------------------------------------------------
# Figures of the machine: RSS, RAM and cgroup limits of both kinds, and life without /proc.


@pytest.fixture
def fake_root(tmp_path):
    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/self/statm", "1000 250 30 1 0 90 0\n")
    return tmp_path, write


def test_rss_is_the_second_figure_of_statm_in_pages(fake_root):
    machine = Machine(fake_root[0])
    assert machine.rss_bytes() == 250 * os.sysconf("SC_PAGE_SIZE")
    machine.close()


def test_the_lowest_cgroup_v2_limit_on_the_way_up_counts(fake_root):
    root, write = fake_root
    write("proc/self/cgroup", "0::/a/b\n")
    write("sys/fs/cgroup/a/b/memory.max", "max\n")
    write("sys/fs/cgroup/a/memory.max", "1048576\n")
    machine = Machine(root)
    assert machine.memory_bytes() == 1048576
    machine.close()


def test_a_cgroup_v1_limit_counts_and_no_limit_does_not(fake_root):
    root, write = fake_root
    write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x/y\n0::/\n")
    write("sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "9223372036854771712\n")
    machine = Machine(root)
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.memory_bytes() == ram
    write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2097152\n")
    assert machine.memory_bytes() == 2097152
    machine.close()


def test_a_group_that_only_the_host_sees_falls_back_to_the_mount_point(fake_root):
    root, write = fake_root
    write("proc/self/cgroup", "0::/docker/0123\n")
    write("sys/fs/cgroup/memory.max", "4194304\n")
    machine = Machine(root)
    assert machine.memory_bytes() == 4194304
    machine.close()


def test_without_proc_the_peak_stands_in(tmp_path):
    machine = Machine(tmp_path)
    assert not machine.is_rss_exact
    assert machine.rss_bytes() == peak_rss_bytes() > 1 << 20
    assert machine.memory_bytes() > 1 << 20


def test_this_machine_has_memory_and_disk(tmp_path):
    machine = Machine()
    assert 1 << 20 < machine.rss_bytes() <= machine.memory_bytes()
    machine.close()
    total, free = disk_bytes(tmp_path)
    assert 0 < free <= total


# ---- loop lag -----------------------------------------------------------------------------------
# Loop lag: nothing when timers are kept, the delay when they are not.


def test_a_loop_that_is_on_time_has_no_lag(loop):
    lag = LoopLag(loop)
    lag.start()
    loop.advance(250)
    loop.advance(250)
    assert lag.histogram.count == 2
    assert lag.worst_seconds < 1e-6


def test_a_late_timer_is_the_lag(loop):
    lag = LoopLag(loop)
    lag.start()
    loop.advance(400)
    assert abs(lag.worst_seconds - 0.150) < 1e-6


def test_the_worst_lag_is_forgotten_after_its_window(loop):
    lag = LoopLag(loop)
    lag.start()
    loop.advance(400)
    for _ in range(WINDOW_SAMPLES):
        loop.advance(250)
    assert lag.worst_seconds < 1e-6


def test_stopped_it_measures_no_more(loop):
    lag = LoopLag(loop)
    lag.start()
    lag.stop()
    loop.advance(5000)
    assert lag.histogram.count == 0


# Threads that wait for a CPU.


def test_each_thread_says_how_long_it_waited_for_a_cpu(tmp_path):
    for thread, text in {"10": "5 2000000 3", "11": "5 7500000 3"}.items():
        (tmp_path / "task" / thread).mkdir(parents=True)
        (tmp_path / "task" / thread / "schedstat").write_text(text)
    (tmp_path / "task" / "12").mkdir()
    assert run_delays(tmp_path) == {10: 2.0, 11: 7.5}


def test_where_threads_say_nothing_the_process_does_or_nobody(tmp_path):
    assert run_delays(tmp_path) == {}
    (tmp_path / "schedstat").write_text("nonsense")
    assert run_delays(tmp_path) == {}
    (tmp_path / "schedstat").write_text("5 3000000 1")
    assert run_delays(tmp_path) == {0: 3.0}
