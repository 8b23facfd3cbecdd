"""Every code block of the README and of ``docs/*.md`` does what it says, as it is printed."""

from pathlib import Path

import pytest

from kit.snippets import PageRun, blocks_of

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if any(block.is_run for block in blocks_of(page))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run_as_printed(page, tmp_path):
    run = PageRun(page, tmp_path)
    try:
        for block in blocks_of(page):
            if block.is_run and not block.is_for_spark:
                run.run(block)
    finally:
        run.close()
