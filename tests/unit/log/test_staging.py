"""Rows beside the log: their files, the copy, the commit, and what a restart makes of them."""

import pytest

from kit.stages import block_of, rows, write_stage
from penstock.log import side_files
from penstock.log.staging import (
    StageCommit,
    StageDamaged,
    StagedCopy,
    batch_path,
    encode_block,
    is_stage_name,
    read_block,
    read_head,
)
from penstock.model.errors import AppendFailed, InvariantBroken
from penstock.model.record import neutral_record
from penstock.testing.storage import FaultKind, MemoryStorage

KEY = ("out", "q", 7)
KIB = 1024


def commit_of(copied, batch=7, checkpoint="c"):
    return StageCommit("out", "q", batch, copied.rows, checkpoint, False)


def copied_in(box, *blocks):
    copied = StagedCopy()
    for block in blocks:
        box.store.copy_staged(copied, [block], box.clock.wall_ms())
    box.commit()
    return copied


def committed(box, *blocks, batch=7):
    copied = copied_in(box, *blocks)
    box.store.commit_staged(copied, commit_of(copied, batch), box.clock.wall_ms())
    box.commit()
    return copied


def entered(box, rows_max=1000):
    whole, due = [], []
    while box.store.is_entering:
        queues, delayed = box.store.enter_staged(rows_max)
        whole += queues
        due += delayed
    return whole, due


# ---- names


def test_names_of_any_characters_stay_below_the_stage():
    path = batch_path("../../etc", "q/1.2", 3)
    assert path == "stage/%2E%2E%2F%2E%2E%2Fetc/q%2F1%2E2/3"


def test_names_that_are_too_long_are_cut_and_still_differ():
    one, other = batch_path("x" * 5000 + "a", "", 0), batch_path("x" * 5000 + "b", "", 0)
    assert one != other
    assert max(len(part) for part in one.split("/")) < 200
    assert one.endswith("/%/0")


@pytest.mark.parametrize("name", ["../x", "1.a/b", "1", "a.b", "1.", "1." + "a" * 65, "-1.a"])
def test_a_name_that_is_no_stage_is_told(name):
    assert not is_stage_name(name)
    assert is_stage_name("12.0b1f-6e")


# ---- blocks


def _file(block):
    storage = MemoryStorage()
    write_stage(storage, KEY, "0.a", [block])
    return storage.open(f"{batch_path(*KEY)}/0.a", create=False)


def test_a_block_is_read_as_it_was_written():
    block = block_of(3, rows([b"one", b"two"], deliver_ms=99))
    file = _file(block)
    head = read_head(file, 0)
    assert (head.queue_id, head.is_delayed, head.rows) == (3, True, 2)
    assert read_block(file, 0, head) == block
    assert read_head(file, block.size_bytes) is None


def test_a_flipped_bit_anywhere_in_a_block_is_found():
    block = block_of(3, rows([b"one", b"two"], deliver_ms=99))
    data = b"".join(encode_block(block))
    for at in range(len(data)):
        storage = MemoryStorage()
        storage.make_dir("stage")
        file = storage.open("stage/x", create=True)
        file.write(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(StageDamaged):
            read_block(file, 0, read_head(file, 0))


def test_a_file_that_ends_too_early_is_damaged():
    data = b"".join(encode_block(block_of(3, rows([b"one"]))))
    for size in range(1, len(data)):
        storage = MemoryStorage()
        storage.make_dir("stage")
        file = storage.open("stage/x", create=True)
        file.write(data[:size])
        with pytest.raises(StageDamaged):
            read_block(file, 0, read_head(file, 0))


# ---- copy and commit


def test_what_is_copied_is_seen_by_nobody_before_its_commit(box):
    queue = box.queue()
    box.append(b"before")
    copied_in(box, block_of(1, rows([b"one", b"two"])))
    box.append(b"between")
    assert list(box.bodies().values()) == [b"before", b"between"]
    assert queue.next_offset == 2


def test_a_commit_makes_all_rows_visible_in_their_queues(box):
    one, two = box.queue(1), box.queue(2)
    box.append(b"before", queues=[one])
    committed(box, block_of(1, rows([b"a", b"b"])), block_of(2, rows([b"c"])))
    whole, _ = entered(box)
    assert whole == [one, two]
    assert box.bodies(1) == {0: b"before", 1: b"a", 2: b"b"}
    assert box.bodies(2) == {0: b"c"}
    assert box.store.sinks.get("out", "q").batch == 7


def test_rows_are_entered_piece_by_piece_and_what_comes_later_waits_behind_them(box):
    queue = box.queue()
    committed(box, block_of(1, rows([b"a", b"b", b"c"])), block_of(1, rows([b"d"])))
    (later,) = box.append(b"later")
    assert later.first_offsets == (4,)
    assert (queue.next_offset, queue.staged_offset) == (0, 5)
    seen = []
    while box.store.is_entering:
        box.store.enter_staged(1)
        seen.append(queue.next_offset)
    assert seen == [1, 2, 3, 4, 5]
    assert list(box.bodies().values()) == [b"a", b"b", b"c", b"d", b"later"]
    assert queue.end_bytes == queue.staged_bytes == queue.bytes_between(0, 5)


def test_an_append_that_fails_behind_promised_rows_gives_its_offsets_back(box):
    queue = box.queue()
    committed(box, block_of(1, rows([b"a", b"b"])))
    box.storage.plan.fail_next("write", FaultKind.ENOSPC)
    with pytest.raises(AppendFailed):
        box.append(b"lost")
    assert queue.staged_offset == 2
    box.append(b"stored")
    entered(box)
    assert list(box.bodies().values()) == [b"a", b"b", b"stored"]


def test_a_copy_that_the_disk_refuses_leaves_nothing_behind(box):
    box.queue()
    copied, block = StagedCopy(), block_of(1, rows([b"a"]))
    box.storage.plan.fail_next("write", FaultKind.ENOSPC)
    with pytest.raises(AppendFailed):
        box.store.copy_staged(copied, [block], box.clock.wall_ms())
    assert copied.rows == 0
    box.store.copy_staged(copied, [block], box.clock.wall_ms())
    box.commit()
    box.store.commit_staged(copied, commit_of(copied), box.clock.wall_ms())
    box.commit()
    entered(box)
    assert list(box.bodies().values()) == [b"a"]


def test_a_commit_that_the_disk_refuses_gives_no_offsets(box):
    queue = box.queue()
    copied = copied_in(box, block_of(1, rows([b"a"])))
    box.storage.plan.fail_next("write", FaultKind.ENOSPC)
    with pytest.raises(AppendFailed):
        box.store.commit_staged(copied, commit_of(copied), box.clock.wall_ms())
    assert (queue.staged_offset, box.store.is_entering) == (0, False)
    assert box.store.sinks.get("out", "q") is None


def test_rows_keep_key_tag_and_expiry(box):
    queue = box.queue()
    record = neutral_record(b"body", key=b"k", tag=b"t", properties=b"a\x01b\x02")
    record.reshape(expire_ms=123)
    committed(box, block_of(1, [record]))
    entered(box)
    (entry,) = queue.entries(0, 1)
    assert entry[6] == 116
    (found,) = box.store.read([(entry[0], entry[4])])
    assert (found.key, found.tag, found.properties) == (b"k", b"t", b"a\x01b\x02")
    assert (found.body, found.expire_ms) == (b"body", 123)


def test_delayed_rows_wait_for_their_time_without_an_offset(box):
    queue = box.queue()
    committed(box, block_of(1, rows([b"later"], deliver_ms=50_000)), block_of(1, rows([b"now"])))
    _, due = entered(box)
    assert [each[0] for each in due] == [50_000]
    assert box.store.delayed.due(60_000) == due
    assert list(box.bodies().values()) == [b"now"]
    assert queue.next_offset == 1


def test_no_snapshot_is_taken_while_entries_are_promised(box):
    box.queue()
    committed(box, block_of(1, rows([b"a"])))
    assert not box.store.is_snapshot_due()
    with pytest.raises(InvariantBroken, match="promised"):
        box.store.offer_snapshot(box.store.end_position, [])
    entered(box)
    box.snapshot()


def test_a_clean_stop_enters_what_is_promised(box):
    box.queue()
    committed(box, block_of(1, rows([b"a", b"b"])))
    box.stop()
    assert box.recovered.is_clean
    assert list(box.bodies().values()) == [b"a", b"b"]
    assert box.store.sinks.get("out", "q").rows == 2


# ---- restarts


@pytest.mark.parametrize("ending", ["kill", "power_cut"])
def test_a_copy_without_its_commit_is_dead_space_after_a_restart(box, ending):
    box.queue()
    box.append(b"before")
    copied_in(box, block_of(1, rows([b"a", b"b"])))
    getattr(box, ending)()
    box.append(b"after")
    assert box.bodies() == {0: b"before", 1: b"after"}
    assert box.store.sinks.get("out", "q") is None


@pytest.mark.parametrize("ending", ["kill", "power_cut"])
@pytest.mark.parametrize("is_entered", [False, True])
def test_a_commit_that_is_durable_is_found_again(box, ending, is_entered):
    box.queue(1)
    box.queue(2)
    committed(
        box,
        block_of(1, rows([b"a", b"b"], expire_ms=9)),
        block_of(2, rows([b"c"])),
        block_of(1, rows([b"later"], deliver_ms=50_000)),
    )
    box.append(b"behind", queues=[box.store.queue(1)])
    box.commit()
    if is_entered:
        entered(box)
    getattr(box, ending)()
    assert box.bodies(1) == {0: b"a", 1: b"b", 2: b"behind"}
    assert box.bodies(2) == {0: b"c"}
    assert [each[7] for each in box.store.queue(1).entries(0, 9)] == [8, 8, 0]
    assert [each[0] for each in box.store.delayed.due(60_000)] == [50_000]
    assert box.store.sinks.get("out", "q").checkpoint == "c"


def test_rows_copied_before_a_snapshot_and_committed_behind_it_are_found_again(box):
    box.queue()
    copied = copied_in(box, block_of(1, rows([b"a", b"b"])))
    box.snapshot()
    box.store.commit_staged(copied, commit_of(copied), box.clock.wall_ms())
    box.commit()
    box.kill()
    assert list(box.bodies().values()) == [b"a", b"b"]


def test_the_last_batch_outlives_the_segment_of_its_commit(make_box):
    box = make_box(segment_bytes_max=64 * KIB, settled_keep_ms=0, settled_keep_bytes_max=0)
    queue = box.queue()
    committed(box, block_of(1, rows([b"a"])))
    entered(box)
    box.append(b"x" * 70_000)
    box.commit()
    box.snapshot()
    removed = _swept(box, queue.next_offset)
    assert [segment.base for segment in removed] == [0]
    box.commit()
    box.kill()
    assert box.store.sinks.get("out", "q").batch == 7


def test_a_copy_under_way_keeps_its_segments(make_box):
    box = make_box(segment_bytes_max=64 * KIB, settled_keep_ms=0, settled_keep_bytes_max=0)
    queue = box.queue()
    copied = copied_in(box, block_of(1, rows([b"a"])))
    box.append(b"x" * 70_000)
    box.commit()
    box.snapshot()
    assert _swept(box, queue.next_offset) == []
    box.store.commit_staged(copied, commit_of(copied), box.clock.wall_ms())
    box.commit()
    entered(box)
    assert list(box.bodies().values())[-1] == b"a"


def test_a_copy_that_is_given_up_is_freed_by_retention(make_box):
    box = make_box(segment_bytes_max=64 * KIB, settled_keep_ms=0, settled_keep_bytes_max=0)
    queue = box.queue()
    copied_in(box, block_of(1, rows([b"a"])))
    box.append(b"x" * 70_000)
    box.commit()
    box.snapshot()
    box.store.drop_copy()
    assert [segment.base for segment in _swept(box, queue.next_offset)] == [0]


def test_rows_that_somebody_needs_keep_their_segment_although_the_commit_is_elsewhere(make_box):
    box = make_box(segment_bytes_max=64 * KIB, settled_keep_ms=0, settled_keep_bytes_max=0)
    box.queue(1)
    other = box.queue(2)
    copied = copied_in(box, block_of(1, rows([b"a"])))
    box.append(b"x" * 70_000, queues=[other])
    box.store.commit_staged(copied, commit_of(copied), box.clock.wall_ms())
    box.commit()
    entered(box)
    box.append(b"x" * 70_000, queues=[other])
    box.commit()
    box.snapshot()
    for _ in range(2):
        assert 0 not in [segment.base for segment in _swept(box, 0, other=other.next_offset)]
        box.stop()
    assert list(box.bodies(1).values()) == [b"a"]


def test_a_rebuild_from_the_whole_log_gives_the_same_entries(box):
    queue = box.queue()
    box.append(b"before")
    committed(box, block_of(1, rows([b"a", b"b"])), block_of(1, rows([b"late"], deliver_ms=7_000)))
    entered(box)
    box.append(b"after")
    box.commit()
    box.snapshot()
    before = queue.entries(0, 10)
    for name in box.storage.list("index"):
        box.storage.remove(f"index/{name}")
    box.kill()
    assert box.recovered.is_rebuilt
    assert box.store.queue(1).entries(0, 10) == before
    assert [each[0] for each in box.store.delayed.due(9_000)] == [7_000]


def test_a_damaged_row_of_a_batch_is_a_hole_and_the_others_are_there(box):
    box.queue()
    copied = committed(box, block_of(1, rows([b"a", b"b", b"c"])))
    box.storage.sync_dir("log")
    [name] = box.storage.list("log")
    file = box.storage.open(f"log/{name}", create=False)
    at = copied.copied[0].position + copied.copied[0].size_bytes // 3 + 100
    file._node.content[at] ^= 1
    box.kill()
    assert box.bodies() == {0: b"a", 2: b"c"}
    (after,) = box.append(b"d")
    assert after.first_offsets == (3,)


def test_where_written_counts_as_durable_a_commit_that_outlives_its_rows_never_happened(make_box):
    box = make_box(durability="os")
    box.queue()
    box.append(b"before")
    box.snapshot()
    copied = copied_in(box, block_of(1, rows([b"a", b"b"])))
    at = copied.position + 50
    box.store.commit_staged(copied, commit_of(copied), box.clock.wall_ms())
    [name] = box.storage.list("log")
    box.storage.open(f"log/{name}", create=False)._node.content[at] ^= 1
    box.kill()
    assert box.bodies() == {0: b"before"}
    assert box.store.sinks.get("out", "q") is None


# ---- files and the table


def test_files_that_are_removed_take_their_directories_along(box):
    write_stage(box.storage, KEY, "0.a", [block_of(1, rows([b"a"]))])
    write_stage(box.storage, ("out", "q", 8), "0.b", [block_of(1, rows([b"a"]))])
    sizes = box.store.stages.found()
    assert {path: [*files] for path, files in sizes.items()} == {
        "stage/out/q/7": ["0.a"], "stage/out/q/8": ["0.b"],
    }  # fmt: skip
    assert all(size > 0 for files in sizes.values() for size in files.values())
    box.store.stages.remove("stage/out/q/7", ["0.a"])
    box.commit()
    assert box.storage.list("stage/out/q") == ["8"]
    box.store.stages.remove_all("stage/out/q/8")
    box.commit()
    assert box.storage.list("stage") == []


def test_a_directory_that_somebody_else_uses_stays(box):
    write_stage(box.storage, KEY, "0.a", [block_of(1, rows([b"a"]))])
    write_stage(box.storage, KEY, "1.b", [block_of(1, rows([b"a"]))])
    box.store.stages.remove("stage/out/q/7", ["0.a"])
    box.commit()
    assert box.storage.list("stage/out/q/7") == ["1.b"]


def test_very_many_files_of_a_batch_go_piece_by_piece(box, monkeypatch):
    monkeypatch.setattr(side_files, "CLEARED_MAX", 2)
    for number in range(5):
        write_stage(box.storage, KEY, f"{number}.a", [block_of(1, rows([b"a"]))])
    box.store.stages.remove_all("stage/out/q/7")
    left = []
    while (job := box.store.take_sync_job()) is not None:
        job.run()
        box.store.synced(job, None)
        is_there = box.storage.exists("stage/out")
        left.append(len(box.storage.list("stage/out/q/7")) if is_there else 0)
    assert left == [3, 1, 0]
    assert box.storage.list("stage") == []


def test_what_the_table_forgets_stays_forgotten(box):
    box.queue()
    committed(box, block_of(1, rows([b"a"])))
    entered(box)
    box.snapshot()
    box.store.sinks.forget(("out", "q"))
    box.append(b"x")
    box.commit()
    box.snapshot()
    box.kill()
    assert box.store.sinks.get("out", "q") is None


def _swept(box, low_mark, **others):
    needs = {1: low_mark, 2: others.get("other", 0)}
    steps = box.store.sweep(needs.get, box.clock.wall_ms())
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
