import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log import delayed as delayed_files
from penstock.log.delayed import HOUR_MS, NOTE, DelayedFiles, DelayedSpill
from penstock.log.side_files import SideFiles
from penstock.testing.storage import MemoryStorage

FAR_MS = 1 << 53


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def files(storage):
    return SideFiles(storage)


@pytest.fixture
def delayed(files):
    return DelayedFiles(files)


def names(storage):
    return storage.list("delayed") if storage.exists("delayed") else []


def snapshot(files):
    files.take_rows()
    files.run_all()
    files.snapshot_written()
    files.run_all()


def reopened(files, storage):
    files._changed.update(files.paths("delayed/"))
    rows = [(path, body) for _, path, body in files.take_rows() if body is not None]
    again = SideFiles(storage)
    assert again.restore(rows) == []
    found = DelayedFiles(again)
    found.restore(again.paths("delayed/"))
    return found


def test_records_are_given_out_once_earliest_first_and_only_when_due_soon(delayed):
    delayed.add(5000, 100, 64)
    delayed.add(3000, 200, 72)
    delayed.add(90 * HOUR_MS, 300, 80)
    assert delayed.due(4000) == [(3000, 200, 72)]
    assert delayed.due(4000) == []
    assert delayed.due(10_000) == [(5000, 100, 64)]
    assert delayed.horizon_ms == 10_000
    assert delayed.due(91 * HOUR_MS) == [(90 * HOUR_MS, 300, 80)]


def test_what_was_released_is_not_given_out(delayed):
    delayed.add(5000, 100, 64)
    delayed.add(5000, 200, 64)
    delayed.remove(5000, 100)
    assert delayed.due(HOUR_MS) == [(5000, 200, 64)]


@pytest.mark.parametrize("flushes", [False, True])
def test_what_is_pending_is_known_after_a_restart(delayed, files, storage, flushes):
    for position in range(10):
        delayed.add(position * HOUR_MS // 3, position, 64)
    if flushes:
        delayed.plan_flush()
        files.run_all()
    delayed.remove(HOUR_MS, 3)
    delayed.plan_flush()
    files.run_all()
    again = reopened(files, storage)
    assert [due[1] for due in again.due(10 * HOUR_MS)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_file_goes_when_nothing_in_it_is_pending(delayed, files, storage):
    delayed.add(5000, 100, 64)
    delayed.add(FAR_MS, 200, 64)
    delayed.plan_flush()
    files.run_all()
    assert len(names(storage)) == 2
    delayed.remove(5000, 100)
    delayed.remove(FAR_MS, 200)
    snapshot(files)
    assert names(storage) == []
    assert delayed.hours == 0


def test_a_file_from_before_the_restart_goes_when_it_was_read_and_is_over(files, storage):
    first = DelayedFiles(files)
    first.add(5000, 100, 64)
    first.add(6000, 200, 64)
    first.plan_flush()
    files.run_all()
    again = reopened(files, storage)
    assert again.due(HOUR_MS) == [(5000, 100, 64), (6000, 200, 64)]
    again.remove(5000, 100)
    assert again.hours == 1
    again.remove(6000, 200)
    assert again.hours == 0


def test_what_waits_for_a_decision_can_be_listed_without_being_given_out(delayed):
    delayed.add(FAR_MS, 200, 64)
    assert delayed.pending(FAR_MS) == [(FAR_MS, 200, 64)]
    assert delayed.horizon_ms == 0


def test_a_file_full_of_decided_records_is_written_anew(delayed, files, storage, monkeypatch):
    monkeypatch.setattr(delayed_files, "COMPACT_BYTES", 100 * NOTE.size)
    delayed.add(FAR_MS, 1, 64)
    for position in range(2, 500):
        delayed.add(FAR_MS, position, 64)
        delayed.remove(FAR_MS, position)
        if position % 50 == 0:
            delayed.plan_flush()
            snapshot(files)
    assert sum(storage.size(f"delayed/{name}") for name in names(storage)) < 300 * NOTE.size
    assert delayed.pending(FAR_MS) == [(FAR_MS, 1, 64)]
    delayed.plan_flush()
    files.run_all()
    assert reopened(files, storage).pending(FAR_MS) == [(FAR_MS, 1, 64)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 5 * HOUR_MS)),
        st.tuples(st.just("remove"), st.integers(0, 30)),
        st.tuples(st.just("flush"), st.booleans()),
        st.tuples(st.just("due"), st.integers(1, HOUR_MS)),
    ),
    max_size=40,
)


@given(STEPS)
def test_everything_is_given_out_exactly_once_unless_released(steps):
    storage = MemoryStorage()
    files = SideFiles(storage)
    delayed = DelayedFiles(files)
    waiting, given_out = {}, set()
    for position, (verb, value) in enumerate(steps):
        if verb == "add" and value >= delayed.horizon_ms:
            delayed.add(value, position, 64)
            waiting[position] = value
        elif verb == "remove" and value in waiting:
            delayed.remove(waiting.pop(value), value)
        elif verb == "flush":
            delayed.plan_flush()
            if value:
                files.run_all()
        elif verb == "due":
            for deliver_ms, found, _ in delayed.due(delayed.horizon_ms + value):
                assert waiting[found] == deliver_ms
                assert found not in given_out
                given_out.add(found)
    for _, found, _ in delayed.due(delayed.horizon_ms + 6 * HOUR_MS):
        given_out.add(found)
    assert waiting.keys() <= given_out


# ---- spill --------------------------------------------------------------------------------------


START = (0, 0, 0, 0)


@pytest.fixture
def spill(files, monkeypatch):
    monkeypatch.setattr(delayed_files, "FLUSH_BYTES", 24 * 4)
    found = DelayedSpill(files)
    found.notes_max = 1000
    return found


def spilled(storage):
    return storage.list("spill") if storage.exists("spill") else []


def test_a_spill_gives_its_first_notes_in_order_and_tells_the_next(spill, files):
    for due_ms, owner in ((5, 2), (3, 1), (5, 1), (9 * HOUR_MS, 1), (4, 1), (6, 1)):
        spill.add((due_ms, owner, 10, 1))
    files.run_all()
    assert spill.take(START, 10, 2) == ([(3, 1, 10, 1), (4, 1, 10, 1)], (5, 1, 10, 1))
    assert spill.take((5, 2, 0, 0), 10, 9) == ([(5, 2, 10, 1), (6, 1, 10, 1)], None)
    assert spill.take((7, 0, 0, 0), 10 * HOUR_MS, 9) == ([(9 * HOUR_MS, 1, 10, 1)], None)


def test_a_spill_has_neither_rows_nor_syncs_and_its_files_go_at_open(spill, files, storage):
    for offset in range(9):
        spill.add((offset, 1, offset, 1))
    assert files.take_rows() == []
    files.run_all()
    assert spilled(storage)
    SideFiles(storage).clear("spill")
    assert spilled(storage) == []


def test_a_file_of_the_spill_goes_when_its_hour_or_its_owners_are_over(spill, files, storage):
    for hour in range(2):
        for offset in range(4):
            spill.add((hour * HOUR_MS + offset, 1 + hour, offset, 1))
    files.run_all()
    assert len(spilled(storage)) == 2
    spill.forget(2)
    files.run_all()
    assert (len(spilled(storage)), spill.notes) == (1, 4)
    spill.end_hours(HOUR_MS - 1)
    assert spill.notes == 4
    spill.end_hours(HOUR_MS)
    files.run_all()
    assert (spilled(storage), spill.notes) == ([], 0)


def test_a_file_that_is_mostly_of_forgotten_owners_is_written_anew(
    spill, files, storage, monkeypatch
):
    monkeypatch.setattr(delayed_files, "SPILL_COMPACT_NOTES", 4)
    for offset in range(8):
        spill.add((offset, 1 + offset % 3, offset, 1))
    files.run_all()
    spill.forget(1)
    assert spill.notes == 8
    spill.forget(2)
    files.run_all()
    assert spill.notes == 2
    assert spill.take(START, 99, 9) == ([(2, 3, 2, 1), (5, 3, 5, 1)], None)
    [name] = spilled(storage)
    assert len(storage.open(f"spill/{name}", create=False).read(0, 999)) == 48


def test_a_spill_is_full_at_its_bound_and_while_the_disk_takes_nothing(spill, files, monkeypatch):
    told = []
    spill.on_room = lambda: told.append(spill.notes)
    spill.notes_max = 4
    for offset in range(4):
        spill.add((offset, 1, offset, 1))
    assert not spill.has_room
    spill.notes_max = 100
    monkeypatch.setattr(delayed_files, "SPILL_UNWRITTEN_MAX", 24 * 4)
    assert not spill.has_room
    files.run_all()
    assert spill.has_room
    assert told == [4]
