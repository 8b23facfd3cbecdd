"""The Python blocks of the README and of ``docs/*.md`` that are about Spark, as printed."""

from pathlib import Path

import pytest

from kit.snippets import blocks_of, with_ports

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if any(block.is_for_spark for block in blocks_of(page))
]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_spark_snippets_of_a_page_run_as_printed(page, bench, admin, publish):
    admin.create_topic("orders", queues=1)
    publish("orders", 1)
    names = {}
    for block in blocks_of(page):
        if block.is_for_spark:
            # The JVM of the session was started elsewhere: paths are below the test's directory.
            text = block.text.replace('"out/', f'"{bench.directory}/out/')
            source = with_ports(text, {"flight": bench.endpoint})
            exec(compile(source, page.name, "exec"), names)
    assert names["orders"].isStreaming
    query = names.get("query")
    if query is not None:
        query.processAllAvailable()
        query.stop()
        rows = bench.spark.read.parquet(str(bench.directory / "out" / "orders")).collect()
        assert {row["body"] for row in rows} == {"0"}
    written = names.get("written")
    if written is not None:
        written.processAllAvailable()
        written.stop()
        seen = [bytes(row.body) for row in bench.table(topics="seen").collect()]
        offsets = range(bench.table(topics="orders").count())
        assert sorted(seen) == [b'{"topic":"orders","offset":%d}' % each for each in offsets]
