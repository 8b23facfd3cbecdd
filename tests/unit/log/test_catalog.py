import threading

import pytest

from penstock.log.catalog import SqliteCatalog
from penstock.model.errors import AppendFailed, LogCorrupt


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalog.db"


def test_rows_are_found_again_by_the_next_process(path):
    catalog = SqliteCatalog(path)
    assert catalog.load() == {}
    catalog.apply([("topic", "a", b"1"), ("topic", "b", b"2"), ("queue", "a", b"3")])
    catalog.apply([("topic", "a", None), ("topic", "b", b"22")])
    catalog.close()
    again = SqliteCatalog(path)
    assert again.load() == {("topic", "b"): b"22", ("queue", "a"): b"3"}
    again.close()


def test_a_commit_is_durable_without_a_close(path):
    catalog = SqliteCatalog(path)
    catalog.apply([("topic", "a", b"1")])
    again = SqliteCatalog(path)
    assert again.load() == {("topic", "a"): b"1"}
    again.close()
    catalog.close()


def test_it_runs_with_a_sync_for_each_transaction(path):
    catalog = SqliteCatalog(path)
    catalog.load()
    assert catalog._connect().execute("PRAGMA synchronous").fetchone() == (2,)
    assert catalog._connect().execute("PRAGMA journal_mode").fetchone() == ("wal",)
    catalog.close()


def test_a_transaction_is_all_or_nothing(path):
    catalog = SqliteCatalog(path)
    catalog.apply([("topic", "a", b"1")])
    with pytest.raises(UnicodeEncodeError):
        catalog.apply([("topic", "b", b"2"), ("topic", "\ud800", b"3")])
    assert catalog.load() == {("topic", "a"): b"1"}
    catalog.apply([("topic", "c", b"4")])
    assert len(catalog.load()) == 2
    catalog.close()


def test_another_thread_may_apply(path):
    catalog = SqliteCatalog(path)
    catalog.load()
    thread = threading.Thread(target=catalog.apply, args=([("topic", "a", b"1")],))
    thread.start()
    thread.join()
    assert catalog.load() == {("topic", "a"): b"1"}
    catalog.close()


def test_a_full_disk_is_told_from_other_failures(path):
    catalog = SqliteCatalog(path)
    catalog.load()
    catalog._connect().execute("PRAGMA max_page_count = 4")
    with pytest.raises(AppendFailed, match="no room"):
        catalog.apply([("topic", "a", bytes(100_000))])
    assert catalog.load() == {}
    catalog.close()


def test_a_scrambled_file_is_refused_with_advice(path):
    catalog = SqliteCatalog(path)
    catalog.apply([("topic", str(i), bytes(100)) for i in range(100)])
    catalog.close()
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(LogCorrupt, match="backup"):
        SqliteCatalog(path).load()


def test_a_flipped_bit_inside_a_row_is_refused(path):
    catalog = SqliteCatalog(path)
    catalog.apply([("topic", "a", b"the body of the row")])
    catalog.close()
    content = path.read_bytes()
    assert content.count(b"the body of the row") == 1
    path.write_bytes(content.replace(b"the body of the row", b"the bodY of the row"))
    with pytest.raises(LogCorrupt, match="row topic a fails its checksum"):
        SqliteCatalog(path).load()
