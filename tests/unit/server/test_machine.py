"""Figures of the machine: RSS, RAM and cgroup limits of both kinds, and life without /proc."""

import os

import pytest

from penstock.server.machine import Machine, disk_bytes, peak_rss_bytes


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
