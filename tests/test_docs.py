"""Documentation that can be wrong by itself: links, and paths of files that were renamed."""

import ast
import re
from pathlib import Path

import pytest

from kit.snippets import KINDS as BLOCK_KINDS
from kit.snippets import RUN_KINDS, blocks_of
from penstock.demo.scenes import SCENES
from penstock.settings.load import KINDS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]*)(#[^)\s]*)?\)")
SOURCE_PATH = re.compile(
    r"`((?:model|settings|flow|wire|log|engine|adapters|telemetry|client|bulk|spark|server|cli|testing)/[\w/]+\.py)`"
)


def anchors(page):
    """The names by which headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page):
    broken = []
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        if target.startswith("http"):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target + anchor)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_file_a_page_names_exists(page):
    named = SOURCE_PATH.findall(page.read_text("utf-8"))
    assert [each for each in named if not (ROOT / "src/penstock" / each).exists()] == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_block_of_a_guide_says_what_it_is_so_that_it_runs_or_says_why_not(page):
    """Those that are to run do so in ``tests/interop/test_docs_snippets.py``."""
    blocks = blocks_of(page)
    assert [each.line for each in blocks if each.kind not in BLOCK_KINDS] == []
    lines = page.read_text("utf-8").splitlines()
    assert sum(line.startswith("```") for line in lines) == 2 * len(blocks), "blocks not understood"
    reasons = [number for number, line in enumerate(lines, 1) if line.startswith("<!--")]
    excused = [each for each in blocks if each.reason and each.kind in RUN_KINDS]
    assert reasons == [each.line - 1 for each in excused], "a reason stands right before its block"
    indented = [
        number
        for number in range(1, len(lines))
        if lines[number].startswith("    ") and not lines[number - 1].strip()
    ]
    inside = {each.line + step for each in blocks for step in range(each.text.count("\n"))}
    assert set(indented) - inside == set(), "an indented block: nobody runs it"


def rows_of_mechanisms():
    """The cells of every row of the tables with a scene column."""
    text = (ROOT / "docs/mechanisms.md").read_text("utf-8")
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    cells = [[each.strip() for each in row] for row in rows]
    return [row for row in cells if len(row) == 8 and row[1] != "what it does"]


def test_every_mechanism_says_where_it_lives_and_how_it_is_set_seen_and_tested():
    rows = rows_of_mechanisms()
    assert len(rows) > 15
    assert [row[1] for row in rows if not all(row[3:])] == []


def test_no_cell_of_the_mechanisms_names_the_same_twice():
    cells = [each.split(", ") for row in rows_of_mechanisms() for each in row[3:]]
    assert [each for each in cells if len(set(each)) < len(each)] == []


def test_every_metric_test_and_scene_named_in_the_mechanisms_exists():
    sources = (ROOT / "src/penstock/telemetry").glob("*metrics.py")
    exposed = "".join(each.read_text("utf-8") for each in sources)
    wrong = []
    for row in rows_of_mechanisms():
        metrics = re.findall(r"`(penstock_\w+)`", row[5])
        paths = re.findall(r"`(tests/\S+)`", row[6])
        scenes = [] if row[7] == "-" else row[7].split(", ")
        # A counter's samples end in _total, its family does not.
        wrong += [each for each in metrics if f'"{each.removesuffix("_total")}"' not in exposed]
        wrong += [each for each in paths if not (ROOT / each).exists()]
        wrong += [each for each in scenes if each not in SCENES]
    assert wrong == []


def test_every_setting_named_in_the_mechanisms_exists():
    text = (ROOT / "docs/mechanisms.md").read_text("utf-8")
    named = set(
        re.findall(
            r"`((?:flow|storage|topics|listeners|broker|rocketmq|pulsar|spark)\.[a-z_]+)`", text
        )
    )
    assert named - set(KINDS) == set()


def names_in_source():
    """Classes with what they have, and functions, of all of src."""
    classes, functions = {}, set()
    for path in (ROOT / "src/penstock").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.add(node.name)
            if isinstance(node, ast.ClassDef):
                has = classes.setdefault(node.name, set())
                has |= {each.name for each in node.body if hasattr(each, "name")}
                has |= {ast.unparse(each.target) for each in node.body if hasattr(each, "target")}
                text = ast.unparse(node)
                has |= set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? =", text))
    return classes, functions


def test_every_name_on_the_architecture_page_exists():
    """The page draws the journey of a message with the names of the code; it must not lie."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## Changes to the design")[0]
    classes, functions = names_in_source()
    wrong = []
    for each in re.findall(r"`([^`\n]+)`", text):
        if re.fullmatch(r"[A-Z]\w+\.\w+", each):
            kind, _, name = each.partition(".")
            wrong += [] if name in classes.get(kind, ()) else [each]
        elif re.fullmatch(r"\w+\(\)", each):
            wrong += [] if each[:-2] in functions else [each]
        elif re.fullmatch(r"[A-Z][a-z]\w*", each):
            wrong += [] if each in classes else [each]
        elif re.fullmatch(r"[\w/]+(\.py|/)", each):
            places = [ROOT / each, ROOT / "src/penstock" / each]
            wrong += [] if any(place.exists() for place in places) else [each]
    drawing = text.partition("```\nin ")[2].partition("```")[0]
    wrong += [each for each in re.findall(r"\b[A-Z]\w+", drawing) if each not in classes]
    assert wrong == []


def test_every_file_named_in_the_source_exists():
    """Beside the file that names it, or by a path that ends so."""
    known = {f"/{each.relative_to(ROOT)}" for each in ROOT.glob("[bdst]*/**/*.py")}
    wrong = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name in set(re.findall(r"``?([\w/]+\.py)``?", path.read_text("utf-8"))):
            is_known = "/" in name and any(each.endswith(f"/{name}") for each in known)
            if not is_known and not (path.parent / name).exists():
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert wrong == []
