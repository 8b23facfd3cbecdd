import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.pipelines.archive_source import (
    ArchiveError,
    ArchiveFile,
    ArchiveSource,
    Pace,
    Part,
    parts_between,
)


@pytest.fixture
def archive(tmp_path):
    """Two topics, three files, nine rows; files are in the order of their names."""
    for topic, name, first, count in (
        ("a", "0001", 0, 4),
        ("b", "0002", 4, 2),
        ("a", "0003", 6, 3),
    ):
        place = tmp_path / "archive" / f"topic={topic}"
        place.mkdir(parents=True, exist_ok=True)
        rows = pa.table({"n": list(range(first, first + count))})
        pq.write_table(rows, place / f"{name}.parquet", row_group_size=2)
    return tmp_path / "archive"


@pytest.fixture
def reader(archive, tmp_path):
    """``reader(rate=...)``: a source as Spark makes it."""

    def reader(**options):
        given = {"archive": str(archive), "state": str(tmp_path / "state"), **options}
        source = ArchiveSource(given)
        return pickle.loads(pickle.dumps(source.streamReader(source.schema())))

    return reader


def rows(reader, start, end):
    cut = reader.partitions({"row": start}, {"row": end})
    batches = [batch for part in cut for batch in reader.read(part)]
    found = pa.Table.from_batches(batches)
    return list(zip(found["n"].to_pylist(), found["topic"].to_pylist(), strict=True))


def test_parts_cover_a_range_exactly():
    files = [ArchiveFile("a", 4), ArchiveFile("b", 0), ArchiveFile("c", 3)]
    assert parts_between(files, 0, 7) == [Part("a", 0, 4), Part("c", 0, 3)]
    assert parts_between(files, 2, 5) == [Part("a", 2, 4), Part("c", 0, 1)]
    assert parts_between(files, 4, 4) == []


def test_rows_come_in_the_order_in_which_they_were_archived_with_their_partition(reader):
    made = reader()
    assert made.initialOffset() == {"version": 1, "row": 0}
    assert made.reportLatestOffset()["row"] == 9
    whole = [(n, "b" if n in (4, 5) else "a") for n in range(9)]
    assert rows(made, 0, 9) == whole
    assert rows(made, 3, 7) == whole[3:7]
    assert rows(reader(tasks="3"), 0, 9) == whole
    assert made.partitions({"row": 9}, {"row": 9}) == []


def test_batches_are_limited_and_end_with_the_archive(reader):
    made = reader(maxRows="4")
    ends, at = [], made.initialOffset()
    while (end := made.latestOffset(at, ReadMaxRows(4))) != at:
        ends.append(end["row"])
        at = end
    assert ends == [4, 8, 9]


def test_a_replay_goes_on_with_the_files_it_began_with(reader, archive, tmp_path):
    assert reader().total == 9
    pq.write_table(pa.table({"n": [9]}), archive / "topic=a" / "0004.parquet")
    assert reader().total == 9
    (archive / "topic=b" / "0002.parquet").unlink()
    with pytest.raises(ArchiveError, match="is gone since the replay began"):
        rows(reader(), 0, 9)
    with pytest.raises(ArchiveError, match="this replay began with"):
        reader(archive=str(tmp_path)).initialOffset()
    with pytest.raises(ArchiveError, match="no Parquet file in"):
        reader(archive=str(tmp_path / "x"), state=str(tmp_path / "other"))


def test_a_paused_replay_offers_nothing(reader, tmp_path):
    place = tmp_path / "pause"
    made = reader(pauseFile=str(place))
    place.touch()
    assert made.latestOffset({"row": 2}, ReadMaxRows(5)) == {"row": 2}
    assert place.read_text() == "paused"


def test_a_rate_is_kept_over_many_batches():
    now, rests = [0.0], []

    def rest(seconds):
        rests.append(seconds)
        now[0] += seconds

    pace = Pace(1000, 100_000, clock=lambda: now[0], rest=rest)
    given = 0
    while now[0] < 10:
        given += pace.take(1_000_000)
        now[0] += 0.3
    assert given == pytest.approx(1000 * now[0], rel=0.1)
    now[0] += 1000
    assert pace.take(1_000_000) == 2000
    assert Pace(0, 50, clock=lambda: 0.0, rest=rest).take(80) == 50
    assert Pace(0.5, 50, clock=lambda: now[0], rest=rest).take(80) == 1
