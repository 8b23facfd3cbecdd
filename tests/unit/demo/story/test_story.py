"""What counts as written by Spark, and whether its sums are those of its rows."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.demo.story.story import committed_files, count_again, read_orders

SECOND_US = 1_000_000


def write(directory, name, columns, *, batch=0, is_committed=True):
    """One file, and the line of the sink's log that makes it count."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    times = {"timestamp", "start"} & set(columns)
    kinds = {each: pa.timestamp("us", "UTC") for each in times}
    table = {key: pa.array(value, kinds.get(key)) for key, value in columns.items()}
    parquet.write_table(pa.table(table), path)
    if is_committed:
        log = directory / "_spark_metadata"
        log.mkdir(exist_ok=True)
        entry = json.dumps({"path": path.as_uri(), "action": "add"})
        (log / str(batch)).write_text(f"v1\n{entry}\n")


def rows(numbers, *, at_us=7 * SECOND_US, item="cup", amount=10):
    count = len(numbers)
    return {
        "id": numbers,
        "item": [item] * count,
        "amount": [amount] * count,
        "timestamp": [at_us] * count,
    }


def sums(count, revenue, *, start_us=5 * SECOND_US, item="cup"):
    return {"start": [start_us], "item": [item], "orders": [count], "revenue": [revenue]}


def test_rows_and_sums_that_agree_are_good(tmp_path):
    write(tmp_path / "rows", "a b.parquet", rows([1, 2, 3]))
    write(tmp_path / "rows", "c.parquet", rows([4], at_us=12 * SECOND_US), batch=1)
    write(tmp_path / "sums", "d.parquet", sums(3, 30))
    found = count_again(tmp_path)
    assert sorted(found.numbers) == [1, 2, 3, 4]
    assert (found.windows, found.wrong_windows, found.revenue) == (1, 0, 40)


def test_a_file_that_was_not_committed_does_not_count(tmp_path):
    write(tmp_path / "rows", "a.parquet", rows([1]))
    write(tmp_path / "rows", "torn.parquet", rows([1, 2]), is_committed=False)
    assert [each.name for each in committed_files(tmp_path / "rows")] == ["a.parquet"]


def test_a_file_that_a_compacted_batch_names_again_counts_once(tmp_path):
    write(tmp_path / "rows", "a.parquet", rows([1]), batch=8)
    log = tmp_path / "rows/_spark_metadata"
    (log / "9.compact").write_text((log / "8").read_text())
    (log / ".9.compact.crc").write_bytes(b"\xff\x00")
    assert len(committed_files(tmp_path / "rows")) == 1


@pytest.mark.parametrize(("count", "revenue"), [(2, 30), (3, 29)])
def test_sums_that_differ_from_the_rows_are_wrong(tmp_path, count, revenue):
    write(tmp_path / "rows", "a.parquet", rows([1, 2, 3]))
    write(tmp_path / "sums", "d.parquet", sums(count, revenue))
    assert count_again(tmp_path).wrong_windows == 1


def test_a_window_that_was_written_twice_is_wrong(tmp_path):
    write(tmp_path / "rows", "a.parquet", rows([1]))
    for batch in (0, 1):
        write(tmp_path / "sums", f"{batch}.parquet", sums(1, 10), batch=batch)
    assert count_again(tmp_path).wrong_windows == 1


def test_nothing_written_is_nothing_found(tmp_path):
    assert count_again(tmp_path).numbers == []


def test_an_order_that_spark_wrote_twice_counts_twice():
    bodies = [b'{"id": 7, "item": "cup", "amount": 16000}'] * 2
    assert read_orders([*bodies, b'{"id": 8, "item": "cup", "amount": 20000}']) == {
        (7, 16000): 2,
        (8, 20000): 1,
    }
