import threading

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipelines import compaction
from penstock.pipelines import table as tables
from penstock.pipelines.compaction import compact, exchanged, plan
from penstock.pipelines.table import Batch, StagedFile, Table, TableError, read_batch


@pytest.fixture
def table(tmp_path):
    made = Table(tmp_path / "t")
    made.open()
    return made


def write(place, name, *numbers):
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": list(numbers)}), place / f"{name}.parquet", compression="zstd")


def numbers(table):
    sql = f"SELECT n FROM '{table.path}/**/*.parquet'"
    return sorted(row[0] for row in duckdb.sql(sql).fetchall())


def test_neighbours_are_merged_up_to_the_target_and_large_files_stay():
    sizes = [("a", 10), ("b", 10), ("c", 60), ("d", 10), ("e", 45), ("f", 45), ("g", 20)]
    assert plan(sizes, 100) == [["a", "b"], ["d", "e", "f"]]
    assert plan([("a", 10)], 100) == plan([], 100) == []
    assert [len(each) for each in plan([(str(n), 0) for n in range(2500)], 10)] == [1000, 1000, 500]


def test_small_files_become_one_and_every_row_is_there_once_in_its_order(table):
    for day in (1, 2):
        for number in range(5):
            write(table.path / f"day={day}", f"000{number}", 10 * day + number, 100 + number)
    before = numbers(table)
    done = compact(table)
    assert (done.directories, done.before, done.after, done.rows) == (2, 10, 2, 20)
    assert numbers(table) == before
    (file,) = (table.path / "day=1").iterdir()
    assert pq.read_table(file).column("n").to_pylist()[::2] == [10, 11, 12, 13, 14]
    assert file.name.startswith("0000+4-")
    assert compact(table).before == 0
    assert not (table.control / "exchange").exists()


def test_a_table_without_partitions_is_exchanged_as_a_whole(table):
    for number in range(3):
        write(table.path, f"000{number}", number)
    assert compact(table).after == 1
    assert numbers(table) == [0, 1, 2]


def test_what_is_published_while_files_are_merged_is_there_afterwards(table):
    for number in range(3):
        write(table.path, f"000{number}", number)

    class Late(Table):
        def locked(self):
            # As a flow would that published just before the exchange took the lock.
            write(self.path, "0009", 9)
            return table.locked()

    compact(Late(table.path))
    assert numbers(table) == [0, 1, 2, 9]


def test_files_of_a_batch_that_is_being_published_are_left_alone(table):
    for number in range(3):
        write(table.path, f"000{number}", number)
    file = StagedFile(staged="staged/w/x", path="0002.parquet", rows=1, bytes=1)
    table.prepare(Batch(writer="w", batch=7, files=(file,)))
    assert compact(table).before == 2
    assert (table.path / "0002.parquet").exists()
    assert numbers(table) == [0, 1, 2]


def test_a_batch_that_ends_while_its_decision_is_read_is_done(table, monkeypatch):
    write(table.path, "0000", 0)
    table.prepare(Batch(writer="w", batch=7))

    def read(path):
        table.done(Batch(writer="w", batch=7))
        return read_batch(path)

    monkeypatch.setattr(tables, "read_batch", read)
    assert table.undecided_paths() == set()


def test_a_batch_that_is_published_between_two_looks_is_left_alone(table):
    """Merged and then killed before it was done, its flow would miss its file for good."""
    for number in range(3):
        write(table.path, f"000{number}", number)
    (table.control / "staged" / "w").mkdir()
    write(table.control / "staged" / "w", "x", 9)
    file = StagedFile(staged="staged/w/x.parquet", path="0009.parquet", rows=1, bytes=1)
    batch = Batch(writer="w", batch=7, files=(file,))

    class Early(Table):
        def undecided_paths(self):
            found = super().undecided_paths()
            if table.prepared("w") is None:
                table.prepare(batch)
                table.publish(batch)
            return found

    assert compact(Early(table.path)).before == 3
    assert numbers(table) == [0, 1, 2, 9]
    table.publish(batch)
    table.done(batch)
    assert numbers(table) == [0, 1, 2, 9]


def test_a_compaction_that_was_killed_leaves_nothing_that_counts(table):
    for number in range(3):
        write(table.path, f"000{number}", number)

    def killed(one, other):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(table, exchange=killed)
    assert numbers(table) == [0, 1, 2]

    def killed_later(one, other):
        exchanged(one, other)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(table, exchange=killed_later)
    assert numbers(table) == [0, 1, 2]
    table.open()
    assert not (table.control / "exchange").exists()


def test_readers_never_see_a_row_twice_or_miss_one(table):
    for number in range(40):
        write(table.path, f"{number:04d}", number)
    seen, ended = [], threading.Event()

    def read():
        while not ended.is_set():
            names = sorted(table.path.glob("*.parquet"))
            try:
                seen.append(sum(pq.read_metadata(each).num_rows for each in names))
            except FileNotFoundError:
                continue

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for target in (600, 2000, 1 << 20):
            compact(table, target_bytes=target)
    finally:
        ended.set()
        reader.join()
    assert set(seen) == {40}
    assert numbers(table) == [*range(40)]


def test_other_columns_are_not_merged_and_strangers_tables_are_not_touched(table, tmp_path):
    write(table.path, "0000", 1)
    pq.write_table(pa.table({"m": [1]}), table.path / "0001.parquet")
    with pytest.raises(TableError, match="has other columns than"):
        compact(table)
    write(tmp_path / "other", "0000", 1)
    with pytest.raises(TableError, match="is no table of a flow"):
        compact(Table(tmp_path / "other"))
    with table.compacting(), pytest.raises(TableError, match="by somebody else"):
        compact(table)


@pytest.mark.parametrize("content", [b"", b"no parquet at all", b"PAR1" + bytes(40) + b"PAR1"])
@pytest.mark.parametrize("name", ["0000", "0001"])
def test_a_broken_file_is_named_in_a_sentence_and_nothing_changes(table, name, content):
    for number in range(3):
        write(table.path, f"000{number}", number)
    (table.path / f"{name}.parquet").write_bytes(content)
    with pytest.raises(TableError, match=rf"{name}\.parquet cannot be read as Parquet: .*; the"):
        compact(table)
    assert len(list(table.path.iterdir())) == 3


def test_a_place_that_takes_nothing_is_told(table):
    for number in range(3):
        write(table.path, f"000{number}", number)
    (table.control / "exchange").write_text("in the way")
    with pytest.raises(TableError, match=r"cannot be written: .*; mend the place"):
        compact(table)


def test_a_merged_file_has_row_groups_that_are_bounded_by_bytes_too(table, monkeypatch):
    bodies = pa.table({"body": [b"x" * 1000] * 100})
    for number in range(4):
        pq.write_table(bodies, table.path / f"000{number}.parquet", row_group_size=20)
    size = bodies.nbytes // 100
    monkeypatch.setattr(compaction, "GROUP_BYTES", 50 * size)
    monkeypatch.setattr(compaction, "ROWS_PER_GROUP", 100)
    assert compact(table).rows == 400
    (file,) = table.path.glob("*.parquet")
    found = pq.read_metadata(file)
    rows = [found.row_group(each).num_rows for each in range(found.num_row_groups)]
    assert (max(rows), sum(rows)) == (40, 400)
