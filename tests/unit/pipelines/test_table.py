"""A table: whatever is cut off where, a file is in it once or not at all."""

import contextlib
import json
import os
import stat

import pytest

from penstock.pipelines.table import (
    Batch,
    StagedFile,
    Table,
    TableError,
    file_name,
    partition_path,
    partition_values,
)

NOBODY = 65534


@pytest.fixture
def table(tmp_path):
    made = Table(tmp_path / "out" / "orders")
    made.open()
    return made


def staged(table, batch, *names, attempt="a", writer="w", where=""):
    place = table.staging(writer, batch, f"{attempt}{batch}")
    files = []
    for number, name in enumerate(names):
        path = place / f"{number}.staged"
        path.write_bytes(name.encode())
        files.append(
            StagedFile(
                staged=str(path.relative_to(table.control)),
                path=f"{where}{name}.parquet",
                rows=len(name),
                bytes=len(name),
            )
        )
    return Batch(writer=writer, batch=batch, files=tuple(files), letters=("l",))


def visible(table):
    return sorted(str(each) for each in table.files())


def left_over(table):
    return sorted(each.name for each in table.control.rglob("*.staged"))


def test_nothing_is_seen_before_it_is_published_and_nothing_but_parquet_is_in_the_table(table):
    batch = staged(table, 0, "one", "two", where="day=1/")
    table.prepare(batch)
    assert visible(table) == []
    assert table.prepared("w") == batch
    table.publish(batch)
    table.done(batch)
    assert visible(table) == ["day=1/one.parquet", "day=1/two.parquet"]
    assert {each.suffix for each in table.path.rglob("*") if each.is_file()} == {".parquet"}
    assert (table.prepared("w"), table.last_done("w"), left_over(table)) == (None, 0, [])


def test_publishing_goes_on_where_it_was_cut_off(table):
    batch = staged(table, 3, "one", "two")
    table.prepare(batch)
    (table.control / batch.files[0].staged).rename(table.path / "one.parquet")
    again = table.prepared("w")
    table.publish(again)
    table.publish(again)
    table.done(again)
    assert visible(table) == ["one.parquet", "two.parquet"]


def test_a_batch_whose_files_somebody_deleted_is_told(table):
    batch = staged(table, 3, "one")
    table.prepare(batch)
    (table.control / batch.files[0].staged).unlink()
    with pytest.raises(TableError, match=r"one\.parquet of batch 3 is neither in table"):
        table.publish(batch)


def test_a_later_batch_removes_what_lost_attempts_of_earlier_ones_left(table):
    staged(table, 0, "lost", attempt="x")
    batch = staged(table, 0, "kept")
    staged(table, 1, "later", attempt="y")
    table.prepare(batch)
    table.publish(batch)
    table.done(batch)
    assert visible(table) == ["kept.parquet"]
    assert len(left_over(table)) == 1


def test_a_start_removes_what_an_uncommitted_batch_left_but_not_what_is_decided(table):
    decided = staged(table, 5, "decided")
    table.prepare(decided)
    staged(table, 5, "lost", attempt="x")
    staged(table, 5, "others", writer="v")
    assert table.clean("w") == 1
    assert len(left_over(table)) == 2
    table.publish(decided)
    table.done(decided)
    assert visible(table) == ["decided.parquet"]


def test_a_withdrawn_batch_leaves_the_files_of_other_attempts_alone(table):
    first, second = staged(table, 5, "one"), staged(table, 5, "one", attempt="b")
    table.prepare(first)
    table.withdraw(first)
    assert table.prepared("w") is None
    table.prepare(second)
    table.publish(second)
    assert visible(table) == ["one.parquet"]


def test_the_last_batch_may_come_again_an_older_one_means_a_rewound_checkpoint(table):
    for number in (0, 1, 2):
        batch = staged(table, number, f"f{number}")
        assert not table.check("w", number)
        table.prepare(batch)
        table.publish(batch)
        table.done(batch)
    assert table.check("w", 2)
    assert not table.check("w", 3)
    with pytest.raises(TableError, match=r"batch 1 comes for table .* which has batch 2"):
        table.check("w", 1)
    assert not table.check("another", 1)


def test_only_the_newest_batches_are_kept_as_records(table, monkeypatch):
    monkeypatch.setattr("penstock.pipelines.table.BATCHES_KEPT", 3)
    for number in range(5):
        batch = staged(table, number, f"f{number}")
        table.prepare(batch)
        table.publish(batch)
        table.done(batch)
    kept = sorted(each.name for each in (table.control / "batches" / "w").iterdir())
    assert kept == ["000000002.json", "000000003.json", "000000004.json"]


def test_writers_have_generations_and_their_files_sort_in_the_order_of_rows(table):
    assert table.register("w", flow="a") == 1
    assert table.register("v", flow="b") == 2
    assert table.register("w", flow="a", left=True) == 1
    assert table.writers()["w"] == {"flow": "a", "left": True, "generation": 1}
    names = [file_name(g, b, t, 0, "abcdef123") for g in (1, 2) for b in (9, 10) for t in (0, 11)]
    assert names == sorted(names)


def test_a_record_of_another_version_is_not_guessed_at(table):
    batch = staged(table, 0, "one")
    table.prepare(batch)
    path = table.control / "batches" / "w" / "000000000.prepared"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(TableError, match="another version of Penstock"):
        table.prepared("w")


@pytest.mark.parametrize("value", ["orders", "eu/orders", "a=b c%", "täg", "..", "", None])
def test_partition_values_read_back(value):
    path = partition_path([("topic", value), ("day", "2026-01-31")])
    assert path.count("/") == 1
    assert partition_values(f"{path}/x.parquet") == {"topic": value, "day": "2026-01-31"}


@contextlib.contextmanager
def closed(place):
    """Whoever goes on may not look into the place: root becomes somebody else for that."""
    is_root = os.geteuid() == 0
    place.chmod(stat.S_IRWXU if is_root else 0)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        place.chmod(stat.S_IRWXU)


def test_a_place_that_cannot_be_a_table_is_told_without_touching_it(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for place in (file, file / "below"):
        with pytest.raises(TableError, match=rf"{place} cannot .*is no directory \({file}\); give"):
            Table(place).check_place()
        with pytest.raises(TableError, match=rf"{place} cannot be written: .*; give"):
            Table(place).open()
    Table(tmp_path / "new" / "table").check_place()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_place_of_others_is_told_without_touching_it(tmp_path):
    theirs = tmp_path / "theirs"
    (theirs / "table").mkdir(parents=True)
    with closed(theirs):
        for place in (theirs / "new", theirs / "table", theirs / "a" / "b"):
            with pytest.raises(
                TableError, match=rf"{place} cannot .*not yours to write to .*; give"
            ):
                Table(place).check_place()
            with pytest.raises(
                TableError, match=rf"{place} cannot be written: Permission .*; give"
            ):
                Table(place).open()
    assert [each.name for each in theirs.iterdir()] == ["table"]
