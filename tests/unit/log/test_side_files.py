import pytest

from penstock.log.side_files import HANDLES_MAX, JOB_SYNCS_MAX, SYNCS_MAX, SideFiles
from penstock.model.errors import LogCorrupt
from penstock.testing.storage import FaultKind, SimulatedStorage


class Listener:
    def __init__(self):
        self.heard = []

    def written(self, path, size):
        self.heard.append((path, size))


@pytest.fixture
def storage():
    storage = SimulatedStorage(1)
    storage.make_dir("index")
    storage.sync_dir("")
    return storage


@pytest.fixture
def files(storage):
    return SideFiles(storage)


def run_one(files):
    steps = files.steps()
    files.done(files.run(steps))
    return steps


def rows(files):
    return [(path, body) for _, path, body in files.take_rows() if body is not None]


def restored(storage, found):
    files = SideFiles(storage)
    return files, files.restore(found)


def test_bytes_reach_the_file_with_the_next_job_and_their_owner_is_told(files):
    listener = Listener()
    files.append("index/a.idx", b"one", listener)
    files.append("index/a.idx", b"two", listener)
    assert files.planned_size("index/a.idx") == 6
    assert listener.heard == []
    run_one(files)
    assert files.read("index/a.idx", 1, 4) == b"netw"
    assert listener.heard == [("index/a.idx", 3), ("index/a.idx", 3)]


def test_a_write_that_fails_is_tried_again_and_written_once(files, storage):
    files.append("index/a.idx", b"one")
    run_one(files)
    storage.plan.fail_next("write", FaultKind.SHORT)
    storage.plan.fail_next("write", FaultKind.ENOSPC)
    files.append("index/a.idx", b"twothree")
    while files.waiting:
        run_one(files)
    assert files.read("index/a.idx", 0, 11) == b"onetwothree"
    assert storage.size("index/a.idx") == 11


def test_a_failed_sync_is_never_called_good(files, storage):
    files.append("index/a.idx", b"one")
    files.take_rows()
    storage.plan.fail_next("sync", FaultKind.EIO)
    with pytest.raises(OSError, match="planned"):
        files.run(files.steps())


def test_a_file_is_believed_as_far_as_its_row_says(files, storage):
    files.append("index/a.idx", b"one")
    found = rows(files)
    files.append("index/a.idx", b"two")
    files.run_all()
    again, damaged = restored(storage, found)
    assert damaged == []
    assert storage.size("index/a.idx") == 3
    again.append("index/a.idx", b"2nd")
    again.run_all()
    assert again.read("index/a.idx", 0, 6) == b"one2nd"


@pytest.mark.parametrize("harm", ["remove", "cut", "flip"])
def test_a_file_that_is_not_what_its_row_says_is_named(files, storage, harm):
    files.append("index/a.idx", b"one")
    files.append("index/b.idx", b"two")
    found = rows(files)
    files.run_all()
    if harm == "remove":
        storage.remove("index/a.idx")
    else:
        file = storage.open("index/a.idx", create=False)
        file.truncate(0)
        file.write(b"on" if harm == "cut" else b"oNe")
    assert restored(storage, found)[1] == ["index/a.idx"]


def test_files_without_a_row_go_at_open(files, storage):
    files.append("index/a.idx", b"one")
    found = rows(files)
    files.append("index/b.idx", b"two")
    files.run_all()
    again, _ = restored(storage, found)
    again.clear("index")
    again.clear("there is no such directory")
    assert storage.list("index") == ["a.idx"]


def test_a_removed_file_stays_until_a_snapshot_without_it_is_durable(files, storage):
    files.append("index/a.idx", b"one")
    found = rows(files)
    files.run_all()
    files.remove("index/a.idx")
    files.run_all()
    # A crash here: the row of the last snapshot is still right.
    assert restored(storage, found)[1] == []
    assert files.take_rows() == [("file", "index/a.idx", None)]
    files.run_all()
    assert storage.exists("index/a.idx")
    files.snapshot_written()
    files.run_all()
    assert not storage.exists("index/a.idx")


def test_the_files_of_a_snapshot_survive_a_power_cut(files, storage):
    for number in range(10):
        files.append(f"index/{number}.idx", b"x" * number)
    found = rows(files)
    while files.waiting:
        steps = run_one(files)
        assert sum(step.action.name.startswith("SYNC") for step in steps) <= JOB_SYNCS_MAX
    assert restored(storage.crash(), found)[1] == []


def test_a_snapshot_of_very_many_files_syncs_none(files):
    for number in range(SYNCS_MAX + 1):
        files.append(f"index/{number}.idx", b"x")
    files.take_rows()
    assert files.waiting == SYNCS_MAX + 1


def test_few_files_are_open_however_many_are_read(files):
    for number in range(HANDLES_MAX * 2):
        files.append(f"index/{number}.idx", b"x")
    files.run_all()
    for number in range(HANDLES_MAX * 2):
        files.read(f"index/{number}.idx", 0, 1)
    assert len(files._handles) == HANDLES_MAX
    files.close()
    assert len(files._handles) == 0


def test_a_file_that_became_shorter_while_running_is_noticed(files, storage):
    files.append("index/a.idx", b"one")
    files.run_all()
    storage.open("index/a.idx", create=False).truncate(1)
    with pytest.raises(LogCorrupt, match="restart"):
        files.read("index/a.idx", 0, 3)


def test_no_room_at_open_is_a_clear_refusal(files, storage):
    files.append("index/a.idx", b"one")
    storage.plan.fail_next("write", FaultKind.ENOSPC)
    with pytest.raises(LogCorrupt, match="make room"):
        files.run_all()
