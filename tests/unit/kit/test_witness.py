from kit.witness import SyncWitness
from penstock.testing.storage import MemoryStorage


def test_written_bytes_are_durable_only_after_their_sync_returned():
    witness = SyncWitness(MemoryStorage())
    file = witness.open("a", create=True)
    file.write(b"1234")
    witness.sync_dir("")
    assert not witness.is_durable("a", 4)
    file.sync()
    assert witness.is_durable("a", 4)
    file.write(b"5")
    assert not witness.is_durable("a", 5)


def test_a_synced_file_without_a_synced_name_is_not_durable():
    witness = SyncWitness(MemoryStorage())
    file = witness.open("a", create=True)
    file.write(b"1")
    file.sync()
    assert not witness.is_durable("a", 1)
    witness.sync_dir("")
    assert witness.is_durable("a", 1)
    witness.rename("a", "b")
    assert not witness.is_durable("b", 1)


def test_bytes_written_while_a_sync_runs_are_not_covered_by_it():
    storage = MemoryStorage()
    witness = SyncWitness(storage)
    storage.open("a", create=True)
    file = witness.open("a", create=False)
    file.write(b"1")
    inner = file._file

    class Slow:
        size = staticmethod(inner.size)
        write = staticmethod(inner.write)

        def sync(self):
            inner.write(b"late")

    file._file = Slow()
    file.sync()
    assert witness.is_durable("a", 1)
    assert not witness.is_durable("a", 2)
