"""The reader of code blocks: what it takes for a command, and what it does not let pass."""

import pytest

from kit.snippets import Block, PageRun, SnippetFailed, blocks_of, commands_of, with_ports

PAGE = """\
# A page

```console
$ one --flag    # why
what it prints
$ two \\
    --more
```

<!-- not run: it needs a cluster -->
```sh
three
```

```python
four()
```
"""


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_blocks_have_their_kind_their_line_and_the_reason_right_before_them(page):
    found = [(block.line, block.kind, block.reason) for block in blocks_of(page)]
    assert found == [(3, "console", ""), (11, "sh", "it needs a cluster"), (15, "python", "")]
    assert [block.is_run for block in blocks_of(page)] == [True, False, True]


def test_commands_stand_behind_a_prompt_and_go_on_behind_a_backslash(page):
    console, plain, _ = blocks_of(page)
    assert list(commands_of(console)) == ["one --flag    # why", "two \\\n    --more"]
    assert list(commands_of(plain)) == ["three"]


def test_only_ports_of_the_docs_are_replaced():
    text = "curl localhost:15672/x 127.0.0.1:9876 127.0.0.1:99"
    replaced = with_ports(text, {"http": "127.0.0.1:1", "rocketmq": "127.0.0.1:2"})
    assert replaced == "curl localhost:1/x 127.0.0.1:2 127.0.0.1:99"


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (("sh", "echo oh; exit 3"), "ended with 3; it said:\noh"),
        (("sh", "true    # until Ctrl-C"), "did not last"),
        (("python", "raise ValueError('oh')"), "line 5, in <module>\nValueError: oh"),
        (("python", "def test_it(): assert 1 == 2"), "its test did not pass"),
    ],
)
def test_what_does_not_work_fails_with_its_place(page, tmp_path, monkeypatch, block, problem):
    monkeypatch.setattr(PageRun, "_endpoints", {})
    run = PageRun(page, tmp_path)
    with pytest.raises(SnippetFailed) as caught:
        run.run(Block(4, *block, ""))
    run.close()
    assert "page.md:5: " in str(caught.value)
    assert problem in str(caught.value)
